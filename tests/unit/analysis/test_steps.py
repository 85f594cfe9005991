"""Which batches are steps, and which steps count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import (
    MAIN_PID,
    TRAINING,
    VALIDATION,
    Span,
    end_of_epoch,
    joined,
    leave_loop,
    ms,
    one_step,
    profile,
    recorded,
    reordered,
    shifted,
    step,
    steps_of,
    us,
    validation,
)
from hypothesis import given
from hypothesis import strategies as st

from dlprof.analysis.steps import NO_LOADER, drift, find_steps
from dlprof.model.kinds import Kind, Role
from dlprof.model.profile import Iteration, Loader, Profile, Spans, Track
from dlprof.model.steps import Steps

PLAIN = step(input_wait=ms(30), compute=ms(10))


def durations_ms(steps: Steps) -> list[float]:
    return [each.duration_ns / 1e6 for each in steps.all]


def in_epochs(steps: Steps) -> list[tuple[int, int]]:
    return [(each.iterator, each.batch) for each in steps.all]


# ---- cutting ---------------------------------------------------------------------------------------------------------


def test_a_step_is_a_request_and_what_the_loop_does_until_the_next():
    found = find_steps(profile(PLAIN * 5))
    assert durations_ms(found) == [40] * 5
    assert [each.wait_ns for each in found.all] == [ms(30)] * 5
    assert [each.index for each in found.all] == [0, 1, 2, 3, 4]
    assert (found.loader, found.inference, found.incomplete) == (TRAINING, False, 0)


def test_dlprofs_own_work_between_arrival_and_body_is_in_neither():
    found = find_steps(
        recorded(
            [
                Span(Kind.NEXT, 0, 100, batch=0, iterator=1),
                Span(Kind.OWN, 100, 900),
                Span(Kind.BODY, 900, 1000, batch=0, iterator=1),
            ]
        )
    )
    assert [each.duration_ns for each in found.all] == [200]


def test_a_step_never_crosses_an_epoch_border():
    found = find_steps(profile(PLAIN * 3 + end_of_epoch() + PLAIN * 2))
    assert in_epochs(found) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert durations_ms(found) == [40] * 5


def test_the_request_that_ends_an_epoch_is_no_step():
    found = find_steps(profile(PLAIN * 2 + end_of_epoch()))
    assert (len(found.all), found.incomplete) == (2, 0)


def test_the_last_batch_before_a_break_is_no_step():
    found = find_steps(profile(PLAIN * 4 + leave_loop()))
    assert (len(found.all), found.incomplete) == (3, 1)


def test_after_a_break_what_comes_before_the_next_iteration_is_no_steps_time():
    found = find_steps(profile(PLAIN * 4 + leave_loop() + PLAIN * 4))
    assert in_epochs(found) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert found.incomplete == 1
    assert durations_ms(found) == [40] * 7


def test_a_validation_loader_between_epochs_makes_no_steps():
    between = validation(step(input_wait=ms(5), compute=ms(2)) * 30)
    found = find_steps(profile((PLAIN * 6 + end_of_epoch() + between) * 2))
    assert found.loader == TRAINING
    assert durations_ms(found) == [40] * 12


def test_validation_first_and_longer_than_training_is_not_the_training_loop():
    found = find_steps(profile(validation(PLAIN * 50) + PLAIN * 5))
    assert (found.loader, len(found.all)) == (TRAINING, 5)


def test_a_validation_within_a_step_is_a_phase_of_its_own():
    found = find_steps(profile(PLAIN * 3 + validation(PLAIN * 2) + PLAIN * 3))
    assert durations_ms(found) == [40] * 6
    (phase,) = found.phases
    assert (phase.loader != TRAINING, phase.batches) == (True, 2)
    assert [each.phases_ns > 0 for each in found.all] == [False, False, True, False, False, False]


def test_ending_the_workers_of_a_validation_that_is_left_is_no_time_of_the_step():
    found = find_steps(
        profile(PLAIN * 3 + validation(step(getitem=ms(5), compute=ms(7)) * 2, left=ms(900)) + PLAIN * 3)
    )
    assert durations_ms(found) == [40] * 6
    (phase,) = found.phases
    # With what was done with its last batch.
    assert phase.end_ns - phase.start_ns == us(100) + ms(2 * (5 + 7) + 900)


def test_workers_that_are_ended_in_a_later_step_take_that_time_from_it():
    plan = PLAIN * 3 + validation(PLAIN * 2, left=0) + PLAIN * 3
    found = profile(plan)
    body = find_steps(found).all[4].body_start_ns
    columns = {name: getattr(found.spans, name).copy() for name in Spans.COLUMNS}
    (row,) = np.flatnonzero(found.spans.kind == int(Kind.WORKERS_ENDED))
    columns["start_ns"][row], columns["end_ns"][row] = body + ms(2), body + ms(6)
    steps = find_steps(replace(found, spans=Spans(**columns, names=found.spans.names)))
    assert durations_ms(steps)[3:] == [40, 36, 40]
    assert [phase.batches for phase in steps.phases] == [2, 0]


def test_a_second_loader_that_comes_with_every_step_is_part_of_it():
    found = find_steps(profile((PLAIN + validation(PLAIN)) * 6))
    assert found.phases == ()


def test_gradient_accumulation_makes_a_step_of_every_batch():
    micro = step(input_wait=ms(30), compute=ms(10), optimizer_steps=0)
    found = find_steps(profile((micro * 3 + PLAIN) * 5))
    assert len(found.all) == 20
    assert [each.optimizer_steps for each in found.all] == [0, 0, 0, 1] * 5


def test_two_optimizers_in_a_step_are_counted():
    found = find_steps(profile(step(input_wait=ms(1), compute=ms(9), optimizer_steps=2) * 3))
    assert [each.optimizer_steps for each in found.all] == [2, 2, 2]


def test_without_an_optimizer_batches_are_steps_of_inference():
    found = find_steps(profile(step(input_wait=ms(30), compute=ms(10), optimizer_steps=0) * 5))
    assert (found.inference, len(found.all), found.loader) == (True, 5, TRAINING)


def test_in_inference_the_loader_that_gave_most_batches_is_the_loop():
    batch = step(input_wait=ms(30), compute=ms(10), optimizer_steps=0)
    found = find_steps(profile(batch * 3 + end_of_epoch() + validation(batch * 7)))
    assert (found.inference, found.loader, len(found.all)) == (True, VALIDATION, 7)


def test_without_a_loader_steps_are_optimizer_steps():
    found = find_steps(recorded([Span(Kind.OPTIMIZER, ms(10) * k, ms(10) * k + us(5)) for k in range(1, 6)]))
    assert (found.loader, found.inference) == (NO_LOADER, False)
    assert durations_ms(found) == [10] * 4
    assert [each.wait_ns for each in found.all] == [0] * 4


def test_an_optimizer_that_stepped_only_before_the_first_batch_belongs_to_no_loader():
    before = [Span(Kind.OPTIMIZER, ms(k), ms(k) + 5) for k in range(3)]
    after = [Span(Kind.NEXT, ms(10), ms(11), batch=0, iterator=1), Span(Kind.BODY, ms(11), ms(12), 0, 0, 1)]
    assert find_steps(recorded([*before, *after])).loader == NO_LOADER


def test_starting_and_stopping_the_profiler_is_no_time_of_a_step_without_a_loader():
    steps = [Span(Kind.OPTIMIZER, ms(10) * k, ms(10) * k + us(5)) for k in range(1, 4)]
    own = Span(Kind.OWN, ms(20) + us(6), ms(25))
    found = find_steps(recorded([*steps, own]))
    assert durations_ms(found) == [10, pytest.approx(5.005)]


def test_nothing_recorded_makes_no_steps():
    assert find_steps(recorded([])) == Steps((), None, False, 0)


def test_a_request_inside_another_request_makes_no_step():
    nested = Span(Kind.NEXT, 10, 20, batch=0, iterator=9, flags=2)
    found = profile(PLAIN * 3)
    rows = [*range(len(found.spans))]
    with_nested = recorded([nested]).spans
    joined = {
        name: np.concatenate([getattr(found.spans, name)[rows], getattr(with_nested, name)])
        for name in type(found.spans).COLUMNS
    }
    both = replace(found, spans=type(found.spans)(**joined, names=found.spans.names))
    assert find_steps(both) == find_steps(found)


def test_another_processes_loop_makes_no_steps():
    found = profile(PLAIN * 3)
    elsewhere = replace(found, tracks=tuple(replace(track, pid=MAIN_PID + 1) for track in found.tracks))
    assert find_steps(elsewhere).all == ()


# ---- batches that another thread hands over --------------------------------------------------------------------------

FEEDER = 1
TRACKS = (Track(MAIN_PID, MAIN_PID, Role.MAIN, 0), Track(MAIN_PID, 7, Role.THREAD, 0))


def fed(
    requests: list[tuple[float, float]],
    gets: list[tuple[float, float]],
    optimizer: list[float],
    *,
    epochs: list[int] | None = None,
    more: tuple[Span, ...] = (),
    **options: Any,
) -> Profile:
    """A thread requests batches, the main thread takes them from a queue (milliseconds) and steps an optimizer."""
    numbers = epochs or [1] * len(requests)
    batches = [numbers[:index].count(number) for index, number in enumerate(numbers)]
    rows = [
        *(
            Span(Kind.NEXT, ms(start), ms(end), FEEDER, batch, number)
            for (start, end), batch, number in zip(requests, batches, numbers, strict=True)
        ),
        *(Span(Kind.QUEUE_GET, ms(start), ms(end), value=0) for start, end in gets),
        *(Span(Kind.OPTIMIZER, ms(at), ms(at) + us(10)) for at in optimizer),
        *more,
    ]
    loaders = [Loader(number, MAIN_PID, {"batch_size": number}) for number in (TRAINING, VALIDATION)]
    iterations = [Iteration(number, MAIN_PID, TRAINING, ()) for number in sorted(set(numbers))]
    iterations.append(Iteration(9, MAIN_PID, VALIDATION, ()))
    return recorded(rows, tracks=TRACKS, iterations=iterations, loaders=loaders, **options)


# Making a batch takes 20 ms, a step 10 ms: the training thread waits 10 ms for each. The queue is watched from the
# first optimizer step on.
STARVING = fed(
    requests=[(k * 20, k * 20 + 20) for k in range(8)],
    gets=[(31 + k * 20, 40 + k * 20) for k in range(7)],
    optimizer=[30 + k * 20 for k in range(8)],
)


def test_a_step_of_a_loop_that_is_fed_goes_from_one_batch_taken_to_the_next():
    found = find_steps(STARVING)
    assert (found.loader, found.handed_over, found.wait_unseen) == (TRAINING, True, False)
    assert durations_ms(found) == [20] * 6
    assert [each.wait_ns for each in found.all] == [ms(9)] * 6
    assert in_epochs(found) == [(1, batch) for batch in range(1, 7)]
    assert [each.optimizer_steps for each in found.all] == [1] * 6


def test_requests_that_overlap_training_are_no_wait():
    found = find_steps(
        fed(
            requests=[(k * 5, k * 5 + 5) for k in range(8)],
            gets=[(20 + k * 20, 20 + k * 20) for k in range(7)],
            optimizer=[19 + k * 20 for k in range(8)],
        )
    )
    assert [each.wait_ns for each in found.all] == [0] * 6
    assert durations_ms(found) == [20] * 6


def test_without_a_queue_that_was_seen_steps_are_optimizer_steps_and_the_wait_is_not_known():
    rows = STARVING.spans
    found = find_steps(replace(STARVING, spans=rows.where(rows.kind != int(Kind.QUEUE_GET))))
    assert (found.loader, found.handed_over, found.wait_unseen) == (TRAINING, True, True)
    assert durations_ms(found) == [20] * 7
    assert [each.wait_ns for each in found.all] == [0] * 7
    assert in_epochs(found)[:2] == [(1, 1), (1, 2)]


def test_other_queues_of_the_training_thread_make_no_steps():
    orders = tuple(Span(Kind.QUEUE_GET, ms(30.2 + k * 20), ms(30.8 + k * 20), value=5) for k in range(7))
    assert find_steps(with_rows(STARVING, orders)) == find_steps(STARVING)


def with_rows(found: Profile, rows: tuple[Span, ...]) -> Profile:
    more = recorded(rows).spans
    columns = {name: np.concatenate([getattr(found.spans, name), getattr(more, name)]) for name in type(more).COLUMNS}
    return replace(found, spans=type(more)(**columns, names=found.spans.names))


def test_what_says_that_an_epoch_has_ended_is_no_batch_and_ends_the_last_step():
    found = find_steps(
        fed(
            requests=[(0, 20), (20, 40), (40, 60), (100, 120), (120, 140), (140, 160)],
            epochs=[1, 1, 1, 2, 2, 2],
            # The third get of the queue brings the end, at once; then something else is done.
            gets=[(31, 40), (51, 60), (71, 71), (101, 120), (131, 140), (151, 160)],
            optimizer=[30, 50, 70, 130, 150, 170],
        )
    )
    assert in_epochs(found) == [(1, 1), (1, 2), (2, 0), (2, 1)]
    assert durations_ms(found) == [20, 20, 30, 20]


def test_a_step_of_a_fed_loop_does_not_reach_into_the_next_epoch():
    found = find_steps(
        fed(
            requests=[(0, 20), (20, 40), (40, 60), (60, 80), (80, 100)],
            epochs=[1, 1, 1, 2, 2],
            gets=[(31, 40), (51, 60), (91, 91), (111, 111)],
            optimizer=[30, 50, 90, 110],
        )
    )
    assert in_epochs(found) == [(1, 1), (2, 0)]


def test_a_validation_by_the_training_thread_is_a_phase_of_its_own():
    validating = tuple(Span(Kind.NEXT, ms(62 + k), ms(62.5 + k), 0, k, 9) for k in range(4))
    found = find_steps(with_rows(STARVING, validating))
    (phase,) = found.phases
    assert (phase.loader, phase.batches) == (VALIDATION, 4)
    assert sorted(durations_ms(found)) == [16.5, *[20] * 5]


def test_batches_that_lay_ready_when_the_profiler_had_been_stopped_do_not_count_in_a_fed_loop():
    # The profiler is on for one step and is then stopped for a long time: three batches lie ready after it.
    found = find_steps(
        fed(
            requests=[(k * 20, k * 20 + 20) for k in range(12)],
            gets=[(31, 40), (51, 60), (171, 171), (181, 181), (191, 191), (201, 201), (211, 220), (231, 240)],
            optimizer=[30, 50, 70, 180, 190, 200, 210, 230],
            more=(Span(Kind.TRACED, ms(45), ms(72)),),
        )
    )
    assert [each.measured for each in found.all] == [False, False, False, False, False, False, False]
    assert not any(each.traced for each in found.all[:1])


def test_a_loop_that_runs_wholly_in_another_thread_is_an_ordinary_one():
    found = profile(PLAIN * 5)
    elsewhere = replace(found, tracks=(Track(MAIN_PID, 7, Role.THREAD, 0), *found.tracks[1:]))
    assert find_steps(elsewhere) == find_steps(found)
    assert not find_steps(elsewhere).handed_over


# ---- which count -----------------------------------------------------------------------------------------------------


def test_warm_up_does_not_count():
    found = find_steps(profile(PLAIN * 10, warmup=4))
    assert [each.measured for each in found.all] == [False] * 4 + [True] * 6


def test_warm_up_counts_over_epochs():
    found = find_steps(profile((PLAIN * 3 + end_of_epoch()) * 3, warmup=5))
    assert [each.index for each in found.measured] == [5, 6, 7, 8]


def test_traced_steps_are_those_under_the_profiler_and_do_not_count_as_measured():
    found = find_steps(profile(PLAIN * 5 + step(input_wait=ms(30), compute=ms(20), traced=True) * 3 + PLAIN * 2))
    assert [each.index for each in found.traced] == [5, 6, 7]
    assert [each.index for each in found.measured] == [0, 1, 2, 3, 4, 8, 9]


def test_the_profiler_being_started_and_stopped_is_no_steps_time():
    found = find_steps(profile(PLAIN * 2 + step(input_wait=ms(30), compute=ms(10), traced=True) * 2 + PLAIN * 2))
    assert durations_ms(found) == [40] * 6


def test_batches_that_lay_ready_when_the_profiler_had_been_stopped_do_not_count():
    light = step(getitem=ms(40), compute=ms(10))
    traced = step(getitem=ms(40), compute=ms(20), traced=True)
    found = find_steps(profile(light * 6 + traced * 3 + light * 8, workers=2, prefetch=2, stop_profiler=ms(2000)))
    assert [each.index for each in found.measured] == [0, 1, 2, 3, 4, 5, 13, 14, 15, 16]


def test_another_loaders_queue_does_not_keep_steps_from_counting():
    traced = step(input_wait=ms(30), compute=ms(20), traced=True)
    found = profile(PLAIN * 3 + traced * 2 + PLAIN * 4)
    validating = found.loaders[1]
    many_workers = validating.settings | {"num_workers": 8, "prefetch_factor": 2}
    found = replace(found, loaders=(found.loaders[0], replace(validating, settings=many_workers)))
    assert [each.index for each in find_steps(found).measured] == [0, 1, 2, 5, 6, 7, 8]


def test_a_step_that_the_profiler_saw_only_in_part_counts_neither_way():
    rows = [
        Span(Kind.NEXT, 0, 10, batch=0, iterator=1),
        Span(Kind.BODY, 10, 100, batch=0, iterator=1),
        Span(Kind.NEXT, 100, 110, batch=1, iterator=1),
        Span(Kind.BODY, 110, 200, batch=1, iterator=1),
        Span(Kind.TRACED, 0, 150),
    ]
    found = find_steps(recorded(rows))
    assert [(each.traced, each.measured) for each in found.all] == [(True, False), (False, False)]


# ---- workers ---------------------------------------------------------------------------------------------------------

FED = step(getitem=ms(20), compute=ms(30))


def test_the_workers_start_is_cut_out_of_the_first_step():
    found = find_steps(profile(FED * 6, workers=2, startup=ms(500)))
    first = found.all[0]
    assert first.wait_ns == ms(20)
    assert first.startup_ns == ms(500) - us(100)
    assert [each.startup_ns for each in found.all[1:]] == [0] * 5


def test_workers_that_are_started_for_every_epoch_are_cut_out_of_each():
    found = find_steps(profile((FED * 4 + end_of_epoch()) * 2, workers=2, startup=ms(500)))
    assert [each.startup_ns > 0 for each in found.all] == [True, False, False, False] * 2


def test_workers_that_live_on_are_cut_out_once():
    found = find_steps(profile((FED * 4 + end_of_epoch()) * 2, workers=2, startup=ms(500), persistent=True))
    assert [each.startup_ns > 0 for each in found.all] == [True] + [False] * 7


def test_a_worker_that_was_ready_before_the_request_leaves_the_step_whole():
    found = find_steps(profile(FED * 4, workers=2, startup=0))
    assert [each.startup_ns for each in found.all] == [0] * 4


# ---- whatever the run ------------------------------------------------------------------------------------------------

lengths = st.integers(0, ms(20))
some_steps = st.builds(
    lambda getitem, compute, optimizer, traced: step(
        getitem=getitem, compute=compute, optimizer_steps=optimizer, traced=traced
    ),
    lengths,
    lengths,
    st.integers(0, 2),
    st.booleans(),
)
plans = st.lists(
    some_steps | st.just(end_of_epoch()) | st.just(leave_loop()) | some_steps.map(validation), max_size=10
).map(joined)


@given(plans, st.integers(0, 2), st.integers(0, 3))
def test_steps_do_not_overlap_and_consist_of_what_they_say(plan, workers, warmup):
    found = find_steps(profile(plan, workers=workers, warmup=warmup, startup=ms(50)))
    for each in found.all:
        assert each.wait_start_ns <= each.wait_end_ns <= each.body_start_ns <= each.body_end_ns
        assert each.duration_ns == each.wait_ns + each.body_ns
        assert not (each.traced and each.measured)
        assert each.startup_ns >= 0
    for one, other in zip(found.all, found.all[1:], strict=False):
        assert one.body_end_ns <= other.wait_start_ns
        assert one.index < other.index


@given(plans, st.integers(0, 2), st.integers(0, 1 << 50), st.integers(0, 99))
def test_neither_the_clock_nor_the_order_of_the_spans_matters(plan, workers, by_ns, seed):
    def facts(found: Profile) -> list[tuple]:
        return [
            (each.index, each.iterator, each.batch, each.wait_ns, each.body_ns, each.traced, each.measured)
            for each in find_steps(found).all
        ]

    found = profile(plan, workers=workers)
    assert facts(shifted(found, by_ns)) == facts(found)
    assert facts(reordered(found, seed)) == facts(found)


# ---- two loaders -----------------------------------------------------------------------------------------------------


def epochs_with_a_loader_each(epochs: int, batches: int) -> Profile:
    """A script that makes a new DataLoader for every epoch."""
    found = profile((PLAIN * batches + end_of_epoch()) * epochs)
    fresh = tuple(replace(each, loader=each.number) for each in found.iterations)
    loaders = tuple(replace(found.loaders[0], number=each.number) for each in found.iterations)
    return replace(found, iterations=fresh, loaders=loaders)


def test_a_loader_that_is_made_anew_for_each_epoch_is_one_training_loop():
    assert len(find_steps(epochs_with_a_loader_each(epochs=4, batches=10)).all) == 40


# ---- drift -----------------------------------------------------------------------------------------------------------


def lasting(*durations: float) -> Steps:
    found, now = [], 0
    for index, length in enumerate(durations):
        found.append(one_step((now, now), (now, now + ms(length)), index=index))
        now += ms(length)
    return steps_of(*found)


def test_steps_that_became_slower_drifted():
    assert drift(lasting(*[10] * 10, *[15] * 10, *[20] * 10)) == (ms(10), ms(20))


def test_steps_that_became_faster_drifted():
    assert drift(lasting(*[20] * 10, *[15] * 10, *[10] * 10)) == (ms(20), ms(10))


def test_thirty_percent_are_no_drift_yet():
    assert drift(lasting(*[10] * 10, *[13] * 10, *[13] * 10)) is None
    assert drift(lasting(*[10] * 10, *[13] * 10, *[13.1] * 10)) is not None


def test_a_change_within_what_steps_vary_anyway_is_no_drift():
    wild = [5, 45, 10, 40, 15, 35, 20, 30, 25, 25]
    assert drift(lasting(*wild, *wild, *[each * 1.5 for each in wild])) is None


def test_few_steps_show_no_drift():
    assert drift(lasting(*[10] * 7, *[100] * 7)) is None
    assert drift(lasting(*[10] * 5, *[50] * 5, *[100] * 5)) is not None
    assert drift(lasting()) is None
