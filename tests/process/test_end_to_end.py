"""`dlprof run` on the bundled examples and on small scripts: from an unedited script to every report."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import dlprof
from dlprof.formats.report_json import SCHEMA_FILE
from dlprof.model.kinds import Component

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCHEMA = json.loads((Path(dlprof.__file__).with_name("schema") / SCHEMA_FILE).read_text())
TIME_LIMIT_S = 240
QUICK_TEXT = ("--documents", "300")
# The other documents take seconds to write, and the first run makes them all; the trace is another test's.
QUICK_REPORT = ("--format", "json", "--trace-steps", "2")


@dataclass(frozen=True)
class Done:
    """A finished run of dlprof."""

    status: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_text())

    @property
    def verdict(self) -> tuple[str, str | None]:
        verdict = self.report["verdict"]
        return verdict["bottleneck"], verdict["component"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def run_in(folder: Path, cache: Path, *arguments: str, env: dict[str, str] | None = None) -> Done:
    """Run ``dlprof run`` in a folder; what it reports is checked."""
    out = folder / "run"
    command = [sys.executable, "-m", "dlprof", "run", "--out", str(out), *arguments]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)} | (env or {})
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    found = Done(done.returncode, done.stdout, done.stderr, out)
    assert_sound(found.report)
    return found


@pytest.fixture
def dlprof_run(tmp_path: Path, cache: Path) -> Callable[..., Done]:
    """Runs ``dlprof run`` in an empty folder; whatever it reports is checked."""
    return functools.partial(run_in, tmp_path, cache)


def assert_sound(report: dict[str, Any]) -> None:
    """What must hold in every report."""
    jsonschema.validate(report, SCHEMA)
    mean = report["step"]["mean_ms"]
    if mean is not None:
        assert sum(row["ms_per_step"] for row in report["budget"]) == pytest.approx(mean, rel=1e-3)
        share = {row["cause"]: row["share"] for row in report["budget"]}
        assert sum(share.values()) == pytest.approx(1)
        if report["run"]["steps_traced"]:
            assert share["other"] <= 0.05
    if report["input"]:
        assert set(report["input"]["per_batch_ms"]) <= {str(component) for component in Component}
    assert report["overhead"]["lost_spans"] == 0


def own_ms_per_step(stdout: str) -> list[float]:
    return [float(found) for found in re.findall(r"([\d.]+) ms/step", stdout)]


@pytest.mark.quiet
def test_text_with_no_workers_is_bound_by_the_tokenizer(dlprof_run) -> None:
    done = dlprof_run(
        "--format", "html,pdf,json,md,txt", str(EXAMPLES / "train_text.py"), "--steps", "30", "--log-every", "5"
    )
    assert done.status == 0
    assert done.verdict == ("cpu_preprocessing", "tokenizer")
    report = done.report
    assert report["run"]["exit"] == {"status": 0, "reason": "steps-reached", "detail": None}
    assert (report["run"]["steps_measured"], report["run"]["steps_traced"]) == (30, 10)
    advised = {advice["id"]: advice for advice in report["advice"]}
    assert advised["pretokenize-dataset"]["speedup"][1] > 1.3
    # The script's own times of steps 5 to 35, which were measured and not traced.
    own = own_ms_per_step(done.stdout)[1:7]
    assert report["step"]["mean_ms"] == pytest.approx(sum(own) / len(own), rel=0.05)
    names = {path.name for path in done.folder.iterdir()}
    assert {"run.dlprof", "report.html", "report.pdf", "report.json", "report.md", "report.txt"} <= names
    assert [name for name in names if name.endswith(".pt.trace.json.gz")]
    assert "recording" not in names
    assert done.stderr.splitlines()[-1] == str(done.folder / "report.html")


@pytest.mark.quiet
def test_a_command_and_options_before_the_script_find_the_same(dlprof_run) -> None:
    script = str(EXAMPLES / "train_text.py")
    done = dlprof_run("--steps", "20", *QUICK_REPORT, "--", sys.executable, script, "--log-every", "10")
    assert done.verdict == ("cpu_preprocessing", "tokenizer")


@pytest.mark.quiet
def test_a_module_is_run_and_keeps_its_own_steps_option(dlprof_run, tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text((EXAMPLES / "train_text.py").read_text())
    done = dlprof_run(*QUICK_REPORT, "-m", "trainer", "--steps", "40", "--", "--steps", "20", "--log-every", "1")
    assert done.status == 0
    assert done.verdict == ("cpu_preprocessing", "tokenizer")
    # The script's own --steps 20 ended it before the 47 steps that dlprof waited for.
    assert done.report["run"]["exit"]["reason"] == "script-ended"
    assert "weights sha256" in done.stdout
    assert "fewer-steps" in {notice["slug"] for notice in done.report["notices"]}


@pytest.mark.quiet
def test_ready_ids_and_a_larger_model_are_bound_by_compute(dlprof_run) -> None:
    script = str(EXAMPLES / "train_text.py")
    options = ("--tokenize", "ahead", "--model-size", "large", *QUICK_TEXT)
    done = dlprof_run("--format", "json", "--trace-steps", "3", script, "--steps", "10", *options)
    assert done.verdict == ("device_compute", "compute")
    assert [advice["id"] for advice in done.report["advice"]] == ["stop-tuning-input"]


@pytest.mark.quiet
def test_images_with_no_workers_are_bound_by_decoding(dlprof_run) -> None:
    done = dlprof_run(*QUICK_REPORT, str(EXAMPLES / "train_images.py"), "--steps", "20")
    assert done.verdict == ("cpu_preprocessing", "decode")
    parts = done.report["input"]["per_batch_ms"]
    # Known by timing the calls alone: decoding such a file takes about twice as long as its transforms.
    assert parts["decode"]["mean"] > parts["transform"]["mean"]


WHOLE_SCRIPT = (
    str(EXAMPLES / "train_text.py"),
    *("--documents", "120", "--characters", "4000", "--epochs", "2"),
)


@pytest.fixture(scope="module")
def plain(cache: Path) -> subprocess.CompletedProcess[str]:
    """The script without dlprof; with workers, it prints the same."""
    return subprocess.run(
        [sys.executable, *WHOLE_SCRIPT, "--workers", "0"],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )


@pytest.mark.parametrize("workers", ["0", "2"])
def test_all_steps_leave_output_and_status_as_they_are(dlprof_run, plain, workers: str) -> None:
    done = dlprof_run("--format", "json", "--steps", "all", *WHOLE_SCRIPT, "--workers", workers)
    without_times = re.compile(r"[\d.]+ ms/step")
    assert without_times.sub("", done.stdout) == without_times.sub("", plain.stdout)
    assert done.status == plain.returncode == 0
    assert done.report["run"]["exit"]["reason"] == "script-ended"


NOTHING = "print('hello')\n"
SYNTAX = "def f(:\n"
LOOP = """
import sys
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(torch.randn(80, 4), batch_size=4):
    model(batch).sum().backward()
    optimizer.step()
