"""What a report consists of, as strings only: every format shows the same blocks in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Column = Literal["text", "number", "code"]
"""How a column's cells are shown: words, right-aligned digits, or text from the script (never cut into lines)."""


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to paste, or lines of the user's program."""

    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled value."""

    label: str
    value: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Labelled values that belong together."""

    caption: str
    rows: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; ``columns`` says how each column is shown."""

    caption: str
    head: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A term and a sentence about it, several times."""

    items: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, named by what it draws, and the sentence that says the same without it."""

    chart: Literal["steps", "components", "forecast", "trials", "changes", "typical", "slowest"]
    title: str
    description: str


Block = Prose | Code | Facts | Table | Listing | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report under a heading; ``id`` is its anchor. ``folded`` says what opens it, empty where it is."""

    id: str
    title: str
    blocks: tuple[Block, ...]
    folded: str = ""


@dataclass(frozen=True, slots=True)
class BudgetRowView:
    """One cause of the budget; ``cause`` is its key, which names its colour."""

    cause: str
    name: str
    milliseconds: str
    share: str


@dataclass(frozen=True, slots=True)
class BudgetView:
    """The budget of the mean step, largest part first."""

    title: str
    description: str
    rows: tuple[BudgetRowView, ...]


@dataclass(frozen=True, slots=True)
class AdviceView:
    """A piece of advice: the gain stands apart, so that a page can set it large; ``gain_word`` is "faster" or empty."""

    id: str
    title: str
    gain: str
    gain_word: str
    gain_note: str
    how: tuple[Prose | Code, ...]
    evidence: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class ReportView:
    """A whole report. ``running`` stands at the foot of each page; ``ended`` is empty unless the script ended badly.

    ``advice_note`` is what is said after the pieces of advice, or instead of them. Without both there is no part on
    what to change.
    """

    title: str
    running: str
    version: str
    headline: str
    command: str
    origin: tuple[str, ...]
    ended: str
    confidence: str
    confidence_reason: str
    key_figures: tuple[Fact, ...]
    budget: BudgetView | None
    advice: tuple[AdviceView, ...]
    advice_note: str
    sections: tuple[Section, ...]
