"""Why the main process waited: every nanosecond of a request charged to what the awaited batch was doing."""

from __future__ import annotations

import numpy as np
import pytest
from builders import (
    FIRST_WORKER_PID,
    MAIN_PID,
    Span,
    end_of_epoch,
    joined,
    ms,
    one_step,
    profile,
    recorded,
    reordered,
    shifted,
    step,
)
from hypothesis import given
from hypothesis import strategies as st

from dlprof.analysis.components import find_fetches
from dlprof.analysis.input_wait import WAIT_COMPONENTS, split_waits
from dlprof.analysis.steps import find_steps
from dlprof.model.kinds import Component, Kind, Role
from dlprof.model.profile import Iteration, Profile, Track
from dlprof.model.steps import Step

TRACKS = (
    Track(MAIN_PID, 1, Role.MAIN, 0),
    Track(FIRST_WORKER_PID, 2, Role.WORKER, 0),
    Track(FIRST_WORKER_PID, 3, Role.FEEDER, 0),
)
MAIN, WORKER, FEEDER = range(3)


def with_one_worker(*rows: Span) -> Profile:
    return recorded(rows, tracks=TRACKS, iterations=[Iteration(1, MAIN_PID, 1, (FIRST_WORKER_PID,))])


def waits(found: Profile, *steps: Step) -> list[dict[Component, float]]:
    table = split_waits(found, steps or find_steps(found).all, find_fetches(found))
    return [{part: ns for part, ns in zip(WAIT_COMPONENTS, row, strict=True) if ns} for row in table]


def waits_ms(found: Profile) -> list[dict[Component, float]]:
    return [{part: round(ns / 1e6, 6) for part, ns in row.items()} for row in waits(found)]


# ---- without workers -------------------------------------------------------------------------------------------------


def test_without_workers_the_wait_is_what_making_the_batch_consisted_of():
    found = profile(step(getitem=ms(5), tokenizer=ms(20), collate=ms(3), sampler=ms(2), compute=ms(10)) * 2)
    assert (
        waits_ms(found)
        == [
            {
                Component.DATASET_GETITEM: 5,
                Component.TOKENIZER: 20,
                Component.COLLATE_FN: 3,
                Component.SAMPLER: 2,
            }
        ]
        * 2
    )


def test_waiting_for_a_core_is_told_apart():
    found = profile(step(getitem=ms(10), no_core=ms(4), compute=ms(10)) * 2)
    assert waits_ms(found) == [{Component.DATASET_GETITEM: 6, Component.CPU_CONTENTION: 4}] * 2


# ---- with workers ----------------------------------------------------------------------------------------------------


def test_with_workers_the_parts_of_the_hand_over_are_told_apart():
    found = profile(
        step(getitem=ms(40), pickle=ms(3), send=ms(2), receive=ms(1), unpickle=ms(4), compute=ms(5)) * 4,
        workers=1,
        prefetch=1,
    )
    second = waits_ms(found)[1]
    assert second == {
        Component.DATASET_GETITEM: 35,
        Component.PICKLE: 3,
        Component.TRANSPORT: 3,
        Component.UNPICKLE: 4,
    }


def test_a_batch_that_lay_ready_costs_its_unpickling_only():
    found = profile(step(getitem=ms(5), unpickle=ms(2), compute=ms(50)) * 4, workers=2)
    assert waits_ms(found)[2:] == [{Component.UNPICKLE: 2}] * 2


def test_a_wait_behind_another_batch_of_the_same_worker_is_charged_to_that_batch():
    # While the loop waits for the quick batch 1, the worker is still tokenizing batch 0.
    rows = [
        Span(Kind.FETCH, 0, ms(50), WORKER, 0, 1, on_cpu_ns=ms(50)),
        Span(Kind.TOKENIZER, 0, ms(50), WORKER, on_cpu_ns=ms(50)),
        Span(Kind.FETCH, ms(50), ms(55), WORKER, 1, 1, on_cpu_ns=ms(5)),
        Span(Kind.DECODE, ms(50), ms(55), WORKER, on_cpu_ns=ms(5)),
    ]
    awaited = one_step((ms(20), ms(60)), (ms(60), ms(70)), index=1)
    assert waits(with_one_worker(*rows), awaited) == [
        {Component.TOKENIZER: ms(30), Component.DECODE: ms(5), Component.TRANSPORT: ms(5)}
    ]


def test_what_another_worker_does_meanwhile_is_not_the_reason():
    tracks = (*TRACKS, Track(FIRST_WORKER_PID + 1, 4, Role.WORKER, 0))
    found = recorded(
        [
            Span(Kind.FETCH, 0, 50, WORKER, 0, 1, on_cpu_ns=50),
            Span(Kind.FETCH, 0, 100, 3, 1, 1, on_cpu_ns=100),
            Span(Kind.TOKENIZER, 0, 100, 3),
        ],
        tracks=tracks,
        iterations=[Iteration(1, MAIN_PID, 1, (FIRST_WORKER_PID, FIRST_WORKER_PID + 1))],
    )
    assert waits(found, one_step((0, 80), (80, 90), index=0)) == [
        {Component.DATASET_GETITEM: 50, Component.TRANSPORT: 30}
    ]


