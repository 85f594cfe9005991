"""Errors become one or two lines and a status, before anything is started or made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dlprof
from dlprof.cli import main as main_module
from dlprof.cli.main import main
from dlprof.errors import EXIT_FAILED, EXIT_USAGE, DlprofError

HEAVY = {"torch", "numpy", "pandas", "weasyprint", "altair", "jinja2", "msgspec"}


@pytest.fixture(autouse=True)
def _work_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("open('started', 'w')\n")


def stderr_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["train.py", "--steps", "0"], "--steps: 0 is neither"),
        (["--steps=-3", "train.py"], "--steps: -3 is neither"),
        (["--steps", "-3", "train.py"], "--steps: -3 is neither"),
        (["--steps", "ten", "train.py"], "--steps: ten is neither"),
        (["--steps", "1_0", "train.py"], "--steps: 1_0 is neither"),
        (["--steps=", "train.py"], "--steps:  is neither"),
        (["--warmup", "-1", "train.py"], "--warmup: -1 is not a whole number of at least 0"),
        (["--trace-steps=-1", "train.py"], "--trace-steps: -1 is not"),
        (["--max-disk", "0", "train.py"], "--max-disk: 0 is not a whole number of at least 1"),
        (["--format", "html,png", "train.py"], "there is no format 'png', only html, pdf, json, md, txt"),
        (["--format=", "train.py"], "there is no format ''"),
        (["--out", "-", "train.py"], "a run writes a folder"),
        (["--out=", "train.py"], "the name is empty"),
        (["--out", "train.py", "train.py"], "train.py is not a folder"),
        (["--out", "full", "train.py"], "full exists and is not empty"),
        (["--out", "full", "--force", "train.py"], "full is not empty and not a dlprof run"),
        (["--out", "/proc/none", "train.py"], "cannot write to /proc/none"),
        (["nothing.py"], "no such script: nothing.py"),
        (["trian.py"], "no such script: trian.py"),
        (["train.py/x.py"], "no such script: train.py/x.py"),
        (["-"], "no such script: -"),
        (["full"], "full is a folder without a __main__.py"),
        (["--", "no-such-command"], "no such command: no-such-command"),
        (["--", "./train.py"], "./train.py is not a command that can be executed"),
        (["--unknown", "train.py"], "no option --unknown"),
        ([], "nothing to run"),
    ],
)
def test_bad_input_of_run(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("full").mkdir()
    Path("full/mine").write_text("")
    assert main(["run", *argv]) == EXIT_USAGE
    lines = stderr_of(capsys)
    assert says in lines[0]
    assert 1 <= len(lines) <= 2
    assert sorted(os.listdir()) == ["full", "train.py"]
    assert os.listdir("full") == ["mine"]


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["run", "trian.py"], "did you mean train.py?"),
        (["run", "bash"], "for a command: dlprof run -- bash ..."),
        (["run", "--", "./train.py"], "for a Python script: dlprof run ./train.py"),
        (["run", "--step", "5", "train.py"], "did you mean --steps?"),
        (["run", "--lr", "5", "train.py"], "the script's own options go after SCRIPT"),
        (["run", "nowhere/train.py"], "there is no folder nowhere"),
        (["train.py"], "to profile it: dlprof run train.py"),
        (["rum"], "see 'dlprof --help'"),
    ],
)
def test_hints(argv: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == EXIT_USAGE
    assert hint in stderr_of(capsys)[1]


def test_a_script_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Tests may run as root, whom permissions do not stop.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main(["run", "train.py"]) == EXIT_USAGE
    assert stderr_of(capsys) == ["dlprof: cannot read train.py: permission denied"]


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["nowhere"], EXIT_FAILED, "no such run: nowhere"),
        (["."], EXIT_FAILED, ". is not a run: there is no run.dlprof in it"),
        (["run", "--format", "png"], EXIT_USAGE, "there is no format 'png'"),
        (["run", "--out", "-", "--format", "md,json"], EXIT_USAGE, "--out - prints one format"),
        (["run", "--out", "full"], EXIT_USAGE, "full exists and is not empty"),
        (["run", "--out", "full", "--force"], EXIT_USAGE, "full exists and is not empty"),
        (["run", "--out", "train.py"], EXIT_USAGE, "cannot write to train.py"),
        ([], EXIT_USAGE, "Missing argument 'RUN'"),
    ],
)
def test_bad_input_of_report(argv: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("full", "run"):
        Path(name).mkdir()
    Path("full/mine").write_text("")
    Path("run/run.dlprof").write_text("")
    assert main(["report", *argv]) == status
    lines = stderr_of(capsys)
    assert says in lines[0]
    assert len(lines) == 2


def test_report_names_the_latest_run(capsys: pytest.CaptureFixture[str]) -> None:
    for index, name in enumerate(("old", "new")):
        folder = Path("dlprof-runs", name)
        folder.mkdir(parents=True)
        (folder / "run.dlprof").write_text("")
        os.utime(folder, (index, index))
    assert main(["report", "nowhere"]) == EXIT_FAILED
    assert stderr_of(capsys)[1] == "  the latest run here: dlprof-runs/new"


def test_version_and_help_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dlprof {dlprof.__version__}\n"
    assert main([]) == 0
    overview = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == overview
    assert "dlprof run train.py --steps 50" in overview
    assert main(["run", "--help"]) == 0
    of_run = capsys.readouterr().out
    assert "[OPTIONS] -- COMMAND [ARGS]..." in of_run
    for option in ("--steps", "--warmup", "--trace-steps", "--out", "--force", "--format", "--max-disk"):
        assert option in of_run


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(main_module, "_dispatch", fail)


def test_an_error_of_ours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(DlprofError("slug", "what happened", "what to do"), monkeypatch)
    assert main(["x"]) == EXIT_FAILED
    assert stderr_of(capsys) == ["dlprof: what happened", "  what to do"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied", "/data/out"), "cannot read or write /data/out: Permission denied"),
        (OSError(28, "No space left on device"), "cannot read or write the output: No space left on device"),
    ],
)
def test_what_the_system_refuses_is_no_bug(
    error: OSError, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(error, monkeypatch)
    assert main(["x"]) == EXIT_FAILED
    assert stderr_of(capsys) == [f"dlprof: {says}", "  make room there, or give another place with --out"]


def test_a_bug_of_ours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("DLPROF_DEBUG", raising=False)
    fail_with(KeyError("oops"), monkeypatch)
    assert main(["x"]) == EXIT_FAILED
    assert stderr_of(capsys) == [
        "dlprof: KeyError: 'oops'",
        "  this is a bug in dlprof; run with DLPROF_DEBUG=1 for the traceback",
    ]
    monkeypatch.setenv("DLPROF_DEBUG", "1")
    assert main(["x"]) == EXIT_FAILED
    assert stderr_of(capsys)[0] == "Traceback (most recent call last):"


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert main(["x"]) == 130
    assert stderr_of(capsys) == ["dlprof: interrupted"]


@pytest.mark.parametrize(
    "code",
    [
        "from dlprof.cli.main import main; main(['--help'])",
        "from dlprof.cli.main import main; main(['run', '--help'])",
        "from dlprof.cli.main import main; main(['run', 'nowhere.py'])",
        "from dlprof.cli.main import main; main(['report', 'nowhere'])",
        "import dlprof.capture.supervisor",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    check = f"{code}\nimport sys; print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    root = Path(dlprof.__file__).parents[1]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", check], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "[]"
    assert done.returncode == 0
