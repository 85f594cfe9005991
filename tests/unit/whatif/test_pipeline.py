from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_pipelines import MS, measured, part

from dlprof.model.kinds import Component
from dlprof.model.pipeline import Competition, Pipeline
from dlprof.whatif.pipeline import Scenario, Simulator, in_force, simulate

GETITEM, COLLATE, DECODE = Component.DATASET_GETITEM, Component.COLLATE_FN, Component.DECODE


def step_ms(pipeline: Pipeline, *scenarios: Scenario, replicas: int = 3) -> list[float]:
    return [float(it) for it in simulate(pipeline, scenarios, replicas=replicas).mean(axis=1) / MS]


# By hand. Times in ms.


def test_without_workers_the_step_is_fetch_plus_main():
    pipeline = measured(parts={GETITEM: part(cpu=3, blocked=4), COLLATE: part(cpu=2)}, main=5, main_cpu=5)
    assert step_ms(pipeline, Scenario(0)) == pytest.approx([14])


def test_without_workers_the_measured_wait_is_reproduced_though_helper_threads_did_part_of_the_work():
    pipeline = measured(parts={GETITEM: part(cpu=30, blocked=2)}, main=5, step=17)
    assert step_ms(pipeline, Scenario(0)) == pytest.approx([17])
    simulated = Simulator(pipeline).run([Scenario(0)])
    assert simulated.error_ratio == pytest.approx(0)
    assert simulated.ratio == pytest.approx(np.ones((1, 100)))


def test_without_workers_a_removed_component_saves_its_share_of_the_wall_time():
    parts = {GETITEM: part(cpu=30, blocked=2), COLLATE: part(cpu=10)}
    pipeline = measured(parts=parts, main=5, step=5 + 2 + 20)  # 40 ms of CPU time took 20 ms
    without = [Scenario(0).without([it]) for it in (GETITEM, COLLATE)]
    assert step_ms(pipeline, *without) == pytest.approx([27 - 2 - 15, 27 - 5])


@pytest.mark.parametrize(
    ("fetch", "expected"), [(30, 30), (4, 9 + 1)], ids=["the worker bounds", "the main process bounds"]
)
def test_one_worker_overlaps_fetch_with_the_step(fetch, expected):
    pipeline = measured(1, parts={GETITEM: part(blocked=fetch)}, main=9, handover=2, receive=1)
    assert step_ms(pipeline, Scenario(1)) == pytest.approx([expected])


def test_with_one_batch_requested_ahead_hand_over_and_receiving_are_not_overlapped():
    # send_k = return_{k-1}; ready_k = send_k + 30 + 2; return_k = ready_k + 1
    pipeline = measured(1, parts={GETITEM: part(blocked=30)}, main=9, handover=2, receive=1)
    assert step_ms(pipeline, Scenario(1, 1)) == pytest.approx([33])


@pytest.mark.parametrize(("workers", "expected"), [(1, 40), (2, 20), (4, 10), (5, 9), (16, 9)])
def test_workers_that_block_share_the_work(workers, expected):
    pipeline = measured(1, parts={GETITEM: part(blocked=40)}, main=9, cores=1)
    assert step_ms(pipeline, Scenario(workers)) == pytest.approx([expected])


@pytest.mark.parametrize(("workers", "expected"), [(1, 40), (2, 20), (4, 20), (8, 20)])
def test_workers_that_compute_share_the_cores(workers, expected):
    pipeline = measured(1, parts={GETITEM: part(cpu=40)}, main=9, cores=2)
    assert step_ms(pipeline, Scenario(workers)) == pytest.approx([expected], rel=1e-3)


@pytest.mark.parametrize(
    ("cores", "others", "expected"),
    [
        (2, Competition(1, 2), 15),  # the worker, the main thread and one more on two cores: each has two thirds
        (2, Competition(3, 2), 25),
        (2, Competition(1, 8), 10),  # there is a core for each
        (1, Competition(1, 8), 20),  # a quota of one core is the run's own: others do not use it up
        (1, Competition(2, 2), 20),
    ],
)
def test_other_programs_take_their_part_of_the_cores(cores, others, expected):
    pipeline = measured(2, parts={GETITEM: part(cpu=10)}, main=10, main_cpu=10, cores=cores, competition=others)
    assert step_ms(pipeline, Scenario(1)) == pytest.approx([expected], rel=0.02)


