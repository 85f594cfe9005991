"""The result of ``dlprof compare``: the page that a report has, with two runs side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from dlprof.errors import DlprofError
from dlprof.model.compare import Compare, Difference, Direction, Explained, Side, Triple
from dlprof.model.kinds import Confidence
from dlprof.model.report import UNKNOWN_HOST
from dlprof.render.blocks import Block, Fact, Figure, Listing, Prose, ReportView, Section, Table
from dlprof.render.charts import Drawing
from dlprof.render.compare_chart import draw_changes
from dlprof.render.html import html_page
from dlprof.render.markdown import markdown_page
from dlprof.render.numbers import TO, column, count, gain, milliseconds
from dlprof.render.pdf import render_pdf
from dlprof.render.plain import entry, name
from dlprof.render.plain import setting as setting_value
from dlprof.render.text import columns as in_columns
from dlprof.render.text import text_page
from dlprof.render.view import moment, script_of
from dlprof.render.wording import bottleneck_name, cause_name, compare_text, component_name, fact_name
from dlprof.words import joined, marked, tr

_WORDS = {
    Direction.SHORTER: marked("shorter"),
    Direction.LONGER: marked("longer"),
    Direction.SAME: marked("not significant"),
    Direction.UNKNOWN: TO,
}

_SMALL = 0.002
"""Share of the step below which work on a batch is not shown."""


def render_compare(compared: Compare, formats: Iterable[str]) -> Iterator[tuple[str, bytes | DlprofError]]:
    """Several formats of one result.

    Args:
        compared: The result.
        formats: Of ``html``, ``pdf``, ``md`` and ``txt``.

    Yields:
        File name, and its bytes or the error that kept it from being made (PDF without Pango).
    """
    shown = compare_view(compared)
    html: str | None = None
    for format_ in formats:
        file_name = f"report.{format_}"
        try:
            if format_ in ("html", "pdf"):
                html = html if html is not None else html_page(shown, _drawings(compared, shown))
                yield file_name, html.encode() if format_ == "html" else render_pdf(html)
            else:
                page = markdown_page(shown) if format_ == "md" else text_page(shown)
                yield file_name, page.encode()
        except DlprofError as error:
            yield file_name, error


def compare_lines(compared: Compare) -> list[str]:
    """The result for the terminal: its sentence, what to know before, the causes in a table, what settings explain."""
    lines = [name(compared.conclusion, 600)]
    lines += [name(caution.text, 600) for caution in compared.cautions]
    if compared.causes:
        lines += ["", *in_columns(_causes_table(compared))]
    if compared.settings:
        changed = (
            f"{row.setting} {setting_value(row.before)} → {setting_value(row.after)}" for row in compared.settings
        )
        lines += ["", entry(tr("Settings that differ"), name(tr(", ").join(changed), 600))]
    if compared.explained is not None:
        lines.append(_explanation(compared.explained, compared))
    return lines


def compare_view(compared: Compare) -> ReportView:
    """Everything that the result says, as strings."""
    before, after = compared.before, compared.after
    scripts = list(dict.fromkeys(script_of(side.command) for side in (before, after)))
    others = any(caution.slug == "loaded" for caution in compared.cautions)
    sections = (
        _cautions(compared),
        _changes(compared),
        _settings(compared),
        _work(compared),
        _facts(compared),
        _runs(compared),
    )
    return ReportView(
        title=entry(tr(", ").join(scripts), tr("two runs compared")),
        running=f"dlprof {name(compared.dlprof, 40)} · {', '.join(scripts)} · {moment(compared.created)}",
        version=name(compared.dlprof),
        headline=name(compared.conclusion, 600),
        command=name(shlex.join(["dlprof", "compare", before.source, after.source]), 200),
        origin=(f"{moment(before.created)} → {moment(after.created)}", *_hosts(before, after)),
        ended="",
        confidence=tr("Measured"),
        confidence_reason=tr("{clause}.", clause=compare_text("intervals", others=others)),
        key_figures=_key_figures(compared),
        budget=None,
        advice=(),
        advice_note="",
        sections=tuple(section for section in sections if section is not None),
    )


def _hosts(before: Side, after: Side) -> tuple[str, ...]:
    return tuple(name(host, 80) for host in dict.fromkeys((before.host, after.host)) if host != UNKNOWN_HOST)


def _key_figures(compared: Compare) -> tuple[Fact, ...]:
    step = compared.step
    facts = [
        Fact(compare_text("mean-first", per=compared.per), milliseconds(step.before_ms)),
        Fact(compare_text("mean-second", per=compared.per), milliseconds(step.after_ms)),
    ]
    if step.speedup is not None:
        facts.append(Fact(tr("second run, times as fast"), gain(step.speedup)))
    return (
        *facts,
        Fact(
            tr("steps measured"), tr("{before} and {after}", before=compared.before.steps, after=compared.after.steps)
        ),
    )


# ---- sections -------------------------------------------------------------------------------------------------------


def _cautions(compared: Compare) -> Section | None:
    if not compared.cautions:
        return None
    return Section(
        "cautions", tr("Before you compare"), tuple(Prose(name(each.text, 600)) for each in compared.cautions)
    )


def _changes(compared: Compare) -> Section | None:
    if not compared.causes:
        return None
    title = compare_text("title", per=compared.per)
    spoken = tr("; ").join(
        tr(
            "{cause} {before} before, {after} after, {direction}",
            cause=cause_name(row.cause),
            before=milliseconds(row.before_ms),
            after=milliseconds(row.after_ms),
            direction=tr(_WORDS[row.direction])
            if row.direction is not Direction.UNKNOWN
            else tr("without an interval"),
        )
        for row in compared.causes
    )
    text = compare_text("figure", rows=tr("{clause}.", clause=f"{spoken[:1].upper()}{spoken[1:]}"))
    table = _causes_table(compared)
    return Section(
        "changes", tr("What changed"), (Figure("changes", title, text), table, Prose(compare_text("rows-note")))
    )


def _causes_table(compared: Compare) -> Table:
    rows = [
        (compare_text("whole", per=compared.per), compared.step),
        *((cause_name(it.cause), it) for it in compared.causes),
    ]
    return _table(compare_text("goes", per=compared.per), compare_text("part", per=compared.per), rows)


def _table(caption: str, first: str, rows: Sequence[tuple[str, Difference]]) -> Table:
    before, after = (column([getattr(it, side) for _, it in rows], TO) for side in ("before_ms", "after_ms"))
    cells = tuple(
        (label, old, new, tr(_WORDS[it.direction]), _change(it.difference_ms))
        for (label, it), old, new in zip(rows, before, after, strict=True)
    )
    head = (first, tr("before"), tr("after"), tr("it is"), tr("change (95 % interval)"))
    return Table(caption, head, ("text", "number", "number", "text", "number"), cells)


def _change(interval: Triple | None) -> str:
    """A signed change with its interval, all with as many decimals."""
    if interval is None:
        return TO
    largest = max(map(abs, interval))
    decimals = 0 if largest >= 1000 else 1 if largest >= 9.995 else 2
    # What rounds to nothing has no sign.
    low, middle, high = (f"{value:+.{decimals}f}" if (value := round(it, decimals)) else "0" for it in interval)
    return tr("{middle} ({low} to {high})", middle=middle, low=low, high=high)


def _work(compared: Compare) -> Section | None:
    if not compared.components:
        return None
    least_ms = _SMALL * max(compared.step.before_ms or 0.0, compared.step.after_ms or 0.0)
    shown = [it for it in compared.components if max(it.before_ms or 0.0, it.after_ms or 0.0) >= least_ms]
    rows = [(component_name(it.component), it) for it in shown]
    table = _table(compare_text("work", per=compared.per), tr("Component"), rows)
    return Section("work", tr("Inside the loader"), (table,))


def _settings(compared: Compare) -> Section | None:
    if any(caution.slug == "settings-unknown" for caution in compared.cautions):
        return None
    if not compared.settings:
        return Section("changed-settings", tr("Loader settings"), (Prose(compare_text("no-settings")),))
    rows = tuple(
        (
            name(row.setting, 60),
            setting_value(row.before),
            setting_value(row.after),
            _change(row.forecast_ms),
        )
        for row in compared.settings
    )
    head = (tr("Setting"), tr("before"), tr("after"), compare_text("forecast-change", per=compared.per))
    blocks: list[Block] = [Table(tr("Settings that differ"), head, ("code", "text", "text", "number"), rows)]
    if compared.explained is not None:
        blocks.append(Prose(_explanation(compared.explained, compared)))
        blocks.append(Prose(compare_text("settings-note")))
    else:
        blocks.append(Prose(compare_text("no-forecast")))
    return Section("changed-settings", tr("Loader settings"), tuple(blocks))


def _explanation(explained: Explained, compared: Compare) -> str:
    step = compared.step
    measured = step.difference_ms
    if measured is None and step.before_ms is not None and step.after_ms is not None:
        measured = (step.after_ms - step.before_ms,) * 3
    return compare_text(
        "explained-agrees" if explained.agrees else "explained-not",
        settings=tr(", ").join(explained.settings),
        one=len(explained.settings) == 1,
        per=compared.per,
        forecast=f"{_change(explained.forecast_ms)} ms",
        measured=f"{_change(measured)} ms",
        left=f"{_change((explained.left_ms,) * 3).partition(' ')[0]} ms",
        low=explained.confidence is Confidence.LOW,
    )


def _facts(compared: Compare) -> Section | None:
    if not compared.facts:
        return None
    rows = tuple(
        (fact_name(name(it.what, 60)), setting_value(it.before) or TO, setting_value(it.after) or TO)
        for it in compared.facts
    )
    table = Table(
        tr("Beside the loader's settings"), (tr("What"), tr("before"), tr("after")), ("text", "text", "text"), rows
    )
    return Section("facts", tr("What else differs"), (table,))


def _runs(compared: Compare) -> Section:
    items = []
    for which, side in ((tr("First run"), compared.before), (tr("Second run"), compared.after)):
        cores = "" if side.load is None else count(round(side.load, 2))
        load = tr("Other programs kept {cores} cores busy.", cores=cores) if cores else ""
        verdict = bottleneck_name(side.bottleneck)
        label = tr("{which}, {source} ({verdict})", which=which, source=name(side.source, 120), verdict=verdict)
        items.append(Fact(label, joined(name(side.headline, 400), load)))
    return Section("runs", tr("The two runs"), (Listing(tuple(items)),))


def _drawings(compared: Compare, shown: ReportView) -> dict[str, Drawing]:
    figure = next((b for section in shown.sections for b in section.blocks if isinstance(b, Figure)), None)
    return {} if figure is None else draw_changes(compared, figure.title, figure.description)
