"""Starts the user's command, passes signals on to it, watches how far it comes, and stops it if it must.

This runs outside the script and imports no torch. How the two talk: ``formats/settings_file.py`` and
``formats/progress_file.py``. Whatever becomes of the command, ``supervise`` says how it ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlprof.capture.machine import MachineWatch
from dlprof.capture.nvml import GpuWatch
from dlprof.capture.outcome import ClockPair as ClockPair
from dlprof.capture.outcome import Outcome as Outcome
from dlprof.capture.process_status import ProcessStatus, read_status, still_running
from dlprof.capture.thread_watch import ThreadWatch, can_look_at
from dlprof.errors import UsageError
from dlprof.formats.progress_file import Progress, read_progress
from dlprof.formats.sample_file import LOOK_INSIDE
from dlprof.formats.settings_file import FOLDER_VARIABLE, Settings

BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"
"""The folder whose ``sitecustomize`` every Python under the supervisor loads."""

TICK_S = 0.2
_SI_KERNEL = 0x80
_PR_SET_PDEATHSIG = 1
_GONE_AFTER_KILL_S = 5.0
_WHOLE_GROUP_S = 0.01
_NEVER = 1 << 62

# Sent by people, shells, launchers and batch systems. Left out: what cannot be caught, faults of the process
# itself, its own timers and pipes, and SIGTTIN and SIGTTOU, which stop whoever uses the terminal.
_PASSED_ON = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGTERM,
        signal.SIGCONT,
        signal.SIGTSTP,
        signal.SIGURG,
        signal.SIGXCPU,
        signal.SIGWINCH,
        signal.SIGPWR,
    }
)
_END_US_TOO = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})

OnProgress = Callable[[list[Progress], float], None]


@dataclass(frozen=True, slots=True)
class StopLimits:
    """How long a command that does not stop when asked is waited for.

    Attributes:
        terminate_after_s: From the request to stop until SIGTERM.
        kill_after_s: From SIGTERM until SIGKILL.
    """

    terminate_after_s: float = 30.0
    kill_after_s: float = 10.0


def supervise(
    command: list[str],
    settings: Settings,
    recording: Path,
    on_progress: OnProgress,
    *,
    limits: StopLimits | None = None,
) -> Outcome:
    """Run the command to its end. Call it from the main thread, and from a process without other threads.

    Args:
        command: What to start, looked up on PATH.
        settings: With ``steps`` None the command is never stopped.
        recording: The recording folder; it exists.
        on_progress: Called about five times a second and once at the end with the progress of every training
            process and the seconds since the start. What it raises ends the calls, not the command.
        limits: How long a command that does not stop is waited for.

    Returns:
        How it ended. Signals are then handled as they were before.

    Raises:
        UsageError: The command cannot be started.
    """
    if threading.current_thread() is not threading.main_thread():
        # The child gets SIGTERM when the thread that started it ends.
        raise RuntimeError("supervise() must be called from the main thread")
    own_group = not os.isatty(0)
    with _signals_held() as held:
        started = ClockPair.now()
        child = _spawn(command, child_environment(recording), own_group, held)
        stopper = None if settings.steps is None else _Stopper(child.pid, own_group, limits or StopLimits())
        threads = _thread_watch(child.pid, settings, recording)
        watch = _Watch(child.pid, own_group, held.signals, recording, on_progress, stopper, threads)
        raw_status = watch.until_end(started.monotonic_ns)
        watch.gpus.save(recording)
        watch.machine.save(recording)
        watch.close_threads()
        child.returncode = os.waitstatus_to_exitcode(raw_status)
    return Outcome(
        pid=child.pid,
        raw_status=raw_status,
        signal=os.WTERMSIG(raw_status) if os.WIFSIGNALED(raw_status) else None,
        started=started,
        ended=watch.ended,
        stop_requested=watch.stop_requested,
        stops=tuple(stopper.sent) if stopper else (),
        forwarded=tuple(watch.forwarded),
        received=tuple(watch.received),
        notices=watch.notices + watch.gpus.notices + watch.machine.notices + (stopper.notices if stopper else []),
    )


def child_environment(recording: Path) -> dict[str, str]:
    """The user's environment, the recording folder, and our folder before the user's on PYTHONPATH."""
    environment = dict(os.environ)
    environment[FOLDER_VARIABLE] = os.path.abspath(recording)
    entries = [str(BOOTSTRAP)]
    if environment.get("PYTHONPATH"):
        # Joined only if not empty: an empty entry is the working folder.
        entries.append(environment["PYTHONPATH"])
    environment["PYTHONPATH"] = os.pathsep.join(entries)
    return environment


@dataclass(frozen=True, slots=True)
class _Held:
    """The signals that wait until they are fetched, and how things were before."""

    signals: set[int]
    mask_before: set[int]
    ignored_children: bool


@contextmanager
def _signals_held() -> Iterator[_Held]:
    """Hold the signals that are passed on, and SIGCHLD, until they are fetched one by one.

    They are held already while the command is started, so that none is lost or ends us then; `_spawn` gives
    the command the mask of before. What was ignored when dlprof started (nohup) stays ignored here and there.
    """
    ignored_children = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    if ignored_children:
        # Else the kernel would throw the command's exit status away.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    held: set[int] = {number for number in _PASSED_ON if signal.getsignal(number) != signal.SIG_IGN}
    held.add(signal.SIGCHLD)
    before: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, held))
    try:
        yield _Held(held, before, ignored_children)
    finally:
        # What came too late for the command is not for us either, unless it is meant to end things.
        while signal.sigtimedwait(held - _END_US_TOO, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if ignored_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _spawn(command: list[str], environment: dict[str, str], own_group: bool, held: _Held) -> subprocess.Popen[bytes]:
    """Start the command with the streams, descriptors and signal state that it would have without us."""
    prctl = _prctl()
    supervisor = os.getpid()

    # A preexec_fn is safe here: this process has one thread, and the function only makes system calls through
    # what was prepared above. Nothing else can set PR_SET_PDEATHSIG before the command's first instruction.
    def before_exec() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(128 + signal.SIGTERM)
        for number in held.signals:
            # exec does this anyway; done before the mask is lifted, a signal that waits acts as after it.
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        if held.ignored_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, held.mask_before)

    try:
        return subprocess.Popen(
            command,
            env=environment,
            close_fds=False,
            process_group=0 if own_group else None,
            preexec_fn=before_exec,  # noqa: PLW1509
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError("command-not-started", f"cannot start {command[0]}: {reason}") from error


def _prctl() -> Callable[..., int] | None:
    """``prctl`` of libc, looked up before the fork; None where there is no ctypes."""
    try:
        import ctypes

        function: Callable[..., int] = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    return function


def _thread_watch(pid: int, settings: Settings, recording: Path) -> ThreadWatch | None:
    """What is to look at the command's threads; where that cannot be from outside, its processes look at themselves."""
    if not settings.sample_hz:
        return None
    if can_look_at(pid):
        return ThreadWatch(recording, pid, settings.sample_hz, settings.max_disk_bytes)
    (recording / LOOK_INSIDE).touch()
    return None


