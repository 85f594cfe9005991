from __future__ import annotations

import math
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
    forecast_all,
    forecast_changes,
    forecast_persistent,
    forecast_without,
    forecast_workers,
    knee,
    removal,
)
from dlprof.whatif.pipeline import Scenario, Simulator

GETITEM, COLLATE, STORAGE = Component.DATASET_GETITEM, Component.COLLATE_FN, Component.STORAGE_IO
SLEEP, LOCK = Component.SLEEP, Component.LOCK_WAIT


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
    forecasts = forecast_workers(Simulator(blocking()))
    assert [it.to for it in forecasts] == list(range(8))  # 40 / 9 rounded up, and two more
    assert {(it.setting, it.from_) for it in forecasts} == {("num_workers", 1)}
    assert [it.step_ms[1] for it in forecasts] == pytest.approx([49, 40, 20, 40 / 3, 10, 9, 9, 9])
    assert at(forecasts, 2).speedup[1] == pytest.approx(2)


def test_what_was_measured_is_forecast_as_measured():
    forecast = at(forecast_workers(Simulator(blocking(step=44))), 1)
    assert forecast.step_ms == pytest.approx((44, 44, 44))
    assert forecast.speedup == (1, 1, 1)
    assert forecast.confidence is Confidence.HIGH


def test_the_spread_is_that_of_the_batches_and_of_the_model():
    pipeline = blocking(parts={SLEEP: part(blocked=40)})
    forecast = at(forecast_workers(Simulator(pipeline)), 2)  # all batches alike: only the model's 4 %
    assert forecast.step_ms == pytest.approx((20 * np.exp(-0.0513), 20, 20 * np.exp(0.0513)), rel=1e-3)
    assert forecast.speedup == pytest.approx((2 * np.exp(-0.0513), 2, 2 * np.exp(0.0513)), rel=1e-3)


def test_workers_that_compute_are_not_forecast_far_beyond_the_cores():
    assert [it.to for it in forecast_workers(Simulator(computing()))] == [0, 1, 2]
    assert [it.to for it in forecast_workers(Simulator(computing(cores=8)))] == list(range(9))
    assert [it.to for it in forecast_workers(Simulator(computing(workers=6)))] == list(range(7))


def test_more_workers_fill_cores_that_were_idle_though_the_work_would_keep_them_busy():
    (idle,) = forecast_changes(Simulator(computing(2, step=22)), [Change("", 2, 3, Scenario(3, 2, True))])
    assert idle.step_ms[1] == pytest.approx(20)
    assert idle.step_ms[2] > 22
    assert idle.speedup[0] < 1 < idle.speedup[1]
    (busy,) = forecast_changes(Simulator(computing(2, step=20)), [Change("", 2, 3, Scenario(3, 2, True))])
    assert busy.step_ms[1] == pytest.approx(20)
    # With one worker another core is idle anyway: that says nothing of what two of them would leave idle.
    assert at(forecast_workers(Simulator(computing(1, step=44))), 2).step_ms[1] == pytest.approx(22)


def test_at_most_as_many_workers_as_asked_for():
    assert [it.to for it in forecast_workers(Simulator(blocking()), max_workers=3)] == [0, 1, 2, 3]


def test_queued_batches_must_fit_shared_memory():
    forecasts = forecast_workers(Simulator(blocking(batch_bytes=100, shm_free_bytes=950)))  # 3 batches for each worker
    assert [it.to for it in forecasts] == [0, 1, 2, 3]
    assert at(forecasts, 3).limited_by == Limit.SHM
    assert at(forecasts, 2).limited_by != Limit.SHM


def test_a_number_of_workers_in_force_fits_whatever_the_free_memory_says():
    assert [it.to for it in forecast_workers(Simulator(blocking(4, batch_bytes=100, shm_free_bytes=350)))] == [0, 1, 4]


