"""What rules share: from what gain on a change is worth it, and evidence that several of them give."""

from __future__ import annotations

from collections.abc import Callable

from dlprof.model.advice import Advice, Findings, Refusal
from dlprof.model.diagnosis import Candidate
from dlprof.model.gains import SAME as SAME
from dlprof.model.gains import WORTH_TRYING as WORTH_TRYING
from dlprof.model.kinds import Bottleneck, Cause, Component
from dlprof.model.pipeline import Interval
from dlprof.model.report import Evidence, Forecast

WORTH_CODING = 1.10
"""Middle speedup from which a change of code is advised."""
FINE_WAIT = 0.05
"""Share of input wait below which the input needs no tuning. Source: XProf's mark at 5 %."""
CROWDED = 0.3
"""Wait for a core over time on one, from which data work that computes wants more cores than it has."""
COMPUTES = 0.5
"""Part of the making of batches that is on a core, from which it is bound by cores."""

Answer = Advice | Refusal | None
Rule = Callable[[Findings], Answer]


def wait_share(findings: Findings) -> float:
    """Part of the mean step that is spent waiting for input, 0 to 1."""
    return findings.mean.share(Cause.INPUT_WAIT) if findings.mean else 0.0


def workers_in_force(findings: Findings) -> int:
    """``num_workers``, 0 without a loader."""
    return int(findings.loader["num_workers"]) if findings.loader else 0


def wait_evidence(findings: Findings) -> list[Evidence]:
    """That the training loop waits for input."""
    return [Evidence("input_wait", round(wait_share(findings), 4), "ratio")]


def crowded(findings: Findings) -> bool:
    """Whether making batches is work for cores, and waits for them."""
    return findings.facts.no_core_ratio >= CROWDED and findings.facts.computing_ratio >= COMPUTES


def no_core_evidence(findings: Findings) -> Evidence:
    """How long data work waits for a core."""
    return Evidence("no_core_ratio", round(findings.facts.no_core_ratio, 3), "ratio")


def candidate(findings: Findings, bottleneck: Bottleneck, *components: Component) -> Candidate | None:
    """What removing a bottleneck would save, None where it was not considered or is another component's."""
    found = (each for each in findings.judgement.candidates if each.bottleneck is bottleneck)
    return next((each for each in found if each.component in components), None)


def speedup(saved: Interval) -> tuple[float, float, float]:
    """Old over new step time, low, middle, high.

    Args:
        saved: Part of the step that a change saves.
    """
    low, mid, high = (1 / (1 - min(max(each, 0.0), 0.99)) for each in (saved.low, saved.mid, saved.high))
    return low, mid, high


def wanted_beyond_shm(findings: Findings) -> Forecast | None:
    """The number of workers that would be advised if their batches fitted /dev/shm; None where that changes nothing."""
    best, fitting = findings.workers_if_shm, findings.suggested_workers
    if best is None or fitting is None or not findings.reproduced or findings.taking_turns or crowded(findings):
        return None
    gains = best.to > fitting.to and best.step_ms[1] * WORTH_TRYING <= fitting.step_ms[1] and best.speedup[0] >= SAME
    return best if gains else None


def queued_batches(findings: Findings, prefetch_factor: int | None = None, workers: int | None = None) -> int:
    """Batches that can be alive at once: those requested, and one in use per worker.

    Args:
        findings: What was measured and concluded.
        prefetch_factor: Another one than that in force.
        workers: Another number of them than that in force.
    """
    prefetch = prefetch_factor or int((findings.loader or {}).get("prefetch_factor") or 2)
    return (workers_in_force(findings) if workers is None else workers) * (prefetch + 1)


def queued_bytes(findings: Findings, prefetch_factor: int | None = None, workers: int | None = None) -> int:
    """Bytes of their tensors, by the size of one batch; 0 where that is not known. Arguments as above."""
    batch = findings.facts.batch
    return batch.size_bytes * queued_batches(findings, prefetch_factor, workers) if batch is not None else 0