@pytest.mark.parametrize(("others", "expected"), [(0.0, 20), (0.02, 20), (0.5, 21), (1.0, 22)])
def test_the_little_that_others_do_delays_little(others, expected):
    # A core for the worker, one for the main thread, which sleeps: where it wakes, others may be on its core.
    pipeline = measured(1, parts={GETITEM: part(cpu=15)}, main=20, cores=2, competition=Competition(others, 2))
    assert step_ms(pipeline, Scenario(1)) == pytest.approx([expected], rel=0.02)


def test_others_take_nothing_from_workers_that_wait():
    pipeline = measured(2, parts={GETITEM: part(blocked=40)}, main=9, cores=2, competition=Competition(2, 2))
    assert step_ms(pipeline, Scenario(2)) == pytest.approx([20])


def test_threads_of_the_main_process_take_cores_from_the_workers():
    # 20 ms of work in 10 ms: two threads. With the worker's 10 ms that is 30 ms of work for two cores.
    pipeline = measured(parts={GETITEM: part(cpu=10)}, main=10, main_cpu=20, cores=2)
    assert step_ms(pipeline, Scenario(1)) == pytest.approx([15], rel=1e-3)


@pytest.mark.parametrize("clock", [0.99, 1.0, 1.02])
def test_a_step_of_one_thread_takes_no_less_than_its_cpu_time_whatever_the_clocks_say(clock):
    # 9 ms of work in 9 ms, by clocks that differ a little; the worker and another program want the other core.
    busy = Competition(1.2, 2)
    pipeline = measured(
        1, parts={GETITEM: part(cpu=3)}, main=9, main_cpu=9 * clock, no_core=0.5, step=10.5, cores=2, competition=busy
    )
    assert step_ms(pipeline, Scenario(1, without_input=True))[0] >= min(9 * clock, 8.5)


def test_a_slow_hand_over_bounds_the_step_since_each_worker_has_one_feeder():
    pipeline = measured(1, parts={GETITEM: part(blocked=5)}, main=1, handover=12)
    assert step_ms(pipeline, Scenario(1), Scenario(2), Scenario(3)) == pytest.approx([12, 6, 4])


def test_hand_over_overlaps_a_fetch_that_blocks_but_not_one_that_computes():
    blocking, computing = (measured(1, parts={GETITEM: it}, main=1, handover=3) for it in (part(0, 9), part(9)))
    assert [*step_ms(blocking, Scenario(1)), *step_ms(computing, Scenario(1))] == pytest.approx([9, 12])


def test_a_worker_that_wakes_on_busy_cores_delays_the_step_by_a_slice():
    # Two cores; the main thread sleeps for most of the step, and both workers are done when it takes a batch.
    pipeline = measured(2, parts={GETITEM: part(cpu=30)}, main=20, cores=2)
    idle_cores = replace(pipeline, cores=8)
    assert [*step_ms(pipeline, Scenario(2)), *step_ms(idle_cores, Scenario(2))] == pytest.approx([22, 20])


def test_order_makes_a_slow_batch_hold_up_those_behind_it():
    # One batch in ten takes ten times as long; two workers, one batch requested ahead of each.
    blocked = np.array([100.0] + [10.0] * 9)
    pipeline = measured(1, parts={GETITEM: part(blocked=blocked, batches=10)}, main=1)
    ordered, unordered = step_ms(pipeline, Scenario(2, 1), Scenario(2, 1, in_order=False), replicas=50)
    assert unordered < 0.75 * ordered


def test_pickling_and_unpickling_are_removed_from_either_side_of_the_hand_over():
    pipeline = measured(1, parts={GETITEM: part(cpu=10)}, main=20, handover=35, receive=4)
    now = Scenario(1)
    scenarios = now, now.without([Component.PICKLE]), now.without([Component.PICKLE, Component.UNPICKLE])
    assert step_ms(pipeline, *scenarios) == pytest.approx([35 + 10, 24, 20])


