from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from known_pipelines import MS, measured, part

from dlprof.model.kinds import Bottleneck, Component, Confidence
from dlprof.model.pipeline import BOTTLENECK_OF, Pipeline
from dlprof.model.report import Forecast
from dlprof.whatif.forecast import (
    Change,
    Limit,
    forecast_changes,
    forecast_without,
    forecast_workers,
    knee,
    removal,
)
from dlprof.whatif.pipeline import Scenario

GETITEM, COLLATE, STORAGE = Component.DATASET_GETITEM, Component.COLLATE_FN, Component.STORAGE_IO


def blocking(workers: int = 1, **more: object) -> Pipeline:
    """40 ms blocked per batch, for a step of 9 ms that waits for a device."""
    step = {0: 49, 1: 40, 2: 20, 4: 10}[workers]
    settings: dict = {"parts": {STORAGE: part(blocked=40)}, "main": 9, "step": step, "cores": 2, **more}
    return measured(workers, **settings)


def computing(workers: int = 1, **more: object) -> Pipeline:
    settings: dict = {"parts": {GETITEM: part(cpu=40)}, "main": 9, "step": 40, "cores": 2, **more}
    return measured(workers, **settings)


def at(forecasts: list[Forecast], workers: int) -> Forecast:
    return next(it for it in forecasts if it.to == workers)


# forecast_workers


def test_workers_are_forecast_from_none_to_enough():
    forecasts = forecast_workers(blocking())
    assert [it.to for it in forecasts] == list(range(8))  # 40 / 9 rounded up, and two more
    assert {(it.setting, it.from_) for it in forecasts} == {("num_workers", 1)}
    assert [it.step_ms[1] for it in forecasts] == pytest.approx([49, 40, 20, 40 / 3, 10, 9, 9, 9])
    assert at(forecasts, 2).speedup[1] == pytest.approx(2)


def test_what_was_measured_is_forecast_as_measured():
    forecast = at(forecast_workers(blocking(step=44)), 1)
    assert forecast.step_ms == pytest.approx((44, 44, 44))
    assert forecast.speedup == (1, 1, 1)
    assert forecast.confidence is Confidence.HIGH


def test_the_spread_is_that_of_the_batches_and_of_the_model():
    forecast = at(forecast_workers(blocking()), 2)  # all batches alike: only the model's 4 %
    assert forecast.step_ms == pytest.approx((20 * np.exp(-0.0513), 20, 20 * np.exp(0.0513)), rel=1e-3)
    assert forecast.speedup == pytest.approx((2 * np.exp(-0.0513), 2, 2 * np.exp(0.0513)), rel=1e-3)


def test_workers_that_compute_are_not_forecast_far_beyond_the_cores():
    assert [it.to for it in forecast_workers(computing())] == [0, 1, 2]
    assert [it.to for it in forecast_workers(computing(cores=8))] == list(range(9))
    assert [it.to for it in forecast_workers(computing(workers=6))] == list(range(7))


def test_at_most_as_many_workers_as_asked_for():
    assert [it.to for it in forecast_workers(blocking(), max_workers=3)] == [0, 1, 2, 3]


def test_queued_batches_must_fit_shared_memory():
    forecasts = forecast_workers(blocking(batch_bytes=100, shm_free_bytes=950))  # 3 batches for each worker
    assert [it.to for it in forecasts] == [0, 1, 2, 3]
    assert at(forecasts, 3).limited_by == Limit.SHM
    assert at(forecasts, 2).limited_by != Limit.SHM


def test_a_number_of_workers_in_force_fits_whatever_the_free_memory_says():
    assert [it.to for it in forecast_workers(blocking(4, batch_bytes=100, shm_free_bytes=350))] == [0, 1, 4]


@pytest.mark.parametrize(
    ("pipeline", "workers", "limit"),
    [
        (blocking(), 1, None),
        (blocking(), 3, Limit.UNTESTED_CONCURRENCY),
        (blocking(), 7, Limit.DEVICE_STEP),
        (blocking(main_cpu=8), 7, Limit.MAIN_PROCESS),
        (computing(), 2, Limit.CORES),
        (computing(), 1, None),
    ],
)
def test_a_forecast_names_what_keeps_the_step_from_being_shorter(pipeline, workers, limit):
    assert at(forecast_workers(pipeline), workers).limited_by == limit


