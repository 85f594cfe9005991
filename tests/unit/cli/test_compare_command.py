"""`dlprof compare`: what it reads, where it writes, and its exit statuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dlprof.cli.main import main
from dlprof.errors import EXIT_FAILED, EXIT_USAGE

RECORDED = Path(__file__).parents[2] / "data"
BEFORE, AFTER = str(RECORDED / "text-0-workers"), str(RECORDED / "text-2-workers")


@pytest.fixture(autouse=True)
def _work_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_result_is_printed_and_written_to_a_folder_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", BEFORE, AFTER, "--format", "json,md,txt"]) == 0
    (folder,) = Path("dlprof-runs").iterdir()
    assert folder.name.startswith("compare-")
    assert {path.name for path in folder.iterdir()} == {"compare.json", "report.md", "report.txt"}
    out, err = capsys.readouterr()
    assert out.startswith("The second run is 1.5")
    assert out.splitlines()[-3:] == [str(folder / name) for name in ("compare.json", "report.md", "report.txt")]
    assert err == ""
    assert json.loads((folder / "compare.json").read_bytes())["schema"] == "dlprof.compare/1"


def test_one_document_is_printed_and_nothing_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(Path(BEFORE) / "run.dlprof"), AFTER, "--out", "-"]) == 0
    assert capsys.readouterr().out.startswith("## The second run is")
    assert os.listdir() == []


def test_a_report_does_where_the_run_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", BEFORE, "--out", "kept", "--format", "json"]) == 0
    for name in ("kept", "kept/report.json"):
        assert main(["compare", name, AFTER, "--out", "-", "--format", "txt"]) == 0
        assert "only its report.json is there" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        ([BEFORE], EXIT_USAGE, "Missing argument 'AFTER'"),
        ([BEFORE, "none"], EXIT_FAILED, "no such run: none"),
        ([BEFORE, "empty"], EXIT_FAILED, "empty is not a run"),
        ([BEFORE, "other.json"], EXIT_FAILED, "other.json is not a trace"),
        (["broken.dlprof", AFTER], EXIT_FAILED, "broken.dlprof is not a saved run"),
        ([BEFORE, AFTER, "--out", "full"], EXIT_USAGE, "full exists and is not empty"),
        ([BEFORE, AFTER, "--out", "full", "--force"], EXIT_USAGE, "full exists and is not empty"),
        ([BEFORE, AFTER, "--out", "other.json"], EXIT_USAGE, "other.json is not a folder"),
        ([BEFORE, AFTER, "--format", "csv"], EXIT_USAGE, "there is no format 'csv'"),
        ([BEFORE, AFTER, "--out", "-", "--format", "md,txt"], EXIT_USAGE, "--out - prints one format"),
    ],
)
def test_what_cannot_be_done(argv: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    Path("other.json").write_text('{"schema": "x"}')
    Path("broken.dlprof").write_bytes(b"\x1f\x8b")
    before = sorted(os.listdir())
    assert main(["compare", *argv]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert len(err.splitlines()) <= 2
    assert sorted(set(os.listdir()) - {"dlprof-runs"}) == before
    assert not any(Path("dlprof-runs").glob("*"))


def test_force_replaces_a_comparison_and_never_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    again = ["compare", BEFORE, AFTER, "--out", "c", "--format", "txt"]
    assert main(again) == 0
    assert main(again) == EXIT_USAGE
    Path("c/notes.txt").write_text("mine")
    assert main([*again[:-1], "json", "--force"]) == 0
    assert {path.name for path in Path("c").iterdir()} == {"notes.txt", "compare.json"}
    shutil.copytree(BEFORE, "run")
    assert main(["compare", BEFORE, AFTER, "--out", "run", "--force"]) == EXIT_USAGE
    assert os.listdir("run") == ["run.dlprof"]
    capsys.readouterr()


def test_neither_torch_nor_anything_heavy_is_loaded_for_an_error() -> None:
    code = "import sys; from dlprof.cli.main import main; main(['compare', 'a', 'b']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not {"torch", "numpy", "altair", "jinja2"} & set(done.stdout.split())