class _Watch:
    """The command while it runs: signals, progress, stopping."""

    def __init__(
        self,
        pid: int,
        own_group: bool,
        held: set[int],
        recording: Path,
        on_progress: OnProgress,
        stopper: _Stopper | None,
        threads: ThreadWatch | None,
    ) -> None:
        self._pid = pid
        self._own_group = own_group
        self._held = held
        self._recording = recording
        self._on_progress: OnProgress | None = on_progress
        self._stopper = stopper
        self.stop_requested = False
        self.forwarded: list[str] = []
        self.received: list[str] = []
        self.notices: list[tuple[str, dict[str, Any]]] = []
        self.ended = ClockPair.now()
        self.gpus = GpuWatch(pid)
        self.machine = MachineWatch(pid, recording)
        self._threads = threads
        self._training: list[int] = []

    def until_end(self, start_ns: int) -> int:
        """Wait for the command, and for what of it was told to stop; returns the raw status."""
        next_tick = next_look = start_ns
        while True:
            raw_status = self._reap()
            if raw_status is not None:
                break
            now = time.monotonic_ns()
            if now >= next_tick:
                self._look(now, start_ns)
                self.gpus.look(self._training, now)
                self.machine.look(self._training, now)
                next_tick = now + int(TICK_S * 1e9)
            next_look = self._look_at_threads(next_look)
            info = signal.sigtimedwait(self._held, max(0, min(next_tick, next_look) - time.monotonic_ns()) / 1e9)
            if info is not None and info.si_signo != signal.SIGCHLD:
                self._pass_on(info)
        # The terminal's signal may have ended the command before it was fetched here.
        while (info := signal.sigtimedwait(self._held - _END_US_TOO, 0)) is not None:
            if info.si_signo != signal.SIGCHLD:
                self.received.append(signal.Signals(info.si_signo).name)
        self._look(self.ended.monotonic_ns, start_ns)
        while self._stopper is not None and self._stopper.unfinished:
            signal.sigtimedwait(self._held, TICK_S)
            self._look(time.monotonic_ns(), start_ns)
        return raw_status

    def _look_at_threads(self, due_ns: int) -> int:
        """Look at the threads if that is due; returns when it is next."""
        if self._threads is None:
            return _NEVER
        now = time.monotonic_ns()
        if now < due_ns:
            return due_ns
        try:
            self._threads.look()
        except Exception as error:
            # As in _look. A full disk ends it, too.
            self._note("samples-lost", error)
            self._threads = None
            return _NEVER
        return now + self._threads.pause_ns

    def close_threads(self) -> None:
        """The command has ended, and its threads with it."""
        if self._threads is not None:
            try:
                self._threads.close()
            except OSError as error:
                self._note("samples-lost", error)

    def _reap(self) -> int | None:
        pid, raw_status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(raw_status):
            self._stop_likewise(os.WSTOPSIG(raw_status))
            return None
        self.ended = ClockPair.now()
        if self._stopper is not None:
            self._stopper.child_ended()
        return raw_status

    def _stop_likewise(self, number: int) -> None:
        """Stop as the command did from the keyboard, so that the shell sees it and can continue both."""
        if number not in {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU} or signal.SIGTSTP not in self._held:
            return
        # Sent while it is held, it is one with the terminal's that may be waiting: two would stop us twice.
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})

    def _pass_on(self, info: signal.struct_siginfo) -> None:
        number = signal.Signals(info.si_signo)
        self.received.append(number.name)
        if not self._own_group:
            if info.si_code == _SI_KERNEL:
                # The terminal sent it to the whole group: the command has it already.
                return
            if number == signal.SIGCONT:
                # A shell's fg continues the whole group, and its signal looks like anybody's; the command may get it
                # a moment after us.
                time.sleep(_WHOLE_GROUP_S)
                child = read_status(self._pid)
                if child is None or child.state != "T":
                    return
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)
            self.forwarded.append(number.name)

    def _look(self, now_ns: int, start_ns: int) -> None:
        # Nothing that goes wrong in here may end the watch over the user's command.
        try:
            records = read_progress(self._recording)
            self._training = [record.pid for record in records]
            self.stop_requested |= any(record.stop_requested_ns for record in records)
            if self._stopper is not None:
                self._stopper.look(records, now_ns)
        except Exception as error:
            self._note("watch-failed", error)
            return
        if self._on_progress is not None:
            try:
                self._on_progress(records, (now_ns - start_ns) / 1e9)
            except Exception as error:
                self._on_progress = None
                self._note("progress-lost", error)

    def _note(self, slug: str, error: Exception) -> None:
        if all(slug != known for known, _ in self.notices):
            self.notices.append((slug, {"error": f"{type(error).__name__}: {error}"}))


