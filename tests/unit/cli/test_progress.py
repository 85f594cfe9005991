"""What is said while a script runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlprof.cli.progress import LiveLine, PlainLines, describe, duration, leader, plan
from dlprof.formats.progress_file import ALL_STEPS, Phase, Progress
from dlprof.formats.settings_file import Settings

SETTINGS = Settings(steps=50, warmup=5, trace_steps=10, max_disk_bytes=1, supervisor_pid=1)
STARTING = Progress(
    pid=10,
    phase=Phase.WARM_UP,
    batches_done=0,
    batches_total=65,
    wait_ns=0,
    measured_ns=0,
    first_batch_ns=0,
    stop_requested_ns=0,
    updated_ns=1,
)


def at(batch: int, phase: Phase = Phase.MEASURING, **fields: int) -> Progress:
    return replace(STARTING, batches_done=batch, phase=phase, first_batch_ns=1, **fields)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (None, "waiting for the first batch, 1 min 05 s"),
        (at(3, Phase.WARM_UP), "warm-up, step 3 of 65"),
        (at(20, wait_ns=62, measured_ns=100), "step 20 of 65, 62 % waiting for data"),
        (at(60, Phase.TRACING), "step 60 of 65, under torch.profiler"),
        (at(65, Phase.DONE), "all steps recorded, the script is ending"),
        (at(20, batches_total=ALL_STEPS), "step 20"),
    ],
)
def test_describe(record: Progress | None, says: str) -> None:
    assert describe(record, 65) == says


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0.9, "0 s"), (59.9, "59 s"), (60, "1 min 00 s"), (3600, "1 h 00 min"), (90061, "25 h 01 min")],
)
def test_duration(seconds: float, says: str) -> None:
    assert duration(seconds) == says


def test_plan() -> None:
    assert plan("t.py", SETTINGS) == ("running t.py: 5 steps of warm-up, 50 measured, 10 traced, then stopped")
    assert plan("t.py", replace(SETTINGS, steps=None, warmup=0, trace_steps=0)) == "running t.py: all others measured"


def test_leader() -> None:
    done, behind, ahead = at(65, Phase.DONE), replace(at(3), pid=11), replace(at(7), pid=12)
    assert leader([]) is None
    assert leader([STARTING]) is None
    assert leader([done]) is done
    assert leader([done, behind, ahead, STARTING]) is ahead


def test_plain_lines_come_at_changes_only() -> None:
    lines: list[str] = []
    display = PlainLines("t.py", SETTINGS, lines.append)
    display.started()
    display.update([], 0.2)
    display.update([STARTING], 0.4)
    for batch in range(1, 66):
        phase = Phase.WARM_UP if batch <= 5 else Phase.MEASURING if batch <= 55 else Phase.TRACING
        for _ in range(3):
            display.update([at(batch, phase, wait_ns=batch, measured_ns=2 * batch)], 2 + batch)
    for _ in range(2):
        display.update([at(65, Phase.DONE)], 99)
        display.analysing()
    display.close()
    waiting = "50 % waiting for data"
    assert lines == [
        plan("t.py", SETTINGS),
        "first batch after 3.0 s",
        f"step 6 of 65, {waiting}",
        f"step 17 of 65, {waiting}",
        f"step 33 of 65, {waiting}",
        f"step 49 of 65, {waiting}",
        f"step 56 of 65, under torch.profiler, {waiting}",
        "all steps recorded, the script is ending",
        "analysing",
    ]


def test_plain_lines_stay_few_without_an_end() -> None:
    lines: list[str] = []
    display = PlainLines("t.py", replace(SETTINGS, steps=None), lines.append)
    for batch in range(1, 100_001):
        display.update([at(batch, batches_total=ALL_STEPS)], batch)
    assert lines[:3] == ["first batch after 1.0 s", "step 1", "step 100"]
    assert len(lines) < 15


class Terminal:
    """A clock and what was written."""

    def __init__(self) -> None:
        self.now = 100.0
        self.written: list[str] = []

    def line(self) -> LiveLine:
        return LiveLine("t.py", SETTINGS, self.written.append, lambda: self.now)


def test_live_line_is_drawn_at_most_five_times_a_second() -> None:
    terminal = Terminal()
    display = terminal.line()
    for batch in range(1, 1001):
        terminal.now += 0.01
        display.update([at(batch, batches_total=5000)], 0)
    assert 10 <= len(terminal.written) <= 50


def test_live_line_rests_when_nothing_changes() -> None:
    terminal = Terminal()
    display = terminal.line()
    for _ in range(100):
        terminal.now += 0.1
        display.update([at(7)], 0)
    assert len(terminal.written) <= 11


def test_live_line_changes_no_state_of_the_terminal_and_is_cleared() -> None:
    terminal = Terminal()
    display = terminal.line()
    display.update([at(7)], 0)
    display.analysing()
    display.close()
    display.close()
    drawn, analysing, cleared = terminal.written
    assert "step 7 of 65" in drawn
    assert "analysing" in analysing
    assert cleared.endswith("\x1b[2K\x1b8\n")
    for text in (drawn, analysing, cleared[:-1]):
        assert text.count("\x1b7") == text.count("\x1b8") == 1
        assert "\x1b[?" not in text  # hidden cursor, alternate screen
        assert "\n" not in text


def test_live_line_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Terminal()
    terminal.line().update([at(7, wait_ns=1, measured_ns=2)], 0)
    shown = terminal.written[0].partition("\x1b[2K")[2].removesuffix("\x1b8")
    assert len(shown) == 19
