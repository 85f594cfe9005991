"""Strings from outside (paths, kernel names, arguments) made fit to be shown: visible, one line, not endless."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from dlprof.render.numbers import NOT_MEASURED, count, is_number
from dlprof.words import shown, tr

NAME_LIMIT = 160
"""Characters kept of a name in a table."""

TEXT_LIMIT = 4000
"""Characters kept of a text of several lines."""

_LONGEST_WORD = 24
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _INVISIBLE:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cut(text: str, limit: int) -> str:
    """Shorten to ``limit`` characters by taking the middle out, since a path's two ends tell most.

    What may be longer than a name is sentences, whose words stay whole.
    """
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    first, last = text[:head], text[len(text) - (limit - 1 - head) :]
    if limit <= NAME_LIMIT:
        return f"{first}…{last}"
    before, after = first.rfind(" ", max(0, head - _LONGEST_WORD)), last.find(" ", 0, _LONGEST_WORD)
    return f"{first[: before + 1] if before >= 0 else first}…{last[after:] if after >= 0 else last}"


def name(value: object, limit: int = NAME_LIMIT) -> str:
    """One line: newlines and tabs become spaces, other invisible characters their escapes; cut in the middle.

    Args:
        value: Anything; None becomes `NOT_MEASURED`, and a text that was said in the language in force that one.
        limit: Characters at most.
    """
    if value is None:
        return tr(NOT_MEASURED)
    text = re.sub(r"[\t\r\n]+", " ", cut(str(shown(value)), 4 * limit))
    return cut("".join(map(_visible, text)), limit)


def text(value: str, limit: int = TEXT_LIMIT) -> str:
    """Several lines, as `name`: newlines stay, tabs become spaces, other invisible characters their escapes."""
    lines = cut(shown(value), 4 * limit).replace("\r\n", "\n").expandtabs(4).split("\n")
    return cut("\n".join("".join(map(_visible, line)) for line in lines), limit)


def source_line(value: str, limit: int = NAME_LIMIT) -> str:
    """A line of code: as `name`, without its indentation."""
    return name(value.strip(), limit)


def setting(value: Any, limit: int = NAME_LIMIT) -> str:
    """A setting's value as a person reads it: ``yes``, ``16``, ``0.5``, ``a, b``; None is ``not set``."""
    if value is None:
        return tr("not set")
    if isinstance(value, bool):
        return tr("yes") if value else tr("no")
    if isinstance(value, int):
        return str(value)
    if is_number(value):
        return count(value)
    if isinstance(value, float):
        return tr(NOT_MEASURED)
    if isinstance(value, list | tuple):
        return name(", ".join(setting(item) for item in value) or tr("none"), limit)
    if isinstance(value, dict):
        return name(", ".join(f"{key} {setting(item)}" for key, item in value.items()) or tr("none"), limit)
    return name(value, limit)


def entry(label: str, value: str) -> str:
    """A label and what it stands for, on one line."""
    return tr("{label}: {value}", label=label, value=value)


def tie(sentence: str) -> str:
    """Put no-break spaces between a number and its unit, so that ``62 %`` stays on one line."""
    return re.sub(r"(?<=\d) (?=(?:%|ms|s|min|[kMGT]?B|GB/s|steps?)(?:\W|$))", "\N{NO-BREAK SPACE}", sentence)