class _Stopper:
    """Ends processes that were asked to stop and go on: SIGTERM, then SIGKILL.

    A process that was asked and has ended did stop, even if the command (a shell, a launcher) has more to do.
    """

    def __init__(self, pid: int, own_group: bool, limits: StopLimits) -> None:
        self._pid: int | None = pid
        self._own_group = own_group
        self._limits = limits
        self._asked: dict[int, tuple[ProcessStatus, int]] = {}
        self._next_ns = 0
        self.sent: list[str] = []
        self.notices: list[tuple[str, dict[str, Any]]] = []

    @property
    def unfinished(self) -> bool:
        """Whether a process that SIGTERM was sent to may still be running without the command."""
        return bool(self.sent) and bool(self._running())

    def child_ended(self) -> None:
        """The command itself has ended and its pid is free for others."""
        self._pid = None

    def look(self, records: list[Progress], now_ns: int) -> None:
        """Send what is due.

        Args:
            records: The progress of every training process.
            now_ns: ``CLOCK_MONOTONIC``.
        """
        for record in records:
            if record.stop_requested_ns and record.pid not in self._asked:
                status = read_status(record.pid)
                if status is not None:
                    self._asked[record.pid] = (status, record.stop_requested_ns)
        asked = self._running()
        if not asked:
            return
        if not self.sent:
            waited_s = (now_ns - min(asked.values())) / 1e9
            if waited_s >= self._limits.terminate_after_s:
                self._send(signal.SIGTERM, asked, waited_s, now_ns, self._limits.kill_after_s)
        elif now_ns >= self._next_ns:
            if len(self.sent) > 1:
                # Killed and still there: it waits in the kernel. Waiting longer would not help.
                self._asked.clear()
                return
            self._send(signal.SIGKILL, asked, self._limits.kill_after_s, now_ns, _GONE_AFTER_KILL_S)

    def _running(self) -> dict[int, int]:
        return {pid: since for pid, (status, since) in self._asked.items() if still_running(status)}

    def _send(self, number: signal.Signals, asked: dict[int, int], waited_s: float, now_ns: int, next_s: float) -> None:
        others = set(asked)
        if self._pid is not None:
            others.discard(self._pid)
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if self._own_group else os.kill)(self._pid, number)
        for pid in others:
            # Not in the command's group, or the command is a shell that ends before what it started.
            with suppress(ProcessLookupError, PermissionError):
                if not (self._own_group and os.getpgid(pid) == self._pid):
                    os.kill(pid, number)
        self.sent.append(number.name)
        self._next_ns = now_ns + int(next_s * 1e9)
        details = {"signal": number.name, "after_s": round(waited_s, 1), "pids": sorted(asked)}
        self.notices.append(("stop-swallowed", details))
