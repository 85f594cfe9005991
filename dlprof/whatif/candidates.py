"""The loader settings that could be tried, each with its forecast."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dlprof.model.gains import SAME, WORTH_TRYING
from dlprof.model.kinds import Confidence
from dlprof.model.pipeline import Pipeline
from dlprof.model.report import Forecast
from dlprof.model.tune import Candidate, Promise
from dlprof.whatif.forecast import Change, fits_shm, forecast_changes, forecast_workers, knee
from dlprof.whatif.pipeline import DEFAULT_PREFETCH, Scenario, Simulator, in_force

_PREFETCH = (2, 4, 8)
_BEYOND_CORES = 1.3
"""*Measured:* forecasts of workers that compute beyond the cores were 27 to 38 % off."""


def candidates(simulator: Simulator, *, keep_alive: bool) -> list[Candidate]:
    """Numbers of workers, and longer queues where the forecast gains by them.

    Args:
        simulator: Of what was measured.
        keep_alive: Whether workers are to be kept over epoch borders, where the script does not.

    Returns:
        In ascending order of workers, then of prefetch; without the settings in force. None where the measured wait
        is so short that no setting can gain enough, whatever a forecast says.
    """
    pipeline = simulator.pipeline
    bound = most_to_gain(pipeline)
    if bound < WORTH_TRYING:
        return []
    now = in_force(pipeline)
    prefetches = sorted({*_PREFETCH, _prefetch(pipeline)})
    scenarios = [
        Scenario(workers, prefetch, pipeline.in_order)
        for workers in _workers(simulator)
        for prefetch in (prefetches if workers else prefetches[:1])
        if fits_shm(pipeline, workers, prefetch) and not _is_in_force(pipeline, workers, prefetch)
    ]
    if not scenarios:
        return []
    changes = [Change("", None, None, scenario) for scenario in scenarios]
    keys = [(it.workers, it.prefetch_factor) for it in scenarios]
    found = dict(zip(keys, forecast_changes(simulator, changes), strict=True))
    return [
        Candidate(
            _settings(pipeline, *key, keep_alive), _promise(forecast, bound), cost(*key), _doubt(pipeline, key[0])
        )
        for key, forecast in found.items()
        if _gains_by_prefetch(found, pipeline, *key, now.workers)
    ]


def cost(workers: int, prefetch: int) -> tuple[int, int]:
    """What settings take besides time: processes, and batches held."""
    return workers, workers * prefetch


def _workers(simulator: Simulator) -> list[int]:
    """Numbers of workers worth telling apart: of large ones only powers of two, and one and a half times these."""
    curve = forecast_workers(simulator)
    kept = {knee(curve).to, math.floor(simulator.pipeline.cores)}
    return [it.to for it in curve if it.to in kept or it.to < 4 or it.to in (_power(it.to), _power(it.to) * 3 // 2)]


def _power(number: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1)


def _prefetch(pipeline: Pipeline) -> int:
    return pipeline.prefetch_factor or DEFAULT_PREFETCH


def _is_in_force(pipeline: Pipeline, workers: int, prefetch: int) -> bool:
    return workers == pipeline.workers and (not workers or prefetch == _prefetch(pipeline))


def _gains_by_prefetch(
    found: dict[tuple[int, int], Forecast], pipeline: Pipeline, workers: int, prefetch: int, now: int
) -> bool:
    """Whether a longer or shorter queue than usual is faster than every cheaper one with as many workers."""
    usual = _prefetch(pipeline)
    if prefetch == usual or not workers:
        return True
    others = [it.step_ms[1] for key, it in found.items() if key[0] == workers and usual <= key[1] < prefetch]
    if workers == now:
        others.append(float(pipeline.step_ns.mean()) / 1e6)
    return prefetch > usual and all(found[workers, prefetch].step_ms[1] * SAME <= other for other in others)


def _settings(pipeline: Pipeline, workers: int, prefetch: int, keep_alive: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if workers != pipeline.workers:
        settings["num_workers"] = workers
    if workers and prefetch != _prefetch(pipeline):
        settings["prefetch_factor"] = prefetch
    if workers and keep_alive:
        settings["persistent_workers"] = True
    return settings


def _doubt(pipeline: Pipeline, workers: int) -> float:
    """Forecasts of workers that compute beyond the cores are too short by about so much."""
    cpu = sum(float(part.cpu_ns.mean()) for part in pipeline.parts.values())
    blocked = sum(float(part.blocked_ns.mean()) for part in pipeline.parts.values())
    return _BEYOND_CORES if cpu >= blocked and workers > pipeline.cores else 1.0


def most_to_gain(pipeline: Pipeline) -> float:
    """The speedup of a step that waits neither for input nor for a core: what no loader setting can exceed."""
    step_ns = float(pipeline.step_ns.mean())
    left_ns = step_ns - float(pipeline.wait_ns.mean()) - float(pipeline.main_no_core_ns.mean())
    return step_ns / max(left_ns, 1.0)


def _promise(forecast: Forecast, bound: float) -> Promise:
    """The forecast, whose outer end may not promise more than there is: it holds the model's error on both sides."""
    low, middle, high = forecast.speedup
    return Promise(forecast.step_ms, (low, middle, min(high, max(bound, middle))), forecast.confidence)


def less_sure(found: list[Candidate]) -> list[Candidate]:
    """The same with low confidence in every forecast."""
    sure = [(it, it.promise) for it in found]
    return [
        it if promise is None else replace(it, promise=replace(promise, confidence=Confidence.LOW))
        for it, promise in sure
    ]
