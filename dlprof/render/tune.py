"""The result of ``dlprof tune``: the page that a report has, with what was tried and what it measured."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from dlprof.errors import DlprofError
from dlprof.model.tune import Ending, TrialRow, Triple, Tune
from dlprof.render.blocks import AdviceView, Block, Fact, Facts, Figure, Listing, ReportView, Section, Table
from dlprof.render.charts import Drawing
from dlprof.render.html import html_page
from dlprof.render.markdown import markdown_page
from dlprof.render.numbers import NOT_MEASURED, TO, column, gain, milliseconds, seconds
from dlprof.render.pdf import render_pdf
from dlprof.render.plain import entry, name
from dlprof.render.plain import setting as setting_value
from dlprof.render.text import columns as in_columns
from dlprof.render.text import text_page
from dlprof.render.tune_chart import draw_trials
from dlprof.render.view import moment, paragraphs, script_of
from dlprof.render.wording import UNSTEADY, advice_title, largest_gap, settings_name, tune_text
from dlprof.words import shown as in_force
from dlprof.words import tr

_SHOWN_SETTINGS = (
    "made_at",
    "dataset",
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "in_order",
)

_ENDED_EARLY = (Ending.INTERRUPTED, Ending.BUDGET, Ending.TRIALS_FAIL)


def render_tune(tune: Tune, formats: Iterable[str]) -> Iterator[tuple[str, bytes | DlprofError]]:
    """Several formats of one result.

    Args:
        tune: The result.
        formats: Of ``html``, ``pdf``, ``md`` and ``txt``.

    Yields:
        File name, and its bytes or the error that kept it from being made (PDF without Pango).
    """
    shown = tune_view(tune)
    html: str | None = None
    for format_ in formats:
        file_name = f"report.{format_}"
        try:
            if format_ in ("html", "pdf"):
                html = html if html is not None else html_page(shown, _drawings(tune, shown))
                yield file_name, html.encode() if format_ == "html" else render_pdf(html)
            else:
                page = markdown_page(shown) if format_ == "md" else text_page(shown)
                yield file_name, page.encode()
        except DlprofError as error:
            yield file_name, error


def tune_lines(tune: Tune) -> list[str]:
    """The result for the terminal: a table, then the lines to paste; without its conclusion, which is a sentence."""
    lines = [name(tune.conclusion, 600)]
    if tune.trials:
        lines += in_columns(_trials_table(tune, terminal=True))
    return [*lines, *(line for line in in_force(tune.how).split("\n") if line.startswith("    "))]


def tune_view(tune: Tune) -> ReportView:
    """Everything that the result says, as strings."""
    script = script_of(tune.command)
    winner = _winner(tune)
    runs = sum(len(row.runs) for row in (tune.baseline, *tune.trials))
    return ReportView(
        title=entry(script, tr("settings tried")),
        running=f"dlprof {name(tune.dlprof, 40)} · {script} · {moment(tune.created)}",
        version=name(tune.dlprof),
        headline=name(tune.conclusion, 600),
        command=name(shlex.join(tune.command), 200) if tune.command else "",
        origin=(moment(tune.created), name(tune.host, 80)),
        ended=tune_text(tune.ending.value) if tune.ending in _ENDED_EARLY else "",
        confidence=tr("Measured"),
        confidence_reason=tr("{clause}.", clause=tune_text("measured", runs=runs, time=seconds(tune.elapsed_s))),
        key_figures=_key_figures(tune, winner),
        budget=None,
        advice=(_advice(tune, winner),) if winner is not None else (),
        advice_note="" if winner is not None else _keep(tune),
        sections=tuple(section for section in (_trials(tune), _loader(tune), _runs(tune)) if section is not None),
    )


def _keep(tune: Tune) -> str:
    """What to do without a winner."""
    unsteady = largest_gap([tune.baseline, *tune.trials]) > UNSTEADY
    return tune_text("keep-unsteady" if unsteady else "keep")


def _winner(tune: Tune) -> TrialRow | None:
    return next((row for row in tune.trials if row.number == tune.winner), None)


def _key_figures(tune: Tune, winner: TrialRow | None) -> tuple[Fact, ...]:
    facts = [Fact(tr("mean step now"), milliseconds(_middle(tune.baseline.step_ms)))]
    if winner is not None:
        facts.append(Fact(tr("with the winner"), milliseconds(_middle(winner.step_ms))))
    facts.append(Fact(tr("settings tried"), str(len(tune.trials))))
    return tuple(facts)


def _advice(tune: Tune, winner: TrialRow) -> AdviceView:
    old, new = tune.loader.get("num_workers"), winner.settings.get("num_workers")
    title = tr("Set {settings}", settings=settings_name(winner.settings))
    if list(winner.settings) == ["num_workers"] and isinstance(old, int) and isinstance(new, int):
        title = advice_title("raise-num-workers" if new > old else "lower-num-workers", old, new)
    before, after = column([_middle(tune.baseline.step_ms), _middle(winner.step_ms)])
    return AdviceView(
        id="tune",
        title=name(title, 200),
        gain=gain(winner.speedup),
        gain_word=tr("faster"),
        gain_note=tr("measured: {before} → {after} ms per step", before=before, after=after),
        how=paragraphs(tune.how),
        evidence=(),
    )


def _middle(interval: Triple | None) -> float | None:
    return interval[1] if interval is not None else None


# ---- sections -------------------------------------------------------------------------------------------------------


def _trials(tune: Tune) -> Section | None:
    if not tune.trials:
        return None
    title = tr("Time of a step, ms")
    spoken = tr("; ").join(
        entry(settings_name(row.settings), milliseconds(_middle(row.step_ms))) for row in (tune.baseline, *tune.trials)
    )
    blocks: list[Block] = [
        Figure("trials", title, tune_text("figure", rows=tr("{clause}.", clause=f"{spoken[:1].upper()}{spoken[1:]}")))
    ]
    blocks.append(_trials_table(tune))
    failed = [
        Fact(settings_name(row.settings), name(run.failure.text, 600))
        for row in tune.trials
        for run in row.runs
        if run.failure is not None
    ]
    if failed:
        blocks.append(Listing(tuple(failed)))
    return Section("trials", tr("What was tried"), tuple(blocks))


def _trials_table(tune: Tune, *, terminal: bool = False) -> Table:
    """One row per setting. On the terminal the winner and failures are marked in the row itself."""
    rows = []
    for row in (tune.baseline, *tune.trials):
        failure = next((run.failure for run in row.runs if run.failure is not None), None)
        forecast = _with_ends(row.forecast.step_ms) if row.forecast else TO
        measured = (
            _with_ends(row.step_ms)
            if row.step_ms
            else (name(tr(failure.slug.replace("-", " ")), 30) if failure else tr(NOT_MEASURED))
        )
        speedup = gain(row.speedup) if row.speedup else TO
        won = row.number == tune.winner
        label = settings_name(row.settings)
        cells = [
            f"{'* ' if won else '  '}{label}"
            if terminal
            else tr("{settings} (the winner)", settings=label)
            if won
            else label
        ]
        rows.append((*cells, forecast, measured, speedup, str(len(row.runs))))
    first = f"  {tr('settings')}" if terminal else tr("Settings")
    head = (first, tr("forecast, ms"), tr("measured, ms"), tr("speedup"), tr("runs"))
    return Table(tr("Forecast and measured"), head, ("text", "number", "number", "number", "number"), tuple(rows))


def _with_ends(interval: Triple) -> str:
    low, middle, high = column(interval)
    return f"{middle} ({low}{TO}{high})"


def _loader(tune: Tune) -> Section | None:
    shown = [
        Fact(tr(key.replace("_at", " at")), setting_value(tune.loader[key]))
        for key in _SHOWN_SETTINGS
        if key in tune.loader
    ]
    if not shown:
        return None
    return Section("loader", tr("The loader"), (Facts(tr("As the script makes it"), tuple(shown)),))


def _runs(tune: Tune) -> Section:
    rows = [
        (
            name(run.folder, 80),
            settings_name(row.settings),
            "" if run.step_ms is None else milliseconds(run.step_ms),
            str(run.steps),
            seconds(run.elapsed_s),
        )
        for row in (tune.baseline, *tune.trials)
        for run in row.runs
    ]
    head = (tr("Folder"), tr("settings"), tr("mean step"), tr("steps"), tr("took"))
    table = Table(
        tr("Each run; 'dlprof report FOLDER' makes its report"),
        head,
        ("code", "text", "number", "number", "number"),
        tuple(rows),
    )
    return Section("runs", tr("Runs"), (table,))


def _drawings(tune: Tune, shown: ReportView) -> dict[str, Drawing]:
    figure = next((b for section in shown.sections for b in section.blocks if isinstance(b, Figure)), None)
    return {} if figure is None else draw_trials(tune, figure.title, figure.description)
