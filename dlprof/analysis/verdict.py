"""The verdict: the one bottleneck whose removal saves most, by the contract's rule, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dlprof.analysis.partition import Partition
from dlprof.analysis.scope import process_spans
from dlprof.model.diagnosis import Candidate, Judgement
from dlprof.model.kinds import Bottleneck, Cause, Component, Confidence, Kind
from dlprof.model.pipeline import OUTSIDE_INPUT, Interval
from dlprof.model.profile import Profile, Spans
from dlprof.model.steps import Steps

WORTH = 0.20
"""A cause whose removal saves less of the mean step than this does not bound it."""
BOUND_BY_DEVICE = 0.60
"""Share of device compute from which a step without a larger cause is bound by it."""
MANY_STEPS = 30
FEW_STEPS = 10
_REPLICAS = 400
_SEED = 0

_HOST_CAUSES = {
    Cause.PYTHON: Component.PYTHON,
    Cause.KERNEL_LAUNCH: Component.KERNEL_LAUNCH,
    Cause.SYNCHRONIZATION: Component.SYNCHRONIZATION,
    Cause.CHECKPOINT: Component.CHECKPOINT,
}


def shares_outside_input(parts: Partition) -> dict[Bottleneck, float]:
    """Of the step outside the wait for input, the part that each bottleneck outside the input takes."""
    ns = parts.mean.ns
    outside = parts.mean.step_ns - ns[Cause.INPUT_WAIT]
    return {
        bottleneck: min(sum(ns[cause] for cause in causes) / outside, 1.0) if outside > 0 else 0.0
        for bottleneck, causes in OUTSIDE_INPUT.items()
    }


def candidates_outside_input(parts: Partition, simulated: Mapping[Bottleneck, Interval]) -> list[Candidate]:
    """What removing copies, host work or communication would save: their exclusive part of the step, at most.

    Args:
        parts: Where the steps' time went.
        simulated: What the step would save by the simulator, which knows that workers may then not keep up.
    """
    replicas = parts.bootstrap(_REPLICAS, _SEED)
    total = np.sum(list(replicas.values()), axis=0)

    def saved(*causes: Cause) -> Interval:
        shares = np.sum([replicas[cause] for cause in causes], axis=0) / np.maximum(total, 1)
        # The middle is what was measured, as the budget has it, and not that of the replicas.
        return around(sum(parts.mean.share(cause) for cause in causes), shares)

    worst = max(_HOST_CAUSES, key=lambda cause: parts.mean.ns[cause])
    named = {Bottleneck.COMMUNICATION: Component.COLLECTIVE, Bottleneck.HOST_OVERHEAD: _HOST_CAUSES[worst]}
    return [
        Candidate(bottleneck, named.get(bottleneck), _least(saved(*causes), simulated.get(bottleneck)))
        for bottleneck, causes in OUTSIDE_INPUT.items()
    ]


def around(share: float, replicas: npt.NDArray[np.float64]) -> Interval:
    """A measured share with its 90 % interval from replicas of it."""
    low, high = (float(each) for each in np.percentile(replicas, [5, 95]))
    return Interval(min(low, share), share, max(high, share))


def _least(exclusive: Interval, simulated: Interval | None) -> Interval:
    if simulated is None:
        return exclusive
    return Interval(
        min(exclusive.low, simulated.low), min(exclusive.mid, simulated.mid), min(exclusive.high, simulated.high)
    )


def startup_candidate(profile: Profile, steps: Steps, parts: Partition) -> Candidate | None:
    """Workers started anew at epoch borders: a phase outside the steps, shared out over an epoch's.

    Args:
        profile: The run.
        steps: Its steps.
        parts: Where the steps' time went.

    Returns:
        None where workers were started once only, or the length of an epoch is not known.
    """
    again = restarts(profile, steps)
    if not again.size:
        return None
    per_step = float(again.mean())
    share = per_step / (parts.mean.step_ns + per_step)
    return Candidate(Bottleneck.LOADER_OVERHEAD, Component.WORKER_STARTUP, Interval(share, share, share))


def restarts(profile: Profile, steps: Steps) -> npt.NDArray[np.float64]:
    """What ending the workers and starting new ones took at each epoch border, in ns for each step of an epoch.

    Args:
        profile: The run.
        steps: Its steps.

    Returns:
        Shape ``(restarts,)``; empty where workers were started once only, or the length of an epoch is not known.
    """
    loaders = {each.number: each.settings for each in profile.loaders if each.pid == profile.main_pid}
    length = loaders.get(steps.loader or 0, {}).get("length")
    spans = process_spans(profile)
    making, ending = (_lengths(spans.of(kind)) for kind in (Kind.ITER, Kind.WORKERS_ENDED))
    waited: Counter[int] = Counter()
    for step in steps.all:
        waited[step.iterator] += step.startup_ns
    started = _with_new_workers(profile, waited)
    again = [ending.get(before, 0) + making.get(it, 0) + waited[it] for before, it in pairwise(started)]
    if not isinstance(length, int) or length < 1:
        return np.zeros(0)
    return np.array(again, dtype=np.float64) / length


def _with_new_workers(profile: Profile, iterators: Container[int]) -> list[int]:
    """Those of the iterations that workers were started for, in order."""
    known: set[int] = set()
    found = []
    for each in sorted(profile.iterations, key=lambda it: it.number):
        if each.pid == profile.main_pid and each.number in iterators and set(each.workers) - known:
            found.append(each.number)
            known.update(each.workers)
    return found


def _lengths(spans: Spans) -> dict[int, int]:
    """How long each iteration's span is, in ns."""
    return dict(zip(spans.iterator.tolist(), spans.duration_ns().tolist(), strict=True))


