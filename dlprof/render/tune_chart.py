"""The chart of what was tried: a bar per setting with its interval, and where the forecast was."""

from __future__ import annotations

from typing import Any

from dlprof.model.tune import Tune
from dlprof.render.charts import NARROW, WIDE, Drawing
from dlprof.render.drawing import Pads, across, chart_of, down, framed, to_svg
from dlprof.render.numbers import milliseconds
from dlprof.render.palette import LIGHT
from dlprof.render.wording import settings_name
from dlprof.words import tr

_PITCH, _THICK = 42, 14
_OUTLINED: dict[str, Any] = {"fill": LIGHT["input_wait"], "stroke": LIGHT["surface"], "strokeWidth": 1.5}


def draw_trials(tune: Tune, title: str, description: str) -> dict[str, Drawing]:
    """The chart, in both widths; nothing where it cannot be drawn.

    Args:
        tune: The result.
        title: Short.
        description: What the chart shows, in a sentence.
    """
    if not any(row.step_ms for row in (tune.baseline, *tune.trials)):
        return {}
    try:
        wide, narrow = (
            to_svg(_trials(tune, width), f"trials-{suffix}", title, description)
            for width, suffix in ((WIDE, "wide"), (NARROW, "narrow"))
        )
    except (ImportError, OSError, ValueError):
        # The page says everything in words and tables as well: better without a chart than no page.
        return {}
    legend = [("rest", tr("as the script has it")), ("device_compute", tr("tried"))]
    legend += [("good", tr("the winner"))] if tune.winner is not None else []
    return {"trials": Drawing(wide, narrow, (*legend, ("ink", tr("90 % interval")), ("input_wait", tr("forecast"))))}


def _trials(tune: Tune, width: int) -> Any:
    import altair as alt

    rows = [row for row in (tune.baseline, *tune.trials) if row.step_ms]
    pads = Pads(0, 2, 70, 2)
    plot = width - pads.left - pads.right
    ends = [row.step_ms[2] for row in rows if row.step_ms]
    ends += [row.forecast.step_ms[1] for row in rows if row.forecast]
    scale = plot / max(ends)
    height = _PITCH * len(rows)
    y = down("y", height)
    layers = []
    for index, row in enumerate(rows):
        if row.step_ms is None:
            continue
        low, middle, high = (value * scale for value in row.step_ms)
        place = {"y": index * _PITCH + 28, "name_y": index * _PITCH + 10, "zero": 0, "x2": middle, "low": low}
        forecast = row.forecast.step_ms[1] * scale if row.forecast else 0.0
        place |= {"high": high, "end": max(high, forecast) + 10, "forecast": forecast}
        base = chart_of([place | {"name": settings_name(row.settings), "text": milliseconds(row.step_ms[1])}])
        colour = "good" if row.number == tune.winner else "device_compute" if row.settings else "rest"
        layers += [
            base.mark_bar(color=LIGHT[colour], size=_THICK, orient="horizontal").encode(
                x=across("zero", plot), x2="x2", y=y
            ),
            # Light below dark: it has to stand out from the bar and from the page.
            base.mark_rule(color=LIGHT["surface"], strokeWidth=5).encode(x=across("low", plot), x2="high", y=y),
            base.mark_rule(color=LIGHT["ink"], strokeWidth=2).encode(x=across("low", plot), x2="high", y=y),
            base.mark_text(align="left", baseline="middle", color=LIGHT["ink"]).encode(
                x=across("zero", plot), y=down("name_y", height), text="name:N"
            ),
            base.mark_text(align="left", baseline="middle", color=LIGHT["ink"]).encode(
                x=across("end", plot), y=y, text="text:N"
            ),
        ]
        if row.forecast:
            layers.append(
                base.mark_point(filled=True, opacity=1, shape="diamond", size=110, **_OUTLINED).encode(
                    x=across("forecast", plot), y=y
                )
            )
    return framed(alt.layer(*layers), width, height, pads)
