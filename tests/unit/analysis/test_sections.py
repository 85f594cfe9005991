"""The numbers of a report, section by section."""

from __future__ import annotations

from dataclasses import replace

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
    step,
    steps_of,
    us,
)
from hypothesis import given
from hypothesis import strategies as st

from dlprof.analysis import sections
from dlprof.analysis.components import find_fetches
from dlprof.analysis.hot_lines import find_hot_lines
from dlprof.analysis.input_wait import split_waits
from dlprof.analysis.partition import partition
from dlprof.analysis.pipeline import build_pipeline, training_loader
from dlprof.analysis.steps import find_steps
from dlprof.model.kinds import Cause, Component, Kind, Role
from dlprof.model.profile import Profile, Track
from dlprof.model.report import Input, StepTimes, Total

LIGHT = {"getitem": ms(10), "tokenizer": ms(20), "collate": ms(2), "compute": ms(8)}
PLAIN = step(**LIGHT)


def step_times(found: Profile) -> StepTimes:
    steps = find_steps(found)
    return sections.step_times(found, steps, partition(found, steps))


def totals(found: Profile):
    steps = find_steps(found)
    return sections.totals(found, steps, find_fetches(found), partition(found, steps))


def input_section(found: Profile) -> Input | None:
    steps = find_steps(found)
    fetches = find_fetches(found)
    lines = find_hot_lines(found, steps, fetches)
    return sections.input_section(found, steps, fetches, training_loader(found, steps), lines)


# ---- step time and budget --------------------------------------------------------------------------------------------


def test_step_time_throughput_and_first_batch():
    found = step_times(profile(PLAIN * 20, batch_size=8))
    assert (found.mean_ms, found.p50_ms, found.p95_ms) == pytest.approx((40, 40, 40))
    assert found.steps_per_s == pytest.approx(25)
    assert found.samples_per_s == pytest.approx(200)
    # From the start of the command, two seconds before the loop began, to the arrival of the first batch.
    assert found.first_batch_s == pytest.approx(2.0321)


def test_percentiles_are_those_of_single_steps():
    plan = [each for wait in range(101) for each in step(input_wait=ms(wait))]
    found = step_times(profile(plan))
    assert (found.p50_ms, found.p95_ms) == pytest.approx((50, 95), abs=0.01)


def test_without_a_measured_step_only_the_first_batch_is_known():
    found = step_times(profile(PLAIN * 3, warmup=5))
    assert found == StepTimes(None, None, None, None, None, pytest.approx(2.0321))


def test_without_any_batch_nothing_is_known():
    assert step_times(recorded([])) == StepTimes(None, None, None, None, None, None)


def test_samples_come_from_the_batch_where_the_loader_does_not_say():
    found = profile(PLAIN * 20, batch_size=8)
    unsaid = tuple(replace(each, settings=each.settings | {"batch_size": None}) for each in found.loaders)
    assert step_times(replace(found, loaders=unsaid)).samples_per_s == pytest.approx(200)
    assert step_times(replace(found, loaders=unsaid, batches=())).samples_per_s is None


def test_the_budget_has_a_row_for_each_cause_and_sums_to_the_mean_step():
    found = profile(PLAIN * 20)
    rows = sections.budget(partition(found, find_steps(found)))
    assert [row.cause for row in rows] == list(Cause)
    assert sum(row.ms_per_step for row in rows) == pytest.approx(step_times(found).mean_ms)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert sections.budget(None) == []


def test_steps_are_listed_but_for_warm_up():
    found = profile(PLAIN * 3 + step(input_wait=ms(1), compute=ms(2), traced=True), warmup=1)
    rows = sections.step_rows(find_steps(found))
    assert [(row.index, row.ms, row.input_wait_ms, row.traced) for row in rows] == [
        (1, 40, 32, False),
        (2, 40, 32, False),
        (3, 3, 1, True),
    ]


# ---- totals ----------------------------------------------------------------------------------------------------------


def test_the_four_times_asked_for_are_there_overlapped_or_not():
    traced = step(**LIGHT, traced=True)
    for workers in (0, 3):
        found = totals(profile(PLAIN * 20 + traced * 5, workers=workers))
        assert found.collate_fn == Total(pytest.approx(2), 20)
        assert found.tokenizer == Total(pytest.approx(20), 20)
        assert found.dataset == Total(pytest.approx(10), 20)
        assert found.device_step == Total(pytest.approx(8), 20)
        assert found.h2d is None


