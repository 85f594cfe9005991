"""Advice in numbers, and the findings that it rests on; the words are added when a report is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dlprof.model.diagnosis import Breakdown, Judgement
from dlprof.model.kinds import Component
from dlprof.model.profile import BatchShape
from dlprof.model.report import Device, Evidence, Forecast, HotLine, Totals


@dataclass(frozen=True, slots=True)
class InputFacts:
    """What was seen of the data work of the measured steps, beside its times.

    Attributes:
        batch: What a batch consists of, None where none was looked at.
        no_core_ratio: Wait for a core over time on one, helper threads' included.
        helper_ratio: Part of the time on a core that threads beside the one that makes the batch took, 0 to 1.
        computing_ratio: Time on a core over that and blocked time, 0 to 1.
        workers_with_batches: Workers that made a batch, None where too few steps were measured to tell.
        items_per_batch: Calls of the dataset for one item each.
        tokenizer_calls_per_batch: Calls of a known tokenizer.
        same_length: Whether all batches of tokens were seen to be equally long.
        python_tokenizer_ratio: Part of the time on a core that a tokenizer written in Python took, 0 to 1.
        rebuilding_ratio: Of the unpickling, the part that opens the shared memory of one tensor after the other, 0
            to 1; None where it was looked at too seldom.
        shares_nothing_out: Whether the dataset is iterable and never asked which worker it runs in: then each worker
            gives all samples.
        made_anew: Whether the script makes a new loader for each epoch: what a loader keeps is lost with it.
    """

    batch: BatchShape | None = None
    no_core_ratio: float = 0.0
    helper_ratio: float = 0.0
    computing_ratio: float = 1.0
    workers_with_batches: int | None = None
    items_per_batch: float = 0.0
    tokenizer_calls_per_batch: float = 0.0
    same_length: bool = False
    python_tokenizer_ratio: float = 0.0
    rebuilding_ratio: float | None = None
    shares_nothing_out: bool = False
    made_anew: bool = False


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
        worker_forecasts: One per worker count, that in force included; empty where nothing can be forecast. Of a
            dataset that shares nothing out only those without repeated samples, and that in force.
        suggested_workers: The knee among them, None with them.
        workers_if_shm: Where /dev/shm keeps numbers of workers from being possible, what the knee would be if it did
            not; else None.
        workers_if_shared: Of a dataset that shares nothing out, what the knee would be if it did; else None.
        setting_forecasts: Of the loader's other settings.
        without: What the step would be with one component of the input free of cost.
        input_removed: What the step would be with all input free of cost; None where it is not known.
        waits_ms: A mean step's wait per component, in milliseconds.
        taking_turns: Whether workers wait for one another at a lock.
        lines: Where the data work's time is spent, most first; empty where lines are not known.
        facts: What else was seen of the data work.
        per_batch_ms: Milliseconds of work on a batch, by component, waited for or not.
        pad_ratio: Part of the tokens that fill up, 0 to 1; None where there are none or their pad id is not known.
        environment: The machine, as in the report.
        notices: Values of the notices, by slug.
        failure: What the script ended with, empty where it ended well.
        device: The accelerator during the traced steps, None without.
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
    workers_if_shared: Forecast | None = None
    workers_if_shm: Forecast | None = None
    setting_forecasts: tuple[Forecast, ...] = ()
    input_removed: Forecast | None = None
    lines: tuple[HotLine, ...] = ()
    facts: InputFacts = field(default_factory=InputFacts)
    per_batch_ms: dict[Component, float] = field(default_factory=dict)
    pad_ratio: float | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    notices: dict[str, dict[str, Any]] = field(default_factory=dict)
    failure: str = ""
    device: Device | None = None


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
