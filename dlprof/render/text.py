"""The report as plain text for a chat, and the few lines for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlprof.model.gains import WORTH_TRYING
from dlprof.model.kinds import Cause
from dlprof.model.moments import Moment
from dlprof.model.report import Report
from dlprof.render.blocks import AdviceView, Block, Code, Facts, Figure, Listing, Prose, ReportView, Table
from dlprof.render.numbers import percent
from dlprof.render.plain import cut, entry, name, text
from dlprof.render.select import budget_rows
from dlprof.render.view import ended, view
from dlprof.render.wording import advice_caveat, cause_name
from dlprof.render.wrapping import padded, width_of, wrap
from dlprof.words import shown as in_force
from dlprof.words import tr

WIDTH = 80
CELL_LIMIT = 44
SMALL_PART = 0.025
"""Share of the step below which a part is not named on the terminal."""

NOTICES_ON_TERMINAL = 2

_FILLS = "█▓▒░▞▚▙▜▪"
"""One fill for each part of a bar, so that it can be read without colour."""

_UNREMARKABLE = {"fewer-steps", "first-batches-from-full-queue", "other-process-ignored"}
"""Notices that a reader of the terminal can do without; they stand in the report."""
SAID_APART = ("set-refused", "set-unused", "set-not-pickled", "set-imported-anew")
"""Notices on ``--set`` that the terminal shows whole: nobody may take the run for one with these settings."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the terminal shows after a run, without colours.

    Attributes:
        headline: One sentence.
        bar: Name and share (0 to 1) of each part of the mean step, largest first; empty without a budget.
        advice: Best advice with its gain, then its lines to paste; empty without advice.
        gains: Whether that advice makes the step faster.
        notices: At most two, those that bear on the result.
        path: The report that was written, or empty.
    """

    headline: str
    bar: tuple[tuple[str, float], ...]
    advice: tuple[str, ...]
    gains: bool
    notices: tuple[str, ...]
    path: str


def summary(report: Report, path: str = "") -> Summary:
    """The few lines for the terminal.

    Args:
        report: Composed or loaded from its JSON.
        path: Where the report was written.
    """
    shown = view(report)
    advice: list[str] = []
    if shown.advice:
        best = shown.advice[0]
        caveat = advice_caveat(report.advice[0])
        worth = tr(", ").join(part for part in (_worth(best), caveat) if part)
        advice.append(entry(best.title, worth) if worth else best.title)
        lines = next((block.text for block in best.how if isinstance(block, Code)), "")
        advice += [f"    {line}" for line in lines.split("\n") if line]
    notices = [name(notice.text, 400) for notice in report.notices if notice.slug not in (*_UNREMARKABLE, *SAID_APART)]
    if bad_end := ended(report):
        notices.insert(0, in_force(bad_end))
    return Summary(
        headline=name(report.verdict.headline, 600),
        bar=_bar(report),
        advice=tuple(advice),
        gains=bool(report.advice and report.advice[0].speedup and report.advice[0].speedup[1] >= WORTH_TRYING),
        notices=tuple(notices[:NOTICES_ON_TERMINAL]),
        path=path,
    )


def _bar(report: Report) -> tuple[tuple[str, float], ...]:
    """Parts of the budget; small ones, except for the wait for input, are one."""
    rows = budget_rows(report)
    large = [row for row in rows if row.share >= SMALL_PART or row.cause is Cause.INPUT_WAIT]
    if len(rows) - len(large) < 2:
        return tuple((cause_name(row.cause), row.share) for row in rows)
    rest = sum(row.share for row in rows if row not in large)
    return (*((cause_name(row.cause), row.share) for row in large), (tr("the rest"), rest))


def bar_cells(shares: Sequence[float], width: int) -> list[int]:
    """How many cells of a bar each share takes; they add up to ``width``.

    Args:
        shares: Parts, at least 0; their sum is the whole bar.
        width: Cells of the bar.
    """
    total = sum(shares)
    if total <= 0:
        return [0] * len(shares)
    ends, reached = [], 0.0
    for share in shares:
        reached += share / total
        ends.append(round(reached * width))
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def bar_lines(bar: Sequence[tuple[str, float]], width: int) -> list[str]:
    """A bar of blocks with its legend below, in lines of at most ``width`` characters."""
    if not bar:
        return []
    cells = bar_cells([share for _, share in bar], width)
    drawn = "".join(fill * number for fill, number in zip(_FILLS, cells, strict=False))
    legend = [f"{fill} {label} {percent(share)}" for fill, (label, share) in zip(_FILLS, bar, strict=False)]
    lines = [""]
    for part in legend:
        joined = f"{lines[-1]}   {part}" if lines[-1] else part
        if width_of(joined) > width and lines[-1]:
            lines.append(part)
        else:
            lines[-1] = joined
    return [drawn, *lines]


def _worth(item: AdviceView) -> str:
    note = item.gain_note.removeprefix(tr("forecast: {before} → {after} ms per step").partition("{")[0])
    gain = f"{item.gain} {item.gain_word}".strip()
    if gain and note:
        return f"{gain} ({note})"
    return gain or note


def render_text(report: Report, moments: Sequence[Moment] = ()) -> str:
    """The whole report as plain text, at most 80 characters a line where words allow it.

    Args:
        report: Composed or loaded from its JSON.
        moments: Single steps to show; the JSON has none.
    """
    bar = tuple((cause_name(row.cause), row.share) for row in budget_rows(report))
    return text_page(view(report, moments), bar)


def text_page(shown: ReportView, bar: Sequence[tuple[str, float]] = ()) -> str:
    """A view as plain text.

    Args:
        shown: What it says.
        bar: Name and share of each part of the mean step.
    """
    lines = _head(shown, bar)
    for section in shown.sections:
        lines += ["", section.title, "-" * width_of(section.title), *_blocks(section.blocks)]
    lines += ["", tr("Made by dlprof {version}.", version=shown.version)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _head(shown: ReportView, bar: Sequence[tuple[str, float]]) -> list[str]:
    lines = wrap(shown.headline, WIDTH)
    lines += wrap(entry(shown.confidence, shown.confidence_reason), WIDTH)
    if shown.ended:
        lines += wrap(shown.ended, WIDTH)
    lines += ["", *wrap(shown.command, WIDTH), *_joined(shown.origin)]
    lines += _joined([f"{fact.label} {fact.value}" for fact in shown.key_figures])
    if bar and shown.budget is not None:
        lines += ["", shown.budget.title, *bar_lines(bar, WIDTH)]
    if shown.advice or shown.advice_note:
        heading = tr("What to change")
        lines += ["", heading, "-" * width_of(heading)]
    for index, item in enumerate(shown.advice):
        lines += [""] if index else []
        worth = _worth(item)
        lines += wrap(entry(item.title, worth) if worth else item.title, WIDTH)
        lines += _blocks(item.how)
        if item.evidence:
            because = tr("; ").join(f"{fact.label} {fact.value}" for fact in item.evidence)
            lines += [""] if lines[-1].startswith("    ") else []
            lines += wrap(entry(tr("Because"), because), WIDTH)
    if shown.advice_note:
        lines += ["", *wrap(shown.advice_note, WIDTH)] if shown.advice else wrap(shown.advice_note, WIDTH)
    return lines


def _joined(parts: Sequence[str]) -> list[str]:
    """Parts on as few lines as hold them, none broken where it fits a line."""
    if width_of(" · ".join(parts)) != len(" · ".join(parts)):
        lines: list[str] = []
        for part in parts:
            longer = f"{lines[-1]} · {part}" if lines else part
            lines[-1:] = [longer] if width_of(longer) <= WIDTH else [*lines[-1:], part]
        return lines
    tied = " · ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in wrap(tied, WIDTH)]


def _blocks(blocks: Sequence[Block]) -> list[str]:
    lines: list[str] = []
    for block in blocks:
        shown = _block(block)
        if lines and (isinstance(block, Table | Facts | Code) or lines[-1].startswith("    ")):
            lines.append("")
        lines += shown
    return lines


def _block(block: Block) -> list[str]:
    if isinstance(block, Prose):
        return wrap(text(block.text), WIDTH)
    if isinstance(block, Code):
        return [f"    {line}" for line in block.text.split("\n")]
    if isinstance(block, Figure):
        return wrap(block.description, WIDTH)
    if isinstance(block, Listing):
        return [
            line for item in block.items for line in wrap(entry(item.label, item.value), WIDTH, subsequent_indent="  ")
        ]
    if isinstance(block, Facts):
        width = max((width_of(fact.label) for fact in block.rows), default=0)
        indent = " " * (min(width, CELL_LIMIT) + 2)
        return [
            line
            for fact in block.rows
            for line in wrap(
                f"{padded(cut(fact.label, CELL_LIMIT), len(indent))}{fact.value}",
                WIDTH,
                subsequent_indent=indent,
                whole_words=True,
            )
        ]
    return _table(block)


def _table(table: Table) -> list[str]:
    return [table.caption, *columns(table)]


def columns(table: Table) -> list[str]:
    """The head and the rows of a table, in columns."""
    rows = [[cut(cell, CELL_LIMIT) for cell in row] for row in (table.head, *table.rows)]
    widths = [max(width_of(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            padded(cell, width, right=kind == "number")
            for cell, width, kind in zip(row, widths, table.columns, strict=True)
        )
        for row in rows
    ]


assert len(_FILLS) >= len(Cause)  # noqa: S101 - a bar must not lose a part
