"""What ``report.json`` says (schema ``dlprof.report/1``), as types.

Field names are those of the JSON; a trailing underscore is dropped there (``from_`` is ``from``). Times carry their
unit in the name: ``_ms`` milliseconds, ``_s`` seconds. Shares and ratios are 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from dlprof.model.kinds import Bottleneck, Cause, Component, Confidence, ExitReason

SCHEMA = "dlprof.report/1"
UNKNOWN_HOST = "not known"
"""Stands for the host of somebody's trace whose file is not named after one."""

Number = int | float
Source = Literal["light", "traced", "events"]
BlockedOn = Literal["cpu", "storage", "network", "lock", "sleep"]


@dataclass(frozen=True, slots=True)
class Exit:
    """How the script ended; ``status`` is what ``dlprof run`` exits with because of it."""

    status: int
    reason: ExitReason
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What was run and how much of it was looked at."""

    command: list[str]
    steps_measured: int
    steps_traced: int
    batches_per_optimizer_step: Number | None
    device: str
    device_name: str | None
    world_size: int
    exit: Exit


@dataclass(frozen=True, slots=True)
class Verdict:
    """What bounds the step. ``share``: the part of the mean step that removing it would save."""

    bottleneck: Bottleneck
    component: Component | None
    share: float | None
    confidence: Confidence
    headline: str


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step time over the untraced measured steps. None where no step was measured."""

    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    steps_per_s: float | None
    samples_per_s: float | None
    first_batch_s: float | None


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One cause's exclusive part of the mean step; the rows sum to ``StepTimes.mean_ms``."""

    cause: Cause
    ms_per_step: float
    share: float
    source: Source


@dataclass(frozen=True, slots=True)
class Total:
    """Time in one activity, overlapped or not, and how often it was called per run; 0 where calls were not counted."""

    ms_per_batch: float
    calls: int


@dataclass(frozen=True, slots=True)
class Totals:
    """The activities asked for most; None where none was seen."""

    collate_fn: Total | None = None
    tokenizer: Total | None = None
    dataset: Total | None = None
    h2d: Total | None = None
    device_step: Total | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """One of the operations that kept the device busiest."""

    name: str
    ms_per_step: float
    calls_per_step: float


@dataclass(frozen=True, slots=True)
class Device:
    """The accelerator during the traced steps."""

    busy_ratio: float
    idle_ms_per_step: float
    h2d_bytes_per_step: float | None
    h2d_gb_per_s: float | None
    h2d_pageable_ratio: float | None
    top_kernels: list[Kernel] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds per batch."""

    mean: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process over the measured steps."""

    pid: int
    batches: int
    cpu_s: float
    no_core_s: float
    blocked_s: float
    private_mb_start: float | None
    private_mb_end: float | None


@dataclass(frozen=True, slots=True)
class SlowSample:
    """A dataset index and how long that item took."""

    index: int
    ms: float


@dataclass(frozen=True, slots=True)
class HotLine:
    """A line of code and its share of the data work."""

    where: str
    function: str
    source: str
    share: float
    state: BlockedOn


@dataclass(frozen=True, slots=True)
class Input:
    """The training loop's DataLoader. ``loader`` holds the settings in force."""

    loader: dict[str, Any]
    per_batch_ms: dict[Component, Spread]
    worker_busy_ratio: float | None
    queue_depth_mean: float | None
    workers: list[Worker]
    pad_ratio: float | None
    slowest_samples: list[SlowSample]
    hot_lines: list[HotLine]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The step time that another setting would give.

    ``step_ms`` is p10, p50, p90; ``speedup`` is old step time over new, low, middle, high; 1.0 is no change.
    """

    setting: str
    from_: Any
    to: Any
    step_ms: tuple[float, float, float]
    speedup: tuple[float, float, float]
    confidence: Confidence
    limited_by: str | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """A measured number behind a piece of advice."""

    metric: str
    value: Number
    unit: str


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """What to change, what it gains, on what evidence, and the lines to paste (``how``)."""

    id: str
    setting: str | None
    from_: Any
    to: Any
    speedup: tuple[float, float, float] | None
    evidence: list[Evidence]
    how: str


@dataclass(frozen=True, slots=True)
class NotAdvised:
    """A usual setting that would not help here, and why."""

    id: str
    why: str


@dataclass(frozen=True, slots=True)
class StepRow:
    """One measured step."""

    index: int
    ms: float
    input_wait_ms: float
    traced: bool


@dataclass(frozen=True, slots=True)
class NoticeRow:
    """Something lost, odd or assumed."""

    slug: str
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class Overhead:
    """What looking cost.

    ``own_cost_ratio``: of the CPU time of the training process and its workers in the measured steps;
    ``traced_ratio``: traced over untraced step time.
    """

    own_cost_ratio: float | None
    traced_ratio: float | None
    lost_spans: int


@dataclass(frozen=True, slots=True)
class Report:
    """The whole of ``report.json``."""

    schema: str
    dlprof: str
    created: str
    host: str
    run: Run
    verdict: Verdict
    step: StepTimes
    budget: list[BudgetRow]
    totals: Totals
    device: Device | None
    input: Input | None
    forecast: list[Forecast]
    advice: list[AdviceRow]
    not_advised: list[NotAdvised]
    steps: list[StepRow]
    ranks: list[dict[str, Any]]
    environment: dict[str, Any]
    notices: list[NoticeRow]
    overhead: Overhead