def test_removed_cpu_time_takes_its_share_of_the_hand_over_with_it():
    parts = {GETITEM: part(cpu=30), COLLATE: part(cpu=10), DECODE: part(blocked=1)}
    pipeline = measured(1, parts=parts, main=20, handover=4, receive=8)
    now = Scenario(1)
    scenarios = now.without([GETITEM]), now.without([DECODE]), now.without([GETITEM, COLLATE])
    assert step_ms(pipeline, *scenarios) == pytest.approx([20 + 2, 40 + 4, 20])


def test_of_a_hand_over_no_more_goes_than_was_removed():
    pipeline = measured(1, parts={GETITEM: part(cpu=1)}, main=5, handover=20, receive=15)
    assert step_ms(pipeline, Scenario(1).without([GETITEM])) == pytest.approx([5 + 14])


def test_half_of_a_component_takes_half_its_time():
    pipeline = measured(1, parts={GETITEM: part(blocked=20), COLLATE: part(cpu=10)}, main=1)
    assert step_ms(pipeline, Scenario(1, scale={GETITEM: 0.5})) == pytest.approx([20])


def test_the_sampler_works_in_the_main_process_and_pinning_beside_it():
    parts = {GETITEM: part(cpu=5), Component.SAMPLER: part(cpu=3), Component.PIN_MEMORY: part(cpu=4)}
    assert step_ms(measured(1, parts=parts, main=10), Scenario(1)) == pytest.approx([13])


def test_without_input_only_the_main_part_is_left():
    pipeline = measured(2, parts={GETITEM: part(cpu=40)}, main=9, main_cpu=4, receive=3)
    assert step_ms(pipeline, replace(in_force(pipeline), without_input=True)) == pytest.approx([9])


def test_waiting_for_a_core_is_taken_out_of_a_main_part_that_was_measured_in_competition():
    # Two workers and the main thread on two cores: its 10 ms of CPU time were measured as 15 ms of wall time.
    pipeline = measured(2, parts={GETITEM: part(cpu=40)}, main=15, main_cpu=10, step=25, cores=2)
    alone = replace(in_force(pipeline), without_input=True)
    assert step_ms(pipeline, Scenario(2), alone, Scenario(0)) == pytest.approx([25, 10, 50], rel=0.02)


def test_forecasts_are_relative_to_the_measured_step():
    pipeline = measured(1, parts={GETITEM: part(blocked=40)}, main=9, step=44)
    simulated = Simulator(pipeline, replicas=5).run([Scenario(2)])
    assert simulated.error_ratio == pytest.approx(40 / 44 - 1)
    assert simulated.step_ns == pytest.approx(np.full((1, 5), 22 * MS))


def test_nothing_measured_is_an_error():
    empty = measured(parts={GETITEM: part(batches=0)}, main=1)
    with pytest.raises(ValueError, match="no measured batch"):
        simulate(empty, [Scenario(0)])


def test_times_that_are_no_times_are_an_error():
    with pytest.raises(ValueError, match="fetch_cpu_ns: a cost is negative or not finite"):
        simulate(measured(1, parts={GETITEM: part(cpu=np.nan)}, main=1, step=2), [Scenario(1)])


def test_a_scenario_is_simulated_once_and_the_same_beside_others():
    rng = np.random.default_rng(1)
    pipeline = measured(2, parts={GETITEM: part(cpu=rng.gamma(4, 5, 40))}, main=9, step=20, cores=2)
    simulator = Simulator(pipeline, replicas=5)
    together = simulator.run([Scenario(1), Scenario(3), Scenario(1)])
    assert np.array_equal(together.ratio[0], together.ratio[2])
    assert np.array_equal(simulator.run([Scenario(3)]).ratio[0], together.ratio[1])
    assert np.array_equal(Simulator(pipeline, replicas=5).run([Scenario(3)]).ratio[0], together.ratio[1])


# For any pipeline.

times = st.floats(0, 50)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    batches = draw(st.integers(2, 40))

    def column() -> np.ndarray:
        return draw(times) * rng.choice([0.5, 1.0, 4.0], batches, p=[0.3, 0.5, 0.2])

    main = column() + 0.1
    return measured(
        draw(st.integers(0, 4)),
        parts={
            GETITEM: part(column() + 0.1, column(), batches),
            COLLATE: part(column(), column(), batches),
        },
        main=main,
        main_cpu=main * draw(st.floats(0, 2)),
        handover=draw(st.floats(0, 10)),
        receive=draw(st.floats(0, 10)),
        cores=draw(st.sampled_from([0.5, 1, 2, 3.5, 8])),
        prefetch=draw(st.integers(1, 3)),
    )


