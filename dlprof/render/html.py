"""The report as one HTML file that needs neither network nor JavaScript."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from dlprof.model.moments import Moment
from dlprof.model.report import Report
from dlprof.render import palette
from dlprof.render.blocks import Figure, ReportView
from dlprof.render.charts import Drawing, draw
from dlprof.render.plain import tie
from dlprof.render.templates import page, style, trusted
from dlprof.render.view import view
from dlprof.words import CHINESE, TAGS, language


def render_html(report: Report, moments: Sequence[Moment] = ()) -> str:
    """The whole report as one page.

    Args:
        report: Composed or loaded from its JSON.
        moments: Single steps to show; the JSON has none.

    Returns:
        An HTML document whose content security policy allows no request.
    """
    shown = view(report, moments)
    return html_page(shown, draw(report, _chart_texts(shown), moments))


def html_page(shown: ReportView, drawings: Mapping[str, Drawing]) -> str:
    """A view as one page.

    Args:
        shown: What it says.
        drawings: Its charts by their names; one that is missing is left out.
    """
    return page(
        "report.html.j2",
        report=shown,
        drawings={
            key: {
                "widths": (
                    ("wide", trusted(item.wide), item.wide_tips),
                    ("narrow", trusted(item.narrow), item.narrow_tips),
                ),
                "legend": item.legend,
            }
            for key, item in drawings.items()
        },
        style=_style(),
        tie=tie,
        breakable=breakable,
        language=TAGS[language()],
    )


def breakable(code: str) -> str:
    """A path or a name with places where a line may end: behind ``/``, and behind ``.`` but in a file's name."""
    return trusted("<wbr>").join(re.split(r"(?<=/)(?=.)|(?<=[a-z]\.)(?=[A-Za-z_])(?!py\b)", code))


def _style() -> Markup:
    sheets = ["report.css", "print.css", *(["chinese.css"] if language() == CHINESE else [])]
    return trusted(palette.style()) + trusted("").join(map(style, sheets))


def _chart_texts(shown: ReportView) -> dict[str, tuple[str, str]]:
    texts = {}
    if shown.budget is not None:
        texts["budget"] = (shown.budget.title, shown.budget.description)
    for section in shown.sections:
        for block in section.blocks:
            if isinstance(block, Figure):
                texts[block.chart] = (block.title, block.description)
    return texts
