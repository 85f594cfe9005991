"""`Report` to html, pdf, md and txt, and the words that go into a report.

Only this package uses jinja2, WeasyPrint, Altair and vl-convert. The last three load when a page is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dlprof.errors import DlprofError
from dlprof.model.moments import Moment
from dlprof.model.report import Report
from dlprof.render.brief import BRIEF_WIDTH, render_brief
from dlprof.render.compare import compare_lines, render_compare
from dlprof.render.html import render_html
from dlprof.render.markdown import markdown_excerpts, render_markdown
from dlprof.render.pdf import Pdf, render_pdf
from dlprof.render.text import Summary, render_text, summary
from dlprof.render.tune import render_tune, tune_lines

__all__ = [
    "BRIEF_WIDTH",
    "RENDERERS",
    "Pdf",
    "Renderer",
    "Summary",
    "compare_lines",
    "markdown_excerpts",
    "render_brief",
    "render_compare",
    "render_each",
    "render_html",
    "render_markdown",
    "render_pdf",
    "render_text",
    "render_tune",
    "summary",
    "tune_lines",
]


@dataclass(frozen=True, slots=True)
class Renderer:
    """A format of the report: the file's name in a run's folder, and what makes its bytes."""

    file_name: str
    render: Callable[[Report, Sequence[Moment]], bytes]


RENDERERS: dict[str, Renderer] = {
    "html": Renderer("report.html", lambda report, moments: render_html(report, moments).encode()),
    "pdf": Renderer("report.pdf", lambda report, moments: render_pdf(render_html(report, moments))),
    "md": Renderer("report.md", lambda report, moments: render_markdown(report, moments).encode()),
    "txt": Renderer("report.txt", lambda report, moments: render_text(report, moments).encode()),
}
"""Formats by the name they have in ``--format``. JSON is written by `dlprof.formats`."""


def render_each(
    report: Report, formats: Iterable[str], moments: Sequence[Moment] = ()
) -> Iterator[tuple[str, bytes | DlprofError]]:
    """Several formats of one report; the page that HTML and PDF share is made once.

    Args:
        report: Composed or loaded from its JSON.
        formats: Keys of `RENDERERS`.
        moments: Single steps to show.

    Yields:
        File name, and its bytes or the error that kept it from being made (PDF without Pango).
    """
    html: str | None = None
    for name in formats:
        renderer = RENDERERS[name]
        try:
            if name in ("html", "pdf"):
                html = html if html is not None else render_html(report, moments)
                yield renderer.file_name, html.encode() if name == "html" else render_pdf(html)
            else:
                yield renderer.file_name, renderer.render(report, moments)
        except DlprofError as error:
            yield renderer.file_name, error
