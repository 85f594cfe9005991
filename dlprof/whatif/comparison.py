"""Real runs with several settings: what a step takes under each, and whether one of them is surely faster."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dlprof.model.gains import SAME
from dlprof.model.tune import BASELINE, Judged, Tried, Triple
from dlprof.whatif.engine import Floats

_REPLICAS = 4000
_SEED = 0
_USUAL_SPREAD = 0.03
"""Relative spread of mean steps of repeated runs that is assumed before any is repeated."""
_USUAL_WEIGHT = 3
"""How many repeats that assumption is worth: one repeat alone could be close by chance."""


def judge_trials(tried: Sequence[Tried]) -> tuple[dict[int, Judged], int | None]:
    """The mean step under all settings and its speedup, with 90 % intervals, and the winner.

    Steps of a run are resampled in blocks, since slow ones come together where queues empty. To that comes the
    spread between runs: a factor drawn for each setting, as wide as the repeats of this session say.

    Args:
        tried: The settings in force (number 0) and the trials.

    Returns:
        Per number what was found, and the number of the winner: the fastest of the settings whose speedup is at least
        3 % in the middle and above 1 over its whole interval, or a cheaper one of them that is within 3 % of it.
        None where there is no such setting.
    """
    rng = np.random.default_rng(_SEED)
    spread, freedom = _spread(tried)
    draws = {it.number: drawn for it in tried if (drawn := _draw(it, spread, freedom, rng)) is not None}
    before = draws.get(BASELINE)
    judged = {}
    for each in tried:
        drawn = draws.get(each.number)
        middle_ms = each.mean_ms
        if drawn is None or middle_ms is None:
            judged[each.number] = Judged(None, None)
            continue
        compared = None if before is None or each.number == BASELINE else _interval(before - drawn)
        judged[each.number] = Judged(_interval(drawn), compared)
    return judged, _winner(tried, judged)


def _winner(tried: Sequence[Tried], judged: dict[int, Judged]) -> int | None:
    # What was measured once stands behind what was repeated, however fast that one run was.
    most = max((len(it.counting) for it in tried if it.number != BASELINE), default=0)
    sure = []
    for each in tried:
        found = judged[each.number]
        if found.speedup is None or found.step_ms is None or len(each.counting) < most:
            continue
        if found.speedup[0] > 1 and found.speedup[1] >= SAME:
            sure.append((found.step_ms[1], each))
    if not sure:
        return None
    best_ms = min(step_ms for step_ms, _ in sure)
    as_good = [(each.candidate.cost, step_ms, each.number) for step_ms, each in sure if step_ms <= best_ms * SAME]
    return min(as_good)[2]


def _spread(tried: Sequence[Tried]) -> tuple[float, int]:
    """Relative standard deviation of the mean steps of repeated runs, and its degrees of freedom."""
    squares, freedom = _USUAL_WEIGHT * _USUAL_SPREAD**2, _USUAL_WEIGHT
    for each in tried:
        logs = [math.log(run.mean_ms) for run in each.counting if run.mean_ms]
        if len(logs) > 1:
            squares += sum((value - sum(logs) / len(logs)) ** 2 for value in logs)
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom), freedom


def _draw(tried: Tried, spread: float, freedom: int, rng: np.random.Generator) -> Floats | None:
    """Logarithms of mean steps as they could have been, ``_REPLICAS`` of them; None where no run counts."""
    runs = [np.asarray(run.steps_ms, dtype=np.float64) for run in tried.counting]
    if not runs:
        return None
    means = np.log(np.mean([_resampled_means(run, rng) for run in runs], axis=0))
    between = rng.standard_t(freedom, _REPLICAS) * spread / math.sqrt(len(runs))
    drawn: Floats = means + between
    return drawn


def _resampled_means(steps_ms: Floats, rng: np.random.Generator) -> Floats:
    """Means of circular block bootstrap samples of a run's steps."""
    count = steps_ms.size
    block = max(1, round(math.sqrt(count)))
    starts = rng.integers(0, count, (_REPLICAS, -(-count // block)))
    rows = (starts[..., None] + np.arange(block)).reshape(_REPLICAS, -1)[:, :count] % count
    means: Floats = steps_ms[rows].mean(axis=1)
    return means


def _interval(logs: Floats) -> Triple:
    low, middle, high = np.exp(np.quantile(logs, (0.05, 0.5, 0.95)))
    return float(low), float(middle), float(high)
