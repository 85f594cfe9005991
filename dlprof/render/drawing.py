"""What the charts share: the frame, places in pixels, axes, and Altair charts made static SVG by vl-convert.

Sizes, ticks and label places are all given, so that a drawing does not depend on the fonts of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import escape

from dlprof.render.palette import LIGHT
from dlprof.words import ENGLISH, language

FONT = "Liberation Sans, Helvetica, Arial, sans-serif"
CHINESE_FONT = "Noto Sans CJK SC, Noto Sans SC, Source Han Sans SC, PingFang SC, Microsoft YaHei, WenQuanYi Micro Hei"
"""Named since another language's font draws some Chinese characters in another form."""
FONT_SIZE = 12
LETTER_WIDTH = 6.8
"""A generous mean width of a letter, in pixels at `FONT_SIZE`, to decide whether a label fits."""


class Pads(NamedTuple):
    """Space around the plot, in pixels."""

    left: int
    top: int
    right: int
    bottom: int


BUDGET_HEIGHT, PLOT_HEIGHT = 46, 190
STEPS_PADS, FORECAST_PADS = Pads(40, 18, 4, 24), Pads(40, 6, 4, 24)
"""Heights and space around of charts that tooltips are laid over, in pixels."""


def chart_of(values: Sequence[dict[str, Any]]) -> Any:
    """An Altair chart of these rows, without a mark yet."""
    import altair as alt

    return alt.Chart(alt.Data(values=list(values)))


def across(field: str, width: float) -> Any:
    """A place along the width, given in pixels."""
    import altair as alt

    return alt.X(f"{field}:Q", scale=alt.Scale(domain=[0, width], nice=False), axis=None)


def down(field: str, height: float) -> Any:
    """A place down the height, given in pixels from the top."""
    import altair as alt

    return alt.Y(f"{field}:Q", scale=alt.Scale(domain=[0, height], nice=False, reverse=True), axis=None)


def axis(**settings: Any) -> Any:
    """An axis of light lines and small labels, none of which the library may leave out.

    Args:
        settings: Settings of Altair's axis that differ.
    """
    import altair as alt

    look = {
        "title": None,
        "domain": False,
        "ticks": False,
        "grid": True,
        "gridColor": LIGHT["line"],
        "labelColor": LIGHT["muted"],
        "labelFontSize": FONT_SIZE,
        "labelPadding": 6,
        "labelOverlap": False,
    }
    return alt.Axis(**{**look, **settings})


def step_axis(domain: list[float], width: float) -> Any:
    """The field ``x`` along the width, with a label about every 90 pixels.

    Args:
        domain: First and last value.
        width: Of the plot, in pixels.
    """
    import altair as alt

    labels = axis(grid=False, tickCount=max(2, int(width // 90)), tickMinStep=1, format=",~f")
    return alt.X("x:Q", scale=alt.Scale(domain=domain, nice=False), axis=labels)


def framed(chart: Any, width: int, height: int, pads: Pads) -> Any:
    """A chart of ``width`` pixels whose plot is ``height`` pixels high."""
    room = {"left": pads.left, "top": pads.top, "right": pads.right, "bottom": pads.bottom}
    return chart.properties(
        width=width - pads.left - pads.right, height=height, padding=room, autosize={"type": "none"}
    ).configure(
        font=FONT if language() == ENGLISH else FONT.replace("sans-serif", f"{CHINESE_FONT}, sans-serif"),
        aria=False,
        background="transparent",
        view={"stroke": None},
        text={"fontSize": FONT_SIZE},
    )


def to_svg(chart: Any, identifier: str, title: str, description: str) -> str:
    """A chart as SVG that says its title and description to a screen reader.

    Args:
        chart: An Altair chart.
        identifier: Unique in the page; names the two elements.
        title: Short.
        description: What the chart shows, in a sentence.
    """
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(chart.to_dict(validate=False))
    size = re.match(r'<svg[^>]* width="([\d.]+)" height="([\d.]+)"', drawn)
    if size is None:
        raise ValueError("vl-convert drew no SVG with a size")
    width, height = size.groups()
    body = drawn[drawn.index(">") + 1 :]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-labelledby="{identifier}-title {identifier}-desc">'
        f'<title id="{identifier}-title">{escape(title)}</title>'
        f'<desc id="{identifier}-desc">{escape(description)}</desc>'
    )
    return head + slim(body)


def slim(svg: str) -> str:
    """Drop what draws nothing (grounds of groups, hints for interaction); round to hundredths of a pixel."""
    svg = re.sub(r'<path class="(?:background|foreground)"[^>]*/>', "", svg)
    svg = re.sub(r' (?:pointer-events|aria-[a-z]+|class|role|stroke-miterlimit)="[^"]*"', "", svg)
    svg = re.sub(r"-?\d+\.\d{3,}(?:e-?\d+)?", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), svg)
    return re.sub(r"<g></g>", "", svg)
