"""How far a training process has come: one fixed record, rewritten in place by the child, read by the supervisor.

Standard library only: the profiled script imports this module. A record is 72 bytes and is written with one
``pwrite``, so a reader sees an old or a new record and never waits.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_RECORD = struct.Struct("<4sIqqqqqqqq")
_MAGIC = b"DLP1"
PREFIX = "progress-"
ALL_STEPS = -1


class Phase(IntEnum):
    """Where the training process stands."""

    STARTING = 0
    WARM_UP = 1
    MEASURING = 2
    TRACING = 3
    DONE = 4
    """All steps that were asked for are recorded; with ``--steps all`` never reached."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One reading of a training process's progress file.

    Attributes:
        pid: The training process.
        phase: What it is doing now.
        batches_done: Batches taken by the training loop so far, warm-up included.
        batches_total: Batches until it is stopped; ``ALL_STEPS`` where it is never stopped.
        wait_ns: Time inside requests for a batch over the measured steps so far.
        measured_ns: Wall time of the measured steps so far.
        first_batch_ns: From the process's start to its first batch; 0 until then.
        stop_requested_ns: ``CLOCK_MONOTONIC`` when ``SystemExit`` was first raised; 0 until then.
        updated_ns: ``CLOCK_MONOTONIC`` of this record.
    """

    pid: int
    phase: Phase
    batches_done: int
    batches_total: int
    wait_ns: int
    measured_ns: int
    first_batch_ns: int
    stop_requested_ns: int
    updated_ns: int


class ProgressWriter:
    """Writes this process's record. Errors are the caller's to catch."""

    def __init__(self, folder: str) -> None:
        self._pid = os.getpid()
        path = f"{folder}/{PREFIX}{self._pid}"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(
        self,
        phase: int,
        batches_done: int,
        batches_total: int,
        wait_ns: int,
        measured_ns: int,
        first_batch_ns: int,
        stop_requested_ns: int,
        updated_ns: int,
    ) -> None:
        """Replace the record; see ``Progress`` for the fields."""
        record = _RECORD.pack(
            _MAGIC,
            phase,
            self._pid,
            batches_done,
            batches_total,
            wait_ns,
            measured_ns,
            first_batch_ns,
            stop_requested_ns,
            updated_ns,
        )
        os.pwrite(self._fd, record, 0)


def read_progress(folder: Path) -> list[Progress]:
    """Progress of every process that has a training loop or a loader, in no particular order.

    Args:
        folder: The recording folder of a run.

    Returns:
        One entry a process; files that are missing, empty or not ours are passed over.
    """
    found = []
    for path in folder.glob(PREFIX + "*"):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        if len(data) < _RECORD.size:
            continue
        magic, phase, *rest = _RECORD.unpack_from(data)
        if magic == _MAGIC and phase in Phase.__members__.values():
            pid, *counts = rest
            found.append(Progress(pid, Phase(phase), *counts))
    return found
