"""What the analysis concludes, in numbers; the words are added when a report is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dlprof.model.kinds import Bottleneck, Cause, Component, Confidence
from dlprof.model.pipeline import Interval
from dlprof.model.report import Source


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Nanoseconds per cause of one step, or of the mean step.

    Attributes:
        step_ns: The step's length.
        ns: Per cause; all values at least 0, sum equal to ``step_ns``.
        source: Where each cause's number comes from.
    """

    step_ns: float
    ns: dict[Cause, float]
    source: dict[Cause, Source]

    def __post_init__(self) -> None:
        total = sum(self.ns.values())
        if abs(total - self.step_ns) > 1e-6 * max(self.step_ns, 1.0):
            raise ValueError(f"causes sum to {total} ns, the step is {self.step_ns} ns")
        if any(value < 0 for value in self.ns.values()):
            raise ValueError(f"negative time in {self.ns}")

    def share(self, cause: Cause) -> float:
        """The cause's part of the step, 0 to 1."""
        return self.ns.get(cause, 0.0) / self.step_ns if self.step_ns else 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """What removing one bottleneck would save.

    Attributes:
        bottleneck: The bottleneck.
        component: Its largest component, None where it has none.
        saved: Share of the mean step that its removal saves, 0 to 1.
    """

    bottleneck: Bottleneck
    component: Component | None
    saved: Interval


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, and the numbers behind it.

    Attributes:
        bottleneck: What bounds the step.
        component: Finer, None where nothing finer is known.
        share: Part of the mean step that removing the bottleneck would save (the busy part for device compute), None
            for ``balanced`` and ``inconclusive``.
        confidence: How far to rely on it.
        reason: Why the verdict is inconclusive: a key of the wording, else empty.
        reason_values: What fills that sentence.
        candidates: All candidates, the largest saving first.
        all_input_saved: What removing all input wait together would save; None where it is not known.
    """

    bottleneck: Bottleneck
    component: Component | None
    share: float | None
    confidence: Confidence
    reason: str
    reason_values: dict[str, Any]
    candidates: tuple[Candidate, ...]
    all_input_saved: Interval | None
