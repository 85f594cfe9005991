"""--fail-if: what is accepted, and when a bound is crossed."""

from __future__ import annotations

import pytest

from dlprof.model.bounds import NAMES, parse_bound
from dlprof.model.kinds import Bottleneck, Cause, Confidence, ExitReason
from dlprof.model.report import (
    SCHEMA,
    AdviceRow,
    BudgetRow,
    Exit,
    Overhead,
    Report,
    Run,
    StepTimes,
    Totals,
    Verdict,
)


def report(step_ms: float | None = 100.0, speedup: float | None = None) -> Report:
    budget = [BudgetRow(Cause.INPUT_WAIT, 25.0, 0.25, "light"), BudgetRow(Cause.DEVICE_COMPUTE, 75.0, 0.75, "light")]
    advice = [AdviceRow("raise-num-workers", "num_workers", 0, 2, (1.1, speedup, 2.5), [], "")] if speedup else []
    return Report(
        schema=SCHEMA,
        dlprof="0",
        created="",
        host="",
        run=Run(["python"], 50, 0, 1, "cpu", None, 1, Exit(0, ExitReason.STEPS_REACHED)),
        verdict=Verdict(Bottleneck.STORAGE_IO, None, 0.25, Confidence.HIGH, ""),
        step=StepTimes(step_ms, step_ms, step_ms, None, None, None),
        budget=budget,
        totals=Totals(),
        device=None,
        input=None,
        forecast=[],
        advice=[*advice, AdviceRow("stop-tuning-input", None, None, None, None, [], "")],
        not_advised=[],
        steps=[],
        ranks=[],
        environment={},
        notices=[],
        overhead=Overhead(None, None, 0),
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("input_wait>20%", "25%"),
        ("input_wait>25%", None),
        ("input_wait>=25%", "25%"),
        ("input_wait > 24", "25 ms"),
        ("input_wait>26", None),
        ("device_compute<80%", "75%"),
        ("device_compute<=75%", "75%"),
        ("device_compute==75", "75 ms"),
        ("step_ms>99.5", "100 ms"),
        ("step_ms<99.5", None),
        ("speedup_available>1.2", "1.5x"),
        ("communication>0", None),
        ("verdict==storage_io", "storage_io"),
        ("verdict==balanced", None),
    ],
)
def test_bounds(text: str, found: str | None) -> None:
    assert parse_bound(text).crossed(report(speedup=1.5)) == found


def test_without_advice_nothing_is_to_be_gained() -> None:
    assert parse_bound("speedup_available>1").crossed(report()) is None
    assert parse_bound("speedup_available==1").crossed(report()) == "1x"


def test_what_was_not_measured_crosses_nothing() -> None:
    assert parse_bound("step_ms<1000").crossed(report(step_ms=None)) is None
    assert parse_bound("communication<1").crossed(report()) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not of the form"),
        ("input_wait", "not of the form"),
        ("input_wait=20%", "not of the form"),
        ("input_wait>", "not of the form"),
        ("wait>20%", "there is no 'wait'"),
        ("input_wait>twenty", "not a number"),
        ("input_wait>-5", "not a number"),
        ("input_wait>nan", "not a number"),
        ("input_wait>1e999", "not a number"),
        ("step_ms>20%", "no share"),
        ("speedup_available>20%", "no share"),
        ("verdict==slow", "verdict"),
        ("verdict>balanced", "verdict"),
    ],
)
def test_what_is_not_accepted(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_bound(text)


def test_every_cause_can_be_bounded() -> None:
    assert {cause.value for cause in Cause} < set(NAMES)
    assert all(parse_bound(f"{name}>1") for name in NAMES if name != "verdict")


@pytest.mark.parametrize(
    ("text", "found"),
    [("step_ms<99.5", "100 ms"), ("verdict==balanced", "storage_io"), ("communication>0", None)],
)
def test_what_was_found_is_told_whether_it_crosses_the_bound_or_not(text: str, found: str | None) -> None:
    assert parse_bound(text).crossed(report()) is None
    assert parse_bound(text).found(report()) == found
