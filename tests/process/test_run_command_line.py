"""`dlprof run` as a user starts it: statuses, streams, what is said, what is written. The analysis is stood in for."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import dlprof
from dlprof.capture.outcome import load_outcome

ROOT = Path(dlprof.__file__).parents[1]
DEADLINE_S = 60

# The command `dlprof` with an analysis that does what the environment says.
PROGRAM = """
import json, os, sys, types
from pathlib import Path
import dlprof
from dlprof.errors import DlprofError

api = types.ModuleType("dlprof.api")

def finish_run(folder, *, command, outcome, formats, bounds):
    does = os.environ.get("ANALYSIS", "well")
    if does == "raises":
        raise RuntimeError("first line\\nsecond line")
    if does == "finds-nothing":
        raise DlprofError("nothing-recorded", "no DataLoader and no optimizer step was seen", "use dlprof.profile()")
    if does == "waits":
        print("analysis waits", file=sys.stderr, flush=True)
        import threading
        threading.Event().wait()
    summary = types.SimpleNamespace(
        headline="Waiting for data takes 62 % of a step.",
        bar=[("waiting for data", 0.62), ("compute", 0.38)],
        advice=["num_workers 0 to 2"],
        gains=True,
        notices=[],
        path=f"{folder}/report.html",
    )
    failures = ["report.pdf was not written: install Pango"] if does == "has-no-pdf" else []
    (folder / "seen.json").write_text(json.dumps([command, list(formats), outcome.status]))
    status = 0 if outcome.stop_requested else outcome.status
    return types.SimpleNamespace(status=status, summary=summary, failures=failures, remarks=[])

def report_again(source, *, folder, formats):
    paths = [folder / f"report.{name}" for name in formats if name != "pdf"]
    for path in paths:
        path.write_text("report")
    return types.SimpleNamespace(paths=paths, failures=["no Pango"] if "pdf" in formats else [], remarks=[])

def report_document(source, format):
    return f"{source.name} as {format}\\n".encode()

