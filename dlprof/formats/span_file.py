"""The span file: one a thread, fixed records appended, so that a process may die and lose at most one batch.

Layout, version 1, little-endian: a header of 64 bytes (magic, version, role, pid, native thread id, and
``CLOCK_MONOTONIC`` and wall clock read as a pair), then records of 64 bytes. A truncated last record is normal.
Names are interned: a record holds a number, the process's event file (see ``event_file``) says what it stands for.

History: 1 first version.

The writer runs in the profiled script and uses the standard library only; the reader needs numpy.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlprof.model.kinds import Role

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

VERSION = 1
SUFFIX = ".spans"
RECORD_BYTES = 64

_HEADER = struct.Struct("<4sHHIIqq32x")
_MAGIC = b"DLPS"
_RECORD = struct.Struct("<qqqqqqiiIHBB")
_ROLES = (Role.MAIN, Role.WORKER, Role.FEEDER, Role.PIN_MEMORY, Role.THREAD)
_BUFFER_RECORDS = 512

UNKNOWN = -1


class DiskBudget:
    """Bytes that a process may still write, over all its threads.

    Args:
        limit_bytes: How many.
        when_spent: Called once, when there is no room for what should be written.
    """

    __slots__ = ("_left_bytes", "_when_spent")

    def __init__(self, limit_bytes: int, when_spent: Callable[[], None] | None = None) -> None:
        self._left_bytes = limit_bytes
        self._when_spent = when_spent

    def take(self, size_bytes: int) -> bool:
        """Whether there is room for that much more, which then counts as written."""
        if size_bytes > self._left_bytes:
            told, self._when_spent = self._when_spent, None
            if told is not None:
                told()
            return False
        self._left_bytes -= size_bytes
        return True


class SpanWriter:
    """Appends one thread's spans to its file. Used by that thread only.

    Args:
        folder: The recording folder.
        role: What the thread is for.
        thread_id: Its native id.
        budget: What the process may still write, shared by its threads.

    Raises:
        OSError: The file cannot be made; from ``flush`` also when it cannot be written.
    """

    def __init__(self, folder: str, role: Role, thread_id: int, budget: DiskBudget) -> None:
        pid = self._pid = os.getpid()
        path = f"{folder}/{pid}-{thread_id}{SUFFIX}"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._buffer = bytearray(RECORD_BYTES * _BUFFER_RECORDS)
        self._used = 0
        self._budget = budget
        self.recorded = 0
        self.lost = 0
        about = os.fstat(self._fd)
        self._file = (about.st_dev, about.st_ino)
        if about.st_size == 0:
            header = _HEADER.pack(
                _MAGIC,
                VERSION,
                _ROLES.index(role),
                pid,
                thread_id,
                time.monotonic_ns(),
                time.time_ns(),
            )
            os.write(self._fd, header)

    def add(
        self,
        kind: int,
        start_ns: int,
        end_ns: int,
        batch: int = UNKNOWN,
        iterator: int = UNKNOWN,
        name: int = 0,
        on_cpu_ns: int = UNKNOWN,
        runnable_ns: int = UNKNOWN,
        process_cpu_ns: int = UNKNOWN,
        value: int = UNKNOWN,
        weight: int = 1,
        flags: int = 0,
    ) -> None:
        """Record one span.

        Args:
            kind: A ``Kind``.
            start_ns: ``CLOCK_MONOTONIC``.
            end_ns: ``CLOCK_MONOTONIC``.
            batch: Batch number within its iterator.
            iterator: In the main process the number of the iterator, in a worker its generation (0, then one more
                each time that the iteration is resumed).
            name: Interned name, 0 for none.
            on_cpu_ns: This thread's CPU time within the span.
            runnable_ns: Time this thread waited for a core within the span.
            process_cpu_ns: CPU time of all the process's threads within the span.
            value: Bytes, samples, a dataset index or a queue depth, by kind.
            weight: How many such spans this one stands for, where only one in so many is timed.
            flags: Bits of ``Flag``.
        """
        _RECORD.pack_into(
            self._buffer,
            self._used,
            start_ns,
            end_ns,
            on_cpu_ns,
            runnable_ns,
            process_cpu_ns,
            value,
            batch,
            iterator,
            name,
            weight,
            kind,
            flags,
        )
        self._used += RECORD_BYTES
        self.recorded += 1
        if self._used == len(self._buffer):
            self.flush()

    def flush(self) -> None:
        """Hand the recorded spans to the operating system, which keeps them whatever becomes of the process.

        Raises:
            OSError: They cannot be written, or the script has closed our file.
        """
        used, self._used = self._used, 0
        # In a forked child the spans in memory are the parent's to write.
        if not used or os.getpid() != self._pid:
            return
        if not self._budget.take(used):
            self.lost += used // RECORD_BYTES
            return
        # Scripts that close all descriptors may have given the number of ours to a file of their own.
        about = os.fstat(self._fd)
        if (about.st_dev, about.st_ino) != self._file:
            raise OSError(errno.EBADF, "the script has closed the file")
        left = memoryview(self._buffer)[:used]
        while left:
            left = left[os.write(self._fd, left) :]

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        os.close(self._fd)

    def abandon(self) -> None:
        """Close the file without writing: after a fork the spans in memory are the parent's to write."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class SpanFile:
    """What one thread recorded.

    Attributes:
        role: What the thread was for.
        pid: Its process.
        thread_id: Its native id.
        monotonic_ns: ``CLOCK_MONOTONIC`` when the file was made.
        wall_ns: Wall clock at the same moment.
        records: Structured array, fields as the arguments of ``SpanWriter.add``.
        truncated: Whether the last record was cut off.
    """

    role: Role
    pid: int
    thread_id: int
    monotonic_ns: int
    wall_ns: int
    records: npt.NDArray[np.void]
    truncated: bool


def record_dtype() -> Any:
    """The numpy type of one record, field for field as ``SpanWriter.add`` packs it."""
    import numpy as np

    return np.dtype(
        [
            ("start_ns", "<i8"),
            ("end_ns", "<i8"),
            ("on_cpu_ns", "<i8"),
            ("runnable_ns", "<i8"),
            ("process_cpu_ns", "<i8"),
            ("value", "<i8"),
            ("batch", "<i4"),
            ("iterator", "<i4"),
            ("name", "<u4"),
            ("weight", "<u2"),
            ("kind", "u1"),
            ("flags", "u1"),
        ]
    )


def read_spans(path: Path) -> SpanFile | None:
    """Read one thread's spans.

    Args:
        path: A file made by ``SpanWriter``.

    Returns:
        What is in it, or None where the file is empty or not a span file of a version known here.

    Raises:
        OSError: The file cannot be read.
    """
    import numpy as np

    data = path.read_bytes()
    if len(data) < _HEADER.size:
        return None
    magic, version, role, pid, thread_id, monotonic_ns, wall_ns = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != VERSION or role >= len(_ROLES):
        return None
    count, rest = divmod(len(data) - _HEADER.size, RECORD_BYTES)
    records = np.frombuffer(data, dtype=record_dtype(), count=count, offset=_HEADER.size)
    return SpanFile(_ROLES[role], pid, thread_id, monotonic_ns, wall_ns, records, bool(rest))
