"""Which rows of a report are shown, and in which order: shared by the pages and the charts."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import fmean
from typing import NamedTuple, TypeGuard

from dlprof.model.kinds import Cause, Component
from dlprof.model.report import BudgetRow, Forecast, Report, Spread, StepRow

BARS_AT_MOST = 160
"""Bars of the chart of steps; more steps are averaged in groups."""


def budget_rows(report: Report) -> list[BudgetRow]:
    """The budget's rows that hold time, largest first, ``other`` last."""
    rows = [row for row in report.budget if row.ms_per_step > 0 and isfinite(row.ms_per_step)]
    return sorted(rows, key=lambda row: (row.cause is Cause.OTHER, -row.ms_per_step))


def component_rows(report: Report) -> list[tuple[Component, Spread]]:
    """Components of the data work on a batch, most time first; those that took none are left out."""
    found = report.input.per_batch_ms.items() if report.input else ()
    return sorted(((key, spread) for key, spread in found if spread.mean > 0), key=lambda item: -item[1].mean)


def worker_forecasts(report: Report) -> list[Forecast]:
    """Forecasts of ``num_workers``, in the order of its value; one for each value."""
    rows = {row.to: row for row in reversed(report.forecast) if row.setting == "num_workers" and _is_count(row.to)}
    return [rows[to] for to in sorted(rows)]


def measured_workers(report: Report) -> int | None:
    """``num_workers`` in force during the measurement, where it is known."""
    known = report.input.loader.get("num_workers") if report.input else None
    if _is_count(known):
        return known
    return next((row.from_ for row in worker_forecasts(report) if _is_count(row.from_)), None)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def shown_steps(report: Report) -> list[StepRow]:
    """Steps with a usable time, in order."""
    return sorted((row for row in report.steps if row.ms > 0 and isfinite(row.ms)), key=lambda row: row.index)


def slowest_steps(report: Report, number: int) -> Sequence[StepRow]:
    """The ``number`` slowest steps that were not traced, slowest first."""
    return sorted((row for row in shown_steps(report) if not row.traced), key=lambda row: -row.ms)[:number]


class Bar(NamedTuple):
    """Some consecutive steps: index of the first, of the one after the last, and their mean times in ms."""

    start: int
    end: int
    ms: float
    wait: float
    traced: bool


def steps_per_bar(steps: int, at_most: int = BARS_AT_MOST) -> int:
    """How many of ``steps`` steps one bar stands for."""
    return max(1, -(-steps // at_most))


def bars(steps: Sequence[StepRow], at_most: int = BARS_AT_MOST) -> list[Bar]:
    """Steps as bars; more than ``at_most`` are averaged in groups. A group is all traced or all untraced.

    Args:
        steps: In order of their index.
        at_most: Bars, about.
    """
    size = steps_per_bar(len(steps), at_most)
    groups: list[list[StepRow]] = []
    for step in steps:
        if groups and len(groups[-1]) < size and groups[-1][-1].traced == step.traced:
            groups[-1].append(step)
        else:
            groups.append([step])
    return [
        Bar(
            group[0].index,
            group[-1].index + 1,
            fmean(step.ms for step in group),
            fmean(min(max(step.input_wait_ms, 0.0), step.ms) for step in group),
            group[0].traced,
        )
        for group in groups
    ]
