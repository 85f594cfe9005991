"""What another number of workers, another setting, or a cause less would gain.

Forecasts are the measured mean step times a simulated ratio (``whatif/pipeline.py``). Their spread is that of
a bootstrap over the measured batches, and of the model where it was not measured at those settings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from dlprof.model.kinds import Bottleneck, Component, Confidence
from dlprof.model.pipeline import BOTTLENECK_OF, Interval, Pipeline
from dlprof.model.report import Forecast
from dlprof.whatif.engine import Floats
from dlprof.whatif.pipeline import DEFAULT_PREFETCH, Scenario, in_force, simulate_calibrated

_ENOUGH_GAIN = 0.03
"""A further gain below this share of the step is not worth a worker."""
_AT_FLOOR = 1.05
"""A step this close to the step without input is bounded by the latter."""
_SATURATED = 0.95
"""Use of the cores above which they bound the step."""
_MOST_BLOCKED_WORKERS = 16
_FEW_BATCHES, _SOME_BATCHES = 10, 30
_LARGE_CHANGE = 0.5
_LARGE_HANDOVER = 0.25
_SEVERAL_THREADS = 1.2
"""CPU over wall time of the step above which the main process computes with several threads."""
_LARGE_ERROR = 0.15

_ERROR_BLOCKING, _ERROR_COMPUTING = 0.04, 0.08
"""Relative standard error of the model for workers that only block or only compute.

*Measured:* root mean square over 54 and 132 forecasts of other numbers of workers against real runs (0 to 4
workers, 2 cores, steps of 5 to 50 ms, each from one profiled run).
"""
_P90_SIGMAS = 1.2816
"""Where the 90th percentile of a normal distribution lies."""


class Limit(StrEnum):
    """What keeps a forecast step from being shorter (``Forecast.limited_by``)."""

    DEVICE_STEP = "device_step"
    """The step outside the request for a batch, in which the main process mostly waits: for the device."""
    MAIN_PROCESS = "main_process"
    """The step outside the request for a batch, which is mostly the main process's own CPU time."""
    CORES = "cores"
    """All cores are busy."""
    SHM = "shm"
    """One worker more would not fit /dev/shm."""
    UNTESTED_CONCURRENCY = "untested_concurrency"
    """More batches would block at once than were seen to: whatever they block on may not keep up."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change to forecast: what the report calls it, and the scenario it leads to."""

    setting: str
    from_: Any
    to: Any
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class Removal:
    """The part of the mean step that removing a cause saves, at the settings in force.

    Attributes:
        components: Saved share per component, 0 to 1 but for simulation noise.
        bottlenecks: Saved share per bottleneck of the input, all its components removed together.
        outside: Saved share per bottleneck outside the input.
        all_input: Saved share when batches cost nothing.
        calibration_error: Simulated over measured step at the settings in force, minus 1.
    """

    components: dict[Component, Interval]
    bottlenecks: dict[Bottleneck, Interval]
    outside: dict[Bottleneck, Interval]
    all_input: Interval
    calibration_error: float


def forecast_changes(pipeline: Pipeline, changes: Sequence[Change]) -> list[Forecast]:
    """The step in ms after each change.

    Args:
        pipeline: What was measured; at least one batch.
        changes: What to change.

    Returns:
        One forecast per change, in their order; steps and speedups at the 10th, 50th and 90th percentile.
    """
    free = replace(in_force(pipeline), without_input=True)
    simulated = simulate_calibrated(pipeline, [free, *(change.scenario for change in changes)])
    floor = float(np.median(simulated.ratio[0]))
    forecasts = []
    for change, ratio, step in zip(changes, simulated.ratio[1:], simulated.step_ns[1:], strict=True):
        middle = float(np.median(ratio))
        error = _model_error(pipeline, change.scenario)
        uncalibrated_ns = middle * float(pipeline.step_ns.mean()) * (1 + simulated.error_ratio)
        forecasts.append(
            Forecast(
                setting=change.setting,
                from_=change.from_,
                to=change.to,
                step_ms=_quantiles(step / 1e6, error),
                speedup=_quantiles(1 / ratio, error),
                confidence=_confidence(pipeline, change.scenario, middle, simulated.error_ratio),
                limited_by=_limit(pipeline, change.scenario, middle / floor, uncalibrated_ns),
            )
        )
    return forecasts


def forecast_workers(pipeline: Pipeline, *, max_workers: int | None = None) -> list[Forecast]:
    """The step in ms for every number of workers from 0.

    Args:
        pipeline: What was measured; at least one batch.
        max_workers: The largest number; None for as many as show the curve flatten. Numbers whose queued
            batches do not fit /dev/shm are left out, unless they were in force.

    Returns:
        One forecast per number of workers, ascending.
    """
    prefetch = pipeline.prefetch_factor or DEFAULT_PREFETCH
    top = _enough_workers(pipeline) if max_workers is None else max_workers
    fitting = [it for it in range(top + 1) if it == pipeline.workers or _fits_shm(pipeline, it)]
    changes = [Change("num_workers", pipeline.workers, it, Scenario(it, prefetch, pipeline.in_order)) for it in fitting]
    return forecast_changes(pipeline, changes)


