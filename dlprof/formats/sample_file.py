"""What threads were doing when they were looked at: fixed records in one file a looking process, stacks in another.

* ``<pid>.samples``: a header of 16 bytes (magic, version), then records of 48 bytes, little-endian: thread, its CPU
  time, its wait for a core and its CPU time in the kernel so far, what it was doing, and the number of its stack. A
  truncated last record is normal. The last record, of process 0, holds the CPU time that the looking took; where the
  looker was killed there is none.
* ``<pid>.stacks``: JSON lines, the frames of stack 1, 2, ...; 0 is a stack that is not known.

Standard library only: the profiled script imports this module. The reader needs numpy.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

VERSION = 1
SUFFIX = ".samples"
STACKS_SUFFIX = ".stacks"
LOOK_INSIDE = "look-inside"
"""A file of this name in the recording folder says that threads cannot be looked at from outside."""
NO_STACK = 0

Frames = tuple[tuple[str, int, str], ...]
"""File, line and qualified name of each frame, the innermost first."""

_HEADER = struct.Struct("<4sI8x")
_MAGIC = b"DLPT"
_RECORD = struct.Struct("<qqqqIIII")
_BUFFER_BYTES = 4096
_MOST_STACKS = 20_000


class SampleWriter:
    """Appends looks at threads. Used by one thread only.

    Args:
        folder: The recording folder.
        limit_bytes: How much may be written; what is more is dropped and counted in ``lost``.

    Raises:
        OSError: A file cannot be made; from the methods also when it cannot be written.
    """

    def __init__(self, folder: str, limit_bytes: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(f"{folder}/{os.getpid()}{SUFFIX}", flags, 0o644)
        self._stacks_fd = os.open(f"{folder}/{os.getpid()}{STACKS_SUFFIX}", flags, 0o644)
        self._buffer = bytearray(_HEADER.pack(_MAGIC, VERSION))
        self._stacks: dict[Frames, int] = {}
        self._left_bytes = limit_bytes
        self.lost = 0

    def add(self, at_ns: int, pid: int, thread: int, times: tuple[int, int, int], doing: int, frames: Frames) -> None:
        """Record one look.

        Args:
            at_ns: ``CLOCK_MONOTONIC``.
            pid: Process.
            thread: Native thread id.
            times: Nanoseconds since the thread began: its CPU time, its wait for a core, its CPU time in the kernel.
            doing: A ``Doing``.
            frames: Its Python frames, empty where they are not known.
        """
        if self._left_bytes < _RECORD.size:
            self.lost += 1
            return
        stack = self._number(frames) if frames else NO_STACK
        self._left_bytes -= _RECORD.size
        self._buffer += _RECORD.pack(at_ns, *times, pid, thread, doing, stack)
        if len(self._buffer) >= _BUFFER_BYTES:
            self.flush()

    def _number(self, frames: Frames) -> int:
        number = self._stacks.get(frames)
        if number is None:
            line = json.dumps(frames, separators=(",", ":")).encode() + b"\n"
            if len(line) > self._left_bytes or len(self._stacks) >= _MOST_STACKS:
                return NO_STACK
            self._left_bytes -= len(line)
            os.write(self._stacks_fd, line)
            number = self._stacks[frames] = len(self._stacks) + 1
        return number

    def flush(self) -> None:
        """Hand what was added to the operating system."""
        if self._buffer:
            os.write(self._fd, self._buffer)
            self._buffer.clear()

    def close(self, spent_ns: int) -> None:
        """Flush and close the files.

        Args:
            spent_ns: CPU time that the looking has taken.
        """
        self._buffer += _RECORD.pack(0, spent_ns, 0, 0, 0, 0, 0, NO_STACK)
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files without writing: after a fork what is in memory is the parent's to write."""
        os.close(self._fd)
        os.close(self._stacks_fd)


def read_samples(path: Path) -> tuple[npt.NDArray[np.void], list[Frames], int] | None:
    """One process's looks.

    Args:
        path: A file made by ``SampleWriter``; its stacks lie beside it.

    Returns:
        Looks as a structured array (``at_ns``, ``on_cpu_ns``, ``runnable_ns``, ``kernel_ns``, ``pid``, ``thread``,
        ``doing``, ``stack``), the stacks from number 1 on, and the CPU time that looking took in ns; None where the
        file is empty or none of ours.

    Raises:
        OSError: It cannot be read.
    """
    import numpy as np

    data = path.read_bytes()
    if len(data) < _HEADER.size or _HEADER.unpack_from(data) != (_MAGIC, VERSION):
        return None
    times, numbers = ("at_ns", "on_cpu_ns", "runnable_ns", "kernel_ns"), ("pid", "thread", "doing", "stack")
    dtype = np.dtype([*((name, "<i8") for name in times), *((name, "<u4") for name in numbers)])
    count = (len(data) - _HEADER.size) // _RECORD.size
    records = np.frombuffer(data, dtype=dtype, count=count, offset=_HEADER.size)
    looks = records["pid"] > 0
    return records[looks], _read_stacks(path), int(records["on_cpu_ns"][~looks].sum())


def _read_stacks(path: Path) -> list[Frames]:
    stacks: list[Frames] = []
    for line in path.with_suffix(STACKS_SUFFIX).read_bytes().splitlines():
        try:
            stacks.append(tuple((str(file), int(number), str(name)) for file, number, name in json.loads(line)))
        except (ValueError, TypeError):
            # The last line may be cut off; its stack is then not known.
            stacks.append(())
    return stacks
