"""Which lines of the user's code the time goes to: in data work, and in the training loop's own Python.

A look at a thread's frames stands for the time since the look before it; how that was spent the kernel has counted.
Library frames are folded into the user's line that called them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlprof.analysis.components import Fetches
from dlprof.analysis.scope import process_spans, training_spans
from dlprof.analysis.timelines import COLUMNS, FEWEST_LOOKS, IN_KERNEL, NO_CORE, ON_CPU, Timeline
from dlprof.model.intervals import clip, length
from dlprof.model.kinds import Doing, Kind
from dlprof.model.profile import Frame, Profile, Stack
from dlprof.model.report import BlockedOn, HotLine
from dlprof.model.steps import Step, Steps

_MOST = 10
_LEAST_SHARE = 0.01
_STATES: dict[BlockedOn, tuple[int, ...]] = {
    "cpu": (ON_CPU,),
    "storage": (Doing.DISK, Doing.PAGE_FAULT),
    "network": (Doing.SOCKET,),
    "lock": (Doing.LOCK,),
    "sleep": (Doing.SLEEP,),
}

_COUNTED = [column for column in range(COLUMNS) if column not in (NO_CORE, IN_KERNEL)]
"""A wait for a core is the machine's and no line's; time in the kernel is counted as time on a core."""

Place = tuple[str, int]
Amounts = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HotLines:
    """Lines by share of all the time that was looked into, the largest first: data work and the loop's own Python."""

    data: list[HotLine]
    loop: list[HotLine]
    looks: int
    """How often data work was looked at."""

    @property
    def few(self) -> bool:
        """Whether it was looked at, and not often enough to name lines."""
        return 0 < self.looks < FEWEST_LOOKS

    def all(self) -> list[HotLine]:
        """Both together."""
        return sorted([*self.data, *self.loop], key=lambda line: -line.share)[:_MOST]


def find_hot_lines(profile: Profile, steps: Steps, fetches: Fetches) -> HotLines:
    """The lines at which most time is spent.

    Args:
        profile: The run.
        steps: Its steps; what belongs to a measured one counts.
        fetches: Every batch made.
    """
    data, loop = _in_data_work(profile, steps, fetches), _in_the_loop(profile, steps, fetches)
    total = data.total_ns + loop.total_ns
    return HotLines(data.lines(total), loop.lines(total), data.looks)


class _Spent:
    """Time by line, in nanoseconds by column of a timeline."""

    def __init__(self) -> None:
        self._by_place: dict[Place, Amounts] = {}
        self._frames: dict[Place, Frame] = {}
        self.total_ns = 0.0
        self.looks = 0

    def add(self, frame: Frame | None, amount: Amounts) -> None:
        """Count a look at a frame, or at none that is to be named."""
        self.total_ns += float(amount[_COUNTED].sum())
        self.looks += 1
        if frame is not None:
            # A comprehension and the function around it are one line.
            place = frame.file, frame.line
            self._frames.setdefault(place, frame)
            self._by_place[place] = self._by_place.get(place, np.zeros(COLUMNS)) + amount

    def lines(self, total_ns: float) -> list[HotLine]:
        """One entry a line and state that has at least a hundredth of the total; none after too few looks."""
        if self.looks < FEWEST_LOOKS:
            return []
        found = [
            HotLine(f"{file}:{line}", self._frames[file, line].function, self._frames[file, line].source, share, state)
            for (file, line), amount in self._by_place.items()
            for state, columns in _STATES.items()
            if total_ns and (share := float(amount[list(columns)].sum()) / total_ns) >= _LEAST_SHARE
        ]
        return sorted(found, key=lambda line: -line.share)[:_MOST]


def _in_data_work(profile: Profile, steps: Steps, fetches: Fetches) -> _Spent:
    spent = _Spent()
    rows = fetches.rows_of(steps.measured)
    for track, timeline in fetches.seen.items():
        mine = fetches.spans.where(rows[fetches.spans.track[rows] == track])
        for _, stack, amount in _looks(profile, timeline, mine.start_ns, mine.end_ns):
            spent.add(_line(stack) if stack.in_fetch else None, amount)
    return spent


def _in_the_loop(profile: Profile, steps: Steps, fetches: Fetches) -> _Spent:
    """The training loop's own Python.

    Where the model runs on the CPU, torch's operators are known from the traced steps only. So of a line that is seen
    in measured steps counts what part of its time there is in no operator.
    """
    spent = _Spent()
    tracks = np.unique(training_spans(profile).track).tolist()
    outside = _outside_operators(profile, steps, fetches, tracks) if profile.device == "cpu" else None
    saving = process_spans(profile).of(Kind.CHECKPOINT).covered()
    for timeline in (fetches.seen[track] for track in tracks if track in fetches.seen):
        for at, stack, amount in _looks(profile, timeline, *_bodies(steps.measured)):
            frame = _line(stack)
            if frame is None or stack.in_fetch:
                continue
            part = 1.0
            if outside is not None and not length(clip(saving, at, at + 1)):
                part = outside(frame)
            spent.add(frame, amount * part)
    return spent


def _outside_operators(profile: Profile, steps: Steps, fetches: Fetches, tracks: list[int]) -> Callable[[Frame], float]:
    """Of each line the part of its time in the traced steps that is in no operator; 0 for a line not seen there."""
    operators = process_spans(profile).of(Kind.OPERATOR, Kind.USER_DEVICE).covered()
    whole: dict[Place, float] = {}
    without: dict[Place, float] = {}
    for timeline in (fetches.seen[track] for track in tracks if track in fetches.seen):
        for at, stack, amount in _looks(profile, timeline, *_bodies(steps.traced)):
            frame = _line(stack)
            if frame is not None and not stack.in_fetch:
                place, busy = (frame.file, frame.line), float(amount[_COUNTED].sum())
                whole[place] = whole.get(place, 0.0) + busy
                without[place] = without.get(place, 0.0) + busy * (not length(clip(operators, at, at + 1)))

    def part(frame: Frame) -> float:
        place = frame.file, frame.line
        return without.get(place, 0.0) / whole[place] if whole.get(place) else 0.0

    return part


def _bodies(steps: tuple[Step, ...]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return (
        np.array([step.body_start_ns for step in steps], dtype=np.int64),
        np.array([step.body_end_ns for step in steps], dtype=np.int64),
    )


def _looks(
    profile: Profile, timeline: Timeline, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Iterator[tuple[int, Stack, Amounts]]:
    """When each look within the intervals was, where, and the time that it stands for."""
    looks, amounts = timeline.looks_within(starts, ends)
    for at, stack, amount in zip(timeline.at_ns[looks].tolist(), timeline.stack[looks].tolist(), amounts, strict=True):
        yield at, profile.samples.stacks[stack], amount


def _line(stack: Stack) -> Frame | None:
    """The user's innermost line, None where all of it is a library's."""
    return next((frame for frame in stack.frames if frame.is_user), None)