sys.exit(int(sys.argv[1]))
"""


def test_a_script_without_a_training_loop_is_told_what_was_looked_for(dlprof_run, tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text(NOTHING)
    done = dlprof_run("nothing.py")
    assert (done.status, done.stdout) == (0, "hello\n")
    assert done.verdict == ("inconclusive", None)
    assert "dlprof.iterate(" in done.stderr
    assert [notice["slug"] for notice in done.report["notices"]] == ["no-steps"]


def test_a_syntax_error_is_pythons_own(dlprof_run, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(SYNTAX)
    done = dlprof_run("wrong.py")
    assert done.status == 1
    assert "SyntaxError" in done.stderr
    assert done.report["run"]["exit"]["reason"] == "exception"


def write_broken(folder: Path, module: str, error: str) -> dict[str, str]:
    """A module that cannot be imported, and the environment that puts it in place of the real one."""
    folder.mkdir()
    (folder / f"{module}.py").write_text(f"raise {error}\n")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Done:
    """A script of twenty steps that ends with a status of its own."""
    folder = tmp_path_factory.mktemp("short")
    (folder / "short.py").write_text(LOOP)
    return run_in(folder, cache, *QUICK_REPORT, "short.py", "--steps", "50", "--", "4")


@pytest.fixture(scope="module")
def poor_run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Done:
    """The same without a trace, on a machine without Pango."""
    folder = tmp_path_factory.mktemp("poor")
    (folder / "short.py").write_text(LOOP)
    env = write_broken(folder / "broken", "weasyprint", "OSError('cannot load library libpango-1.0-0')")
    return run_in(folder, cache, "--trace-steps", "0", "short.py", "--", "0", env=env)


def test_fewer_steps_than_asked_are_reported_with_the_scripts_status(short_run: Done) -> None:
    assert short_run.status == 4
    assert short_run.report["step"]["mean_ms"] > 0
    assert {"fewer-steps"} <= {notice["slug"] for notice in short_run.report["notices"]}


def test_without_trace_the_rest_is_other_with_a_notice(poor_run: Done) -> None:
    assert poor_run.report["run"]["steps_traced"] == 0
    assert "no-trace" in {notice["slug"] for notice in poor_run.report["notices"]}


def test_without_pango_html_is_written_and_the_cure_is_said(poor_run: Done) -> None:
    assert poor_run.status == 0
    assert (poor_run.folder / "report.html").exists()
    assert not (poor_run.folder / "report.pdf").exists()
    assert "apt-get install" in poor_run.stderr


def test_a_saved_run_is_reported_again_without_torch(short_run: Done, tmp_path: Path) -> None:
    env = write_broken(tmp_path / "broken", "torch", "ImportError('there is no torch on this machine')")
    again = subprocess.run(
        [sys.executable, "-m", "dlprof", "report", str(short_run.folder), "--out", str(tmp_path / "again")],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )
    assert again.returncode == 0, again.stderr
    assert {path.name for path in (tmp_path / "again").iterdir()} >= {"report.html", "report.json", "report.md"}
    assert json.loads((tmp_path / "again" / "report.json").read_text()) == short_run.report
