"""The end of a run on standard error: what bounds the step, one bar, what to try first, the report's path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.text import Text

from dlprof.cli import terminal
from dlprof.words import tr

MOST_LINES = 11
"""One less than may be shown: on a terminal a line is ended first, which the script may have left open."""
_BAR_COLUMNS = 60
_COLOURS = ("yellow", "green", "blue", "magenta", "cyan", "red", "bright_black")
_SHADES = "█▓▒░▞▚▙▜▪"
_ASCII_SHADES = "#=+-:%@*o"
_SHOWN_FROM = 0.005
_LEGEND_LINES = 2


class Summary(Protocol):
    """What a finished run says of itself, in words."""

    @property
    def headline(self) -> str:
        """What bounds the step, one sentence."""

    @property
    def bar(self) -> Sequence[tuple[str, float]]:
        """The budget: label and share of the step, 0 to 1, largest first."""

    @property
    def advice(self) -> Sequence[str]:
        """The best advice in a sentence, then the lines to paste; may be empty."""

    @property
    def gains(self) -> bool:
        """Whether that advice makes the step faster."""

    @property
    def notices(self) -> Sequence[str]:
        """What was lost, odd or assumed, a sentence each."""

    @property
    def path(self) -> str:
        """The report to open; may be empty."""


def summary_lines(summary: Summary, failures: Sequence[str], console: Console) -> list[Text]:
    """Lay a summary out.

    Args:
        summary: What to say.
        failures: What could not be done, one sentence each.
        console: Where it will be shown: its width and whether it has colours.

    Returns:
        At most `MOST_LINES` lines, none wider than the console except the last, which is the path.
    """
    lines = _block(summary.headline, console, 3, style="bold")
    lines += _bar(summary.bar, console)
    if summary.advice:
        lines += _block(summary.advice[0], console, 3, first=tr("Try first: ") if summary.gains else tr("Advice: "))
    path = [Text(terminal.plain(summary.path), style="bold")] if summary.path else []
    room = MOST_LINES - len(lines) - len(path)
    after: list[Text] = []
    for sentence, style in [*((one, "red") for one in failures), *((one, "") for one in summary.notices)]:
        after += _block(sentence, console, min(2, room - len(after)), style=style)
    # Half of the lines to paste would be worse than none; the report has them.
    code = summary.advice[1:] if len(summary.advice) - 1 <= room - len(after) else ()
    for line in code:
        lines.append(Text(terminal.plain(line), style="cyan"))
        lines[-1].truncate(max(1, console.width - 1))
    return [*lines, *after, *path]


def _block(text: str, console: Console, most: int, *, first: str = "", style: str = "") -> list[Text]:
    """Break a sentence into at most ``most`` lines; what does not fit is cut with an ellipsis."""
    if most <= 0:
        return []
    # What has been analysed has loaded it.
    from dlprof.render.wrapping import wrap

    lines = [Text(line, style) for line in wrap(f"{first}{terminal.plain(text)}", max(1, console.width - 1))]
    for line in lines[:1]:
        line.stylize("bold", 0, len(first))
    if len(lines) > most:
        dots = "…" if terminal.is_unicode() else "..."
        rest = lines[most - 1]
        rest.rstrip()
        rest.truncate(max(1, console.width - 1 - len(dots)))
        rest.append(dots)
    return lines[:most]


def _bar(segments: Sequence[tuple[str, float]], console: Console) -> list[Text]:
    """The budget as one bar, and below it which part is what."""
    shown = [(label, share) for label, share in segments if share >= _SHOWN_FROM]
    if not shown:
        return []
    coloured = console.is_terminal and console.color_system is not None and not console.no_color
    shades = _SHADES if terminal.is_unicode() else _ASCII_SHADES
    columns = max(1, min(_BAR_COLUMNS, console.width - 1))
    bar, entries = Text(), []
    for index, ((label, share), cells) in enumerate(zip(shown, _cells(shown, columns), strict=True)):
        shade = shades[0] if coloured else shades[index % len(shades)]
        style = _COLOURS[index % len(_COLOURS)] if coloured else ""
        bar.append(shade * cells, style=style)
        entries.append(Text.assemble((shade, style), terminal.plain(f" {label} {100 * share:.0f} %")))
    return [bar, *_legend(entries, console.width - 1)]


def _legend(entries: Sequence[Text], width: int) -> list[Text]:
    """Put entries beside each other; on the two lines that there are, the first ones find room."""
    lines = [Text()]
    for entry in entries:
        gap = "   " if lines[-1] else ""
        if gap and lines[-1].cell_len + len(gap) + entry.cell_len > width:
            if len(lines) == _LEGEND_LINES:
                break
            lines.append(Text())
            gap = ""
        lines[-1].append(gap).append_text(entry)
    for line in lines:
        line.truncate(max(1, width))
    return lines


def _cells(segments: Sequence[tuple[str, float]], columns: int) -> list[int]:
    """Share ``columns`` out in proportion, by largest remainder, so that they are all used."""
    total = sum(share for _, share in segments)
    exact = [share / total * columns for _, share in segments]
    cells = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: cells[index] - exact[index])
    for index in by_remainder[: columns - sum(cells)]:
        cells[index] += 1
    return cells
