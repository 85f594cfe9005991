"""The supervisor with real processes: statuses, streams, signals, stopping, and nothing left behind.

Scripts and tests wait for each other through pipes. Durations appear only as deadlines of a test that fails.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dlprof
from dlprof.capture.outcome import Outcome, load_outcome
from dlprof.capture.process_status import read_status, still_running
from dlprof.capture.supervisor import BOOTSTRAP

ROOT = Path(dlprof.__file__).parents[1]
DEADLINE_S = 60

# What every test runs: supervise() with limits, its outcome saved, its status as the exit status.
DRIVER = """
import json, os, sys, threading
from pathlib import Path
from dlprof.capture.supervisor import StopLimits, supervise
from dlprof.formats.settings_file import Settings
recording, options, command = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
settings = Settings(options["steps"], 1, 0, 10**6, os.getpid())
settings.save(recording)
seen = set()
def show(records, elapsed):
    if options["display"] == "fails":
        raise OSError("no display")
    if options["display"] == "says" and records and not seen:
        seen.add(print("seen", flush=True))
outcome = supervise(command, settings, recording, show, limits=StopLimits(*options["limits"]))
outcome.save(recording, command)
assert threading.active_count() == 1
sys.exit(outcome.status)
"""

# For what the driver does not do: a process that itself calls supervise().
TRY = """
import os, signal
from pathlib import Path
from dlprof.capture import supervisor
from dlprof.errors import UsageError
from dlprof.formats.settings_file import Settings
settings = Settings(1, 1, 0, 1, 1)
"""

# A training process as far as the supervisor can tell: it says when it was asked to stop.
ASKED_TO_STOP = """
import os, signal, sys, time
from dlprof.formats.progress_file import ProgressWriter
now = time.monotonic_ns()
ProgressWriter(os.environ["DLPROF_RECORDING"]).write(4, 6, 6, 0, 0, 1, now, now)
"""


class Run:
    """One run of the driver; its standard input, output and error are pipes unless a terminal is given."""

    def __init__(
        self,
        tmp_path: Path,
        command: list[str],
        *,
        terminal: int | None = None,
        under: list[str] | None = None,
        first: str = "",
        **options: object,
    ) -> None:
        self.recording = tmp_path / "recording"
        self.recording.mkdir()
        self.temporary = tmp_path / "tmp"
        self.temporary.mkdir()
        # Whoever still runs holds the other end of this pipe.
        self.leash, held = os.pipe()
        settings = {"steps": 5, "limits": [30, 10], "display": "none", **options}
        self.process = subprocess.Popen(
            [*(under or []), sys.executable, "-c", first + DRIVER, str(self.recording), json.dumps(settings), *command],
            stdin=subprocess.PIPE if terminal is None else terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=[held],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)},
            start_new_session=True,
            preexec_fn=None if terminal is None else lambda: take_terminal(terminal),  # noqa: PLW1509
        )
        os.close(held)

    def line(self) -> str:
        """The next line of standard output."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert ready, "the script said nothing"
        return self.process.stdout.readline().decode().rstrip("\n")

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait for the end; returns the status after a check that nothing is left."""
        self.out, self.err = self.process.communicate(timeout=DEADLINE_S)
        self.nothing_left()
        return self.process.returncode

    def nothing_left(self) -> None:
        ready, _, _ = select.select([self.leash], [], [], DEADLINE_S)
        assert ready, "a process is left"
        assert os.read(self.leash, 1) == b""
        assert os.listdir(self.temporary) == []

    @property
    def outcome(self) -> Outcome:
        return load_outcome(self.recording)[0]


def take_terminal(terminal: int) -> None:
    import fcntl

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(code: str, *arguments: str, **options: object) -> Run:
        runs.append(Run(tmp_path, [sys.executable, "-c", code, *arguments], **options))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.communicate()
        os.close(run.leash)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


# ---- how the command ends


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('message')", 1),
        ("raise ValueError", 1),
        ("import os; os._exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143),
        ("syntax error", 1),
    ],
)
def test_status_is_the_scripts(start: Callable[..., Run], code: str, status: int) -> None:
    run = start(code)
    assert run.end() == status
    outcome = run.outcome
    assert outcome.status == status
    assert outcome.signal == (status - 128 if status > 128 else None)
    assert (outcome.stop_requested, outcome.stops, outcome.forwarded, outcome.notices) == (False, (), (), [])
    assert 0 < outcome.started.monotonic_ns < outcome.ended.monotonic_ns
    assert outcome.started.wall_ns < outcome.ended.wall_ns


def test_outcome_file_holds_the_command(start: Callable[..., Run]) -> None:
    run = start("pass", "ä", "\udcff")
    run.end()
    assert load_outcome(run.recording)[1] == [sys.executable, "-c", "pass", "ä", "\udcff"]


def test_a_command_that_cannot_be_started(start: Callable[..., Run], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("no interpreter")
    broken.chmod(0o755)
    code = TRY + (
        "for command in ['./broken', './nothing']:\n"
        "    try: supervisor.supervise([command], settings, Path('.'), print)\n"
        "    except UsageError as error: print(error, error.status, flush=True)\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    )
    run = start(code)
    assert run.line() == "cannot start ./broken: Exec format error 2"
    assert run.line() == "cannot start ./nothing: No such file or directory 2"
    assert run.line() == "set()"
    assert run.end() == 0


# ---- what the command finds


def test_streams_pass_through_byte_for_byte(start: Callable[..., Run]) -> None:
    data = bytes(range(256)) * 5000
    run = start("import sys, shutil; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer); sys.stderr.write('e')")
    out, err = run.process.communicate(data, timeout=DEADLINE_S)
    assert (out, err, run.process.returncode) == (data, b"e", 0)
    run.nothing_left()


def test_descriptors_mask_and_dispositions_are_as_without_us(start: Callable[..., Run]) -> None:
    code = (
        "import os, signal\n"
        "fds = sorted(int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}'))\n"
        "state = [line for line in open('/proc/self/status') if line[:6] in ('SigBlk', 'SigIgn', 'SigCgt')]\n"
        "print(len(fds), *state, [k for k in os.environ if 'PYTHON' in k or 'DLPROF' in k])"
    )
    plain = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": "x"},
        capture_output=True,
        text=True,
        stdin=subprocess.PIPE,
    ).stdout.split("[")
    run = start(code)
    run.end()
    ours = run.out.decode().split("[")
    # The leash is one descriptor more.
    assert int(ours[0].split()[0]) == int(plain[0].split()[0]) + 1
    assert ours[0].split()[1:] == plain[0].split()[1:]
    extra = {"'DLPROF_RECORDING'"}
    assert set(ours[1].strip(" ]\n").split(", ")) - set(plain[1].strip(" ]\n").split(", ")) == extra


def test_environment_of_the_command(start: Callable[..., Run]) -> None:
    run = start("import os; print(os.environ['DLPROF_RECORDING']); print(os.environ['PYTHONPATH'])")
    assert run.line() == str(run.recording)
    assert run.line() == f"{BOOTSTRAP}:{ROOT}"
    assert run.end() == 0


# ---- signals

# Counts signals. It blocks them and fetches each, so none is merged with another or lost before 'ready'.
COUNTS = """
import os, signal, sys
names = sys.argv[1:]
numbers = {getattr(signal, name) for name in names}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers | {signal.SIGUSR2})
print("ready", os.getpgrp() == os.getpid(), flush=True)
while True:
    info = signal.sigwaitinfo(numbers | {signal.SIGUSR2})
    if info.si_signo == signal.SIGUSR2:
        break
    print(signal.Signals(info.si_signo).name, flush=True)
