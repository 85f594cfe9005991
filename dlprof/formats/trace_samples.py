"""What threads were doing, as slices of a Chrome trace: one track beside each thread that was looked at."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from dlprof.formats.trace_events import STARVED_THREAD, Event, microseconds
from dlprof.model.kinds import Doing, Role
from dlprof.model.profile import Profile, Stack, Track

_FIRST_THREAD = STARVED_THREAD + 1
MOST_SLICES = 100_000
"""Of looks; what is older is left out. They take 20 MB before compression."""
_WORDS = {
    Doing.RUNNING: "running",
    Doing.DISK: "disk",
    Doing.PIPE: "pipe",
    Doing.SOCKET: "socket",
    Doing.LOCK: "lock",
    Doing.SLEEP: "sleep",
    Doing.PAGE_FAULT: "page fault",
    Doing.OTHER: "blocked",
}
_ROLES = {Role.MAIN: "main", Role.WORKER: "DataLoader worker", Role.THREAD: "thread"}


def sampled_threads(profile: Profile) -> Iterator[tuple[Track, str]]:
    """The tracks beside those that were looked at, each with its name."""
    for number in np.unique(profile.samples.track).tolist():
        track = profile.tracks[number]
        yield _beside(track, number), f"{_ROLES.get(track.role, track.role)}: seen doing"


def _beside(track: Track, number: int) -> Track:
    return Track(track.pid, _FIRST_THREAD + number, track.role, track.rank)


def sample_slices(profile: Profile, since_ns: int, offset_ns: int) -> list[Event]:
    """One slice for looks that follow each other and found the same, up to the last of them; the oldest first.

    Args:
        profile: The run.
        since_ns: What began before this, on the trace's clock, is left out.
        offset_ns: What to add to get the trace's clock.
    """
    found: list[tuple[int, Event]] = []
    for number in np.unique(profile.samples.track).tolist():
        own = profile.samples.where(profile.samples.track == number)
        beside = _beside(profile.tracks[number], number)
        rows = zip(own.at_ns.tolist(), own.doing.tolist(), own.stack.tolist(), strict=True)
        begin: int | None = None
        for (doing, stack), looks in itertools.groupby(rows, key=lambda row: row[1:]):
            times = [at for at, _, _ in looks]
            start, begin = begin, int(times[-1])
            if start is not None and start + offset_ns >= since_ns:
                event = _slice(beside, Doing(doing), own.stacks[stack], start, begin, offset_ns, len(times))
                found.append((start, event))
    return [event for _, event in sorted(found, key=lambda each: each[0])]


def _slice(beside: Track, doing: Doing, stack: Stack, start: int, end: int, offset_ns: int, looks: int) -> Event:
    args: dict[str, Any] = {"looks": looks}
    line = next((frame for frame in stack.frames if frame.is_user), None)
    innermost = stack.frames[0] if stack.frames else None
    for name, frame in (("line", line), ("innermost", innermost)):
        if frame is not None:
            args[name] = f"{frame.file}:{frame.line} {frame.function}"
    if line is not None and line.source:
        args["source"] = line.source
    return {
        "ph": "X",
        "cat": "dlprof.sample",
        "name": f"{_WORDS[doing]}{f' at {line.file}:{line.line}' if line is not None else ''}",
        "pid": beside.pid,
        "tid": beside.thread,
        "ts": microseconds(start + offset_ns),
        "dur": microseconds(end - start),
        "args": args,
    }