def test_numbers_of_workers_whose_batches_do_not_fit_are_forecast_apart():
    found = forecast_all(Simulator(blocking(4, batch_bytes=100, shm_free_bytes=350)), [], TORCHS)
    assert [it.to for it in found.workers] == [0, 1, 4]
    beyond = [it.to for it in found.beyond_shm]
    assert beyond[:3] == [2, 3, 5]
    assert not forecast_all(Simulator(blocking(4)), [], TORCHS).beyond_shm


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
    assert at(forecast_workers(Simulator(pipeline)), workers).limited_by == limit


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
    assert at(forecast_workers(Simulator(pipeline), max_workers=5), workers).confidence is confidence


def test_no_gain_is_promised_that_a_saturated_source_cannot_give():
    """Twice the workers may only wait twice as long; the middle is what they gain where they need not."""
    forecasts = forecast_workers(Simulator(blocking(2)))
    for workers, speedup in ((4, 2), (6, 20 / 9)):
        forecast = at(forecasts, workers)
        assert (forecast.speedup[0], forecast.step_ms[2]) == pytest.approx((1, 20))
        assert forecast.speedup[1] == pytest.approx(speedup, rel=0.01)
        assert forecast.confidence is not Confidence.HIGH


def test_without_workers_one_of_them_still_overlaps_with_the_step():
    forecasts = forecast_workers(Simulator(blocking(0)))
    assert at(forecasts, 4).speedup[0] == pytest.approx(49 / 40, rel=0.01)
    assert at(forecasts, 1).speedup[0] > 1.1


def test_a_source_that_was_idle_most_of_the_time_can_serve_more():
    """A third of a batch is blocked: were it on what serves one at a time, three workers could use it."""
    pipeline = measured(1, parts={STORAGE: part(blocked=10), GETITEM: part(cpu=20)}, main=1, step=30, cores=8)
    forecasts = forecast_workers(Simulator(pipeline), max_workers=6)
    assert at(forecasts, 2).speedup[0] == pytest.approx(2 * np.exp(-0.085), rel=0.01)
    assert at(forecasts, 6).speedup[0] == pytest.approx(3, rel=0.01)


def test_a_timer_serves_any_number_of_workers():
    forecast = at(forecast_workers(Simulator(blocking(2, parts={SLEEP: part(blocked=40)}))), 4)
    assert forecast.speedup[0] > 1.8
    assert forecast.limited_by is None
    assert forecast.confidence is Confidence.MEDIUM


def test_workers_that_take_turns_gain_less_from_more_of_them():
    pipeline = measured(3, parts={SLEEP: part(blocked=60), LOCK: part(blocked=30)}, main=5, step=30, cores=8)
    forecast = at(forecast_workers(Simulator(pipeline)), 4)
    assert forecast.step_ms[1] == pytest.approx((60 + 45) / 4, rel=0.01)
    assert forecast.confidence is Confidence.LOW


@pytest.mark.parametrize("main_cpu", [0, 9])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_on_one_core_no_more_workers_gain_for_work_that_computes(main_cpu, workers):
    step = {0: 49, 1: 49 if main_cpu else 40, 2: 49 if main_cpu else 40}[workers]
    forecasts = forecast_workers(Simulator(computing(workers, cores=1, main_cpu=main_cpu, step=step)), max_workers=4)
    least = forecasts[1].step_ms[1]
    assert all(it.step_ms[1] >= least * 0.99 for it in forecasts[2:])
    # A first worker computes while the main process waits for the device, where it does.
    assert least == pytest.approx(49 if main_cpu else 40, rel=0.02)


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
    saved = removal(Simulator(measured(parts=parts, main=40)), {})
    shares = {component: it.mid for component, it in saved.components.items()}
    assert shares == pytest.approx({GETITEM: 0.1, COLLATE: 0.2, STORAGE: 0.3})
    assert {it: saved.bottlenecks[it].mid for it in saved.bottlenecks} == pytest.approx(
        {Bottleneck.CPU_PREPROCESSING: 0.3, Bottleneck.STORAGE_IO: 0.3}
    )
    assert saved.all_input.mid == pytest.approx(0.6)
    assert saved.calibration_error == pytest.approx(0)


