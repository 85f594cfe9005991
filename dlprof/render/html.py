"""The report as one HTML file that needs neither network nor JavaScript."""

from __future__ import annotations

from dlprof.model.report import Report
from dlprof.render import palette
from dlprof.render.blocks import Figure, ReportView
from dlprof.render.charts import draw
from dlprof.render.plain import tie
from dlprof.render.templates import page, style, trusted
from dlprof.render.view import view


def render_html(report: Report) -> str:
    """The whole report as one page.

    Args:
        report: Composed or loaded from its JSON.

    Returns:
        An HTML document whose content security policy allows no request.
    """
    shown = view(report)
    drawings = draw(report, _chart_texts(shown))
    return page(
        "report.html.j2",
        report=shown,
        drawings={
            key: {"wide": trusted(item.wide), "narrow": trusted(item.narrow), "legend": item.legend}
            for key, item in drawings.items()
        },
        style=trusted(palette.style()) + style("report.css") + style("print.css"),
        tie=tie,
    )


def _chart_texts(shown: ReportView) -> dict[str, tuple[str, str]]:
    texts = {}
    if shown.budget is not None:
        texts["budget"] = (shown.budget.title, shown.budget.description)
    for section in shown.sections:
        for block in section.blocks:
            if isinstance(block, Figure):
                texts[block.chart] = (block.title, block.description)
    return texts
