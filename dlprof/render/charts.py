"""The charts, drawn by Altair and made static SVG by vl-convert.

Every chart exists in two widths, since a drawing that is scaled down to a phone cannot be read. Charts show numbers
and dlprof's own words, never strings from the script.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dlprof.model.moments import Moment
from dlprof.model.report import Report
from dlprof.render.drawing import (
    BUDGET_HEIGHT,
    FORECAST_PADS,
    LETTER_WIDTH,
    PLOT_HEIGHT,
    STEPS_PADS,
    Pads,
    across,
    axis,
    chart_of,
    down,
    framed,
    step_axis,
    to_svg,
)
from dlprof.render.moments import legend, moment_chart
from dlprof.render.numbers import digits, milliseconds, percent
from dlprof.render.palette import LIGHT
from dlprof.render.select import Bar, bars, budget_rows, component_rows, measured_workers, shown_steps, worker_forecasts
from dlprof.render.tips import Tip, tips
from dlprof.render.wording import cause_name, component_name
from dlprof.render.wrapping import width_of
from dlprof.words import tr

WIDE = 880
NARROW = 340


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart in both widths, as SVG, what its colours mean, and the tooltips over it in either width."""

    wide: str
    narrow: str
    legend: tuple[tuple[str, str], ...] = ()
    wide_tips: tuple[Tip, ...] = ()
    narrow_tips: tuple[Tip, ...] = ()


def draw(report: Report, texts: dict[str, tuple[str, str]], moments: Sequence[Moment] = ()) -> dict[str, Drawing]:
    """All charts that the report has data for.

    Args:
        report: What is drawn.
        texts: Title and description of each chart, by its name (``budget``, ``steps``, ``components``,
            ``forecast``, and the keys of moments). A chart without texts is not drawn.
        moments: Single steps.
    """
    looked_at = {moment.key: moment for moment in moments}
    drawers: dict[str, Callable[[Report, int], Any]] = {
        **{key: functools.partial(_moment, moment) for key, moment in looked_at.items()},
        "budget": _budget,
        "steps": _steps,
        "components": _components,
        "forecast": _forecast,
    }
    drawings = {}
    for key, (title, description) in texts.items():
        try:
            wide, narrow = (
                _drawn(drawers[key](report, width), f"{key}-{suffix}", title, description)
                for width, suffix in ((WIDE, "wide"), (NARROW, "narrow"))
            )
        except (ImportError, OSError, ValueError):
            # The page says everything in words and tables as well: better without a chart than no page.
            continue
        if wide and narrow:
            over = (tips(key, report, width) for width in (WIDE, NARROW))
            drawings[key] = Drawing(
                wide, narrow, legend(looked_at[key]) if key in looked_at else _legend(key, report), *over
            )
    return drawings


def _drawn(chart: Any, identifier: str, title: str, description: str) -> str:
    return "" if chart is None else to_svg(chart, identifier, title, description)


def _moment(moment: Moment, _report: Report, width: int) -> Any:
    return moment_chart(moment, width)


def _legend(key: str, report: Report) -> tuple[tuple[str, str], ...]:
    if key == "steps":
        entries = [("input_wait", tr("waiting for input")), ("rest", tr("the rest of the step"))]
        if any(row.traced for row in report.steps):
            entries.append(("band", tr("traced by torch.profiler")))
        return tuple(entries)
    if key == "components":
        return (("input_wait", tr("mean")), ("ink", tr("95th percentile")))
    if key == "forecast":
        return (("ink", tr("measured")), ("device_compute", tr("forecast, with its 80 % interval")))
    return ()


# ------------------------------------------------------------------ budget


def _budget(report: Report, width: int) -> Any:
    import altair as alt

    rows = budget_rows(report)
    total = sum(row.ms_per_step for row in rows)
    if not rows or total <= 0:
        return None
    height, gap = BUDGET_HEIGHT, 2
    layers, start = [], 0.0
    for row in rows:
        end = start + width * row.ms_per_step / total
        colour = LIGHT[row.cause.value]
        box = [{"x": start, "x2": max(end - gap, start + 0.5)}]
        layers.append(chart_of(box).mark_bar(color=colour, size=height).encode(x=across("x", width), x2="x2"))
        layers += _segment_labels(width, start, end - gap, cause_name(row.cause), percent(row.share))
        start = end
    return framed(alt.layer(*layers), width, height, Pads(0, 0, 0, 0))


