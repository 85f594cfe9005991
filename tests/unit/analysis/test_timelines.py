"""What a thread spent its time on, from looks at it and the kernel's counters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import Look, looked_at, ms, recorded, samples
from hypothesis import given
from hypothesis import strategies as st

from dlprof.analysis.timelines import COLUMNS, IN_KERNEL, NO_CORE, ON_CPU, UNSEEN, Timeline, timelines
from dlprof.model.kinds import Doing
from dlprof.model.profile import Samples


def of(*looks: Look) -> Timeline:
    (found,) = timelines(looked_at(recorded([]), *looks)).values()
    return found


def spent(row: np.ndarray) -> dict[int, float]:
    return {column: amount for column, amount in enumerate(row.tolist()) if amount}


def test_every_doing_has_its_column_and_none_is_used_twice():
    assert ON_CPU == Doing.RUNNING
    assert sorted([*Doing, NO_CORE, UNSEEN, IN_KERNEL]) == list(range(COLUMNS))


def test_what_a_thread_was_not_on_a_core_it_was_blocked_on_what_it_was_seen_doing():
    found = of(Look(0, Doing.DISK), Look(ms(10), Doing.LOCK, on_cpu_ns=ms(3), no_core_ns=ms(2)))
    assert spent(found.spent_ns[0]) == {}
    assert spent(found.spent_ns[1]) == {ON_CPU: ms(3), NO_CORE: ms(2), Doing.LOCK: ms(5)}


def test_what_a_running_thread_was_blocked_on_was_not_seen():
    found = of(Look(0, Doing.DISK), Look(ms(10), Doing.RUNNING, on_cpu_ns=ms(3)))
    assert spent(found.spent_ns[1]) == {ON_CPU: ms(3), UNSEEN: ms(7)}


def test_cpu_time_that_is_counted_late_is_made_good_by_the_next_look():
    found = of(
        Look(0, Doing.RUNNING),
        Look(ms(10), Doing.RUNNING, on_cpu_ns=ms(0)),
        Look(ms(20), Doing.RUNNING, on_cpu_ns=ms(20)),
    )
    assert found.spent_ns[2, UNSEEN] < 0
    assert spent(found.spent_ns.sum(axis=0)) == {ON_CPU: ms(20)}


def test_each_thread_has_its_own_and_one_look_is_none():
    found = timelines(
        looked_at(
            recorded([]),
            Look(0, Doing.DISK, track=3),
            Look(5, Doing.LOCK, track=1),
            Look(ms(1), Doing.DISK, track=3),
            Look(0, Doing.SLEEP, track=2),
            Look(ms(4), Doing.LOCK, track=1),
        )
    )
    assert sorted(found) == [1, 3]
    assert spent(found[3].spent_ns[1]) == {Doing.DISK: ms(1)}
    assert spent(found[1].spent_ns[1]) == {Doing.LOCK: ms(4) - 5}


def test_a_run_without_looks_has_no_timelines():
    assert timelines(recorded([])) == {}


def test_a_gap_that_is_cut_counts_in_part():
    found = of(Look(0, Doing.DISK), Look(100, Doing.DISK, on_cpu_ns=40), Look(200, Doing.LOCK))
    between = found.between(np.array([50, 150, -500, 100]), np.array([150, 170, 0, 100]))
    assert spent(between[0]) == pytest.approx({ON_CPU: 20, Doing.DISK: 30, Doing.LOCK: 50})
    assert spent(between[1]) == pytest.approx({Doing.LOCK: 20})
    assert spent(between[2]) == spent(between[3]) == {}


def test_before_the_first_look_and_after_the_last_nothing_is_known():
    found = of(Look(100, Doing.DISK), Look(200, Doing.DISK))
    assert found.between(np.array([0]), np.array([1000])).sum() == 100


# ---- whatever was seen -----------------------------------------------------------------------------------------------


@st.composite
def any_looks(draw) -> Samples:
    at = draw(st.integers(0, 1 << 50))
    rows = []
    for _ in range(draw(st.integers(2, 12))):
        gap = draw(st.integers(1, ms(30)))
        on_cpu = draw(st.integers(0, gap))
        no_core = draw(st.integers(0, gap - on_cpu))
        at += gap
        rows.append(Look(at, draw(st.sampled_from(Doing)), on_cpu_ns=on_cpu, no_core_ns=no_core))
    return samples(*rows)


def timeline(found: Samples) -> Timeline:
    (only,) = timelines(replace(recorded([]), samples=found)).values()
    return only


@given(any_looks())
def test_all_time_between_the_first_look_and_the_last_is_spent_once(found):
    only = timeline(found)
    assert (only.spent_ns[1:].sum(axis=1) == np.diff(found.at_ns)).all()
    assert only.spent_ns[:, ON_CPU].sum() == found.on_cpu_ns[-1] - found.on_cpu_ns[0]
    assert only.spent_ns[:, NO_CORE].sum() == found.runnable_ns[-1] - found.runnable_ns[0]
    assert (only.spent_ns >= 0).all()


@given(any_looks(), st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_pieces_of_the_time_sum_to_the_whole(found, cuts):
    only = timeline(found)
    first, last = int(found.at_ns[0]), int(found.at_ns[-1])
    edges = np.array(sorted([first, last, *(first + int(cut * (last - first)) for cut in cuts)]))
    pieces = only.between(edges[:-1], edges[1:])
    assert pieces.sum(axis=0) == pytest.approx(only.spent_ns.sum(axis=0), abs=len(edges))
    assert pieces.sum(axis=1) == pytest.approx(np.diff(edges), abs=2)
    # Looks may lie a boot's time from zero, where a float holds less than a nanosecond.
    assert (pieces >= -1).all()


@given(any_looks(), st.lists(st.integers(0, ms(200)), min_size=2, max_size=6))
def test_looks_within_intervals_share_out_the_time_there_by_kind(found, edges):
    only = timeline(found)
    edges = sorted(int(found.at_ns[0]) + edge for edge in edges[: len(edges) // 2 * 2])
    starts, ends = np.array(edges[::2]), np.array(edges[1::2])
    looks, amounts = only.looks_within(starts, ends)
    assert (amounts >= 0).all()
    assert amounts.shape == (len(looks), COLUMNS)
    for at in only.at_ns[looks]:
        assert ((starts <= at) & (at < ends)).any()
    running = only.doing[looks] == Doing.RUNNING
    assert (amounts[~running][:, [ON_CPU, NO_CORE]] == 0).all()
    assert (np.delete(amounts[running], [ON_CPU, NO_CORE], axis=1) == 0).all()
    assert amounts.sum() <= (ends - starts).sum() + len(edges)
