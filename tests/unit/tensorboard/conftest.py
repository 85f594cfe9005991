"""A folder of runs as they are found: whole, half-written, damaged, nested, with names that try something."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from found_runs import HOSTILE

from dlprof import api
from dlprof.analysis.steps import find_steps
from dlprof.formats import run_file
from dlprof.formats.trace_writer import write_trace

RECORDED = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all that belongs to it, without PDF."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copy(RECORDED / "text-2-workers" / run_file.NAME, folder)
    api.report_again(folder, folder=folder, formats=("html", "json"))
    profile = run_file.load(folder / run_file.NAME)
    write_trace(profile, folder / "here_1.2.pt.trace.json.gz", None, find_steps(profile))
    return folder


@pytest.fixture
def another(made: Path) -> Callable[..., Path]:
    """Makes one more run: a copy of the made one, with another step time, date and verdict where these are given."""

    def make(folder: Path, *, step_ms: float | None = None, created: str = "", bottleneck: str = "") -> Path:
        shutil.copytree(made, folder)
        report = json.loads((folder / "report.json").read_bytes())
        if step_ms is not None:
            report["step"]["mean_ms"] = step_ms
        if created:
            report["created"] = created
        if bottleneck:
            report["verdict"] |= {"bottleneck": bottleneck, "component": None}
        (folder / "report.json").write_text(json.dumps(report))
        return folder

    return make


@pytest.fixture
def root(tmp_path: Path, another: Callable[..., Path]) -> Path:
    """Runs: ``good``, ``tune/trial-1``, one with a hostile name, ``saved``, ``recording``, ``damaged``, ``cut``."""
    root = tmp_path / "runs"
    another(root / "good", created="2026-02-01T10:00:00+00:00")
    another(root / "tune" / "trial-1", step_ms=5.0, created="2026-03-01T10:00:00+00:00", bottleneck="h2d_copy")
    another(root / HOSTILE, created="2026-01-01T10:00:00+00:00")
    hostile = (root / HOSTILE / "report.html").read_text()
    (root / HOSTILE / "report.html").write_text(hostile.replace("<main", "<script>alert(2)</script><main"))
    saved = another(root / "saved")
    (saved / "report.json").unlink()
    (saved / "report.html").unlink()
    (root / "recorded" / "recording").mkdir(parents=True)
    (root / "recorded" / "recording" / "settings.json").write_text("{}")
    damaged = another(root / "damaged")
    (damaged / "report.json").write_text('{"schema": "dlprof.report/1", "dlprof"')
    cut = root / "cut"
    cut.mkdir()
    (cut / run_file.NAME).write_bytes(gzip.compress(b"half")[:-4])
    (root / "notes").mkdir()
    (root / "notes" / "secret.txt").write_text("secret")
    return root