def test_with_workers_only_what_is_not_overlapped_is_saved():
    parts = {COLLATE: part(blocked=24), STORAGE: part(blocked=16)}
    saved = removal(Simulator(measured(2, parts=parts, main=15, step=20)), {})
    assert saved.components[COLLATE].mid == pytest.approx(0.25)
    assert saved.components[STORAGE].mid == pytest.approx(0.25)
    assert saved.all_input.mid == pytest.approx(0.25)


def test_nothing_is_saved_where_the_device_bounds_the_step():
    saved = removal(Simulator(measured(2, parts={STORAGE: part(blocked=16)}, main=15, step=15)), {})
    assert saved.components[STORAGE].mid == pytest.approx(0)
    assert saved.all_input.mid == pytest.approx(0)


def test_hand_over_is_removed_where_it_is_known():
    pipeline = measured(1, parts={GETITEM: part(cpu=10)}, main=5, handover=20, receive=2, step=30)
    saved = removal(Simulator(pipeline), {})
    assert saved.components[Component.PICKLE].mid == pytest.approx(2 / 3)
    assert saved.bottlenecks[Bottleneck.LOADER_OVERHEAD].mid == pytest.approx(2 / 3)
    unknown = removal(Simulator(replace(pipeline, handover_known=False)), {})
    assert set(unknown.components) == {GETITEM}
    assert Component.PICKLE not in removal(Simulator(replace(pipeline, workers=0)), {}).components


def test_the_interval_covers_what_resampled_batches_give():
    slow = np.array([10.0] * 36 + [110.0] * 4)  # 20 ms on average
    saved = removal(Simulator(measured(parts={STORAGE: part(blocked=slow)}, main=20)), {}).components[STORAGE]
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
    forecast = forecast_without(Simulator(measured(parts=parts, main=10)), COLLATE)
    assert (forecast.setting, forecast.from_, forecast.to) == ("collate_fn removed", pytest.approx(20), 0.0)
    assert forecast.step_ms == pytest.approx((20, 20, 20))
    assert forecast.speedup == pytest.approx((2, 2, 2))


def test_thinking_the_hand_over_away_starts_from_its_cost():
    pipeline = measured(1, parts={GETITEM: part(cpu=10)}, main=5, handover=20, receive=2, step=30)
    assert forecast_without(Simulator(pipeline), Component.PICKLE).from_ == pytest.approx(20)
    assert forecast_without(Simulator(pipeline), Component.UNPICKLE).from_ == pytest.approx(2)


def test_any_setting_can_be_forecast():
    slow = np.array([100.0] * 4 + [10.0] * 36)
    pipeline = measured(2, parts={STORAGE: part(blocked=slow)}, main=1, step=14, prefetch=1)
    changes = [
        Change("prefetch_factor", 1, 8, Scenario(2, 8)),
        Change("in_order", True, False, Scenario(2, 1, in_order=False)),
    ]
    forecasts = forecast_changes(Simulator(pipeline), changes)
    assert [(it.setting, it.to) for it in forecasts] == [("prefetch_factor", 8), ("in_order", False)]
    assert all(it.speedup[1] > 1.1 for it in forecasts)


def test_times_are_reported_in_milliseconds():
    assert MS == 1e6
    assert at(forecast_workers(Simulator(blocking())), 1).step_ms[1] == pytest.approx(40)


def test_work_of_the_loop_that_only_hides_a_worker_saves_little():
    """Without it the loop would wait for the worker instead."""
    pipeline = measured(1, parts={STORAGE: part(blocked=36)}, main=38, step=38)
    saved = removal(Simulator(pipeline), {Bottleneck.HOST_OVERHEAD: 0.5}).outside[Bottleneck.HOST_OVERHEAD]
    assert saved.mid == pytest.approx(2 / 38, abs=0.02)