def test_the_start_of_the_worker_comes_first():
    found = with_one_worker(
        Span(Kind.WORKER_START, 10, 40, WORKER), Span(Kind.FETCH, 45, 60, WORKER, 0, 1, on_cpu_ns=15)
    )
    assert waits(found, one_step((0, 70), (70, 80), index=0)) == [
        {Component.WORKER_STARTUP: 40, Component.DATASET_GETITEM: 15, Component.TRANSPORT: 15}
    ]


def test_what_the_main_thread_does_itself_comes_before_what_the_worker_does():
    found = with_one_worker(
        Span(Kind.FETCH, 0, 100, WORKER, 0, 1, on_cpu_ns=100),
        Span(Kind.SAMPLER, 0, 10, MAIN),
        Span(Kind.RECEIVE, 10, 20, MAIN, 7, 1),
        Span(Kind.UNPICKLE, 15, 40, MAIN, 7, 1),
    )
    assert waits(found, one_step((0, 100), (100, 110), index=0)) == [
        {
            Component.SAMPLER: 10,
            Component.TRANSPORT: 5,
            Component.UNPICKLE: 25,
            Component.DATASET_GETITEM: 60,
        }
    ]


def test_a_batch_whose_maker_is_not_known_was_on_its_way():
    assert waits(with_one_worker(), one_step((0, 100), (100, 110), index=0)) == [{Component.TRANSPORT: 100}]


def test_fetching_goes_before_pickling_an_earlier_batch():
    found = with_one_worker(
        Span(Kind.FETCH, 0, 50, WORKER, 1, 1, on_cpu_ns=50), Span(Kind.PICKLE, 20, 80, FEEDER, 0, 1)
    )
    assert waits(found, one_step((0, 100), (100, 110), index=1)) == [
        {Component.DATASET_GETITEM: 50, Component.PICKLE: 30, Component.TRANSPORT: 20}
    ]


# ---- whatever the run ------------------------------------------------------------------------------------------------

lengths = st.integers(0, ms(20))
batches = st.fixed_dictionaries(
    dict.fromkeys(
        ("getitem", "decode", "tokenizer", "collate", "pickle", "send", "receive", "unpickle", "compute"), lengths
    )
)
plans = st.lists(batches.map(lambda parts: step(**parts)) | st.just(end_of_epoch()), max_size=8).map(joined)


@given(plans, st.integers(0, 3), st.integers(1, 3), st.booleans(), st.sampled_from([0, ms(30)]))
def test_every_row_sums_to_the_wait_and_nothing_is_negative(plan, workers, prefetch, persistent, startup):
    found = profile(plan, workers=workers, prefetch=prefetch, persistent=persistent, startup=startup)
    steps = find_steps(found).all
    table = split_waits(found, steps, find_fetches(found))
    assert (table >= 0).all()
    assert table.sum(axis=1) == pytest.approx(np.array([each.wait_ns for each in steps], dtype=float), abs=1e-3)


times = st.integers(0, 200)
kinds = st.sampled_from(
    [
        (Kind.SAMPLER, MAIN),
        (Kind.RECEIVE, MAIN),
        (Kind.UNPICKLE, MAIN),
        (Kind.PICKLE, FEEDER),
        (Kind.WORKER_START, WORKER),
        (Kind.TOKENIZER, WORKER),
    ]
)


@st.composite
def anything(draw) -> Profile:
    rows = []
    for kind, track in draw(st.lists(kinds, max_size=6)):
        start, end = sorted(draw(st.tuples(times, times)))
        rows.append(Span(kind, start, end, track, on_cpu_ns=draw(st.integers(-1, 300))))
    ends = sorted(draw(st.lists(times, max_size=6)))
    for number, (start, end) in enumerate(zip(ends[::2], ends[1::2], strict=False)):
        on_cpu, runnable = draw(st.tuples(st.integers(-1, 300), st.integers(-1, 300)))
        rows.append(Span(Kind.FETCH, start, end, WORKER, number, 1, on_cpu_ns=on_cpu, runnable_ns=runnable))
    return with_one_worker(*rows)


@given(anything(), st.lists(st.tuples(times, times), min_size=1, max_size=4))
def test_the_parts_sum_to_the_wait_however_the_spans_lie(found, requests):
    steps = [
        one_step((min(ends), max(ends)), (max(ends), max(ends) + 5), index=number)
        for number, ends in enumerate(requests)
    ]
    table = split_waits(found, tuple(steps), find_fetches(found))
    assert (table >= 0).all()
    assert table.sum(axis=1) == pytest.approx([each.wait_ns for each in steps], abs=1e-6)


@given(plans, st.integers(0, 2), st.integers(0, 1 << 50), st.integers(0, 9))
def test_neither_the_clock_nor_the_order_of_the_spans_matters(plan, workers, by_ns, seed):
    found = profile(plan, workers=workers, startup=ms(10))
    expected = split_waits(found, find_steps(found).all, find_fetches(found))
    for other in (shifted(found, by_ns), reordered(found, seed)):
        table = split_waits(other, find_steps(other).all, find_fetches(other))
        assert table.sum(axis=1) == pytest.approx(expected.sum(axis=1))
        whole = [WAIT_COMPONENTS.index(part) for part in (Component.UNPICKLE, Component.PICKLE, Component.TRANSPORT)]
        assert table[:, whole] == pytest.approx(expected[:, whole])


def test_a_run_without_steps_has_no_waits():
    assert split_waits(recorded([]), (), find_fetches(recorded([]))).shape == (0, len(WAIT_COMPONENTS))
