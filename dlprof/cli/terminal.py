"""Standard error as dlprof uses it: lines and colours that can never harm the run they report on."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

DEBUG = "DLPROF_DEBUG"

_ASCII = str.maketrans(
    {
        "\N{RIGHTWARDS ARROW}": "->",
        "\N{MULTIPLICATION SIGN}": "x",
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
        "\N{MINUS SIGN}": "-",
        "\N{HORIZONTAL ELLIPSIS}": "...",
        "\N{MIDDLE DOT}": "-",
        "\N{BULLET}": "-",
        "\N{NO-BREAK SPACE}": " ",
        "\N{LEFT DOUBLE QUOTATION MARK}": '"',
        "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{GREATER-THAN OR EQUAL TO}": ">=",
        "\N{LESS-THAN OR EQUAL TO}": "<=",
    }
)


def is_terminal() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def is_unicode() -> bool:
    """Whether standard error can show more than ASCII."""
    return (getattr(sys.stderr, "encoding", None) or "ascii").lower().replace("_", "-").startswith("utf")


def console() -> Console:
    """Where styled text is rendered: its width, its colours (``NO_COLOR`` and ``TERM`` are followed)."""
    return Console(stderr=True, force_terminal=is_terminal(), highlight=False, markup=False, emoji=False)


def plain(text: str) -> str:
    """Text that the terminal cannot take for commands, in ASCII where standard error is not Unicode."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return shown if is_unicode() else shown.translate(_ASCII)


def write(text: str) -> None:
    """Write to standard error at once. Where it is closed or full, the text is lost and that is all."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _give_up()


def say(*lines: str) -> None:
    """Write whole lines to standard error, without styles.

    Args:
        lines: The first gets ``dlprof:`` before it, the others are indented.
    """
    write("".join(f"{'  ' if index else 'dlprof: '}{plain(line)}\n" for index, line in enumerate(lines)))


def show(lines: Sequence[Text], to: Console) -> None:
    """Write styled lines, each as long as it is: what is to be broken has been broken.

    Args:
        lines: What to write.
        to: Where it is rendered.
    """
    with to.capture() as capture:
        for line in lines:
            to.print(line, soft_wrap=True)
    write(capture.get())


def traceback_for_developers() -> None:
    """Write the traceback of the exception that is being handled, if ``DLPROF_DEBUG`` is set."""
    if os.environ.get(DEBUG):
        write(traceback.format_exc())


def _give_up() -> None:
    # What is left in the buffer would fail again when Python ends, and turn the exit status into 120.
    # Only our own descriptor is replaced; the script has its own.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    os.close(nowhere)
