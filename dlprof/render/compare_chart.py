"""The chart of two runs: for the step and each cause a bar before and one after, with the difference's interval."""

from __future__ import annotations

from typing import Any

from dlprof.model.compare import Compare, Difference, Direction
from dlprof.render.charts import NARROW, WIDE, Drawing
from dlprof.render.drawing import Pads, across, chart_of, down, framed, to_svg
from dlprof.render.numbers import milliseconds
from dlprof.render.palette import LIGHT
from dlprof.render.wording import cause_name, compare_text
from dlprof.words import tr

_PITCH, _THICK, _MOST = 56, 12, 7
_COLOURS = {Direction.SHORTER: "good", Direction.LONGER: "input_wait"}


def draw_changes(compared: Compare, title: str, description: str) -> dict[str, Drawing]:
    """The chart, in both widths; nothing where it cannot be drawn.

    Args:
        compared: The result.
        title: Short.
        description: What the chart shows, in a sentence.
    """
    rows = _rows(compared)
    if not any(value for row in rows for value in (row[1].before_ms, row[1].after_ms)):
        return {}
    try:
        wide, narrow = (
            to_svg(_changes(rows, width), f"changes-{suffix}", title, description)
            for width, suffix in ((WIDE, "wide"), (NARROW, "narrow"))
        )
    except (ImportError, OSError, ValueError):
        # The page says everything in words and tables as well: better without a chart than no page.
        return {}
    ways = {row.direction for _, row in rows}
    legend = [("rest", tr("before")), ("device_compute", tr("after"))]
    legend += [("good", tr("after, shorter"))] if Direction.SHORTER in ways else []
    legend += [("input_wait", tr("after, longer"))] if Direction.LONGER in ways else []
    return {"changes": Drawing(wide, narrow, (*legend, ("ink", tr("95 % interval of the difference"))))}


def _rows(compared: Compare) -> list[tuple[str, Difference]]:
    causes = [(cause_name(row.cause), row) for row in compared.causes]
    return [(compare_text("whole", per=compared.per), compared.step), *causes[:_MOST]]


def _changes(rows: list[tuple[str, Difference]], width: int) -> Any:
    import altair as alt

    pads = Pads(0, 2, 70, 2)
    plot = width - pads.left - pads.right
    ends = [value for _, row in rows for value in (row.before_ms or 0.0, row.after_ms or 0.0, _ends(row)[1])]
    scale = plot / max(ends)
    height = _PITCH * len(rows)
    y = down("y", height)
    layers = []
    for index, (label, row) in enumerate(rows):
        top = index * _PITCH
        name = chart_of([{"x": 0, "y": top + 10, "text": label}])
        layers.append(
            name.mark_text(align="left", baseline="middle", color=LIGHT["ink"]).encode(
                x=across("x", plot), y=y, text="text:N"
            )
        )
        for place, value, colour in (
            (top + 24, row.before_ms, "rest"),
            (top + 39, row.after_ms, _COLOURS.get(row.direction, "device_compute")),
        ):
            if value is None:
                continue
            low, high = _ends(row) if place > top + 24 else (value, value)
            end = max(value, high) * scale + 8
            base = chart_of(
                [
                    {
                        "x": 0,
                        "x2": value * scale,
                        "y": place,
                        "low": low * scale,
                        "high": high * scale,
                        "end": end,
                        "text": milliseconds(value),
                    }
                ]
            )
            layers.append(
                base.mark_bar(color=LIGHT[colour], size=_THICK, orient="horizontal").encode(
                    x=across("x", plot), x2="x2", y=y
                )
            )
            if high > low:
                layers += [
                    # Light below dark: it has to stand out from the bar and from the page.
                    base.mark_rule(color=LIGHT["surface"], strokeWidth=5).encode(x=across("low", plot), x2="high", y=y),
                    base.mark_rule(color=LIGHT["ink"], strokeWidth=2).encode(x=across("low", plot), x2="high", y=y),
                ]
            layers.append(
                base.mark_text(align="left", baseline="middle", color=LIGHT["ink"]).encode(
                    x=across("end", plot), y=y, text="text:N"
                )
            )
    return framed(alt.layer(*layers), width, height, pads)


def _ends(row: Difference) -> tuple[float, float]:
    """Where the time after lies, by the interval of the difference, in ms; never below 0."""
    if row.difference_ms is None or row.before_ms is None:
        return (row.after_ms or 0.0,) * 2
    low, _, high = row.difference_ms
    return max(0.0, row.before_ms + low), max(0.0, row.before_ms + high)
