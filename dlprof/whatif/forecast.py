"""What another number of workers, another setting, or a cause less would gain.

Forecasts are the measured mean step times a simulated ratio (``whatif/pipeline.py``). Their spread is that of
a bootstrap over the measured batches, and of the model where it was not measured at those settings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from dlprof.model.kinds import Bottleneck, Component, Confidence
from dlprof.model.pipeline import BOTTLENECK_OF, Interval, Pipeline
from dlprof.model.report import Forecast
from dlprof.whatif.engine import Floats
from dlprof.whatif.pipeline import DEFAULT_PREFETCH, SEVERAL_THREADS, Scenario, Simulator, in_force

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
_LARGE_ERROR = 0.15
_TAKING_TURNS = 0.2
"""Share of the making of a batch that is spent waiting for a lock, from which workers keep one another waiting."""
_KNOWN_TO_SCALE = frozenset({Component.SLEEP, Component.LOCK_WAIT, Component.SAMPLER, Component.PIN_MEMORY})
"""What else batches block on may serve only so many at once: a disk, a server. A timer serves any number, of a lock it
is known that it serves one, and the last two are not in the workers."""
_PREFETCH_FACTORS = (1, 2, 4, 8)
_SEVERAL_RESTARTS = 3

_ERROR_BLOCKING, _ERROR_COMPUTING = 0.04, 0.08
"""Relative standard error of the model for workers that only block or only compute.

