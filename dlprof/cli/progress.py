"""How far the script has come, on standard error: one live line on a terminal, else a line at each change."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

from rich.text import Text

from dlprof.cli import terminal
from dlprof.formats.progress_file import Phase, Progress
from dlprof.formats.settings_file import Settings
from dlprof.words import tr

REDRAW_S = 0.4
"""Seconds between two drawings of the live line."""

_REFRESH_S = 1.0
_QUARTERS = 4
_FIRST_MARK = 100


class Display(Protocol):
    """What is shown while the script runs and directly after."""

    def started(self) -> None:
        """The script is about to start."""

    def update(self, records: list[Progress], elapsed_s: float) -> None:
        """Called several times a second with the progress of every training process."""

    def analysing(self) -> None:
        """The script has ended and the analysis begins."""

    def close(self) -> None:
        """Nothing more comes; what was drawn is taken away. May be called again."""


def open_display(name: str, settings: Settings, *, quiet: bool) -> Display:
    """The display that suits standard error.

    Args:
        name: What is run, in a word.
        settings: What is recorded.
        quiet: Show nothing: another process on this machine does.
    """
    if quiet:
        return Silent()
    if terminal.is_terminal() and not terminal.console().is_dumb_terminal:
        return LiveLine(name, settings)
    return PlainLines(name, settings)


def leader(records: list[Progress]) -> Progress | None:
    """The process whose progress stands for all: of those that still record, the one with most batches.

    Args:
        records: Every training process, in any order.

    Returns:
        None where none has a batch yet.
    """
    with_batches = [record for record in records if record.batches_done]
    return max(
        with_batches,
        key=lambda record: (record.phase != Phase.DONE, record.batches_done, -record.pid),
        default=None,
    )


def describe(record: Progress | None, elapsed_s: float) -> str:
    """One short phrase on where the script stands.

    Args:
        record: From `leader`.
        elapsed_s: Seconds since the script was started.
    """
    if record is None:
        return tr("waiting for the first batch, {time}", time=duration(elapsed_s))
    if record.phase == Phase.DONE:
        return tr("all steps recorded, the script is ending")
    parts = [_step(record)]
    if record.phase in (Phase.STARTING, Phase.WARM_UP):
        parts.insert(0, tr("warm-up"))
    if record.phase == Phase.TRACING:
        parts.append(tr("under torch.profiler"))
    if record.measured_ns:
        parts.append(_waiting(record))
    return tr(", ").join(parts)


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``4 s``, ``2 min 05 s``, ``3 h 12 min``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def plan(name: str, settings: Settings) -> str:
    """One line on what is about to be recorded."""
    parts = [tr("{steps} steps of warm-up", steps=settings.warmup)] if settings.warmup else []
    parts.append(tr("all others measured") if settings.steps is None else tr("{steps} measured", steps=settings.steps))
    if settings.trace_steps:
        parts.append(tr("{steps} traced", steps=settings.trace_steps))
    if settings.steps is not None:
        parts.append(tr("then stopped"))
    return tr("running {name}: {plan}", name=name, plan=tr(", ").join(parts))


def _step(record: Progress) -> str:
    if record.batches_total > 0:
        return tr("step {number} of {total}", number=record.batches_done, total=record.batches_total)
    return tr("step {number}", number=record.batches_done)


def _waiting(record: Progress) -> str:
    return tr("{share} % waiting for data", share=f"{100 * record.wait_ns / record.measured_ns:.0f}")


class Silent:
    """Shows nothing."""

    def started(self) -> None:
        """Show nothing."""

    def update(self, records: list[Progress], elapsed_s: float) -> None:
        """Show nothing."""

    def analysing(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


class PlainLines:
    """A line at each change, for log files and pipes.

    Args:
        name: What is run, in a word.
        settings: What is recorded.
        say: Writes one line.
    """

    def __init__(self, name: str, settings: Settings, say: Callable[[str], None] = terminal.say) -> None:
        self._plan = plan(name, settings)
        self._say = say
        self._seen: set[str] = set()
        self._mark = 0

    def started(self) -> None:
        """Say what is run and recorded."""
        self._say(self._plan)

    def update(self, records: list[Progress], elapsed_s: float) -> None:
        """Say what is new."""
        record = leader(records)
        if record is None:
            return
        self._once("first", tr("first batch after {seconds} s", seconds=f"{elapsed_s:.1f}"))
        if record.phase == Phase.DONE:
            self._once("done", describe(record, elapsed_s))
        elif record.phase == Phase.TRACING:
            self._once("tracing", describe(record, elapsed_s))
        elif record.phase == Phase.MEASURING and self._passes_mark(record):
            self._say(describe(record, elapsed_s))

    def analysing(self) -> None:
        """Say that the script has ended."""
        self._once("analysing", tr("analysing"))

    def close(self) -> None:
        """Nothing to take away."""

    def _once(self, key: str, line: str) -> None:
        if key not in self._seen:
            self._seen.add(key)
            self._say(line)

    def _passes_mark(self, record: Progress) -> bool:
        """Whether another quarter is done; without an end, whether the number of batches has doubled."""
        if record.batches_total > 0:
            mark = 1 + _QUARTERS * record.batches_done // record.batches_total
        else:
            mark = max(1, (record.batches_done // _FIRST_MARK).bit_length() + 1)
        passed = mark > self._mark
        self._mark = max(mark, self._mark)
        return passed


class LiveLine:
    """One line on the terminal that the script writes to as well.

    The line is drawn on the row below the cursor, at the right, and the cursor is put back: what the script
    writes next, a progress bar that redraws itself included, goes where it would have gone. When the script has
    ended a row, the cursor stands on the row of our line: so the right part of the cursor's row is cleared before
    the line is drawn again. A script that ends several rows between two drawings leaves the line at the right of
    one of them. Nothing of the terminal's state is changed, so nothing is left behind if dlprof is killed.

    Args:
        name: What is run, in a word.
        settings: What is recorded.
        write: Writes to the terminal.
        clock: Seconds, monotonic.
    """

    # Index (next row, same column, scrolling if it must) and up again: now there is a row below. Save the cursor.
    _BEGIN = "\x1bD\x1b[A\x1b7"
    # Down, to the left, clear the row.
    _ROW_BELOW = "\x1b[B\r\x1b[2K"
    _RESTORE = "\x1b8"

    def __init__(
        self,
        name: str,
        settings: Settings,
        write: Callable[[str], None] = terminal.write,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan(name, settings)
        self._write = write
        self._clock = clock
        self._console = terminal.console()
        self._shown = ""
        self._closed = False
        # Forward by as many columns as are free left of our text. From the left end this leads to the text; from the
        # end of a script's progress bar to the right margin, where nothing is lost.
        self._clear_own_row = ""
        self._drawn_at = float("-inf")

    def started(self) -> None:
        """Say what is run and recorded, on a line that stays."""
        self._write(f"dlprof: {terminal.plain(self._plan)}\n")

    def update(self, records: list[Progress], elapsed_s: float) -> None:
        """Draw the line again if it is time to."""
        now = self._clock()
        if now - self._drawn_at < REDRAW_S:
            return
        text = describe(leader(records), elapsed_s)
        if text != self._shown or now - self._drawn_at >= _REFRESH_S:
            self._draw(text, now)

    def analysing(self) -> None:
        """Draw that the analysis is going on."""
        self._draw(tr("analysing the recording"), self._clock())

    def close(self) -> None:
        """Clear the line, and go to a new row in case the script has left its last one open."""
        if not self._closed:
            self._closed = True
            drawn = self._BEGIN + self._clear_own_row + self._ROW_BELOW + self._RESTORE if self._shown else ""
            self._write(f"{drawn}\n")

    def _draw(self, text: str, now: float) -> None:
        if not _in_foreground():
            return
        self._shown, self._drawn_at = text, now
        # One column stays free: in the last one, terminals differ in where the cursor is.
        width = max(1, self._console.width - 1)
        line = Text.assemble(("dlprof ", "bold cyan"), (terminal.plain(text), "cyan"), no_wrap=True)
        line.truncate(width, overflow="ellipsis" if terminal.is_unicode() else "crop")
        left = max(0, width - line.cell_len)
        line.pad_left(left)
        with self._console.capture() as capture:
            self._console.print(line, end="", soft_wrap=True)
        self._write(self._BEGIN + self._clear_own_row + self._ROW_BELOW + capture.get() + self._RESTORE)
        self._clear_own_row = f"\x1b[{left}C\x1b[K" if left else "\x1b[K"


def _in_foreground() -> bool:
    """Whether the terminal is ours to draw on; after ``bg`` or with ``&`` it is the shell's."""
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return True
