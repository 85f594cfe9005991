"""This process's recording: a span file a thread, one event file, and an end to it all when something goes wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from dlprof.formats.event_file import EventWriter
from dlprof.formats.settings_file import Settings
from dlprof.formats.span_file import RECORD_BYTES, UNKNOWN, DiskBudget, SpanWriter
from dlprof.model.kinds import Kind, Role

now = time.monotonic_ns
thread_cpu = time.thread_time_ns
process_cpu = time.process_time_ns

_CALIBRATION_ROUNDS = 200


class ThreadRecord:
    """One thread's writer and what it is in the middle of. Made and used by that thread.

    Attributes:
        writer: Where its spans go.
        data_depth: How many requests for a batch, or fetches of one, it is inside of: data work is recorded only there.
    """

    __slots__ = ("__weakref__", "_at_end", "_schedstat", "data_depth", "writer")

    def __init__(self, writer: SpanWriter, at_end: Callable[[SpanWriter], None]) -> None:
        self.writer = writer
        self._at_end = at_end
        self.data_depth = 0
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = -1

    def runnable_ns(self) -> int:
        """Time this thread has waited for a core since it began, or 0 where the system does not say."""
        if self._schedstat < 0:
            return 0
        try:
            return int(os.pread(self._schedstat, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            # The script has closed our file.
            self._schedstat = -1
            return 0

    @property
    def knows_runnable(self) -> bool:
        """Whether the system says how long a thread waits for a core."""
        return self._schedstat >= 0

    def close(self) -> None:
        """Write what is left and close the files."""
        with contextlib.suppress(OSError):
            self.writer.close()
        self._at_end(self.writer)
        if self._schedstat >= 0:
            os.close(self._schedstat)

    def abandon(self) -> None:
        """Close without writing, after a fork: what is in memory is the parent's to write."""
        with contextlib.suppress(OSError):
            self.writer.abandon()
            if self._schedstat >= 0:
                os.close(self._schedstat)
        self.writer = _NO_WRITER
        self._at_end = _no_count
        self._schedstat = -1

    def __del__(self) -> None:
        # A thread has ended, or the interpreter is being torn down.
        with contextlib.suppress(Exception):
            self.close()


