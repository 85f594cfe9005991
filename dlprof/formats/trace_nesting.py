"""Makes slices of one thread nest: a trace viewer drops those that overlap one another only in part.

Our times and torch's come from two readings of the clock, so that a bound of ours may fall microseconds inside an event
of torch's that it belongs beside.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

# Torch writes microseconds as decimals, which readers take for floating-point numbers: that costs up to a nanosecond.
_GAP_NS = 2
_TRIES = 4


class ThreadEvents:
    """Torch's events of one thread, which nest among themselves.

    Args:
        start_ns: Starts, shape ``(n,)``, in any order.
        end_ns: Their ends.
    """

    def __init__(self, start_ns: Times, end_ns: Times) -> None:
        order = np.lexsort((-end_ns, start_ns))
        self._starts = start_ns[order]
        self._ends = end_ns[order]
        self._parents: list[int] | None = None

    def beside(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """The bounds of a slice of ours, moved out of the events that they cut.

        A bound inside an event that does not hold the whole slice goes to the nearer end of the outermost such event.

        Args:
            start_ns: Start of ours, on the same clock.
            end_ns: Its end.
        """
        # A bound that has left one event may lie in the one beside it: two are seldom so close.
        for _ in range(_TRIES):
            start = self._moved(start_ns, self._cut_by(start_ns, end_ns))
            # Of two that start together the slice of ours is written first and so has to be the outer one.
            end = self._moved(end_ns, self._cut_by(end_ns, start), start)
            if (start, end) == (start_ns, end_ns):
                break
            start_ns, end_ns = start, end
        return start_ns, end_ns

    def _cut_by(self, bound: int, other: int) -> int:
        index = int(np.searchsorted(self._starts, bound, side="left")) - 1
        if index < 0:
            return -1
        parents = self._known_parents()
        found = -1
        while index >= 0:
            start, end = int(self._starts[index]), int(self._ends[index])
            if start < bound < end and not start < other <= end:
                found = index
            index = parents[index]
        return found

    def _moved(self, bound: int, index: int, not_before: int | None = None) -> int:
        if index < 0:
            return bound
        start, end = int(self._starts[index]), int(self._ends[index])
        early = start - _GAP_NS
        nearer = bound - start <= end - bound and (not_before is None or early >= not_before)
        return early if nearer else end + _GAP_NS

    def _known_parents(self) -> list[int]:
        if self._parents is None:
            self._parents = parents = []
            open_: list[tuple[int, int]] = []
            for index, (start, end) in enumerate(zip(self._starts.tolist(), self._ends.tolist(), strict=True)):
                while open_ and open_[-1][1] <= start:
                    open_.pop()
                parents.append(open_[-1][0] if open_ else -1)
                open_.append((index, end))
        return self._parents


def clipped(start_ns: Times, end_ns: Times) -> Times:
    """Ends that do not reach beyond the end of the slice around them.

    Args:
        start_ns: Starts of one thread's slices, shape ``(n,)``, sorted, an outer slice before those inside it.
        end_ns: Their ends.
    """
    ends = end_ns.tolist()
    open_: list[int] = []
    for index, start in enumerate(start_ns.tolist()):
        while open_ and open_[-1] <= start:
            open_.pop()
        if open_ and ends[index] > open_[-1]:
            ends[index] = open_[-1]
        open_.append(ends[index])
    return np.array(ends, dtype=np.int64)