workers = st.integers(1, 5)
examples = settings(max_examples=10, deadline=None)


@examples
@given(pipelines())
def test_removing_nothing_changes_nothing(pipeline):
    now = in_force(pipeline)
    simulated = Simulator(pipeline, replicas=3).run([now, now.without([])])
    assert np.array_equal(simulated.ratio, np.ones((2, 3)))


@examples
@given(pipelines(), st.integers(0, 5))
def test_a_step_is_no_shorter_than_without_input(pipeline, count):
    step, alone = simulate(pipeline, [Scenario(count), Scenario(count, without_input=True)], replicas=3)
    assert (step >= alone * (1 - 1e-9)).all()


@examples
@given(*[times] * 6, st.floats(0.1, 50), workers, st.sampled_from([0.5, 1, 2, 3.5]))
def test_cores_do_no_more_work_than_they_can(get, collate, blocked, hand, receive, main_cpu, main, count, cores):
    parts = {GETITEM: part(get, blocked), COLLATE: part(collate)}
    pipeline = measured(parts=parts, main=main, main_cpu=main_cpu, handover=hand, receive=receive, cores=cores)
    work = get + collate + hand + receive + min(main_cpu, main * cores)
    # The fetches under way when the measured steps begin and end need not be equally far.
    slack = (get + collate + hand) * count / 80
    (step,) = step_ms(pipeline, Scenario(count))
    assert step * cores >= work - slack - 1e-6


@examples
@given(pipelines(), workers)
def test_more_cores_are_never_slower(pipeline, count):
    pipeline = replace(pipeline, workers=0)
    few, many = (simulate(replace(pipeline, cores=it), [Scenario(count)], replicas=3) for it in (2.0, 3.0))
    assert (many <= few * 1.03 + 0.1 * MS).all()


@examples
@given(pipelines(), workers, st.booleans())
def test_removing_more_never_saves_less(pipeline, count, in_order):
    now = Scenario(count, 2, in_order)
    one, both = simulate(pipeline, [now.without([GETITEM]), now.without([GETITEM, COLLATE])], replicas=3)
    # A worker that is done sooner is woken more often, for a slice of the scheduler at most.
    assert (both <= one * 1.03 + 2 * MS).all()


@examples
@given(pipelines(), workers)
def test_giving_up_the_order_is_hardly_ever_slower(pipeline, count):
    ordered, unordered = simulate(pipeline, [Scenario(count), Scenario(count, in_order=False)], replicas=20)
    assert unordered.mean() <= ordered.mean() * 1.05


def test_the_main_threads_wait_for_a_core_goes_with_the_work_that_took_it() -> None:
    # A quota of one core: the step sleeps for 24 ms, computes for 4, and is kept off the core for 14 more.
    throttled = measured(2, parts={GETITEM: part(cpu=38)}, main=42.0, main_cpu=4.0, no_core=14.0, step=42.0, cores=1.0)
    simulated = Simulator(throttled).run([in_force(throttled).without([GETITEM])])
    assert simulated.step_ns.mean() / MS == pytest.approx(28.0, rel=0.02)


def test_of_a_late_batch_no_more_goes_than_the_work_that_was_removed() -> None:
    # One batch of many took long to be received, and its worker had hardly anything to do.
    late = measured(1, parts={COLLATE: part(cpu=2)}, main=27, main_cpu=1, receive=1, step=36)
    simulated = Simulator(late).run([in_force(late).without([COLLATE])])
    assert 36 - 2 - 1 - 0.1 <= simulated.step_ns.mean() / MS <= 36


def test_one_batch_that_came_late_leaves_open_what_lateness_costs() -> None:
    even = measured(1, parts={COLLATE: part(cpu=2)}, main=27, main_cpu=1, receive=1, step=36)
    waits = np.full(40, 1.0) * MS
    waits[7] += 40 * 8 * MS
    once = replace(even, step_ns=even.main_wall_ns + waits, wait_ns=waits)
    free = replace(in_force(even), without_input=True)
    spread = [float(np.ptp(1 - Simulator(it).run([free]).ratio)) for it in (even, once)]
    assert spread[0] < 0.01
    assert spread[1] > 0.2
