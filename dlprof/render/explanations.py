"""What ``dlprof explain`` says of each id, and README's tables, all from ``templates/explanations.toml``."""

from __future__ import annotations

import difflib
import functools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlprof.render.plain import entry
from dlprof.render.templates import explanations, messages
from dlprof.render.wrapping import padded, width_of, wrap
from dlprof.words import LANGUAGES, marked, speaking, tr

KINDS = {
    "bottleneck": marked("a verdict"),
    "component": marked("a component of the data work or the step"),
    "cause": marked("a cause of the budget"),
    "advice": marked("advice"),
    "notice": marked("a notice"),
    "error": marked("an error"),
}
"""Sections of the catalogue, in the order in which they are shown, and what an entry of each is."""

_WIDTH = 80
_LIKE, _MOST_LIKE = 0.5, 5
_FILLED = re.compile(r"\\\{\\\{.*?\\\}\\\}")
"""What a title is filled with, as `re.escape` leaves it."""
_IN_README = ("bottleneck", "component", "advice")
_HEADS = {"bottleneck": "Verdict", "component": "Component", "advice": "Advice"}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is said of one id: what it means, when it is said, and what to do."""

    kind: str
    id: str
    what: str
    when: str
    do: str


def explain(id_: str) -> list[Explanation]:
    """All that goes by an id, or by the name that a page shows for it; empty where nothing does.

    Args:
        id_: As it stands in a report, in its JSON, or in an error; a name in any language. Capitals, and spaces or
            underscores for hyphens, do.
    """
    wanted = _plain(id_)
    return [each for each in every() if any(re.fullmatch(name, wanted) for name in _names(each.kind, each.id))]


def every() -> Iterator[Explanation]:
    """All explanations, kind by kind."""
    for kind in KINDS:
        for id_, texts in explanations()[kind].items():
            yield Explanation(kind, id_, texts["what"], texts["when"], texts["do"])


def nearest(id_: str) -> list[str]:
    """Ids that look like one that is not there, the most similar first; empty where none does."""
    known = {name: each.id for each in every() for name in reversed(_names(each.kind, each.id))}
    close = difflib.get_close_matches(_plain(id_), known, n=_MOST_LIKE, cutoff=_LIKE)
    # A part of a name is a better guess than letters in common.
    within = [plain for plain in known if _plain(id_) and _plain(id_) in plain]
    return list(dict.fromkeys(known[plain] for plain in [*within, *close]))[:_MOST_LIKE]


def explanation_lines(each: Explanation) -> list[str]:
    """One explanation for the terminal, in the language in force."""
    lines = [entry(each.id, tr(KINDS[each.kind])), "", *wrap(tr(each.what), _WIDTH), ""]
    labels = tr("When"), tr("Do")
    column = max(map(width_of, labels)) + 2
    for label, text in zip(labels, (each.when, each.do), strict=True):
        lines += wrap(f"{padded(label, column)}{tr(text)}", _WIDTH, subsequent_indent=" " * column)
    return lines


def overview() -> list[str]:
    """All ids, kind by kind, for the terminal."""
    lines: list[str] = []
    for kind in KINDS:
        ids = ", ".join(each.id for each in every() if each.kind == kind)
        lines += [
            f"{kind}:",
            *textwrap.wrap(ids, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False),
        ]
    return lines


def with_tables(readme: str) -> str:
    """README with its tables made anew, each between the two comments that name it.

    Args:
        readme: Its text.

    Raises:
        ValueError: The comments of a table are missing.
    """
    for kind in _IN_README:
        begin, end = f"<!-- explain: {kind} -->", "<!-- end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
        table = f"{begin}\n{_table(kind)}\n{end}"
        readme, found = pattern.subn(lambda _, table=table: table, readme)  # type: ignore[misc]
        if found != 1:
            raise ValueError(f"README has {found} tables {begin}")
    return readme


def _table(kind: str) -> str:
    rows = [f"| `{each.id}` | {each.what} |" for each in every() if each.kind == kind]
    return "\n".join([f"| {_HEADS[kind]} | What it means |", "| --- | --- |", *rows])


def _plain(id_: str) -> str:
    return re.sub(r"[\s_-]+", "-", id_.strip().lower()).removeprefix("the-")


@functools.cache
def _names(kind: str, id_: str) -> tuple[str, ...]:
    """An id, and what pages call it in every language, as patterns of what `_plain` makes of them."""
    found = messages().get(kind, {}).get(id_, "")
    shown = found if isinstance(found, str) else found.get("name") or found.get("title", "")
    names = [re.escape(_plain(id_))]
    # A notice is a sentence, which nobody looks up.
    if shown and kind != "notice":
        for language in LANGUAGES:
            with speaking(language):
                names.append(_FILLED.sub(".+", re.escape(_plain(tr(shown)))))
    return tuple(dict.fromkeys(names))


if __name__ == "__main__":
    # Renews README's tables; a test compares them with the catalogue.
    target = Path(__file__).parents[2] / "README.md"
    target.write_text(with_tables(target.read_text(encoding="utf-8")), encoding="utf-8")
