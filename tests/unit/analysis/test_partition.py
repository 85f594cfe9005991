"""Every nanosecond of a step has one cause, and the causes sum to the step."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from builders import MAIN_PID, Span, ms, one_step, profile, recorded, reordered, shifted, step, steps_of, us, validation
from hypothesis import given
from hypothesis import strategies as st

from dlprof.analysis.partition import CAUSES, Partition, device_compute_ns, partition
from dlprof.analysis.steps import find_steps
from dlprof.model.kinds import Cause, Kind, Role
from dlprof.model.profile import Profile, Track
from dlprof.model.steps import Step

CPU_TRACKS = (Track(MAIN_PID, 1, Role.MAIN, 0), Track(MAIN_PID, 2, Role.THREAD, 0))
GPU_TRACKS = (*CPU_TRACKS, Track(MAIN_PID, 7, Role.DEVICE_STREAM, 0))
MAIN, THREAD, STREAM = range(3)


def cut(found: Profile) -> Partition:
    parts = partition(found, find_steps(found))
    assert parts is not None
    return parts


def causes_ms(found: Profile) -> dict[Cause, float]:
    return {cause: pytest.approx(ns / 1e6) for cause, ns in cut(found).mean.ns.items() if ns}


# ---- light spans -----------------------------------------------------------------------------------------------------


def test_without_a_trace_what_light_spans_do_not_explain_is_other():
    found = profile(step(input_wait=ms(30), compute=ms(6), python=ms(4)) * 5)
    assert causes_ms(found) == {Cause.INPUT_WAIT: 30, Cause.OTHER: 10}
    assert len(cut(found).open_shares) == 0
    assert cut(found).traced_ratio is None


def test_a_stand_in_for_a_device_is_compute_and_a_checkpoint_is_a_checkpoint():
    found = profile(step(input_wait=ms(5), device=ms(20), checkpoint=ms(10), python=ms(5)) * 5)
    assert causes_ms(found) == {
        Cause.INPUT_WAIT: 5,
        Cause.DEVICE_COMPUTE: 20,
        Cause.CHECKPOINT: 10,
        Cause.OTHER: 5,
    }


def test_waiting_while_a_device_computes_is_compute():
    waiting = Span(Kind.USER_DEVICE, 20, 60, THREAD)
    found = recorded([waiting], tracks=CPU_TRACKS)
    parts = partition(found, steps_of(one_step((0, 50), (50, 100))))
    assert parts.mean.ns[Cause.DEVICE_COMPUTE] == 40
    assert parts.mean.ns[Cause.INPUT_WAIT] == 20
    assert parts.mean.ns[Cause.OTHER] == 40


def test_a_checkpoint_of_which_a_part_lies_in_no_step_counts_with_the_other_part():
    found = recorded([Span(Kind.CHECKPOINT, 80, 500)])
    parts = partition(found, steps_of(one_step((0, 50), (50, 100))))
    assert parts.mean.ns[Cause.CHECKPOINT] == 20


def test_validation_within_a_step_is_nobodys():
    plain = step(input_wait=ms(30), compute=ms(10))
    found = profile(plain * 3 + validation(step(getitem=ms(50), checkpoint=ms(50)) * 2) + plain * 3)
    assert causes_ms(found) == {Cause.INPUT_WAIT: 30, Cause.OTHER: 10}
    durations = [each.duration_ns for each in find_steps(found).measured]
    assert cut(found).mean.step_ns == pytest.approx(np.mean(durations))


def test_dlprofs_own_work_between_the_parts_of_a_step_is_nobodys():
    found = recorded([Span(Kind.USER_DEVICE, 0, 1000)])
    parts = partition(found, steps_of(one_step((0, 50), (900, 1000))))
    assert parts.mean.step_ns == 150


@pytest.mark.parametrize("kind", [Kind.USER_DEVICE, Kind.CHECKPOINT])
def test_what_another_process_does_is_not_this_steps_cause(kind):
    tracks = (*CPU_TRACKS, Track(999, 1, Role.MAIN, 1))
    parts = partition(recorded([Span(kind, 50, 100, 2)], tracks=tracks), steps_of(one_step((0, 50), (50, 100))))
    assert parts.mean.ns[Cause.OTHER] == 50


def test_without_measured_steps_there_is_nothing_to_cut():
    found = profile(step(input_wait=ms(30), compute=ms(10), traced=True) * 5)
    assert partition(found, find_steps(found)) is None
    assert partition(recorded([]), find_steps(recorded([]))) is None


def test_waiting_for_a_second_loader_within_the_step_is_input_wait():
    rows = [Span(Kind.NEXT, 60, 90, MAIN, 0, 2), Span(Kind.FETCH, 60, 90, MAIN, 0, 2)]
    parts = partition(recorded(rows), steps_of(one_step((0, 50), (50, 100))))
    assert parts.mean.ns[Cause.INPUT_WAIT] == 80


# ---- with a trace ----------------------------------------------------------------------------------------------------


def test_the_rest_is_divided_in_the_proportions_of_the_traced_steps():
    light = step(input_wait=ms(30), compute=ms(8), python=ms(2))
    traced = step(input_wait=ms(33), compute=ms(20), python=ms(20), traced=True)
    found = profile(light * 10 + traced * 5)
    assert causes_ms(found) == {Cause.INPUT_WAIT: 30, Cause.DEVICE_COMPUTE: 5, Cause.PYTHON: 5}
    assert cut(found).traced_ratio == pytest.approx(4)


def test_with_a_trace_nothing_is_left_to_other():
    found = profile(step(input_wait=ms(3), python=ms(8)) * 5 + step(input_wait=ms(3), python=ms(8), traced=True) * 2)
    assert cut(found).mean.ns[Cause.OTHER] == 0


def test_each_number_says_where_it_comes_from():
    light = step(input_wait=ms(30), device=ms(5), checkpoint=ms(1), compute=ms(8), python=ms(2))
    source = cut(profile(light * 10 + [replace(light[0], traced=True)] * 5)).mean.source
    assert source[Cause.INPUT_WAIT] == source[Cause.CHECKPOINT] == source[Cause.DEVICE_COMPUTE] == "light"
    assert source[Cause.PYTHON] == "traced"
    without_device = step(input_wait=ms(30), compute=ms(8))
    source = cut(profile(without_device * 10 + [replace(without_device[0], traced=True)] * 5)).mean.source
    assert source[Cause.DEVICE_COMPUTE] == "traced"


def test_on_an_accelerator_kernels_compute_and_operators_launch():
    body = {"compute": ms(4), "kernel": ms(20), "copy": ms(3), "collective": ms(2), "synchronize": ms(6)}
    light = step(input_wait=ms(5), **body, launch=ms(1), python=ms(4))
    found = profile(light * 10 + [replace(light[0], traced=True)] * 5, device="cuda:0")
    assert causes_ms(found) == {
        Cause.INPUT_WAIT: 5,
        Cause.DEVICE_COMPUTE: 20,
        Cause.H2D_COPY: 3,
        Cause.COMMUNICATION: 2,
        Cause.SYNCHRONIZATION: 6,
        Cause.KERNEL_LAUNCH: 5,
        Cause.PYTHON: 4,
    }


def test_on_a_cpu_operators_compute():
    found = profile(step(input_wait=ms(5), compute=ms(20)) * 5 + step(input_wait=ms(5), compute=ms(20), traced=True))
    assert causes_ms(found) == {Cause.INPUT_WAIT: 5, Cause.DEVICE_COMPUTE: 20}


def test_operators_of_a_request_are_its_wait_and_not_compute():
    rows = [Span(Kind.OPERATOR, 0, 60, MAIN)]
    steps = steps_of(one_step((0, 50), (50, 100)), one_step((0, 50), (50, 100), index=1, traced=True))
    parts = partition(recorded(rows), steps)
    assert parts.mean.ns[Cause.INPUT_WAIT] == 50
    assert parts.mean.ns[Cause.DEVICE_COMPUTE] == 10


def test_operators_of_a_backward_thread_compute_too():
    rows = [Span(Kind.OPERATOR, 60, 90, THREAD)]
    steps = steps_of(one_step((0, 50), (50, 100)), one_step((0, 50), (50, 100), index=1, traced=True))
    assert partition(recorded(rows, tracks=CPU_TRACKS), steps).mean.ns[Cause.DEVICE_COMPUTE] == 30


def test_another_threads_synchronisation_is_not_the_main_threads():
    rows = [
        Span(Kind.SYNCHRONIZE, 60, 90, THREAD),
        Span(Kind.SYNCHRONIZE, 90, 95, MAIN),
        Span(Kind.KERNEL, 200, 210, STREAM),
    ]
    steps = steps_of(one_step((0, 50), (50, 100)), one_step((0, 50), (50, 100), index=1, traced=True))
    found = recorded(rows, tracks=GPU_TRACKS, device="cuda:0")
    assert partition(found, steps).mean.ns[Cause.SYNCHRONIZATION] == 5


# ---- against a reference that is slow and plain ----------------------------------------------------------------------

ACCELERATOR_KINDS = {
    Kind.KERNEL: Cause.DEVICE_COMPUTE,
    Kind.COPY_OTHER: Cause.DEVICE_COMPUTE,
    Kind.OPERATOR: Cause.KERNEL_LAUNCH,
}
CPU_KINDS = {Kind.OPERATOR: Cause.DEVICE_COMPUTE}
BOTH_KINDS = {
    Kind.COPY_H2D: Cause.H2D_COPY,
    Kind.COPY_D2H: Cause.H2D_COPY,
    Kind.COLLECTIVE: Cause.COMMUNICATION,
    Kind.SYNCHRONIZE: Cause.SYNCHRONIZATION,
    Kind.LAUNCH: Cause.KERNEL_LAUNCH,
    Kind.ALLOCATOR: Cause.KERNEL_LAUNCH,
}
MAIN_THREAD_ONLY = (Kind.SYNCHRONIZE, Kind.LAUNCH, Kind.ALLOCATOR)
ORDER = list(Cause)


def at(found: Profile, moment: int) -> set[tuple[Kind, int]]:
    spans = found.spans
    here = (spans.start_ns <= moment) & (spans.end_ns > moment)
    return {(Kind(int(k)), int(t)) for k, t in zip(spans.kind[here], spans.track[here], strict=True)}


def moments(each: Step) -> list[tuple[int, bool]]:
    """Every nanosecond of a step, and whether it lies in the request."""
    waiting = dict.fromkeys(range(each.body_start_ns, each.body_end_ns), False)
    return list((waiting | dict.fromkeys(range(each.wait_start_ns, each.wait_end_ns), True)).items())


def light_cause(found: Profile, moment: int, waiting: bool) -> Cause:
    kinds = {kind for kind, _ in at(found, moment)}
    if Kind.USER_DEVICE in kinds:
        return Cause.DEVICE_COMPUTE
    if waiting:
        return Cause.INPUT_WAIT
    return Cause.CHECKPOINT if Kind.CHECKPOINT in kinds else Cause.OTHER


def traced_cause(found: Profile, moment: int) -> Cause:
    table = BOTH_KINDS | (ACCELERATOR_KINDS if found.device != "cpu" else CPU_KINDS)
    claims = {
        table[kind] for kind, track in at(found, moment) if kind in table and not (kind in MAIN_THREAD_ONLY and track)
    }
    return min(claims, key=ORDER.index) if claims else Cause.PYTHON


def reference(found: Profile, measured: list[Step], traced: list[Step]) -> dict[Cause, float]:
    total: Counter[Cause] = Counter()
    for each in measured:
        total.update(light_cause(found, moment, waiting) for moment, waiting in moments(each))
    mean = {cause: total[cause] / len(measured) for cause in Cause}
    shares = []
    # A trace of an accelerator's run without any kernel tells nothing.
    seen = np.isin(found.spans.kind, [Kind.KERNEL, Kind.COLLECTIVE]).any() or found.device == "cpu"
    for each in traced if seen else []:
        rest = [
            traced_cause(found, moment)
            for moment, waiting in moments(each)
            if light_cause(found, moment, waiting) is Cause.OTHER
        ]
        if rest:
            shares.append({cause: count / len(rest) for cause, count in Counter(rest).items()})
    if shares:
        rest_ns, mean[Cause.OTHER] = mean[Cause.OTHER], 0.0
        for share in shares:
            for cause, part in share.items():
                mean[cause] += rest_ns * part / len(shares)
    return mean


cuts = st.integers(0, 60)
ON_STREAMS = (Kind.KERNEL, Kind.COPY_H2D, Kind.COPY_D2H, Kind.COPY_OTHER, Kind.COLLECTIVE)
ON_THREADS = (*MAIN_THREAD_ONLY, Kind.OPERATOR, Kind.USER_DEVICE, Kind.CHECKPOINT)
places = st.tuples(st.sampled_from(ON_STREAMS), st.just(STREAM)) | st.tuples(
    st.sampled_from(ON_THREADS), st.sampled_from([MAIN, THREAD])
)


@st.composite
def spans_and_steps(draw) -> tuple[Profile, list[Step], list[Step]]:
    rows = []
    for _ in range(draw(st.integers(0, 10))):
        start, end = sorted(draw(st.tuples(cuts, cuts)))
        kind, track = draw(places)
        rows.append(Span(kind, start, end, track))
    steps = []
    for index in range(draw(st.integers(1, 3))):
        ends = sorted(draw(st.lists(cuts, min_size=4, max_size=4)))
        traced = index > 0 and draw(st.booleans())
        steps.append(one_step((ends[0], ends[1]), (ends[2], ends[3]), index=index, traced=traced))
    device = draw(st.sampled_from(["cpu", "cuda:0"]))
    found = recorded(rows, tracks=GPU_TRACKS, device=device)
    return found, [each for each in steps if each.measured], [each for each in steps if each.traced]


@given(spans_and_steps())
def test_causes_are_those_that_hold_nanosecond_for_nanosecond(case):
    found, measured, traced = case
    mean = partition(found, steps_of(*measured, *traced)).mean
    assert mean.ns == pytest.approx(reference(found, measured, traced))
    assert sum(mean.ns.values()) == pytest.approx(sum(each.duration_ns for each in measured) / len(measured))


@given(spans_and_steps(), st.integers(0, 1 << 60), st.integers(0, 99))
def test_neither_the_clock_nor_the_order_of_the_spans_matters(case, by_ns, seed):
    found, measured, traced = case
    expected = partition(found, steps_of(*measured, *traced)).mean.ns

    def later(each: Step) -> Step:
        ends = ("wait_start_ns", "wait_end_ns", "body_start_ns", "body_end_ns")
        return replace(each, **{name: getattr(each, name) + by_ns for name in ends})

    assert partition(reordered(found, seed), steps_of(*measured, *traced)).mean.ns == expected
    moved = steps_of(*map(later, measured), *map(later, traced))
    assert partition(shifted(found, by_ns), moved).mean.ns == expected


# ---- resampling ------------------------------------------------------------------------------------------------------


def test_resampled_causes_scatter_around_the_mean_and_sum_to_the_step():
    plan = [each for wait in range(10, 40) for each in step(input_wait=ms(wait), compute=ms(10))]
    parts = cut(profile(plan + step(input_wait=ms(20), compute=ms(15), python=ms(5), traced=True) * 5))
    replicas = parts.bootstrap(200, seed=1)
    assert set(replicas) == set(CAUSES)
    total = np.sum(list(replicas.values()), axis=0)
    assert total.min() >= ms(20)
    assert total.max() <= ms(49)
    for cause, values in replicas.items():
        assert values.mean() == pytest.approx(parts.mean.ns[cause], rel=0.1, abs=us(1))


def test_resampling_with_the_same_seed_gives_the_same():
    parts = cut(profile(step(input_wait=ms(30), compute=ms(10)) * 4 + step(input_wait=ms(3), compute=ms(10)) * 4))
    one, other = parts.bootstrap(10, seed=3), parts.bootstrap(10, seed=3)
    assert all((one[cause] == other[cause]).all() for cause in CAUSES)


def test_resampling_a_long_run_does_not_need_the_whole_run_once_per_replica():
    parts = cut(profile(step(input_wait=ms(30), compute=ms(10)) * 1000))
    tracemalloc.start()
    parts.bootstrap(400, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


# ---- the device, hidden or not ---------------------------------------------------------------------------------------


def test_on_an_accelerator_the_device_computes_during_the_wait_too():
    rows = [Span(Kind.KERNEL, 30, 70, STREAM), Span(Kind.KERNEL, 60, 80, STREAM), Span(Kind.OPERATOR, 0, 100, MAIN)]
    found = recorded(rows, tracks=GPU_TRACKS, device="cuda:0")
    assert device_compute_ns(found, one_step((0, 50), (50, 100), traced=True)) == 50


def test_on_a_cpu_what_operators_do_during_the_wait_is_data_work():
    found = recorded([Span(Kind.OPERATOR, 30, 70, MAIN)], tracks=CPU_TRACKS)
    assert device_compute_ns(found, one_step((0, 50), (50, 100), traced=True)) == 20


# ---- the device's own events -----------------------------------------------------------------------------------------


def starving(*spans: tuple[int, int], device: str = "cuda:0") -> dict[Cause, float]:
    rows = [Span(Kind.STARVED, start, end, MAIN) for start, end in spans]
    found = recorded(rows, tracks=GPU_TRACKS, device=device)
    return partition(found, steps_of(one_step((0, 50), (50, 100)))).mean.ns


def test_of_a_wait_only_what_starved_the_device_is_input_wait():
    ns = starving((30, 50))
    assert (ns[Cause.INPUT_WAIT], ns[Cause.DEVICE_COMPUTE], ns[Cause.OTHER]) == (20, 30, 50)


def test_without_the_devices_events_the_whole_request_is_input_wait():
    assert starving()[Cause.INPUT_WAIT] == 50


def test_a_trace_without_any_kernel_of_the_device_divides_nothing():
    rows = [Span(Kind.OPERATOR, 50, 90, MAIN)]
    steps = steps_of(one_step((0, 50), (50, 100)), one_step((0, 50), (50, 100), index=1, traced=True))
    found = partition(recorded(rows, tracks=GPU_TRACKS, device="cuda:0"), steps)
    assert (len(found.open_shares), found.mean.ns[Cause.OTHER]) == (0, 50)


# ---- other threads ---------------------------------------------------------------------------------------------------


def traced_in(track: int, **options: bool) -> dict[Cause, float]:
    """A step of 100 whose traced part holds operators, launches and a wait for the device on one thread."""
    rows = [
        Span(Kind.OPTIMIZER, 95, 96, track),
        Span(Kind.NEXT, 0, 10, track),
        Span(Kind.OPERATOR, 10, 30, track),
        Span(Kind.LAUNCH, 12, 20, track),
        Span(Kind.KERNEL, 20, 25, STREAM),
        Span(Kind.SYNCHRONIZE, 30, 60, track),
    ]
    steps = steps_of(one_step((0, 10), (10, 100)), one_step((0, 10), (10, 100), index=1, traced=True))
    return partition(recorded(rows, tracks=GPU_TRACKS, device="cuda:0"), replace(steps, **options)).mean.ns


def test_a_loop_in_another_thread_is_divided_as_one_in_the_main_thread():
    ns = traced_in(THREAD)
    assert ns == traced_in(MAIN)
    assert (ns[Cause.SYNCHRONIZATION], ns[Cause.PYTHON], ns[Cause.OTHER]) == (30, 40, 0)


def test_where_waiting_for_a_batch_was_not_seen_it_is_not_called_python():
    ns = traced_in(MAIN, handed_over=True, wait_unseen=True)
    assert (ns[Cause.SYNCHRONIZATION], ns[Cause.PYTHON], ns[Cause.OTHER]) == (30, 0, 40)


def test_requests_of_a_thread_that_feeds_the_training_one_are_no_wait():
    rows = [Span(Kind.OPTIMIZER, 95, 96, MAIN), Span(Kind.NEXT, 20, 80, THREAD)]
    found = partition(recorded(rows, tracks=CPU_TRACKS), steps_of(one_step((0, 10), (10, 100))))
    assert found.mean.ns[Cause.INPUT_WAIT] == 10
