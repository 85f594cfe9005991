"""Interval algebra on half-open intervals ``[start, end)`` in nanoseconds.

A set of intervals is an integer array of shape ``(n, 2)``, sorted, disjoint and without empty intervals: what
``union`` returns. An empty set has shape ``(0, 2)`` and means "nothing"; "no restriction" is never written as a set.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)


def union(start_ns: npt.ArrayLike, end_ns: npt.ArrayLike) -> Intervals:
    """Merge intervals that overlap or touch, in any order.

    Args:
        start_ns: Shape ``(n,)``.
        end_ns: Shape ``(n,)``; intervals that are empty or reversed count as nothing.

    Returns:
        Sorted disjoint set that covers the same points.
    """
    starts = np.asarray(start_ns, dtype=np.int64)
    ends = np.asarray(end_ns, dtype=np.int64)
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate([[True], starts[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    # Columns that lie together in memory: searching in one does not copy it.
    return np.stack([starts[first], reach[last]]).T


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Points that are in both sets."""
    if not len(left) or not len(right):
        return EMPTY
    if len(left) < len(right):
        # Only the part of the longer set that the shorter one reaches: one step against a whole run.
        first = np.searchsorted(right[:, 1], left[0, 0], side="right")
        last = np.searchsorted(right[:, 0], left[-1, 1], side="left")
        right = right[first : max(first, last)]
    # For each interval on the left, the run of intervals on the right that may overlap it.
    begin = np.searchsorted(right[:, 1], left[:, 0], side="right")
    stop = np.searchsorted(right[:, 0], left[:, 1], side="left")
    counts = np.maximum(stop - begin, 0)
    which = np.repeat(np.arange(len(left)), counts)
    offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    other = begin[which] + offset
    starts = np.maximum(left[which, 0], right[other, 0])
    ends = np.minimum(left[which, 1], right[other, 1])
    keep = ends > starts
    return np.stack([starts[keep], ends[keep]], axis=1)


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """Points of ``left`` that are not in ``right``."""
    if not len(left) or not len(right):
        return left
    first = np.searchsorted(right[:, 1], left[0, 0], side="right")
    last = np.searchsorted(right[:, 0], left[-1, 1], side="left")
    right = right[first : max(first, last)]
    if not len(right):
        return left
    low = min(left[0, 0], right[0, 0]) - 1
    high = max(left[-1, 1], right[-1, 1]) + 1
    gaps_start = np.concatenate([[low], right[:, 1]])
    gaps_end = np.concatenate([right[:, 0], [high]])
    return intersect(left, np.stack([gaps_start, gaps_end], axis=1))


def length(intervals: Intervals) -> int:
    """Total length in nanoseconds."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def clip(intervals: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The part of the set within ``[start_ns, end_ns)``."""
    first = np.searchsorted(intervals[:, 1], start_ns, side="right")
    last = np.searchsorted(intervals[:, 0], end_ns, side="left")
    return intersect(intervals[first : max(first, last)], union([start_ns], [end_ns]))


def overlap(intervals: Intervals, start_ns: npt.ArrayLike, end_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """How much of each of many windows the set covers.

    Args:
        intervals: The set.
        start_ns: Shape ``(m,)``; windows may overlap each other.
        end_ns: Shape ``(m,)``, each at least its start.

    Returns:
        Nanoseconds, shape ``(m,)``, between 0 and the window's length.
    """
    starts = np.asarray(start_ns, dtype=np.int64)
    ends = np.asarray(end_ns, dtype=np.int64)
    if not len(intervals):
        return np.zeros(len(starts), dtype=np.int64)
    return _covered_before(intervals, ends) - _covered_before(intervals, starts)


def _covered_before(intervals: Intervals, when: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.concatenate([[0], np.cumsum(lengths)])
    index = np.searchsorted(intervals[:, 0], when, side="right")
    inside = np.minimum(when - intervals[np.maximum(index - 1, 0), 0], lengths[np.maximum(index - 1, 0)])
    return np.where(index > 0, before[np.maximum(index - 1, 0)] + inside, 0)
