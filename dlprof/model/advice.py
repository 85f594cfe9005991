"""Advice in numbers, and the findings that it rests on; the words are added when a report is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dlprof.model.diagnosis import Breakdown, Judgement
from dlprof.model.kinds import Component
from dlprof.model.report import Evidence, Forecast, HotLine, Totals


@dataclass(frozen=True, slots=True)
class Findings:
    """What the rules look at.

    Attributes:
        judgement: The verdict.
        reproduced: Whether the simulated loader takes about as long as the measured one: else no forecast holds.
        mean: Where the mean step went; None where no step was measured.
        totals: Time per activity.
        loader: The training loop's loader: settings in force; None where there is none.
        cores: Cores that this rank may use.
        accelerator: Whether the model runs on one.
        worker_busy_ratio: Part of the time that workers make batches; None without workers.
        worker_forecasts: One per worker count, that in force included; empty where nothing can be forecast.
        suggested_workers: The knee among them, None with them.
        without: What the step would be with one component of the input free of cost.
        waits_ms: A mean step's wait per component, in milliseconds.
        taking_turns: Whether workers wait for one another at a lock.
        lines: Where the data work's time is spent, most first; empty where lines are not known.
    """

    judgement: Judgement
    reproduced: bool
    mean: Breakdown | None
    totals: Totals
    loader: dict[str, Any] | None
    cores: float
    accelerator: bool
    worker_busy_ratio: float | None
    worker_forecasts: tuple[Forecast, ...]
    suggested_workers: Forecast | None
    without: dict[Component, Forecast]
    waits_ms: dict[Component, float]
    taking_turns: bool = False
    lines: tuple[HotLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that is worth making.

    Attributes:
        id: As in the contract.
        setting: What is changed, None where it is code.
        from_: The value in force.
        to: The suggested value.
        speedup: Low, middle, high of old over new step time; None where it cannot be forecast.
        evidence: The numbers behind it.
    """

    id: str
    setting: str | None
    from_: Any
    to: Any
    speedup: tuple[float, float, float] | None
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A usual change that is not worth making here; ``reason`` and ``values`` are the wording's."""

    id: str
    reason: str
    values: dict[str, Any] = field(default_factory=dict)