def _segment_labels(width: int, start: float, end: float, label: str, share: str) -> list[Any]:
    room = end - start - 16
    if width_of(label) * LETTER_WIDTH <= room:
        lines = [(label, -8, "normal"), (share, 9, "bold")]
    elif len(share) * LETTER_WIDTH <= room + 8:
        lines = [(share, 0, "bold")]
    else:
        return []
    return [
        chart_of([{"x": start, "text": text}])
        .mark_text(align="left", baseline="middle", dx=8, dy=dy, color=LIGHT["on_fill"], fontWeight=weight)
        .encode(x=across("x", width), text="text:N")
        for text, dy, weight in lines
    ]


# ------------------------------------------------------------------ steps


def _steps(report: Report, width: int) -> Any:
    import altair as alt

    steps = bars(shown_steps(report))
    if len(steps) < 2:
        return None
    pads = STEPS_PADS
    first, last = steps[0].start - 0.5, steps[-1].end - 0.5
    plot = width - pads.left - pads.right
    top = _ceiling([bar.ms for bar in steps])
    x = step_axis([first, last], plot)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, top]), axis=axis(tickCount=4, format=",~f"))
    boxes: dict[str, list[dict[str, float]]] = {"input_wait": [], "rest": []}
    for bar in steps:
        gap = 0.12 * (bar.end - bar.start)
        ends = {"x": bar.start - 0.5 + gap, "x2": bar.end - 0.5 - gap}
        boxes["input_wait"].append({**ends, "y": 0, "y2": min(bar.wait, top)})
        boxes["rest"].append({**ends, "y": min(bar.wait, top), "y2": min(bar.ms, top)})
    layers = _traced_band(steps, top, x, y, plot / max(last - first, 1))
    for key, values in boxes.items():
        layers.append(chart_of(values).mark_rect(color=LIGHT[key]).encode(x=x, x2="x2", y=y, y2="y2"))
    layers += _cut_bars(steps, top, x, y)
    return framed(alt.layer(*layers), width, PLOT_HEIGHT, pads)


def _ceiling(values: Sequence[float]) -> float:
    """The top of the axis: the largest value, unless few values tower over the rest."""
    usual = sorted(values)[max(0, int(len(values) * 0.9) - 1)]
    largest = max(values)
    return 2 * usual if largest > 3 * usual else 1.06 * largest


def _traced_band(steps: Sequence[Bar], top: float, x: Any, y: Any, step_width: float) -> list[Any]:
    traced = [bar for bar in steps if bar.traced]
    if not traced:
        return []
    span = {"x": traced[0].start - 0.5, "x2": traced[-1].end - 0.5, "y": 0, "y2": top}
    layers = [chart_of([span]).mark_rect(color=LIGHT["band"]).encode(x=x, x2="x2", y=y, y2="y2")]
    if (span["x2"] - span["x"]) * step_width >= 6 * LETTER_WIDTH:
        label = chart_of([{"x": span["x"], "y": top, "text": tr("traced")}])
        layers.append(
            label.mark_text(align="left", baseline="bottom", dy=-3, color=LIGHT["muted"]).encode(
                x=x, y=y, text="text:N"
            )
        )
    return layers


def _cut_bars(steps: Sequence[Bar], top: float, x: Any, y: Any) -> list[Any]:
    """How long the bars are that do not fit: the three longest."""
    cut = sorted((bar for bar in steps if bar.ms > top), key=lambda bar: -bar.ms)[:3]
    values = [{"x": (bar.start + bar.end - 1) / 2, "y": top, "text": f"▲ {milliseconds(bar.ms)}"} for bar in cut]
    if not values:
        return []
    mark = chart_of(values).mark_text(align="center", baseline="bottom", dy=-3, color=LIGHT["ink"])
    return [mark.encode(x=x, y=y, text="text:N")]