class Recorder:
    """Where this process's spans and events go. One a process; made anew in a forked child.

    Args:
        folder: The recording folder.
        settings: What was asked for.
    """

    def __init__(self, folder: str, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.on = True
        self._begin(Role.MAIN)

    def _begin(self, role: Role) -> None:
        self.role = role
        self._local = threading.local()
        self._threads: weakref.WeakSet[ThreadRecord] = weakref.WeakSet()
        self._names: dict[str, int] = {}
        self._events: EventWriter | None = None
        self._lock = threading.Lock()
        self._budget = DiskBudget(self.settings.max_disk_bytes, lambda: self.notice("recording-limit"))
        self._of_ended_threads = {"recorded": 0, "lost": 0}

    def after_fork(self) -> None:
        """Start again in a forked child: what the parent has not written yet is the parent's."""
        for thread in list(self._threads):
            thread.abandon()
        if self._events is not None:
            with contextlib.suppress(OSError):
                self._events.close()
        self._begin(Role.THREAD)

    def become(self, role: Role) -> None:
        """Say what this process is for, before its main thread records anything."""
        self.role = role

    def thread(self, role: Role | None = None) -> ThreadRecord:
        """The calling thread's record, made on first use.

        Args:
            role: What the thread is for; by default the process's role for its main thread, else ``THREAD``.

        Raises:
            OSError: The span file cannot be made.
        """
        found: ThreadRecord | None = getattr(self._local, "record", None)
        if found is not None:
            return found
        if role is None:
            is_main = threading.current_thread() is threading.main_thread()
            role = self.role if is_main else Role.THREAD
        writer = SpanWriter(self.folder, role, threading.get_native_id(), self._budget)
        record = ThreadRecord(writer, self._thread_ended)
        if not record.knows_runnable:
            self.notice("no-schedstat")
        self._local.record = record
        with self._lock:
            self._threads.add(record)
        return record

    def active_thread(self) -> ThreadRecord | None:
        """The calling thread's record if it is doing data work, else None. Never makes one."""
        record: ThreadRecord | None = getattr(self._local, "record", None)
        return record if record is not None and record.data_depth else None

    def name(self, text: str) -> int:
        """The number of an interned name (from 1)."""
        number = self._names.get(text)
        if number is None:
            with self._lock:
                number = self._names.setdefault(text, len(self._names) + 1)
            self.event("name", id=number, name=text)
        return number

    def event(self, event: str, **fields: Any) -> None:
        """Write one event; a failure turns recording off."""
        if not self.on:
            return
        try:
            if self._events is None:
                self._events = EventWriter(self.folder)
                self._events.write("process", **_process_facts(self.role))
            self._events.write(event, **fields)
        except OSError:
            self.on = False

    def notice(self, slug: str, **values: Any) -> None:
        """Leave a notice for the report."""
        self.event("notice", slug=slug, **values)

    def failed(self, hook: str, error: BaseException) -> None:
        """A hook failed while the script ran: recording ends in this process, the script goes on.

        Raises:
            BaseException: ``error`` itself, where a signal's handler raised it: that happened to be within a hook, and
                is the script's. torch tells of a dead worker this way.
        """
        if _is_of_signal_handler(error):
            raise error
        if isinstance(error, OSError):
            self.notice("recording-stopped-disk", error=str(error))
        else:
            self.notice("hook-failed", hook=hook, error=f"{type(error).__name__}: {in_words(error)}")
        self.on = False

    def flush_all(self) -> None:
        """Write what every thread of this process has in memory."""
        for thread in list(self._threads):
            with contextlib.suppress(OSError):
                thread.writer.flush()

    def counts(self) -> dict[str, int]:
        """How many spans were recorded and lost so far, over all threads, ended ones included."""
        writers = [thread.writer for thread in list(self._threads)]
        return {
            key: count + sum(getattr(writer, key) for writer in writers)
            for key, count in self._of_ended_threads.items()
        }

    def _thread_ended(self, writer: SpanWriter) -> None:
        for key in self._of_ended_threads:
            self._of_ended_threads[key] += getattr(writer, key)


def _is_of_signal_handler(error: BaseException) -> bool:
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def in_words(error: BaseException) -> str:
    """An exception's message; exceptions of the script may fail to give one.

    Of a long one, which may quote a traceback, both ends are kept: the last line names the error.
    """
    try:
        text = str(error)
    except Exception:
        return ""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}\n…\n{text[-_LONGEST // 2 :]}"


_LONGEST = 2000
"""Characters of an exception's message."""


class _NoWriter:
    """Stands in for a forked parent's writer."""

    def close(self) -> None:
        """Do nothing."""


_NO_WRITER: Any = _NoWriter()


def _no_count(_: Any) -> None:
    return


def _process_facts(role: Role) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "role": str(role),
        "executable": sys.executable,
        "argv": getattr(sys, "orig_argv", sys.argv),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "monotonic_ns": now(),
        "wall_ns": time.time_ns(),
        "rank": os.environ.get("RANK"),
        "local_rank": os.environ.get("LOCAL_RANK"),
        "world_size": os.environ.get("WORLD_SIZE"),
        "span_cost_ns": _span_cost_ns(),
    }


def _span_cost_ns() -> int:
    # What one span costs here: two clock readings and one packed record. Measured anew in each process, since
    # virtual machines differ by a factor of ten in what reading a clock costs.
    class Scratch(SpanWriter):
        def __init__(self) -> None:
            self._buffer = bytearray(RECORD_BYTES * (_CALIBRATION_ROUNDS + 1))
            self._used = 0
            self.recorded = 0

    scratch = Scratch()
    begin = now()
    for _ in range(_CALIBRATION_ROUNDS):
        start = now()
        scratch.add(Kind.OWN, start, now(), UNKNOWN)
    return (now() - begin) // _CALIBRATION_ROUNDS