def judge(
    parts: Partition | None,
    candidates: list[Candidate],
    all_input_saved: Interval | None,
    doubts: tuple[str, ...],
) -> Judgement:
    """Apply the verdict rule.

    Args:
        parts: Where the steps' time went; None where no step was measured.
        candidates: Every bottleneck other than device compute, with what its removal saves.
        all_input_saved: What removing all input wait together would save; None where it is not known.
        doubts: Slugs of notices that lower the confidence: drift, or a signal that is missing.
    """
    ranked = tuple(sorted(candidates, key=lambda each: -each.saved.mid))
    if parts is None or not ranked:
        return Judgement(Bottleneck.INCONCLUSIVE, None, None, Confidence.LOW, "no-steps", {}, ranked, all_input_saved)
    count = len(parts.light)
    best = ranked[0]
    confidence = _confidence(ranked, count, doubts)

    def verdict(
        bottleneck: Bottleneck,
        component: Component | None,
        share: float | None,
        why: tuple[str, dict[str, Any]] = ("", {}),
    ) -> Judgement:
        return Judgement(bottleneck, component, share, confidence, *why, ranked, all_input_saved)

    undecided = _undecided(ranked, parts, all_input_saved)
    if undecided is not None:
        confidence = Confidence.LOW
        return verdict(Bottleneck.INCONCLUSIVE, None, None, undecided)
    if best.saved.mid >= WORTH:
        return verdict(best.bottleneck, best.component, best.saved.mid)
    if all_input_saved is not None and all_input_saved.mid >= WORTH:
        if "simulator-off" in doubts:
            return verdict(Bottleneck.INCONCLUSIVE, None, None, ("not-reproduced", {}))
        confidence = Confidence.LOW
        largest = next((each for each in ranked if each.bottleneck in _INPUT), None)
        if largest is not None:
            return verdict(largest.bottleneck, largest.component, largest.saved.mid)
    device = parts.mean.share(Cause.DEVICE_COMPUTE)
    if device >= BOUND_BY_DEVICE:
        if confidence is Confidence.MEDIUM and count >= MANY_STEPS:
            # Which of the small causes is the largest does not matter here: none comes near to bounding the step.
            confidence = Confidence.HIGH
        return verdict(Bottleneck.DEVICE_COMPUTE, Component.COMPUTE, device)
    if not len(parts.open_shares) and parts.mean.share(Cause.OTHER) >= WORTH:
        what = ("not-recorded", {"what": "what the step does outside the wait for input"})
        return verdict(Bottleneck.INCONCLUSIVE, None, None, what)
    return verdict(Bottleneck.BALANCED, None, None)


_INPUT = (
    Bottleneck.STORAGE_IO,
    Bottleneck.CPU_PREPROCESSING,
    Bottleneck.LOADER_OVERHEAD,
    Bottleneck.INPUT_PIPELINE,
)


def _undecided(
    ranked: tuple[Candidate, ...], parts: Partition, all_input_saved: Interval | None
) -> tuple[str, dict[str, Any]] | None:
    best = ranked[0].saved
    if best.low < WORTH <= best.high:
        return "threshold", {"first": ranked[0].bottleneck, "low": best.low, "high": best.high}
    if len(ranked) > 1:
        second = ranked[1].saved
        if best.mid >= WORTH and second.mid >= WORTH and second.high >= best.low:
            return "overlap", {"first": ranked[0].bottleneck, "second": ranked[1].bottleneck}
    waited = parts.mean.share(Cause.INPUT_WAIT)
    if all_input_saved is None and waited >= WORTH and best.mid < WORTH:
        return "not-recorded", {"what": "what the awaited batches were doing"}
    return None


def _confidence(ranked: tuple[Candidate, ...], count: int, doubts: tuple[str, ...]) -> Confidence:
    if count < FEW_STEPS or doubts:
        return Confidence.LOW
    apart = len(ranked) < 2 or ranked[0].saved.low > ranked[1].saved.high
    return Confidence.HIGH if apart and count >= MANY_STEPS else Confidence.MEDIUM
