"""What each thread spent its time on, as far as looking at it from outside told: on a core, without one, blocked.

A look says what a thread was doing at one moment, and the kernel's counters how long it was on a core and without one
since the look before. What is left of that time it was blocked, on what it was seen to be doing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlprof.model.kinds import Doing
from dlprof.model.profile import Profile, Samples

ON_CPU, NO_CORE, UNSEEN, IN_KERNEL = 0, 8, 9, 10
"""Columns of a timeline; the others are those of ``Doing``. Unseen: blocked for a moment between two looks that both
found the thread running. In the kernel: of the time on a core."""
COLUMNS = 11
FEWEST_LOOKS = 5
"""Looks from which lines and functions are named: fewer would name the one that happened to be seen."""

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_BLOCKED = [column for column in range(COLUMNS) if column not in (ON_CPU, NO_CORE, IN_KERNEL)]


@dataclass(frozen=True, slots=True)
class Timeline:
    """One thread.

    Attributes:
        at_ns: When it was looked at, shape ``(n,)``, ascending.
        doing: What it was doing then, same shape.
        stack: Where it was then, same shape.
        spent_ns: Nanoseconds since the look before, by column, shape ``(n, COLUMNS)``; the first row is zeros. A row
            may hold negative parts, since the kernel counts CPU time of a running thread with a delay; sums are right.
    """

    at_ns: npt.NDArray[np.int64]
    doing: npt.NDArray[np.int64]
    stack: npt.NDArray[np.int64]
    spent_ns: Floats

    def between(self, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Floats:
        """Nanoseconds by column within intervals, shape ``(intervals, COLUMNS)``; gaps that are cut count in part."""
        sums = np.cumsum(self.spent_ns, axis=0)
        both = [
            np.stack([np.interp(times, self.at_ns, sums[:, column]) for column in range(COLUMNS)], axis=1)
            for times in (begins, ends)
        ]
        spent: Floats = both[1] - both[0]
        return spent

    def looks_within(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> tuple[Indices, Floats]:
        """The looks within disjoint intervals, and the time there that each stands for.

        How long the thread was on a core, without one and blocked there is known from the counters. The looks that
        found it running share out the first two, those that found it blocked the third: each by the time since the
        look before it, whether or not that time lies in the interval. Looks do not come more often at the start of an
        interval than at its end, so one soon after the start must not stand for less (*measured:* where intervals
        were shorter than the gaps, what threads do last got a third too much).

        Args:
            starts: Starts of the intervals, ascending.
            ends: Their ends.

        Returns:
            Indices of the looks, shape ``(k,)``, and nanoseconds by column, shape ``(k, COLUMNS)``.
        """
        if not len(starts):
            return np.empty(0, dtype=np.int64), np.zeros((0, COLUMNS))
        place = np.searchsorted(starts, self.at_ns, side="right") - 1
        inside = np.flatnonzero((place >= 0) & (self.at_ns < ends[np.maximum(place, 0)]))
        inside = inside[inside > 0]
        whole = np.maximum(self.between(starts, ends).sum(axis=0), 0)
        gap = (self.at_ns[inside] - self.at_ns[inside - 1]).astype(np.float64)
        running = self.doing[inside] == Doing.RUNNING
        kept = np.zeros((len(inside), COLUMNS))
        kept[:, ON_CPU] = _shared_out(whole[ON_CPU], gap * running)
        kept[:, NO_CORE] = _shared_out(whole[NO_CORE], gap * running)
        kept[:, IN_KERNEL] = _shared_out(whole[IN_KERNEL], np.maximum(self.spent_ns[inside, IN_KERNEL], 0) * running)
        blocked = np.where(running, UNSEEN, self.doing[inside])
        kept[np.arange(len(inside)), blocked] += _shared_out(whole[_BLOCKED].sum(), gap * ~running)
        return inside, kept


def _shared_out(total: float, weights: Floats) -> Floats:
    found = float(weights.sum())
    return weights * (total / found if found else 0.0)


def timelines(profile: Profile) -> dict[int, Timeline]:
    """The timeline of every track that was looked at more than once."""
    found = {}
    for track in np.unique(profile.samples.track):
        samples = profile.samples.where(profile.samples.track == track)
        if len(samples) > 1:
            found[int(track)] = _timeline(samples)
    return found


def _timeline(samples: Samples) -> Timeline:
    wall = np.diff(samples.at_ns)
    on_cpu, no_core = np.diff(samples.on_cpu_ns), np.diff(samples.runnable_ns)
    doing = samples.doing[1:]
    rows = np.arange(1, len(samples))
    spent = np.zeros((len(samples), COLUMNS))
    spent[rows, np.where(doing == Doing.RUNNING, UNSEEN, doing)] = wall - on_cpu - no_core
    spent[rows, ON_CPU] = on_cpu
    spent[rows, NO_CORE] = no_core
    spent[rows, IN_KERNEL] = np.diff(samples.kernel_ns)
    return Timeline(samples.at_ns, samples.doing, samples.stack, spent)