def test_what_was_not_seen_has_no_total():
    found = totals(profile(step(input_wait=ms(5), compute=ms(5)) * 5))
    assert (found.collate_fn, found.tokenizer, found.device_step) == (None, None, None)


def test_decoding_and_transforming_are_the_datasets():
    found = totals(profile(step(getitem=ms(1), decode=ms(5), transform=ms(3), compute=ms(2), items=4) * 5))
    assert found.dataset == Total(pytest.approx(9), 20)


def test_copies_are_those_of_the_traced_steps():
    light = {"input_wait": ms(5), "copy": ms(3), "kernel": ms(20)}
    found = totals(profile(step(**light) * 5 + step(**light, traced=True) * 2, device="cuda:0"))
    assert found.h2d == Total(pytest.approx(3), 2)
    assert found.device_step == Total(pytest.approx(20), 2)


# ---- device ----------------------------------------------------------------------------------------------------------


def test_the_device_is_described_by_its_traced_steps():
    light = {"input_wait": ms(10), "copy": ms(2), "kernel": ms(20), "python": ms(8)}
    made = profile(step(**light) * 5 + step(**light, traced=True) * 4, device="cuda:0")
    copies = made.spans.kind == int(Kind.COPY_H2D)
    made.spans.value[copies] = 4_000_000
    found = sections.device(made, find_steps(made))
    assert found.busy_ratio == pytest.approx(22 / 40)
    assert found.idle_ms_per_step == pytest.approx(18)
    assert found.h2d_bytes_per_step == 4_000_000
    assert found.h2d_gb_per_s == pytest.approx(2)
    assert [(kernel.name, kernel.ms_per_step, kernel.calls_per_step) for kernel in found.top_kernels] == [
        ("a kernel", pytest.approx(20), 1)
    ]


def test_no_device_without_an_accelerator_or_without_a_trace():
    on_cpu = profile(PLAIN * 3 + step(**LIGHT, traced=True))
    assert sections.device(on_cpu, find_steps(on_cpu)) is None
    untraced = profile(PLAIN * 3, device="cuda:0")
    assert sections.device(untraced, find_steps(untraced)) is None


def test_the_kernels_that_keep_the_device_busiest_come_first_and_no_more_than_ten():
    tracks = (Track(MAIN_PID, 1, Role.MAIN, 0), Track(MAIN_PID, 7, Role.DEVICE_STREAM, 0))
    rows = [Span(Kind.KERNEL, 100 * k, 100 * k + k, 1, name=f"kernel {k}") for k in range(1, 13)]
    found = sections.device(
        recorded(rows, tracks=tracks, device="cuda:0"), steps_of(one_step((0, 10), (10, 2000), traced=True))
    )
    assert [kernel.name for kernel in found.top_kernels] == [f"kernel {k}" for k in range(12, 2, -1)]


# ---- input -----------------------------------------------------------------------------------------------------------


def test_components_per_batch_without_workers():
    found = input_section(profile(step(getitem=ms(10), decode=ms(5), collate=ms(2), no_core=ms(1), sampler=ms(3)) * 20))
    means = {component: spread.mean for component, spread in found.per_batch_ms.items()}
    assert sum(means.values()) == pytest.approx(20)
    assert means[Component.CPU_CONTENTION] == pytest.approx(1)
    assert means[Component.SAMPLER] == pytest.approx(3)
    assert Component.PICKLE not in means
    assert (found.worker_busy_ratio, found.queue_depth_mean, found.workers) == (None, None, [])


def test_components_per_batch_with_workers():
    plan = step(getitem=ms(10), pickle=ms(4), send=ms(2), receive=ms(1), unpickle=ms(3), compute=ms(5)) * 20
    means = {c: spread.mean for c, spread in input_section(profile(plan, workers=2)).per_batch_ms.items()}
    assert means == pytest.approx(
        {Component.DATASET_GETITEM: 10, Component.PICKLE: 4, Component.TRANSPORT: 3, Component.UNPICKLE: 3}
    )


def test_each_worker_says_how_it_spent_its_time():
    plan = step(getitem=ms(20), blocked=ms(8), no_core=ms(2), compute=ms(5)) * 10
    workers = input_section(profile(plan, workers=2)).workers
    assert [(worker.pid, worker.batches) for worker in workers] == [(FIRST_WORKER_PID, 5), (FIRST_WORKER_PID + 1, 5)]
    for worker in workers:
        assert (worker.cpu_s, worker.no_core_s, worker.blocked_s) == pytest.approx((0.05, 0.01, 0.04))