def knee(forecasts: Sequence[Forecast]) -> Forecast:
    """The smallest setting after which all further ones gain less than 3 %.

    Args:
        forecasts: At least one; ascending, as from `forecast_workers`.

    Returns:
        One of them.
    """
    middle = [forecast.step_ms[1] for forecast in forecasts]
    for index, step_ms in enumerate(middle[:-1]):
        if min(middle[index + 1 :]) > step_ms * (1 - _ENOUGH_GAIN):
            return forecasts[index]
    return forecasts[-1]


def removal(pipeline: Pipeline, outside: Mapping[Bottleneck, float]) -> Removal:
    """What each component, each bottleneck and all input together cost the mean step.

    Args:
        pipeline: What was measured; at least one batch.
        outside: Of each bottleneck outside the input its share of the step outside the request for a batch.

    Returns:
        Saved shares of the step, with the 5th, 50th and 95th percentile of the bootstrap.
    """
    components = _components(pipeline)
    groups: dict[Bottleneck, list[Component]] = {}
    for component in components:
        groups.setdefault(BOTTLENECK_OF[component], []).append(component)
    now = in_force(pipeline)
    removed: list[Collection[Component]] = [*([it] for it in components), *groups.values()]
    shorter = [replace(now, main=1 - share) for share in outside.values()]
    scenarios = [*(now.without(it) for it in removed), *shorter, replace(now, without_input=True)]
    simulated = simulate_calibrated(pipeline, scenarios)
    saved = [_interval(1 - ratio) for ratio in simulated.ratio]
    count = len(components)
    return Removal(
        components=dict(zip(components, saved[:count], strict=True)),
        bottlenecks=dict(zip(groups, saved[count:], strict=False)),
        outside=dict(zip(outside, saved[count + len(groups) :], strict=False)),
        all_input=saved[-1],
        calibration_error=simulated.error_ratio,
    )


def forecast_without(pipeline: Pipeline, component: Component) -> Forecast:
    """The step in ms if one component cost nothing, at the settings in force.

    Args:
        pipeline: What was measured; at least one batch.
        component: A component of the input pipeline.

    Returns:
        A forecast from the component's mean ms per batch to 0.
    """
    change = Change(
        setting=f"{component} removed",
        from_=_mean_ms(pipeline, component),
        to=0.0,
        scenario=in_force(pipeline).without([component]),
    )
    return forecast_changes(pipeline, [change])[0]


def _components(pipeline: Pipeline) -> list[Component]:
    """The components whose cost is known."""
    known = list(pipeline.parts)
    if pipeline.workers and pipeline.handover_known:
        known += [it for it in (Component.PICKLE, Component.UNPICKLE) if it not in pipeline.parts]
    return known


def _mean_ms(pipeline: Pipeline, component: Component) -> float:
    """Mean time per batch, its own and as hand-over."""
    part = pipeline.parts.get(component)
    total_ns = float((part.cpu_ns + part.blocked_ns).mean()) if part else 0.0
    if component is Component.PICKLE:
        total_ns += float(pipeline.handover_cpu_ns.mean())
    if component is Component.UNPICKLE:
        total_ns += float(pipeline.receive_cpu_ns.mean())
    return total_ns / 1e6


def _cpu_and_blocked_ns(pipeline: Pipeline) -> tuple[float, float]:
    """Mean CPU and blocked time of making one batch."""
    cpu = sum(float(part.cpu_ns.mean()) for part in pipeline.parts.values())
    blocked = sum(float(part.blocked_ns.mean()) for part in pipeline.parts.values())
    return cpu, blocked


def _enough_workers(pipeline: Pipeline) -> int:
    """As many workers as can occupy the cores, or keep up with the training loop and a few more."""
    cpu, blocked = _cpu_and_blocked_ns(pipeline)
    cores = math.ceil(pipeline.cores)
    fetch = cpu + blocked
    occupy = round(pipeline.cores * fetch / cpu) if cpu > 0 else _MOST_BLOCKED_WORKERS
    useful = max(cores, min(occupy, _MOST_BLOCKED_WORKERS))
    keep_up = math.ceil(fetch / max(float(pipeline.main_wall_ns.mean()), 1.0)) + 2
    return max(min(useful, max(keep_up, min(cores, _MOST_BLOCKED_WORKERS))), pipeline.workers)


def _fits_shm(pipeline: Pipeline, workers: int) -> bool:
    """Whether the batches that can be alive at once fit: those requested, and one in use per worker."""
    if pipeline.batch_bytes < 0 or pipeline.shm_free_bytes < 0:
        return True
    prefetch = pipeline.prefetch_factor or DEFAULT_PREFETCH
    return pipeline.batch_bytes * workers * (prefetch + 1) <= pipeline.shm_free_bytes


