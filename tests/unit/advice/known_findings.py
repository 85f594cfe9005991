"""Findings of runs that could be, to ask rules about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dlprof.advice.common import FINE_WAIT
from dlprof.model.advice import Findings
from dlprof.model.diagnosis import Breakdown, Judgement
from dlprof.model.kinds import Bottleneck, Cause, Component, Confidence
from dlprof.model.pipeline import Interval
from dlprof.model.report import Forecast, Totals


def forecast(to: Any, speedup: float, spread: float = 0.02, from_: Any = 0) -> Forecast:
    ends = (speedup - spread, speedup, speedup + spread)
    return Forecast("num_workers", from_, to, tuple(40 / each for each in reversed(ends)), ends, Confidence.HIGH, None)


def step_that_waits(share: float) -> Breakdown:
    ns = {Cause.INPUT_WAIT: 100 * share, Cause.OTHER: 100 * (1 - share)}
    return Breakdown(100, ns, dict.fromkeys(ns, "light"))


def findings(
    wait: float = 0.6,
    workers: int = 0,
    knee: Forecast | None = None,
    busy: float | None = None,
    without: dict[Component, float | Forecast] | None = None,
    saved: Interval | None = None,
    **more: Any,
) -> Findings:
    bound = Bottleneck.CPU_PREPROCESSING, Component.TOKENIZER
    if wait < FINE_WAIT:
        bound = Bottleneck.DEVICE_COMPUTE, Component.COMPUTE
    judgement = Judgement(*bound, 0.5, Confidence.HIGH, "", {}, (), saved)
    removed = {
        component: each if isinstance(each, Forecast) else forecast(0.0, each)
        for component, each in (without or {}).items()
    }
    found = Findings(
        reproduced=True,
        judgement=judgement,
        mean=step_that_waits(wait),
        totals=Totals(),
        loader={"num_workers": workers, "pin_memory": False},
        cores=4,
        accelerator=False,
        worker_busy_ratio=busy,
        worker_forecasts=(knee,) if knee else (),
        suggested_workers=knee,
        without=removed,
        waits_ms={Component.TOKENIZER: 21.5},
    )
    return replace(found, **more)