def test_workers_that_always_make_batches_are_busy_and_others_are_not():
    busy = input_section(profile(step(getitem=ms(50), compute=ms(1)) * 40, workers=1))
    idle = input_section(profile(step(getitem=ms(1), compute=ms(50)) * 40, workers=1))
    assert busy.worker_busy_ratio == pytest.approx(1, abs=0.05)
    assert idle.worker_busy_ratio == pytest.approx(0.02, abs=0.01)


def test_the_slowest_samples_are_named():
    plan = [each for wait in range(1, 15) for each in step(getitem=ms(wait), compute=ms(1))]
    slow = input_section(profile(plan)).slowest_samples
    assert [(sample.index, sample.ms) for sample in slow] == [(13 - k, 14 - k) for k in range(10)]


def test_samples_of_warm_up_are_not_named():
    plan = step(getitem=ms(500)) + step(getitem=ms(1), compute=ms(1)) * 5
    assert all(sample.ms == 1 for sample in input_section(profile(plan, warmup=1)).slowest_samples)


def test_the_loaders_settings_in_force_are_shown_and_nothing_else():
    found = profile(PLAIN * 3)
    secret = tuple(replace(each, settings=each.settings | {"secret": 1}) for each in found.loaders)
    shown = input_section(replace(found, loaders=secret)).loader
    assert shown["num_workers"] == 0
    assert "secret" not in shown


def test_without_a_loader_there_is_no_input():
    found = replace(profile(PLAIN * 3), loaders=())
    assert input_section(found) is None


# ---- waits and overhead ----------------------------------------------------------------------------------------------


def test_waits_are_means_without_what_is_nothing():
    found = profile(step(getitem=ms(10), tokenizer=ms(20), compute=ms(5)) * 4)
    waits = split_waits(found, find_steps(found).measured, find_fetches(found))
    assert sections.wait_shares(waits) == pytest.approx({Component.DATASET_GETITEM: 10, Component.TOKENIZER: 20})
    assert sections.wait_shares(waits[:0]) == {}


def test_the_cost_of_looking_is_the_number_of_spans_times_what_one_costs():
    found = profile(PLAIN * 10)
    steps = find_steps(found)
    parts = partition(found, steps)
    pipeline = build_pipeline(found, steps, find_fetches(found))
    spans_per_step = (len(found.spans) - 1) / 10
    looked_at = ms(40) * 10
    own = sections.own_cost_ns(found, steps)
    assert own == pytest.approx(spans_per_step * 10 * 1000, rel=0.02)
    overhead = sections.overhead(replace(found, lost_spans=7), own, parts, pipeline)
    assert overhead.own_cost_ratio == pytest.approx(spans_per_step * 10 * 1000 / looked_at, rel=0.02)
    assert (overhead.traced_ratio, overhead.lost_spans) == (None, 7)


def test_a_run_of_nothing_costs_nothing():
    empty = recorded([])
    own = sections.own_cost_ns(empty, find_steps(empty))
    assert own == 0
    assert sections.overhead(empty, own, None, None).own_cost_ratio is None


# ---- whatever the run ------------------------------------------------------------------------------------------------

lengths = st.integers(us(1), ms(20))
plans = st.lists(
    st.fixed_dictionaries(dict.fromkeys(("getitem", "tokenizer", "collate", "compute", "unpickle"), lengths)).map(
        lambda given: step(**given)
    )
    | st.just(end_of_epoch()),
    max_size=8,
).map(joined)


@given(plans, st.integers(0, 2))
def test_sections_of_any_run_hold_together(plan, workers):
    found = profile(plan, workers=workers)
    steps = find_steps(found)
    parts = partition(found, steps)
    times = step_times(found)
    assert (times.mean_ms is None) == (parts is None)
    if parts is not None:
        assert sum(row.ms_per_step for row in sections.budget(parts)) == pytest.approx(times.mean_ms)
        assert times.mean_ms == pytest.approx(np.mean([each.duration_ns for each in steps.measured]) / 1e6)
    section = input_section(found)
    if section is not None:
        assert all(spread.p50 <= spread.p95 * (1 + 1e-9) for spread in section.per_batch_ms.values())
        assert section.worker_busy_ratio is None or 0 <= section.worker_busy_ratio <= 1
        assert sum(worker.batches for worker in section.workers) == (len(steps.measured) if workers else 0)