"""


@pytest.mark.parametrize(
    "name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGCONT", "SIGALRM", "SIGWINCH", "SIGXCPU"]
)
def test_a_signal_is_forwarded_once(start: Callable[..., Run], name: str) -> None:
    run = start(COUNTS, name)
    assert run.line() == "ready True"
    os.killpg(run.process.pid, getattr(signal, name))
    assert run.line() == name
    run.process.send_signal(signal.SIGUSR2)
    assert run.end() == 0
    assert run.out == b""
    assert run.outcome.forwarded == (name, "SIGUSR2")


def test_signals_end_the_command_not_us(start: Callable[..., Run]) -> None:
    run = start("import signal; print('ready', flush=True); signal.pause()")
    assert run.line() == "ready"
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 143
    assert run.outcome.signal == signal.SIGTERM


def test_a_signal_during_the_start_reaches_the_command(start: Callable[..., Run]) -> None:
    code = TRY + (
        "original = supervisor._prctl\n"
        "def prctl():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"  # directly before the command is started
        "    return original()\n"
        "supervisor._prctl = prctl\n"
        "outcome = supervisor.supervise(['sleep', '1000'], settings, Path('.'), lambda *_: None)\n"
        "print(outcome.status, outcome.forwarded, flush=True)"
    )
    run = start(code)
    assert run.line() == "143 ('SIGTERM',)"
    assert run.end() == 0


def test_what_was_ignored_stays_ignored(start: Callable[..., Run], tmp_path: Path) -> None:
    code = "import signal; print(signal.getsignal(signal.SIGHUP).name, flush=True); input()"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = start(code)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert run.line() == "SIG_IGN"
    run.process.send_signal(signal.SIGHUP)
    run.tell()
    assert run.end() == 0
    assert run.outcome.forwarded == ()


def test_ignored_children_stay_ignored_and_the_status_is_known(start: Callable[..., Run]) -> None:
    code = "import signal, sys; sys.exit(5 if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN else 6)"
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        run = start(code)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert run.end() == 5


def test_the_command_gets_sigterm_when_we_are_killed(start: Callable[..., Run]) -> None:
    code = (
        "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "print('ready', flush=True); print(signal.sigwait({signal.SIGTERM}).name, flush=True)"
    )
    run = start(code)
    assert run.line() == "ready"
    run.process.kill()
    assert run.line() == "SIGTERM"
    assert run.end() == -signal.SIGKILL


# ---- a terminal


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    keyboard, screen = pty.openpty()
    yield keyboard, screen
    os.close(keyboard)
    os.close(screen)


@pytest.mark.parametrize(("key", "name"), [(b"\x03", "SIGINT"), (b"\x1c", "SIGQUIT")])
def test_a_key_reaches_the_command_once(
    start: Callable[..., Run], terminal: tuple[int, int], key: bytes, name: str
) -> None:
    keyboard, screen = terminal
    run = start(COUNTS, name, terminal=screen)
    assert run.line() == "ready False"
    os.write(keyboard, key)
    assert run.line() == name
    run.process.send_signal(signal.SIGUSR2)
    assert run.end() == 0
    assert run.out == b""
    assert run.outcome.forwarded == ("SIGUSR2",)


def test_a_signal_from_a_process_is_forwarded_on_a_terminal_too(
    start: Callable[..., Run], terminal: tuple[int, int]
) -> None:
    run = start(COUNTS, "SIGTERM", terminal=terminal[1])
    assert run.line() == "ready False"
    run.process.send_signal(signal.SIGTERM)
    assert run.line() == "SIGTERM"
    run.process.send_signal(signal.SIGUSR2)
    assert run.end() == 0
    assert run.outcome.forwarded == ("SIGTERM", "SIGUSR2")


# What an interactive shell does with a job: a group of its own in the foreground; when the job was stopped, fg.
SHELL_WITH_JOBS = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
def begin():
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
job = subprocess.Popen(sys.argv[1:], process_group=0, preexec_fn=begin)
_, status = os.waitpid(job.pid, os.WUNTRACED)
print("stopped" if os.WIFSTOPPED(status) else "ended", flush=True)
os.killpg(job.pid, signal.SIGCONT)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(job.pid, 0)[1]))
"""