@pytest.mark.parametrize(
    ("pipeline", "workers", "confidence"),
    [
        (blocking(2), 3, Confidence.MEDIUM),  # more at once than was seen to work
        (blocking(2), 4, Confidence.MEDIUM),
        (blocking(4), 5, Confidence.MEDIUM),
        (blocking(4), 3, Confidence.HIGH),
        (blocking(4), 1, Confidence.LOW),  # four times as long
        (blocking(4, step=12), 3, Confidence.LOW),  # the model explains 10 of 12 ms
        (computing(1, parts={GETITEM: part(cpu=40)}), 2, Confidence.MEDIUM),  # no core is left to the main process
        (computing(2, step=20), 3, Confidence.LOW),  # more than there are cores
        (computing(2, step=20), 2, Confidence.HIGH),
        (computing(0, step=49, main_cpu=15), 1, Confidence.LOW),  # threads of the step meet at barriers
        (computing(1, parts={GETITEM: part(cpu=40, batches=12)}), 2, Confidence.MEDIUM),
        (computing(1, parts={GETITEM: part(cpu=40, batches=9)}), 1, Confidence.LOW),
        (computing(0, step=49), 1, Confidence.HIGH),
        (computing(0, step=49, handover_known=False), 1, Confidence.MEDIUM),
        (computing(0, step=49, handover=8, receive=4), 1, Confidence.MEDIUM),
    ],
)
def test_confidence(pipeline, workers, confidence):
    assert at(forecast_workers(pipeline, max_workers=5), workers).confidence is confidence


# knee


def forecasts_of(*step_ms: float) -> list[Forecast]:
    return [
        Forecast("num_workers", 0, workers, (it, it, it), (1, 1, 1), Confidence.HIGH, None)
        for workers, it in enumerate(step_ms)
    ]


@pytest.mark.parametrize(
    ("step_ms", "workers"),
    [
        ((49, 40, 20, 13, 10, 9, 9), 5),
        ((49, 40, 20, 13, 10, 9.8, 9.75), 4),
        ((20, 19.9, 19.8), 0),
        ((20, 21, 15, 16), 2),
        ((20,), 0),
    ],
)
def test_the_knee_is_where_no_larger_number_gains_three_percent(step_ms, workers):
    assert knee(forecasts_of(*step_ms)).to == workers


# removal


def test_without_workers_a_component_saves_its_share_of_the_step():
    parts = {GETITEM: part(cpu=10), COLLATE: part(cpu=20), STORAGE: part(blocked=30)}
    saved = removal(measured(parts=parts, main=40), {})
    shares = {component: it.mid for component, it in saved.components.items()}
    assert shares == pytest.approx({GETITEM: 0.1, COLLATE: 0.2, STORAGE: 0.3})
    assert {it: saved.bottlenecks[it].mid for it in saved.bottlenecks} == pytest.approx(
        {Bottleneck.CPU_PREPROCESSING: 0.3, Bottleneck.STORAGE_IO: 0.3}
    )
    assert saved.all_input.mid == pytest.approx(0.6)
    assert saved.calibration_error == pytest.approx(0)


def test_with_workers_only_what_is_not_overlapped_is_saved():
    parts = {COLLATE: part(blocked=24), STORAGE: part(blocked=16)}
    saved = removal(measured(2, parts=parts, main=15, step=20), {})
    assert saved.components[COLLATE].mid == pytest.approx(0.25)
    assert saved.components[STORAGE].mid == pytest.approx(0.25)
    assert saved.all_input.mid == pytest.approx(0.25)


def test_nothing_is_saved_where_the_device_bounds_the_step():
    saved = removal(measured(2, parts={STORAGE: part(blocked=16)}, main=15, step=15), {})
    assert saved.components[STORAGE].mid == pytest.approx(0)
    assert saved.all_input.mid == pytest.approx(0)


