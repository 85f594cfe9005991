"""The report as Markdown for a ticket: GitHub and GitLab draw it whole, Jira its headings and tables.

Strings from the script stand in code spans or are escaped; ``@`` and ``#`` never become a mention or a reference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dlprof.model.moments import Moment
from dlprof.model.report import Report
from dlprof.render.blocks import AdviceView, Block, Code, Facts, Figure, Listing, Prose, ReportView, Section, Table
from dlprof.render.plain import cut, entry
from dlprof.render.view import view
from dlprof.words import tr

CHARACTERS_AT_MOST = 60_000
"""Source: GitHub refuses comments of more than 65,536 characters."""

_OPEN = {"steps", "forecast", "parts", "more-advice", "loader", "trials", "cautions", "changes", "changed-settings"}
"""Sections that are not folded."""

_WORD_JOINER = "\u2060"


def render_markdown(report: Report, moments: Sequence[Moment] = ()) -> str:
    """The whole report, below `CHARACTERS_AT_MOST` characters.

    Args:
        report: Composed or loaded from its JSON.
        moments: Single steps to show; the JSON has none.
    """
    return markdown_page(view(report, moments))


def markdown_excerpts(report: Report) -> tuple[str, str]:
    """The headline with the figures beside it, and the advice, for a page that shows Markdown of others.

    Args:
        report: Composed or loaded from its JSON.
    """
    shown = view(report)
    ended = f"**{escape(shown.ended)}**\n\n" if shown.ended else ""
    figures = " · ".join(f"{escape(fact.label)} **{escape(fact.value)}**" for fact in shown.key_figures)
    # Without what folds: such pages show its tags as text.
    advice = "".join(_what_to_change(item) for item in shown.advice)
    note = f"{escape(shown.advice_note)}\n" if shown.advice_note else ""
    return f"## {escape(shown.headline)}\n\n{ended}{figures}\n", advice + note


def markdown_page(shown: ReportView) -> str:
    """A view as Markdown, below `CHARACTERS_AT_MOST` characters.

    Args:
        shown: What it says.
    """
    head = _head(shown)
    parts = [_section(section) for section in shown.sections]
    foot = f"{tr('Made by dlprof {version}.', version=escape(shown.version))}\n"
    left_out = 0
    while parts and len(head) + sum(map(len, parts)) + len(foot) + 200 > CHARACTERS_AT_MOST:
        parts.pop()
        left_out += 1
    if left_out:
        left = tr(
            "{sections} more sections stand in report.html; they would make this text too long.", sections=left_out
        )
        foot = f"{left}\n\n{foot}"
    return cut(head, CHARACTERS_AT_MOST - len(foot) - 1) + "".join(parts) + foot


def escape(text: str) -> str:
    """Text that Markdown shows as it stands, in a paragraph or a table cell."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)
    text = re.sub(r"([@#])(?=\w)", rf"\1{_WORD_JOINER}", text)
    text = re.sub(r"(?m)^(\s*)([#+=-])", r"\1\\\2", text)
    return re.sub(r"(?m)^(\s*\d+)([.)])(?=\s|$)", r"\1\\\2", text)


def code_span(text: str, in_table: bool = False) -> str:
    """Text in a code span, whatever backticks it holds; in a table a bar is escaped, also within a span."""
    if not text:
        return ""
    fence = "`" * (_longest_backticks(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    body = re.sub(r"\s+", " ", text)
    if in_table:
        body = body.replace("|", "\\|")
    return f"{fence}{space}{body}{space}{fence}"


def code_block(text: str) -> str:
    """Lines in a fence that they cannot close."""
    fence = "`" * max(3, _longest_backticks(text) + 1)
    return f"{fence}python\n{text}\n{fence}\n\n"


def _longest_backticks(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _head(shown: ReportView) -> str:
    lines = [f"## {escape(shown.headline)}", ""]
    lines += [tr("**{label}:** {text}", label=escape(shown.confidence), text=escape(shown.confidence_reason)), ""]
    if shown.ended:
        lines += [f"**{escape(shown.ended)}**", ""]
    lines += [" · ".join(f"{escape(fact.label)} **{escape(fact.value)}**" for fact in shown.key_figures), ""]
    if shown.command:
        lines += [code_span(shown.command), ""]
    lines += [" · ".join(escape(part) for part in shown.origin), ""]
    if shown.budget is not None:
        lines += [f"### {escape(shown.budget.title)}", ""]
        rows = [(row.name, row.milliseconds, row.share) for row in shown.budget.rows]
        head = (tr("part"), tr("per step"), tr("share"))
        lines.append(_table(Table("", head, ("text", "number", "number"), tuple(rows))))
    if shown.advice or shown.advice_note:
        lines += [f"### {tr('What to change')}", ""]
    note = f"{escape(shown.advice_note)}\n\n" if shown.advice_note else ""
    return "\n".join(lines) + "\n" + "".join(_advice(item) for item in shown.advice) + note


def _what_to_change(item: AdviceView) -> str:
    worth = f"{item.gain} {item.gain_word}".strip()
    note = tr(", ").join(part for part in (f"**{escape(worth)}**" if worth else "", escape(item.gain_note)) if part)
    return f"#### {escape(item.title)}\n\n" + (f"{note}\n\n" if note else "") + _blocks(item.how)


def _advice(item: AdviceView) -> str:
    text = _what_to_change(item)
    if item.evidence:
        rows = tuple((fact.label, fact.value) for fact in item.evidence)
        table = _table(Table("", (tr("measured"), tr("value")), ("text", "number"), rows))
        text += _folded(tr("Evidence"), table)
    return text


def _section(section: Section) -> str:
    body = _blocks(section.blocks)
    if section.id in _OPEN:
        return f"### {escape(section.title)}\n\n{body}"
    return _folded(section.title, body)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n\n{body}</details>\n\n"


def _blocks(blocks: Sequence[Block]) -> str:
    return "".join(_block(block) for block in blocks)


def _block(block: Block) -> str:
    if isinstance(block, Prose):
        return f"{escape(block.text)}\n\n"
    if isinstance(block, Code):
        return code_block(block.text)
    if isinstance(block, Figure):
        return f"{escape(block.description)}\n\n"
    if isinstance(block, Listing):
        return (
            "".join(f"- {entry(f'**{escape(item.label)}**', _one_line(item.value))}\n" for item in block.items) + "\n"
        )
    if isinstance(block, Facts):
        rows = tuple((fact.label, fact.value) for fact in block.rows)
        return _table(Table(block.caption, ("", ""), ("text", "text"), rows))
    return _table(block)


def _one_line(text: str) -> str:
    return escape(re.sub(r"\s+", " ", text))


def _table(table: Table) -> str:
    caption = f"**{escape(table.caption)}**\n\n" if table.caption else ""
    rule = ["---:" if column == "number" else "---" for column in table.columns]
    lines = [_row(map(_one_line, table.head)), _row(rule)]
    for cells in table.rows:
        shown = [
            code_span(cell, in_table=True) if column == "code" else _one_line(cell)
            for cell, column in zip(cells, table.columns, strict=True)
        ]
        lines.append(_row(shown))
    return caption + "\n".join(lines) + "\n\n"


def _row(cells: Sequence[str] | map[str]) -> str:
    return f"| {' | '.join(cells)} |"