def test_stopped_and_continued_with_the_command(start: Callable[..., Run], terminal: tuple[int, int]) -> None:
    keyboard, screen = terminal
    code = "import os; print(os.getppid(), flush=True)" + COUNTS
    run = start(code, "SIGCONT", terminal=screen, under=[sys.executable, "-c", SHELL_WITH_JOBS])
    supervisor = int(run.line())
    assert run.line() == "ready False"
    os.write(keyboard, b"\x1a")
    assert run.line() == "stopped"
    assert run.line() == "SIGCONT"
    os.kill(supervisor, signal.SIGUSR2)
    assert run.end() == 0
    assert run.out == b""
    assert run.outcome.forwarded == ("SIGUSR2",)


# The terminal's signal reaches the supervisor when it has already seen the command stop.
LATE = """
import os, signal
from dlprof.capture import supervisor
stop_likewise = supervisor._Watch._stop_likewise
def late(watch, number):
    os.kill(os.getpid(), signal.SIGTSTP)
    stop_likewise(watch, number)
supervisor._Watch._stop_likewise = late
"""


def test_stopped_once_however_late_the_terminals_signal(start: Callable[..., Run], terminal: tuple[int, int]) -> None:
    under = [sys.executable, "-c", SHELL_WITH_JOBS]
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTSTP); print('continued')"
    run = start(code, terminal=terminal[1], under=under, first=LATE)
    assert (run.line(), run.line()) == ("stopped", "continued")
    assert run.end() == 0