*Measured:* root mean square over 54 and 132 forecasts of other numbers of workers against real runs (0 to 4
workers, 2 cores, steps of 5 to 50 ms, each from one profiled run).
"""
_MEASURED_CHANGE = 4.0
"""The largest change of the step among those forecasts: what 4 workers gain."""
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


@dataclass(frozen=True, slots=True)
class Forecasts:
    """What is forecast of one run.

    Attributes:
        workers: One per number of workers, ascending; empty where that is nothing to choose.
        beyond_shm: Of the numbers of workers whose queued batches do not fit /dev/shm, ascending.
        settings: Other settings of the loader.
        without: With one component of the input free of cost.
        input_removed: With all input free of cost: the ceiling. None where nothing is forecast.
    """

    workers: list[Forecast] = field(default_factory=list)
    beyond_shm: list[Forecast] = field(default_factory=list)
    settings: list[Forecast] = field(default_factory=list)
    without: dict[Component, Forecast] = field(default_factory=dict)
    input_removed: Forecast | None = None

    def doubted(self) -> Forecasts:
        """The same with low confidence."""
        return Forecasts(
            _doubted(self.workers),
            _doubted(self.beyond_shm),
            _doubted(self.settings),
            dict(zip(self.without, _doubted(self.without.values()), strict=True)),
            _doubted([self.input_removed])[0] if self.input_removed else None,
        )


def _doubted(forecasts: Iterable[Forecast]) -> list[Forecast]:
    return [replace(each, confidence=Confidence.LOW) for each in forecasts]


def forecast_all(simulator: Simulator, components: Collection[Component], settings: Mapping[str, Any]) -> Forecasts:
    """The step in ms under every change that is worth a forecast, simulated side by side.

    Args:
        simulator: Of what was measured.
        components: Components of the input to remove, one at a time.
        settings: The loader's settings in force; what is not among them cannot be changed.
    """
    pipeline = simulator.pipeline
    free = replace(in_force(pipeline), without_input=True)
    groups = [
        worker_changes(pipeline) if "num_workers" in settings else [],
        worker_changes(pipeline, beyond_shm=True) if "num_workers" in settings else [],
        setting_changes(pipeline, settings),
        [_removal_of(pipeline, component) for component in components],
        [Change("input removed", float(pipeline.wait_ns.mean()) / 1e6, 0.0, free)],
    ]
    rows = iter(forecast_changes(simulator, [change for group in groups for change in group]))
    workers, beyond, others, without, (removed,) = ([next(rows) for _ in group] for group in groups)
    return Forecasts(workers, beyond, others, dict(zip(components, without, strict=True)), removed)


def forecast_changes(simulator: Simulator, changes: Sequence[Change]) -> list[Forecast]:
    """The step in ms after each change.

    Args:
        simulator: Of what was measured.
        changes: What to change.

    Returns:
        One forecast per change, in their order; steps and speedups at the 10th, 50th and 90th percentile. Where more
        batches would block at once than were seen to, the slow end is that of a source which serves one at a time.
        Where the cores bound the step, and it took longer than the simulation explains, cores were idle meanwhile:
        more workers are taken to fill them, but for the slow end. *Measured* on 2 cores, 2 workers to 3 or 4: of
        seven such workloads six became 5 to 17 % faster, where 5 to 12 % had been idle.
    """
    pipeline = simulator.pipeline
    free = replace(in_force(pipeline), without_input=True)
    scenarios = [change.scenario for change in changes]
    tested = [_as_tested(pipeline, it) for it in scenarios]
    simulated = simulator.run([free, *scenarios, *tested])
    use = _most_use_of_source(pipeline)
    floor = float(np.median(simulated.ratio[0]))
    explained_ns = float(pipeline.step_ns.mean()) * (1 + simulated.error_ratio)
    busy = _saturates(pipeline, in_force(pipeline), explained_ns)
    count = len(changes)
    forecasts = []
    for row, change in enumerate(changes, 1):
        ratio, step = simulated.ratio[row], simulated.step_ns[row]
        middle = float(np.median(ratio))
        error = _model_error(pipeline, change.scenario, middle)
        step_ms, speedup = _quantiles(step / 1e6, error), _quantiles(1 / ratio, error)
        if tested[row - 1] != change.scenario:
            slow = simulated.ratio[row + count] * use
            step_ms = (*step_ms[:2], max(step_ms[2], float(np.quantile(slow * simulated.baseline_ns, 0.9)) / 1e6))
            speedup = (min(speedup[0], float(np.quantile(1 / slow, 0.1))), *speedup[1:])
        uncalibrated_ns = middle * explained_ns
        limit = _limit(pipeline, change.scenario, middle / floor, uncalibrated_ns)
        if limit is Limit.CORES and change.scenario.workers > pipeline.workers and busy:
            filled = 1 + min(simulated.error_ratio, 0.0)
            step_ms = (step_ms[0] * filled, step_ms[1] * filled, step_ms[2])
            speedup = (speedup[0], speedup[1] / filled, speedup[2] / filled)
        forecasts.append(
            Forecast(
                setting=change.setting,
                from_=change.from_,
                to=change.to,
                step_ms=step_ms,
                speedup=speedup,
                confidence=_confidence(pipeline, change.scenario, middle, simulated.error_ratio),
                limited_by=limit,
            )
        )
    return forecasts


def forecast_workers(simulator: Simulator, *, max_workers: int | None = None) -> list[Forecast]:
    """The step in ms for every number of workers from 0; see `worker_changes`."""
    return forecast_changes(simulator, worker_changes(simulator.pipeline, max_workers=max_workers))


def worker_changes(pipeline: Pipeline, *, max_workers: int | None = None, beyond_shm: bool = False) -> list[Change]:
    """Every number of workers from 0, ascending, whose queued batches fit /dev/shm, and that in force.

    Args:
        pipeline: What was measured.
        max_workers: The largest number; None for as many as show the curve flatten.
        beyond_shm: Those that are left out instead.
    """
    prefetch = pipeline.prefetch_factor or DEFAULT_PREFETCH
    top = _enough_workers(pipeline) if max_workers is None else max_workers
    fitting = {it for it in range(top + 1) if it == pipeline.workers or fits_shm(pipeline, it, prefetch)}
    chosen = sorted(set(range(top + 1)) - fitting if beyond_shm else fitting)
    return [Change("num_workers", pipeline.workers, it, Scenario(it, prefetch, pipeline.in_order)) for it in chosen]


def setting_changes(pipeline: Pipeline, settings: Mapping[str, Any]) -> list[Change]:
    """Other values of ``prefetch_factor`` and ``in_order``, as far as they have a meaning with these workers.

    Args:
        pipeline: What was measured.
        settings: The loader's settings in force. Older versions of torch have no ``in_order``.
    """
    now = in_force(pipeline)
    changes = []
    if pipeline.workers and "prefetch_factor" in settings:
        changes += [
            Change("prefetch_factor", now.prefetch_factor, it, replace(now, prefetch_factor=it))
            for it in _PREFETCH_FACTORS
            if it != now.prefetch_factor and fits_shm(pipeline, pipeline.workers, it)
        ]
    if pipeline.workers > 1 and settings.get("in_order"):
        changes.append(Change("in_order", True, False, replace(now, in_order=False)))
    return changes


def forecast_persistent(step_ns: Floats, restarts_ns: Floats) -> Forecast | None:
    """The step in ms if workers lived on from epoch to epoch; their restarts count as a part of each step of an epoch.

    Args:
        step_ns: The measured steps.
        restarts_ns: For each epoch border what starting the workers again took, shared out over the steps of an epoch.

    Returns:
        None where workers were started once only.
    """
    if not restarts_ns.size:
        return None
    step_ms = float(step_ns.mean()) / 1e6
    low, middle, high = (float(it) / 1e6 for it in np.quantile(restarts_ns, (0.1, 0.5, 0.9)))
    return Forecast(
        setting="persistent_workers",
        from_=False,
        to=True,
        step_ms=(step_ms, step_ms, step_ms),
        speedup=(1 + low / step_ms, 1 + middle / step_ms, 1 + high / step_ms),
        confidence=Confidence.HIGH if restarts_ns.size >= _SEVERAL_RESTARTS else Confidence.MEDIUM,
        limited_by=None,
    )


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


def removal(simulator: Simulator, outside: Mapping[Bottleneck, float]) -> Removal:
    """What each component, each bottleneck and all input together cost the mean step.

    Args:
        simulator: Of what was measured.
        outside: Of each bottleneck outside the input its share of the step outside the request for a batch.

    Returns:
        Saved shares of the step, with the 5th, 50th and 95th percentile of the bootstrap.
    """
    pipeline = simulator.pipeline
    components = _components(pipeline)
    groups: dict[Bottleneck, list[Component]] = {}
    for component in components:
        groups.setdefault(BOTTLENECK_OF[component], []).append(component)
    now = in_force(pipeline)
    removed: list[Collection[Component]] = [*([it] for it in components), *groups.values()]
    shorter = [replace(now, main=1 - share) for share in outside.values()]
    scenarios = [*(now.without(it) for it in removed), *shorter, replace(now, without_input=True)]
    simulated = simulator.run(scenarios)
    saved = [_interval(1 - ratio) for ratio in simulated.ratio]
    count = len(components)
    return Removal(
        components=dict(zip(components, saved[:count], strict=True)),
        bottlenecks=dict(zip(groups, saved[count:], strict=False)),
        outside=dict(zip(outside, saved[count + len(groups) :], strict=False)),
        all_input=saved[-1],
        calibration_error=simulated.error_ratio,
    )


def forecast_without(simulator: Simulator, component: Component) -> Forecast:
    """The step in ms if one component cost nothing, at the settings in force.

    Args:
        simulator: Of what was measured.
        component: A component of the input pipeline.

    Returns:
        A forecast from the component's mean ms per batch to 0.
    """
    return forecast_changes(simulator, [_removal_of(simulator.pipeline, component)])[0]


def _removal_of(pipeline: Pipeline, component: Component) -> Change:
    without = in_force(pipeline).without([component])
    return Change(f"{component} removed", _mean_ms(pipeline, component), 0.0, without)


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


def fits_shm(pipeline: Pipeline, workers: int, prefetch: int) -> bool:
    """Whether the batches that can be alive at once fit: those requested, and one in use per worker."""
    if pipeline.batch_bytes < 0 or pipeline.shm_free_bytes < 0:
        return True
    return pipeline.batch_bytes * workers * (prefetch + 1) <= pipeline.shm_free_bytes


def _as_tested(pipeline: Pipeline, scenario: Scenario) -> Scenario:
    """The same, but with no more workers than have been seen to block at once on what may not serve more."""
    tested = max(pipeline.workers, 1)
    if scenario.without_input or scenario.workers <= tested or not _may_saturate_ns(pipeline):
        return scenario
    return replace(scenario, workers=tested)


def _most_use_of_source(pipeline: Pipeline) -> float:
    """The largest part of the time for which what batches block on can have been in use: if it serves one at a time.

    From several workers' blocked time it cannot be told from one that they share without harm.
    """
    blocked = _may_saturate_ns(pipeline) / max(sum(_cpu_and_blocked_ns(pipeline)), 1.0)
    return max(min(1.0, max(pipeline.workers, 1) * blocked), 1e-9)


def _may_saturate_ns(pipeline: Pipeline) -> float:
    """Mean time of making one batch that is blocked on what others may be using."""
    parts = pipeline.parts.items()
    return sum(float(part.blocked_ns.mean()) for component, part in parts if component not in _KNOWN_TO_SCALE)


def _blocks_untested(pipeline: Pipeline, workers: int) -> bool:
    """Whether more batches block at once than when measured, in a pipeline that mostly blocks on what may saturate."""
    cpu, _ = _cpu_and_blocked_ns(pipeline)
    return workers > max(pipeline.workers, 1) and _may_saturate_ns(pipeline) > cpu


def _takes_turns(pipeline: Pipeline, scenario: Scenario) -> bool:
    """Whether workers wait for one another: with another number of them they wait for another time."""
    part = pipeline.parts.get(Component.LOCK_WAIT)
    locked = float(part.blocked_ns.mean()) if part else 0.0
    return scenario.workers != pipeline.workers and locked > _TAKING_TURNS * sum(_cpu_and_blocked_ns(pipeline))


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
    if threads > SEVERAL_THREADS:
        return max(scenario.workers, pipeline.workers) + threads > pipeline.cores
    return scenario.workers > pipeline.cores


def _takes_turns_with_main(pipeline: Pipeline, scenario: Scenario) -> bool:
    """Whether computing workers leave no core to the main process: *measured* up to 22 % optimistic there."""
    cpu, blocked = _cpu_and_blocked_ns(pipeline)
    return cpu >= blocked and scenario.workers + 1 > pipeline.cores


def _saturates(pipeline: Pipeline, scenario: Scenario, step_ns: float) -> bool:
    """Whether workers and the main process keep all cores busy in a step of ``step_ns``."""
    cpu, _ = _cpu_and_blocked_ns(pipeline)
    handover = float((pipeline.handover_cpu_ns + pipeline.receive_cpu_ns).mean())
    demand = cpu + handover + float(pipeline.main_cpu_ns.mean())
    return scenario.workers > 0 and demand > _SATURATED * pipeline.cores * step_ns


def _limit(pipeline: Pipeline, scenario: Scenario, over_floor: float, step_ns: float) -> Limit | None:
    """What bounds a step of ``step_ns``, ``over_floor`` times that without input. None: the workers do."""
    main_cpu, main_wall = float(pipeline.main_cpu_ns.mean()), float(pipeline.main_wall_ns.mean())
    if _saturates(pipeline, scenario, step_ns):
        return Limit.CORES
    if over_floor <= _AT_FLOOR:
        return Limit.MAIN_PROCESS if main_cpu > main_wall / 2 else Limit.DEVICE_STEP
    if scenario.workers and not fits_shm(pipeline, scenario.workers + 1, scenario.prefetch_factor):
        return Limit.SHM
    return Limit.UNTESTED_CONCURRENCY if _blocks_untested(pipeline, scenario.workers) else None


def _confidence(pipeline: Pipeline, scenario: Scenario, ratio: float, error_ratio: float) -> Confidence:
    """How far a forecast of ``ratio`` times the step can be relied on (method.md, section 7)."""
    batches = pipeline.step_ns.size
    now = in_force(pipeline)
    if batches < _FEW_BATCHES or _takes_turns(pipeline, scenario):
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
    # A timer serves any number, but what it stands for may not.
    cpu, blocked = _cpu_and_blocked_ns(pipeline)
    untested = scenario.workers > max(pipeline.workers, 1) and blocked > cpu
    return Confidence.MEDIUM if untested else Confidence.HIGH


def _model_error(pipeline: Pipeline, scenario: Scenario, ratio: float) -> float:
    """Relative standard error of the model; 0 where the step is measured or a difference of measured times.

    Args:
        pipeline: What was measured.
        scenario: What is forecast.
        ratio: Its step over the measured one.
    """
    now = in_force(pipeline)
    if scenario == now or scenario.workers == now.workers == 0:
        return 0.0
    cpu, blocked = _cpu_and_blocked_ns(pipeline)
    computing = cpu / (cpu + blocked) if cpu + blocked else 0.0
    error = _ERROR_BLOCKING + (_ERROR_COMPUTING - _ERROR_BLOCKING) * computing
    # Further than was measured, it is taken to grow with the change, as an error in each doubling would.
    return error * max(1.0, abs(math.log(ratio)) / math.log(_MEASURED_CHANGE))


def _quantiles(values: Floats, error: float) -> tuple[float, float, float]:
    """10th, 50th and 90th percentile, the outer ones moved apart by an independent relative error."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    below = math.hypot(math.log(middle / low), _P90_SIGMAS * error)
    above = math.hypot(math.log(high / middle), _P90_SIGMAS * error)
    return float(middle * math.exp(-below)), float(middle), float(middle * math.exp(above))


def _interval(values: Floats) -> Interval:
    low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
    return Interval(float(low), float(middle), float(high))