def _blocks_untested(pipeline: Pipeline, workers: int) -> bool:
    """Whether more batches block at once than when measured, in a pipeline that mostly blocks."""
    cpu, blocked = _cpu_and_blocked_ns(pipeline)
    return workers > max(pipeline.workers, 1) and blocked > cpu


def _hands_over_much(pipeline: Pipeline) -> bool:
    """Whether handing batches over is a large part of the work: *measured* forecasts were 14 % off there."""
    handover = float((pipeline.handover_cpu_ns + pipeline.receive_cpu_ns).mean())
    return handover > _LARGE_HANDOVER * sum(_cpu_and_blocked_ns(pipeline))


def _computes_beyond_cores(pipeline: Pipeline, scenario: Scenario) -> bool:
    """Whether computing workers want more cores than there are, then or when measured.

    A main process that is one thread is not counted. Several meet at barriers, where all wait for one without a
    core: *measured* with two OpenMP threads and one worker on 2 cores, the step's own part took 2.8 times as
    long, and forecasts were 8 to 46 % off.
    """
    cpu, blocked = _cpu_and_blocked_ns(pipeline)
    if cpu < blocked:
        return False
    threads = float(pipeline.main_cpu_ns.sum()) / max(float(pipeline.main_wall_ns.sum()), 1.0)
    if threads > _SEVERAL_THREADS:
        return max(scenario.workers, pipeline.workers) + threads > pipeline.cores
    return scenario.workers > pipeline.cores


def _takes_turns_with_main(pipeline: Pipeline, scenario: Scenario) -> bool:
    """Whether computing workers leave no core to the main process: *measured* up to 22 % optimistic there."""
    cpu, blocked = _cpu_and_blocked_ns(pipeline)
    return cpu >= blocked and scenario.workers + 1 > pipeline.cores


def _limit(pipeline: Pipeline, scenario: Scenario, over_floor: float, step_ns: float) -> Limit | None:
    """What bounds a step of ``step_ns``, ``over_floor`` times that without input. None: the workers do."""
    cpu, _ = _cpu_and_blocked_ns(pipeline)
    main_cpu, main_wall = float(pipeline.main_cpu_ns.mean()), float(pipeline.main_wall_ns.mean())
    handover = float((pipeline.handover_cpu_ns + pipeline.receive_cpu_ns).mean())
    if scenario.workers and cpu + handover + main_cpu > _SATURATED * pipeline.cores * step_ns:
        return Limit.CORES
    if over_floor <= _AT_FLOOR:
        return Limit.MAIN_PROCESS if main_cpu > main_wall / 2 else Limit.DEVICE_STEP
    if scenario.workers and not _fits_shm(pipeline, scenario.workers + 1):
        return Limit.SHM
    return Limit.UNTESTED_CONCURRENCY if _blocks_untested(pipeline, scenario.workers) else None


def _confidence(pipeline: Pipeline, scenario: Scenario, ratio: float, error_ratio: float) -> Confidence:
    """How far a forecast of ``ratio`` times the step can be relied on (method.md, section 7)."""
    batches = pipeline.step_ns.size
    now = in_force(pipeline)
    if batches < _FEW_BATCHES:
        return Confidence.LOW
    if scenario.workers == now.workers == 0 or scenario == now:
        return Confidence.HIGH if batches >= _SOME_BATCHES else Confidence.MEDIUM
    if _computes_beyond_cores(pipeline, scenario) or abs(ratio - 1) > _LARGE_CHANGE or abs(error_ratio) > _LARGE_ERROR:
        return Confidence.LOW
    crosses = bool(scenario.workers) != bool(now.workers)
    if batches < _SOME_BATCHES or (crosses and not pipeline.handover_known) or _hands_over_much(pipeline):
        return Confidence.MEDIUM
    if _takes_turns_with_main(pipeline, scenario):
        return Confidence.MEDIUM
    return Confidence.MEDIUM if _blocks_untested(pipeline, scenario.workers) else Confidence.HIGH


def _model_error(pipeline: Pipeline, scenario: Scenario) -> float:
    """Relative standard error of the model; 0 where the step is measured or a difference of measured times."""
    now = in_force(pipeline)
    if scenario == now or scenario.workers == now.workers == 0:
        return 0.0
    cpu, blocked = _cpu_and_blocked_ns(pipeline)
    computing = cpu / (cpu + blocked) if cpu + blocked else 0.0
    return _ERROR_BLOCKING + (_ERROR_COMPUTING - _ERROR_BLOCKING) * computing


def _quantiles(values: Floats, error: float) -> tuple[float, float, float]:
    """10th, 50th and 90th percentile, the outer ones moved apart by an independent relative error."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    below = math.hypot(math.log(middle / low), _P90_SIGMAS * error)
    above = math.hypot(math.log(high / middle), _P90_SIGMAS * error)
    return float(middle * math.exp(-below)), float(middle), float(middle * math.exp(above))


def _interval(values: Floats) -> Interval:
    low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
    return Interval(float(low), float(middle), float(high))
