"""Which settings ``dlprof tune`` tries, how many, and which of them again.

Standard library only, as ``model/tune.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from dlprof.model.gains import SAME, WORTH_TRYING
from dlprof.model.kinds import Confidence
from dlprof.model.tune import BASELINE, Candidate, Tried

FINALISTS = 2
ENOUGH_FAILURES = 2
"""Trials that fail alike after which no more are tried."""
_NUMBERS = re.compile(r"\d+")
"""Of processes, samples and workers: they differ where the failure is the same."""
REPEATS = FINALISTS + 1
"""Runs after the trials: the finalists and the settings in force once more."""


def choose(candidates: Sequence[Candidate], most: int) -> list[Candidate]:
    """The candidates that are worth a run, most promising first.

    Args:
        candidates: In any order.
        most: How many at most.

    Returns:
        Those whose forecast may gain 5 %. Where none does but some forecasts are uncertain, the best of these; else
        nothing.
    """
    ranked = sorted(candidates, key=lambda each: _rank(each, _best(candidates)))
    hopeful = [it for it in ranked if it.promise is None or it.promise.speedup[2] >= WORTH_TRYING]
    if hopeful:
        return hopeful[:most]
    return [it for it in ranked if it.promise is not None and it.promise.confidence is Confidence.LOW][:1]


def affordable(budget_s: float | None, elapsed_s: float, run_s: float, most: int) -> int:
    """How many settings to try so that the best can be repeated within the budget.

    Args:
        budget_s: Time for everything; None for any.
        elapsed_s: Time that has passed.
        run_s: What a run takes.
        most: How many at most.

    Returns:
        0 where not even one fits; 1 where it fits without repeats.
    """
    if budget_s is None:
        return most
    runs = int((budget_s - elapsed_s) / max(run_s, 1e-3))
    return 0 if runs < 1 else min(most, max(1, runs - REPEATS))


def fits(budget_s: float | None, elapsed_s: float, run_s: float) -> bool:
    """Whether one more run is expected to end within the budget."""
    return budget_s is None or elapsed_s + run_s <= budget_s


def fail_alike(tried: Sequence[Tried]) -> bool:
    """Whether the script ended in the same way with all settings so far but its own, and more than one of them.

    It does not bear what they have in common, most often that there are workers.

    Args:
        tried: The settings in force and all trials.
    """
    trials = [each for each in tried if each.number != BASELINE]
    texts = {_NUMBERS.sub("", run.failure.text) if run.failure else "" for each in trials for run in each.runs}
    return len(trials) >= ENOUGH_FAILURES and len(texts) == 1 and "" not in texts


def finalists(tried: Sequence[Tried]) -> list[Tried]:
    """The trials to repeat: the two that were measured fastest, of those that were faster than the settings in force.

    Args:
        tried: The settings in force and all trials.

    Returns:
        At most two, the fastest first.
    """
    means = {each.number: each.mean_ms for each in tried}
    before = means.get(BASELINE)
    if before is None:
        return []
    faster = [(mean, each) for each in tried if (mean := means[each.number]) is not None and mean < before]
    faster.sort(key=lambda item: (item[0], item[1].candidate.cost))
    return [each for _, each in faster[:FINALISTS]]


def _best(candidates: Sequence[Candidate]) -> float:
    return min((it.promise.step_ms[1] * it.doubt for it in candidates if it.promise), default=1.0)


def _rank(candidate: Candidate, best_ms: float) -> tuple[int, int, tuple[int, int]]:
    """What is tried first.

    Advice without a forecast, then each number of workers with the usual queue, and longer queues only then: they
    change less, and would else take the trials that tell numbers of workers apart. Within that by forecast in classes
    of 3 %, the cheaper first.
    """
    if candidate.promise is None:
        return 0, 0, candidate.cost
    refined = {"num_workers", "prefetch_factor"} <= candidate.settings.keys()
    behind = candidate.promise.step_ms[1] * candidate.doubt / best_ms
    return 1 + refined, round(math.log(behind) / math.log(SAME)), candidate.cost