api.finish_run, api.report_again, api.report_document = finish_run, report_again, report_document
sys.modules["dlprof.api"] = dlprof.api = api
sys.modules["dlprof.tensorboard.events"] = types.SimpleNamespace(write_run_events=lambda folder: "")
from dlprof.cli.main import main
sys.exit(main())
"""

NUMBER_OF_STEPS = """
import json, os
print(open(os.environ["DLPROF_RECORDING"] + "/settings.json").read(), flush=True)
"""


@pytest.fixture(autouse=True)
def _work_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NO_COLOR", "PYTHONIOENCODING"):
        monkeypatch.delenv(name, raising=False)
    Path("temporary").mkdir()


def script(code: str, name: str = "train.py") -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(code)
    return name


def dlprof_command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, *arguments]


def run(*arguments: str, analysis: str = "well", **environ: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        dlprof_command("run", *arguments),
        env={**os.environ, "ANALYSIS": analysis, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert os.listdir("temporary") == []
    return done


def run_folder() -> Path:
    (folder,) = Path("dlprof-runs").iterdir()
    return folder


# ---- status and streams


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('message')", 1),
        ("raise ValueError", 1),
        ("import os; os._exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("syntax error", 1),
    ],
)
@pytest.mark.parametrize("analysis", ["well", "raises"])
def test_status_is_the_scripts_whatever_the_analysis_does(code: str, status: int, analysis: str) -> None:
    assert run(script(code), analysis=analysis).returncode == status


def test_a_script_that_was_stopped_after_its_steps_is_good() -> None:
    stopped = (
        "import os, sys, time\nfrom dlprof.formats.progress_file import ProgressWriter\nnow = time.monotonic_ns()\n"
        "ProgressWriter(os.environ['DLPROF_RECORDING']).write(4, 6, 6, 0, 0, 1, now, now)\nsys.exit(5)"
    )
    done = run(script(stopped), analysis="raises")
    assert done.returncode == 0
    assert "dlprof: all steps recorded, the script is ending" in done.stderr


def test_standard_output_and_arguments_are_the_scripts() -> None:
    name = script("import sys; print(sys.argv, __name__, sys.path[0] == __import__('os').getcwd())")
    done = run(name, "--out", "x", "--", "--help")
    assert done.stdout == f"['{name}', '--out', 'x', '--', '--help'] __main__ True\n"


def test_standard_input_is_the_scripts() -> None:
    name = script("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())")
    data = bytes(range(256)) * 1000
    done = subprocess.run(dlprof_command("run", name), input=data, capture_output=True, timeout=DEADLINE_S)
    assert done.stdout == data


def test_module_and_command() -> None:
    script("print('module', __name__)", "package/train.py")
    assert run("-m", "package.train").stdout == "module __main__\n"
    assert run("--", "sh", "-c", 'echo "$@"', "x", "--steps", "--", "5").stdout == "--steps -- 5\n"
    names = {re.sub(r"-\d{8}-.*", "", folder.name) for folder in Path("dlprof-runs").iterdir()}
    assert names == {"package.train", "sh"}


def test_dlprof_as_a_module() -> None:
    name = script("import sys; print(sys.argv); sys.exit(4)")
    done = subprocess.run(
        [sys.executable, "-m", "dlprof", "--local_rank=1", "run", name, "x"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.stdout, done.returncode) == (f"['{name}', '--local_rank=1', 'x']\n", 4)


@pytest.mark.parametrize("unusable", ["closed", "full", "nobody reads"])
def test_standard_error_may_be_unusable(unusable: str) -> None:
    command = dlprof_command("run", script("print('x'); raise SystemExit(6)"))
    redirection = {"closed": "2>&-", "full": "2>/dev/full", "nobody reads": ""}[unusable]
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *command], stdout=subprocess.PIPE, stderr=written, timeout=DEADLINE_S
    )
    os.close(written)
    assert (done.stdout, done.returncode) == (b"x\n", 6)


# ---- what is said and written


def test_plain_lines_and_the_summary() -> None:
    done = run(script("print('out')"), "--steps", "7", "x")
    folder = run_folder()
    assert done.stderr.splitlines() == [
        "dlprof: took '--steps 7' for itself; to give it to the script: dlprof run train.py -- --steps 7",
        "dlprof: running train.py: 5 steps of warm-up, 7 measured, 10 traced, then stopped",
        "dlprof: analysing",
        "Waiting for data takes 62 % of a step.",
        "█" * 37 + "▓" * 23,
        "█ waiting for data 62 %   ▓ compute 38 %",
        "Try first: num_workers 0 to 2",
        f"{folder}/report.html",
    ]
    assert sorted(os.listdir(folder)) == ["recording", "seen.json"]
    command, formats, status = json.loads((folder / "seen.json").read_text())
    assert command == [sys.executable, "train.py", "x"]
    assert (formats, status) == (["html", "pdf", "json", "md"], 0)
    assert load_outcome(folder / "recording")[1] == command


def test_ascii_terminals() -> None:
    assert run(script("pass"), PYTHONIOENCODING="ascii").stderr.isascii()


def test_options_reach_the_script_and_the_analysis() -> None:
    options = ["--steps", "all", "--warmup=0", "--trace-steps", "0", "--max-disk", "2", "--out", "o", "--format", "md"]
    looking = ["--sample-hz", "50", "--span", "train:augment", "--span", "data:Set.load"]
    done = run(*options, *looking, script(NUMBER_OF_STEPS))
    settings = json.loads(done.stdout)
    del settings["supervisor_pid"]
    assert settings == {
        "steps": None,
        "warmup": 0,
        "trace_steps": 0,
        "max_disk_bytes": 2_000_000,
        "ends_script": True,
        "sample_hz": 50,
        "spans": ["train:augment", "data:Set.load"],
        "overrides": [],
        "ceiling": False,
    }
    assert json.loads(Path("o/seen.json").read_text())[1] == ["md"]


def test_force_replaces_the_run() -> None:
    name = script("print('ran')")
    assert run("--out", "o", name).returncode == 0
    Path("o/report.html").write_text("old")
    refused = run("--out", "o", name)
    assert (refused.returncode, refused.stdout) == (2, "")
    again = run("--out", "o", "--force", name)
    assert (again.returncode, again.stdout) == (0, "ran\n")
    assert not Path("o/report.html").exists()


def test_a_command_that_cannot_be_started_leaves_nothing() -> None:
    name = script("", "broken")
    os.chmod(name, 0o755)
    Path(name).write_text("no interpreter")
    done = run("--", "./broken")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "dlprof: cannot start ./broken: Exec format error"
    assert not Path("dlprof-runs").exists()


@pytest.mark.parametrize(
    ("analysis", "says"),
    [
        ("raises", ["dlprof: the report could not be made (RuntimeError: first line)", "  to try again: {again}"]),
        ("finds-nothing", ["dlprof: no DataLoader and no optimizer step was seen", "  use dlprof.profile()"]),
        ("has-no-pdf", ["report.pdf was not written: install Pango", "{folder}/report.html"]),
    ],
)
def test_an_analysis_that_fails(analysis: str, says: list[str]) -> None:
    done = run(script("pass"), analysis=analysis)
    assert done.returncode == 0
    again = f"dlprof report {run_folder()}"
    assert done.stderr.splitlines()[-2:] == [line.format(again=again, folder=run_folder()) for line in says]


def test_ctrl_c_ends_only_the_analysis() -> None:
    process = subprocess.Popen(
        dlprof_command("run", script("raise SystemExit(3)")),
        env={**os.environ, "ANALYSIS": "waits"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # What starts the tests may ignore the signal, as a shell does in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line == "analysis waits\n":
            process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 3
    assert line == f"  to make the report: dlprof report {run_folder()}\n"
    process.stderr.close()


def test_only_the_first_process_of_a_machine_speaks() -> None:
    script("pass")
    launched = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    assert run("--out", "o", "train.py", "--steps", "3", **launched).stderr == ""
    assert sorted(os.listdir("o/rank1")) == ["recording", "seen.json"]


# ---- report


def report(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(dlprof_command("report", *arguments), capture_output=True, text=True, timeout=DEADLINE_S)


@pytest.fixture
def saved_run() -> Path:
    folder = Path("saved")
    folder.mkdir()
    (folder / "run.dlprof").write_text("")
    return folder


@pytest.mark.parametrize("named", ["saved", "saved/run.dlprof"])
def test_report_prints_the_paths(saved_run: Path, named: str) -> None:
    done = report(named)
    assert done.stdout.splitlines() == [f"saved/report.{name}" for name in ("html", "json", "md")]
    assert (done.stderr, done.returncode) == ("dlprof: no Pango\n", 0)


def test_report_fails_if_what_was_asked_for_is_missing(saved_run: Path) -> None:
    assert report("saved", "--format", "pdf,md").returncode == 70
    assert report("saved", "--format", "md").returncode == 0


def test_report_into_another_folder(saved_run: Path) -> None:
    assert report("saved", "--out", "new/one", "--format", "md").stdout == "new/one/report.md\n"
    assert report("saved", "--out", "new/one", "--format", "md").returncode == 2
    assert report("saved", "--out", "new/one", "--format", "md", "--force").returncode == 0
    assert report("saved", "--out", "saved", "--format", "md").returncode == 0


def test_report_on_standard_output(saved_run: Path) -> None:
    assert report("saved", "--out", "-").stdout == "saved as md\n"
    assert report("saved/run.dlprof", "--out", "-", "--format", "json").stdout == "run.dlprof as json\n"


# ---- a terminal


class Session:
    """A terminal on which dlprof runs in the foreground, and all that appeared on it."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self.pid, self.keyboard = pty.fork()
        if self.pid == 0:
            try:
                os.environ.update({"TERM": "xterm", "COLUMNS": "80", **environ})
                os.execv(sys.executable, dlprof_command(*arguments))
            finally:
                os._exit(1)
        self.shown = b""

    def wait_for(self, text: bytes, after: int = 0) -> int:
        """Read until ``text`` has appeared; returns where it ends."""
        while text not in self.shown[after:]:
            ready, _, _ = select.select([self.keyboard], [], [], DEADLINE_S)
            assert ready, self.shown
            self.shown += os.read(self.keyboard, 4096)
        return self.shown.index(text, after) + len(text)

    def type(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def end(self) -> int:
        while True:
            try:
                self.shown += os.read(self.keyboard, 4096)
            except OSError:  # the last process has closed the terminal
                break
        os.close(self.keyboard)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_on_a_terminal() -> None:
    code = "import sys\nprint('script', sys.stdout.isatty(), sys.stdin.isatty())\ninput()\nraise SystemExit(3)"
    session = Session("run", script(code))
    session.wait_for(b"script True True")
    session.wait_for(b"waiting for the first batch, 0 s")
    session.type(b"\n")
    assert session.end() == 3
    assert b"analysing" in session.shown
    assert session.shown.rstrip().splitlines()[-1].endswith(b"report.html\x1b[0m")
    # Neither a hidden cursor nor another screen; what was saved is restored.
    assert b"\x1b[?" not in session.shown
    assert session.shown.count(b"\x1b7") == session.shown.count(b"\x1b8")


def test_no_color_on_a_terminal() -> None:
    session = Session("run", script("pass"), NO_COLOR="1")
    assert session.end() == 0
    assert re.search(rb"\x1b\[(\d+;)*3\d", session.shown) is None
    assert "█▓".encode() in session.shown


def test_a_dumb_terminal_gets_plain_lines() -> None:
    session = Session("run", script("pass"), TERM="dumb")
    assert session.end() == 0
    assert b"\x1b" not in session.shown


def test_ctrl_c_reaches_the_script_once_and_the_run_is_reported() -> None:
    code = (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\nprint('ready', flush=True)\n"
        "print(signal.sigwait({signal.SIGINT}).name, flush=True)\ninput()\n"
        "print(sorted(signal.sigpending()))\nraise SystemExit(9)"
    )
    session = Session("run", script(code))
    session.wait_for(b"ready")
    session.type(b"\x03")
    session.wait_for(b"SIGINT")
    session.type(b"\n")
    assert session.end() == 9
    assert b"[]" in session.shown
    assert load_outcome(run_folder() / "recording")[0].forwarded == ()


def test_ctrl_c_that_ends_the_script() -> None:
    session = Session("run", script("import time\nprint('ready', flush=True)\nwhile True: time.sleep(1000)"))
    session.wait_for(b"ready")
    session.type(b"\x03")
    assert session.end() == 130
    assert b"KeyboardInterrupt" in session.shown
    assert b"report.html" in session.shown


def test_the_terminals_settings_are_left_alone() -> None:
    keyboard, screen = pty.openpty()
    before = termios.tcgetattr(screen)
    subprocess.run(dlprof_command("run", script("pass")), stdin=screen, stdout=screen, stderr=screen, check=True)
    assert termios.tcgetattr(screen) == before
    os.close(keyboard)
    os.close(screen)
