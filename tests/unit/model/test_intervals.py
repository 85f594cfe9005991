"""Interval algebra against the plain sets of points that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.model.intervals import EMPTY, Intervals, clip, intersect, length, overlap, subtract, union

points = st.integers(-20, 40)
pairs = st.lists(st.tuples(points, points), max_size=8)


def made(given_pairs: list[tuple[int, int]]) -> Intervals:
    return union([start for start, _ in given_pairs], [end for _, end in given_pairs])


def covered(intervals: Intervals) -> set[int]:
    return {point for start, end in intervals.tolist() for point in range(start, end)}


def assert_is_a_set(intervals: Intervals) -> None:
    assert intervals.dtype == np.int64
    assert intervals.shape == (len(intervals), 2)
    assert (intervals[:, 0] < intervals[:, 1]).all()
    assert (intervals[1:, 0] > intervals[:-1, 1]).all()


@given(pairs)
def test_union_covers_the_points_of_all_and_merges_what_touches(some):
    merged = made(some)
    assert_is_a_set(merged)
    assert covered(merged) == {point for start, end in some for point in range(start, end)}


@given(pairs, pairs)
def test_intersection_and_difference_are_those_of_the_point_sets(one, other):
    left, right = made(one), made(other)
    assert covered(intersect(left, right)) == covered(left) & covered(right)
    assert covered(subtract(left, right)) == covered(left) - covered(right)
    for result in (intersect(left, right), subtract(left, right)):
        assert (result[:, 0] < result[:, 1]).all()
        assert (result[1:, 0] >= result[:-1, 1]).all()


@given(pairs, pairs)
def test_nothing_is_lost_or_counted_twice_when_a_set_is_cut_in_two(one, other):
    left, right = made(one), made(other)
    assert length(intersect(left, right)) + length(subtract(left, right)) == length(left)


@given(pairs, points, points)
def test_clipping_keeps_what_lies_in_the_window(some, start, end):
    assert covered(clip(made(some), start, end)) == covered(made(some)) & set(range(start, end))


@given(pairs, st.lists(st.tuples(points, st.integers(0, 30)), max_size=5))
def test_overlap_counts_each_window_on_its_own(some, windows):
    intervals = made(some)
    starts = np.array([start for start, _ in windows], dtype=np.int64)
    ends = starts + np.array([size for _, size in windows], dtype=np.int64)
    expected = [
        len(covered(intervals) & set(range(*each))) for each in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    assert overlap(intervals, starts, ends).tolist() == expected


def test_nothing_and_no_restriction_are_not_confused():
    whole = union([0], [100])
    assert length(subtract(whole, EMPTY)) == 100
    assert length(intersect(whole, EMPTY)) == 0
    assert length(subtract(EMPTY, whole)) == 0
    assert overlap(EMPTY, [0], [100]).tolist() == [0]


@pytest.mark.parametrize(("start", "end"), [(5, 5), (9, 2)])
def test_an_interval_that_is_empty_or_reversed_counts_as_nothing(start, end):
    assert union([start], [end]).shape == (0, 2)


def test_times_of_a_machine_that_has_run_for_a_century_do_not_overflow():
    century = 100 * 365 * 86_400 * 10**9
    assert length(union([century, century + 5], [century + 10, century + 20])) == 20
