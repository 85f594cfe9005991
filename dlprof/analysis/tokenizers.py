"""Tokenizers written in Python, which no hook knows: they are recognised by the names of their functions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dlprof.model.profile import Frame, Stack

_NAMED = re.compile(r"tokeni[sz](?!ed)|word_?piece|(^|[._])bpe([._]|$)|BPE|sentence_?piece", re.IGNORECASE)
_USES_ONE = re.compile(r"collat|dataset", re.IGNORECASE)
"""A name that says what calls the tokenizer: ``TokenizingCollator.__call__`` also pads."""
_CALLS_COMPILED = ("tokenization_utils_fast.py", "tokenization_utils_tokenizers.py")
"""Files of transformers whose tokenizers call compiled ones."""
_ONE_LINE = 0.8
"""A tokenizer that spends more than this at one line calls something compiled there."""


def in_tokenizer(stack: Stack) -> bool:
    """Whether a thread was in a function that is named as a tokenizer and is not one that calls a compiled one."""
    return any(_NAMED.search(frame.function) and not _USES_ONE.search(frame.function) for frame in stack.frames) and (
        not any(frame.file.endswith(_CALLS_COMPILED) for frame in stack.frames)
    )


def time_in_python(looks: Iterable[tuple[Frame, float]]) -> float:
    """How much of the time in functions named as tokenizers is Python's: all of it, or none.

    Args:
        looks: The innermost frame of each look that `in_tokenizer` holds of, and the time that it stands for.

    Returns:
        The sum of the times; 0 where most of it goes to one line, which then calls something compiled.
    """
    by_line: dict[tuple[str, int], float] = {}
    for frame, amount in looks:
        place = frame.file, frame.line
        by_line[place] = by_line.get(place, 0.0) + amount
    found = sum(by_line.values())
    return found if found and max(by_line.values()) <= _ONE_LINE * found else 0.0