def test_work_of_the_loop_saves_its_share_where_batches_are_ready():
    pipeline = measured(1, parts={STORAGE: part(blocked=5)}, main=40, step=40)
    saved = removal(Simulator(pipeline), {Bottleneck.HOST_OVERHEAD: 0.5}).outside[Bottleneck.HOST_OVERHEAD]
    assert saved.mid == pytest.approx(0.5, abs=0.02)


# forecast_all and forecast_persistent

TORCHS = {"num_workers": 2, "prefetch_factor": 2, "in_order": True}


def test_all_changes_are_forecast_together():
    forecasts = forecast_all(Simulator(blocking(2)), [STORAGE], TORCHS)
    assert [it.to for it in forecasts.workers] == list(range(8))
    assert [(it.setting, it.from_, it.to) for it in forecasts.settings] == [
        ("prefetch_factor", 2, 1),
        ("prefetch_factor", 2, 4),
        ("prefetch_factor", 2, 8),
        ("in_order", True, False),
    ]
    assert forecasts.without[STORAGE].step_ms[1] == pytest.approx(9)
    ceiling = forecasts.input_removed
    assert (ceiling.setting, ceiling.from_, ceiling.to) == ("input removed", pytest.approx(11), 0.0)
    assert ceiling.step_ms[1] == pytest.approx(9)


def test_together_they_are_what_they_are_alone():
    pipeline = blocking(2)
    assert forecast_all(Simulator(pipeline), [STORAGE], TORCHS).workers == forecast_workers(Simulator(pipeline))


def test_prefetched_batches_must_fit_shared_memory():
    forecasts = forecast_all(Simulator(blocking(2, batch_bytes=100, shm_free_bytes=1000)), [], TORCHS)
    assert [it.to for it in forecasts.settings if it.setting == "prefetch_factor"] == [1, 4]


def test_without_workers_nothing_is_prefetched_or_reordered():
    assert forecast_all(Simulator(blocking(0)), [], TORCHS).settings == []


def test_a_loader_without_settings_has_none_to_change():
    forecasts = forecast_all(Simulator(blocking(2)), [STORAGE], {})
    assert (forecasts.workers, forecasts.settings) == ([], [])
    assert forecasts.without


def test_doubt_lowers_the_confidence_of_all():
    doubted = forecast_all(Simulator(blocking(2)), [STORAGE], TORCHS).doubted()
    rows = [*doubted.workers, *doubted.settings, *doubted.without.values(), doubted.input_removed]
    assert {it.confidence for it in rows} == {Confidence.LOW}


def test_restarts_are_shared_out_over_an_epoch():
    forecast = forecast_persistent(np.full(40, 20 * MS), np.array([10 * MS, 10 * MS]))
    assert (forecast.setting, forecast.from_, forecast.to) == ("persistent_workers", False, True)
    assert forecast.step_ms == pytest.approx((20, 20, 20))
    assert forecast.speedup == pytest.approx((1.5, 1.5, 1.5))
    assert forecast.confidence is Confidence.MEDIUM


def test_workers_that_started_once_are_not_kept_alive():
    assert forecast_persistent(np.full(40, 20 * MS), np.zeros(0)) is None


def test_the_further_a_forecast_goes_beyond_what_was_measured_the_wider_its_interval():
    slow = Simulator(measured(0, parts={Component.SLEEP: part(blocked=100)}, main=1))
    rows = {it.to: it for it in forecast_workers(slow, max_workers=16)}
    width = {to: math.log(row.speedup[2] / row.speedup[0]) for to, row in rows.items()}
    assert rows[4].speedup[1] == pytest.approx(4, rel=0.05)
    assert width[2] == pytest.approx(width[4], rel=0.05)
    assert width[16] == pytest.approx(2 * width[4], rel=0.05)
