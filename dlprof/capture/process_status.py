"""What ``/proc`` says of other processes: who runs, whose child it is, since when. No torch here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process as it was when looked at.

    Attributes:
        pid: Its number in our PID namespace.
        parent: Its parent's.
        state: One letter: R, S, D, T (stopped), Z (ended, not yet collected), ...
        start_ticks: When it was started, in clock ticks since boot. With ``pid`` this is one process
            for ever, while a bare pid may be given to another.
    """

    pid: int
    parent: int
    state: str
    start_ticks: int

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.state not in "ZXx"


def read_status(pid: int) -> ProcessStatus | None:
    """Look at a process.

    Args:
        pid: Which one.

    Returns:
        None where there is none, or where ``/proc`` does not show it to us.
    """
    try:
        line = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        # The command's name stands in parentheses and may hold any character, spaces and parentheses too.
        fields = line.rpartition(")")[2].split()
        return ProcessStatus(pid, int(fields[1]), fields[0], int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def still_running(process: ProcessStatus) -> bool:
    """Whether this same process has not ended yet."""
    now = read_status(process.pid)
    return now is not None and now.running and now.start_ticks == process.start_ticks


def start_time_s(pid: int) -> float | None:
    """When a process was started.

    Args:
        pid: Which one.

    Returns:
        Seconds since the epoch, the same number whoever asks; None where it cannot be read.
    """
    status = read_status(pid)
    if status is None:
        return None
    try:
        for line in (_PROC / "stat").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("btime "):
                return int(line.split()[1]) + status.start_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        pass
    return None