def test_hand_over_is_removed_where_it_is_known():
    pipeline = measured(1, parts={GETITEM: part(cpu=10)}, main=5, handover=20, receive=2, step=30)
    saved = removal(pipeline, {})
    assert saved.components[Component.PICKLE].mid == pytest.approx(2 / 3)
    assert saved.bottlenecks[Bottleneck.LOADER_OVERHEAD].mid == pytest.approx(2 / 3)
    unknown = removal(replace(pipeline, handover_known=False), {})
    assert set(unknown.components) == {GETITEM}
    assert Component.PICKLE not in removal(replace(pipeline, workers=0), {}).components


def test_the_interval_covers_what_resampled_batches_give():
    slow = np.array([10.0] * 36 + [110.0] * 4)  # 20 ms on average
    saved = removal(measured(parts={STORAGE: part(blocked=slow)}, main=20), {}).components[STORAGE]
    assert saved.low < 0.45 < saved.mid < 0.55 < saved.high


def test_every_component_of_the_input_pipeline_belongs_to_a_bottleneck():
    outside = {
        Component.KERNEL_LAUNCH,
        Component.SYNCHRONIZATION,
        Component.PYTHON,
        Component.CHECKPOINT,
        Component.ALLOCATOR,
        Component.COMPUTE,
        Component.COLLECTIVE,
    }
    assert set(BOTTLENECK_OF) == set(Component) - outside


# forecast_without and forecast_changes


def test_a_component_can_be_thought_away():
    parts = {COLLATE: part(cpu=20), GETITEM: part(cpu=10)}
    forecast = forecast_without(measured(parts=parts, main=10), COLLATE)
    assert (forecast.setting, forecast.from_, forecast.to) == ("collate_fn removed", pytest.approx(20), 0.0)
    assert forecast.step_ms == pytest.approx((20, 20, 20))
    assert forecast.speedup == pytest.approx((2, 2, 2))


def test_thinking_the_hand_over_away_starts_from_its_cost():
    pipeline = measured(1, parts={GETITEM: part(cpu=10)}, main=5, handover=20, receive=2, step=30)
    assert forecast_without(pipeline, Component.PICKLE).from_ == pytest.approx(20)
    assert forecast_without(pipeline, Component.UNPICKLE).from_ == pytest.approx(2)


def test_any_setting_can_be_forecast():
    slow = np.array([100.0] * 4 + [10.0] * 36)
    pipeline = measured(2, parts={STORAGE: part(blocked=slow)}, main=1, step=14, prefetch=1)
    changes = [
        Change("prefetch_factor", 1, 8, Scenario(2, 8)),
        Change("in_order", True, False, Scenario(2, 1, in_order=False)),
    ]
    forecasts = forecast_changes(pipeline, changes)
    assert [(it.setting, it.to) for it in forecasts] == [("prefetch_factor", 8), ("in_order", False)]
    assert all(it.speedup[1] > 1.1 for it in forecasts)


def test_times_are_reported_in_milliseconds():
    assert MS == 1e6
    assert at(forecast_workers(blocking()), 1).step_ms[1] == pytest.approx(40)


def test_work_of_the_loop_that_only_hides_a_worker_saves_little():
    """Without it the loop would wait for the worker instead."""
    pipeline = measured(1, parts={STORAGE: part(blocked=36)}, main=38, step=38)
    saved = removal(pipeline, {Bottleneck.HOST_OVERHEAD: 0.5}).outside[Bottleneck.HOST_OVERHEAD]
    assert saved.mid == pytest.approx(2 / 38, abs=0.02)


def test_work_of_the_loop_saves_its_share_where_batches_are_ready():
    pipeline = measured(1, parts={STORAGE: part(blocked=5)}, main=40, step=40)
    saved = removal(pipeline, {Bottleneck.HOST_OVERHEAD: 0.5}).outside[Bottleneck.HOST_OVERHEAD]
    assert saved.mid == pytest.approx(0.5, abs=0.02)