# ---- stopping


def test_a_command_that_stops_by_itself(start: Callable[..., Run]) -> None:
    run = start(ASKED_TO_STOP + "sys.exit(0)")
    assert run.end() == 0
    assert run.outcome.stop_requested
    assert run.outcome.stops == ()


def test_a_command_that_swallows_the_stop_gets_sigterm(start: Callable[..., Run]) -> None:
    run = start(ASKED_TO_STOP + "signal.pause()", limits=[0, 1000])
    assert run.end() == 143
    outcome = run.outcome
    assert (outcome.stop_requested, outcome.stops) == (True, ("SIGTERM",))
    slug, details = outcome.notices[0]
    assert (slug, details["signal"], details["pids"]) == ("stop-swallowed", "SIGTERM", [outcome.pid])


def test_and_then_sigkill(start: Callable[..., Run]) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + ASKED_TO_STOP
    run = start(code + "\nwhile True: signal.pause()", limits=[0, 0])
    assert run.end() == 137
    assert run.outcome.stops == ("SIGTERM", "SIGKILL")
    assert [details["signal"] for _, details in run.outcome.notices] == ["SIGTERM", "SIGKILL"]


def test_all_steps_are_never_stopped(start: Callable[..., Run]) -> None:
    run = start(ASKED_TO_STOP + "print('asked', flush=True); input(); sys.exit(4)", limits=[0, 0], steps=None)
    assert run.line() == "asked"
    run.tell()
    assert run.end() == 4
    assert run.outcome.stops == ()


SHELL = "import subprocess, sys; print(subprocess.call([sys.executable, '-c', sys.argv[1]]), flush=True); input()"


# As SHELL, but the training's record appears when the training has ended: no look can come in between.
SHELL_THAT_GOES_ON = """
import os, subprocess, sys
os.mkdir("aside")
subprocess.check_call([sys.executable, "-c", sys.argv[1]], env={**os.environ, "DLPROF_RECORDING": "aside"})
for name in os.listdir("aside"):
    if name.startswith("progress-"):
        os.rename(f"aside/{name}", f"{os.environ['DLPROF_RECORDING']}/{name}")
input()
"""


def test_a_launcher_whose_training_has_stopped_goes_on(start: Callable[..., Run]) -> None:
    run = start(SHELL_THAT_GOES_ON, ASKED_TO_STOP, limits=[0, 0], display="says")
    assert run.line() == "seen"
    run.tell()
    assert run.end() == 0
    assert (run.outcome.stop_requested, run.outcome.stops) == (True, ())


@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_training_below_a_launcher_is_stopped_even_if_the_launcher_ends_first(
    start: Callable[..., Run], terminal: tuple[int, int], on_terminal: bool
) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + ASKED_TO_STOP
    run = start(
        SHELL,
        stubborn + "\nwhile True: signal.pause()",
        limits=[0, 0],
        **({"terminal": terminal[1]} if on_terminal else {}),
    )
    assert run.end() == 143
    assert run.outcome.stops == ("SIGTERM", "SIGKILL")


# ---- a display that fails


def test_a_failing_display_is_a_notice(start: Callable[..., Run]) -> None:
    run = start("import sys; sys.exit(9)", display="fails")
    assert run.end() == 9
    assert run.outcome.notices == [("progress-lost", {"error": "OSError: no display"})]


def test_progress_that_cannot_be_read_is_a_notice(start: Callable[..., Run]) -> None:
    code = TRY + (
        "def fail(folder): raise OSError('too many open files')\n"
        "supervisor.read_progress = fail\n"
        "outcome = supervisor.supervise(['sh', '-c', 'exit 5'], settings, Path('.'), lambda *_: None)\n"
        "print(outcome.status, outcome.notices, flush=True)"
    )
    run = start(code)
    assert run.line() == "5 [('watch-failed', {'error': 'OSError: too many open files'})]"
    assert run.end() == 0


def test_process_status() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    status = read_status(child.pid)
    assert status is not None
    assert status.parent == os.getpid()
    assert still_running(status)
    assert child.stdin is not None
    child.stdin.close()
    eventually(lambda: not still_running(status))  # a zombie has ended
    child.wait()
    assert read_status(child.pid) is None