# ------------------------------------------------------------------ components


def _components(report: Report, width: int) -> Any:
    import altair as alt

    rows = component_rows(report)[:10]
    if not rows:
        return None
    narrow = width == NARROW
    pitch, thick = (40, 14) if narrow else (26, 16)
    pads = Pads(0 if narrow else 214, 2, 100, 2)
    plot = width - pads.left - pads.right
    longest = max(max(spread.mean, spread.p95) for _, spread in rows)
    values = []
    for index, (component, spread) in enumerate(rows):
        middle = index * pitch + pitch / 2 + (9 if narrow else 0)
        end = max(spread.mean, spread.p95) * plot / longest
        values.append(
            {
                "name": component_name(component),
                "name_y": index * pitch + 8 if narrow else middle,
                "x2": spread.mean * plot / longest,
                "p95": spread.p95 * plot / longest,
                "end": end + 8,
                "text": tr("mean {time}", time=milliseconds(spread.mean)),
                "y": middle,
                "zero": 0,
            }
        )
    height = pitch * len(rows)
    base, x, y = chart_of(values), across("zero", plot), down("y", height)
    named = base.mark_text(
        align="left" if narrow else "right", baseline="middle", dx=0 if narrow else -10, color=LIGHT["ink"]
    )
    layers = [
        base.mark_bar(color=LIGHT["input_wait"], size=thick, orient="horizontal").encode(x=x, x2="x2", y=y),
        base.mark_tick(color=LIGHT["ink"], size=thick + 4, thickness=2, orient="vertical").encode(
            x=across("p95", plot), y=y
        ),
        named.encode(x=x, y=down("name_y", height), text="name:N"),
        base.mark_text(align="left", baseline="middle", color=LIGHT["ink"]).encode(
            x=across("end", plot), y=y, text="text:N"
        ),
    ]
    return framed(alt.layer(*layers), width, height, pads)


# ------------------------------------------------------------------ forecast


def _forecast(report: Report, width: int) -> Any:
    import altair as alt

    curve, measured = worker_forecasts(report), report.step.mean_ms
    workers = measured_workers(report)
    if measured is None:
        return None
    rows: list[dict[str, Any]] = [
        {"x": str(row.to), "low": row.step_ms[0], "y": row.step_ms[1], "high": row.step_ms[2]}
        for row in curve
        if row.to != workers
    ]
    if not rows:
        return None
    for row in rows:
        row["text"] = digits(row["y"])
    colour = LIGHT["device_compute"]
    order = sorted({int(row["x"]) for row in rows} | ({workers} if workers is not None else set()))
    top = 1.2 * max([measured, *(row["high"] for row in rows)])
    scale = alt.Scale(domain=[str(value) for value in order], padding=0.5)
    x = alt.X("x:O", scale=scale, axis=axis(grid=False, labelAngle=0))
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, top]), axis=axis(tickCount=4, format=",~f"))
    here = [] if workers is None else [{"x": str(workers), "y": measured, "high": measured, "text": digits(measured)}]
    path = sorted([*rows, *here], key=lambda row: int(row["x"]))
    layers = [
        chart_of(path).mark_line(color=LIGHT["line"], strokeWidth=2).encode(x=x, y=y),
        chart_of(rows).mark_rule(color=colour, strokeWidth=2).encode(x=x, y=alt.Y("low:Q"), y2="high"),
        *_points(rows, x, y, color=colour, size=70),
    ]
    if here:
        layers += _points(here, x, y, color=LIGHT["ink"], shape="diamond", size=110)
    return framed(alt.layer(*layers), width, PLOT_HEIGHT, FORECAST_PADS)


def _points(rows: Sequence[dict[str, Any]], x: Any, y: Any, **look: Any) -> list[Any]:
    """Points with their values above."""
    import altair as alt

    base = chart_of(rows)
    return [
        base.mark_point(filled=True, opacity=1, **look).encode(x=x, y=y),
        base.mark_text(baseline="bottom", dy=-9, color=LIGHT["ink"]).encode(x=x, y=alt.Y("high:Q"), text="text:N"),
    ]
