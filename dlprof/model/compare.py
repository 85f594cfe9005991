"""Two runs side by side: what changed, whether by more than chance (schema ``dlprof.compare/1``).

Field names are those of the JSON; a trailing underscore is dropped there. Times carry their unit in the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from dlprof.model.kinds import Bottleneck, Cause, Component, Confidence

SCHEMA = "dlprof.compare/1"

Triple = tuple[float, float, float]
Column = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured of a run step by step, to be resampled. Times in milliseconds.

    Attributes:
        step_ms: The measured steps, in order; shape ``(n,)``.
        causes_ms: Per cause its part of each of them, as far as light spans tell; shape ``(n,)`` each.
        shares: How ``causes_ms[OTHER]`` divides, per traced step; shape ``(m,)`` each, together 1. Empty where there
            was no trace.
        batches_ms: Per component the work on each batch; shape ``(batches,)`` each.
    """

    step_ms: Column
    causes_ms: Mapping[Cause, Column] = field(default_factory=dict)
    shares: Mapping[Cause, Column] = field(default_factory=dict)
    batches_ms: Mapping[Component, Column] = field(default_factory=dict)

    def times(self, factor: float) -> Sample:
        """The same with every time multiplied by ``factor``."""
        return Sample(
            self.step_ms * factor,
            {key: column * factor for key, column in self.causes_ms.items()},
            self.shares,
            {key: column * factor for key, column in self.batches_ms.items()},
        )


class Direction(StrEnum):
    """Which way a time went; ``SAME`` where chance explains the difference."""

    SHORTER = "shorter"
    LONGER = "longer"
    SAME = "not-significant"
    UNKNOWN = "unknown"
    """There are not enough steps to tell, or only their mean is known."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A time before and after.

    Attributes:
        before_ms: Its mean; None where it was not measured.
        after_ms: As before.
        difference_ms: After minus before: low, middle, high end of a 95 % interval; None where it is not known.
        direction: Which way it went.
    """

    before_ms: float | None
    after_ms: float | None
    difference_ms: Triple | None
    direction: Direction


@dataclass(frozen=True, slots=True)
class StepChange(Difference):
    """The mean step. ``speedup``: before over after, with its 95 % interval; above 1 the second run is faster."""

    speedup: Triple | None


@dataclass(frozen=True, slots=True)
class CauseChange(Difference):
    """One cause's part of the mean step."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class ComponentChange(Difference):
    """One component's work on a batch, waited for or not."""

    component: Component


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A loader setting that differs.

    Attributes:
        setting: Its name.
        before: Its value in the first run; None where it has none.
        after: As before, in the second.
        forecast_ms: By how much this setting alone changes the first run's step, by forecast: low, middle, high.
            None where that cannot be forecast.
    """

    setting: str
    before: Any
    after: Any
    forecast_ms: Triple | None


@dataclass(frozen=True, slots=True)
class Explained:
    """What of the change of the step the settings explain.

    Attributes:
        settings: Those that differ and whose effect can be forecast.
        forecast_ms: The change that all of them together lead to, by forecast from the first run.
        left_ms: The measured change without it: code, data, machine, and the forecast's error.
        agrees: Whether forecast and measurement agree within their intervals.
        confidence: The forecast's.
    """

    settings: list[str]
    forecast_ms: Triple
    left_ms: float
    agrees: bool
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class Caution:
    """Something because of which the runs do not simply compare; ``text`` is for people."""

    slug: str
    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """Something beside the loader's settings that differs between the runs."""

    what: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Side:
    """One of the runs. ``load``: cores that other programs kept busy meanwhile; None where that is not known."""

    source: str
    created: str
    host: str
    command: list[str]
    steps: int
    bottleneck: Bottleneck
    component: Component | None
    headline: str
    samples_per_step: float | None
    load: float | None


@dataclass(frozen=True, slots=True)
class Compare:
    """The whole of ``compare.json``.

    ``per`` says what all times are for: one step, or one sample where the runs' batches differ in size.
    """

    schema: str
    dlprof: str
    created: str
    per: str
    before: Side
    after: Side
    step: StepChange
    causes: list[CauseChange]
    components: list[ComponentChange]
    settings: list[SettingChange]
    explained: Explained | None
    facts: list[Fact]
    cautions: list[Caution]
    conclusion: str = field(default="")
