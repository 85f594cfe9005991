"""Tooltips: what a chart says of one place, shown on hover and focus without a script.

Tips lie over the drawing, in shares of its size, since a drawing is as wide as the page lets it be. They say again
what the page says in words or tables, so few of them stop the keyboard: those of the steps that stand out, and of
forecasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlprof.model.report import Report, StepRow
from dlprof.render.drawing import BUDGET_HEIGHT, FORECAST_PADS, PLOT_HEIGHT, STEPS_PADS, Pads
from dlprof.render.numbers import gain, milliseconds, percent
from dlprof.render.select import (
    Bar,
    bars,
    budget_rows,
    measured_workers,
    shown_steps,
    slowest_steps,
    worker_forecasts,
)
from dlprof.render.wording import cause_name
from dlprof.words import tr

_REACHED_BY_KEY = 3


@dataclass(frozen=True, slots=True)
class Tip:
    """A place of a drawing and what is said of it.

    Attributes:
        style: Where it is, as CSS.
        side: Towards where the text grows: ``start``, ``middle`` or ``end``, so that it stays on the page.
        text: What is said.
        reachable: Whether the keyboard stops there.
    """

    style: str
    side: str
    text: str
    reachable: bool


def tips(key: str, report: Report, width: int) -> tuple[Tip, ...]:
    """The tips of a chart; none for one that says all itself.

    Args:
        key: The chart's name.
        report: What is drawn.
        width: Of the drawing, in pixels.
    """
    makers: dict[str, Callable[[Report, int], list[Tip]]] = {
        "budget": _budget,
        "steps": _steps,
        "forecast": _forecast,
    }
    return tuple(makers[key](report, width)) if key in makers else ()


def _tip(left: float, right: float, width: int, pads: Pads, height: int, text: str, reachable: bool = False) -> Tip:
    """A tip over the whole height of the plot, from ``left`` to ``right`` pixels."""
    whole = height + pads.top + pads.bottom
    middle = (left + right) / 2 / width
    places = (("left", left / width), ("width", (right - left) / width), ("top", pads.top / whole))
    style = ";".join(f"{name}:{share * 100:.2f}%" for name, share in (*places, ("height", height / whole)))
    return Tip(style, "start" if middle < 0.35 else "end" if middle > 0.65 else "middle", text, reachable)


def _budget(report: Report, width: int) -> list[Tip]:
    rows = budget_rows(report)
    total = sum(row.ms_per_step for row in rows)
    found, start = [], 0.0
    for row in rows:
        end = start + width * row.ms_per_step / total
        text = tr(
            "{cause}: {time}, {share} of the step",
            cause=cause_name(row.cause),
            time=milliseconds(row.ms_per_step),
            share=percent(row.share),
        )
        found.append(_tip(start, end, width, Pads(0, 0, 0, 0), BUDGET_HEIGHT, text))
        start = end
    return found


def _steps(report: Report, width: int) -> list[Tip]:
    steps = bars(shown_steps(report))
    slowest = slowest_steps(report, _REACHED_BY_KEY)
    first, last = steps[0].start - 0.5, steps[-1].end - 0.5
    scale = (width - STEPS_PADS.left - STEPS_PADS.right) / (last - first)
    found = []
    for bar in steps:
        left, right = (STEPS_PADS.left + (place - 0.5 - first) * scale for place in (bar.start, bar.end))
        found.append(_tip(left, right, width, STEPS_PADS, PLOT_HEIGHT, _step_text(bar), _holds(bar, slowest)))
    return found


def _step_text(bar: Bar) -> str:
    values = {
        "first": bar.start,
        "last": bar.end - 1,
        "time": milliseconds(bar.ms),
        "wait": milliseconds(bar.wait),
    }
    text = (
        tr("step {first}: {time}, waiting {wait} of it", **values)
        if bar.end - bar.start == 1
        else tr("steps {first} to {last}, on average {time}, waiting {wait} of it", **values)
    )
    return tr("{text}, traced", text=text) if bar.traced else text


def _holds(bar: Bar, steps: Sequence[StepRow]) -> bool:
    return any(bar.start <= step.index < bar.end for step in steps) and not bar.traced


def _forecast(report: Report, width: int) -> list[Tip]:
    workers, measured_ms = measured_workers(report), report.step.mean_ms
    texts = {
        row.to: tr(
            "num_workers={workers}: {time}, {gain} faster",
            workers=row.to,
            time=milliseconds(row.step_ms[1]),
            gain=gain(row.speedup),
        )
        for row in worker_forecasts(report)
        if row.to != workers
    }
    if workers is not None:
        texts[workers] = tr("num_workers={workers}, measured: {time}", workers=workers, time=milliseconds(measured_ms))
    pitch = (width - FORECAST_PADS.left - FORECAST_PADS.right) / len(texts)
    return [
        _tip(
            FORECAST_PADS.left + place * pitch,
            FORECAST_PADS.left + (place + 1) * pitch,
            width,
            FORECAST_PADS,
            PLOT_HEIGHT,
            texts[number],
            reachable=True,
        )
        for place, number in enumerate(sorted(texts))
    ]
