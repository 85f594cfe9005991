"""Lines of text for terminals and chats, where a Chinese character is as wide as two others.

Text without such characters is broken between words only. In Chinese, which has no spaces, a line may end after any
character, but for marks that may not begin or end a line.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata

from dlprof.render.plain import tie

_NOT_FIRST = "，。、；：？！）」』》〉】”…—·～％"
_NOT_LAST = "（「『《〈【‘“"
_WIDE = re.compile(r"[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]")
_SPACE = r"[^\S\xa0]"
_WORD = rf"(?:[^\s{_NOT_LAST}]|\xa0)+?(?={_WIDE.pattern}|{_SPACE}|[{_NOT_LAST}{_NOT_FIRST}]|$)"
_UNITS = re.compile(rf"[{_NOT_LAST}]*(?:{_SPACE}+|{_WIDE.pattern}|{_WORD}|(?<=[{_NOT_LAST}])$)[{_NOT_FIRST}]*")
"""What stays on one line: a character or a word, with the marks that belong to it. A no-break space ends neither."""


def width_of(text: str) -> int:
    """Columns that a text takes."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def padded(text: str, width: int, *, right: bool = False) -> str:
    """A text filled up with spaces to ``width`` columns, on its left where it is to stand at the right."""
    space = " " * (width - width_of(text))
    return space + text if right else text + space


def wrap(
    text: str, width: int, *, subsequent_indent: str = "", max_lines: int | None = None, whole_words: bool = False
) -> list[str]:
    """Break a text into lines.

    Args:
        text: One paragraph.
        width: Columns of a line at most, where words allow it.
        subsequent_indent: What every line but the first begins with.
        max_lines: Lines at most; the last one then ends with three dots.
        whole_words: Let a word that is longer than a line run out of it: a path can then be copied.
    """
    if not _WIDE.search(text):
        return textwrap.wrap(
            text,
            width,
            subsequent_indent=subsequent_indent,
            max_lines=max_lines,
            placeholder=" …",
            break_long_words=not whole_words,
            break_on_hyphens=False,
        )
    lines, taken = [""], 0
    for unit in _UNITS.findall(tie(text.replace("\n", " "))):
        size = width_of(unit)
        if taken + size > width and lines[-1].strip() and not unit.isspace():
            lines.append(subsequent_indent)
            taken = len(subsequent_indent)
        if unit.isspace() and not lines[-1].strip():
            continue
        lines[-1] += unit
        taken += size
    lines = [line.replace("\xa0", " ").rstrip() for line in lines]
    if max_lines is not None and len(lines) > max_lines:
        last = lines[max_lines - 1]
        while width_of(last) > width - 2:
            last = last[:-1]
        lines = [*lines[: max_lines - 1], f"{last} …"]
    return [line for line in lines if line]
