"""The last lines of a run."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dlprof.cli import terminal
from dlprof.cli.summary import MOST_LINES, summary_lines


@dataclass
class Words:
    headline: str = "Waiting for data takes 62 % of a step; most of that is the tokenizer."
    bar: list[tuple[str, float]] = field(
        default_factory=lambda: [("waiting for data", 0.62), ("compute", 0.3), ("Python", 0.08)]
    )
    advice: list[str] = field(default_factory=lambda: ["num_workers 0 → 2: 1.9 times as fast (1.7 to 2.1)"])
    gains: bool = True
    notices: list[str] = field(default_factory=list)
    path: str = "dlprof-runs/train-20260101-000000/report.html"


def console(width: int = 80, *, coloured: bool = False) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=coloured,
        color_system="standard" if coloured else None,
        highlight=False,
    )


def shown(words: Words, failures: list[str] | None = None, width: int = 80) -> list[str]:
    return [line.plain for line in summary_lines(words, failures or [], console(width))]


def test_headline_bar_advice_path() -> None:
    headline, bar, legend, advice, path = shown(Words())
    assert headline == Words().headline
    assert bar == "█" * 37 + "▓" * 18 + "▒" * 5
    assert legend == "█ waiting for data 62 %   ▓ compute 30 %   ▒ Python 8 %"
    assert advice == "Try first: num_workers 0 → 2: 1.9 times as fast (1.7 to 2.1)"
    assert path == Words().path


def test_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace"))
    lines = shown(Words(headline="a \N{EN DASH} b"))
    assert all(line.isascii() for line in lines)
    assert lines[:2] == ["a - b", "#" * 37 + "=" * 18 + "+" * 5]


def test_colours_stand_in_for_shades(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    bar = summary_lines(Words(), [], console(coloured=True))[1]
    assert bar.plain == "█" * 60
    assert len({span.style for span in bar.spans}) == 3


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    bar = summary_lines(Words(), [], console(coloured=True))[1]
    assert bar.plain.startswith("█" * 37 + "▓")


def test_failures_come_before_notices() -> None:
    lines = shown(Words(notices=["one", "two"]), ["report.pdf was not written: install Pango"])
    assert lines[-4:] == ["report.pdf was not written: install Pango", "one", "two", Words().path]


def test_lines_to_paste_are_shown_all_or_not_at_all() -> None:
    code = ["    DataLoader(", "        num_workers=2,", "    )"]
    assert shown(Words(advice=["raise", *code]))[3:] == ["Try first: raise", *code, Words().path]
    assert shown(Words(advice=["raise", *code * 3]))[3:] == ["Try first: raise", Words().path]


def test_nothing_to_show_but_the_path() -> None:
    assert shown(Words(headline="No step was recorded.", bar=[], advice=[])) == [
        "No step was recorded.",
        Words().path,
    ]


def test_control_characters_do_not_reach_the_terminal() -> None:
    words = Words(headline="a\x1b[2Jb\rc", advice=["\x07"], path="x\x1bc")
    assert not any(ord(character) < 32 for line in shown(words) for character in line)


sentences = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=500)


@given(
    st.builds(
        Words,
        headline=sentences,
        bar=st.lists(st.tuples(st.text("abc ", min_size=1, max_size=30), st.floats(0, 1)), max_size=9),
        advice=st.lists(sentences, max_size=9),
        notices=st.lists(sentences, max_size=3),
    ),
    st.lists(sentences, max_size=6),
    st.integers(10, 200),
    st.booleans(),
)
def test_never_too_many_lines_nor_too_wide(words: Words, failures: list[str], width: int, coloured: bool) -> None:
    lines = summary_lines(words, failures, console(width, coloured=coloured))
    assert len(lines) <= MOST_LINES
    assert lines[-1].plain == words.path
    assert all(line.cell_len <= width for line in lines[:-1])


def test_lines_are_written_whole(capsys: pytest.CaptureFixture[str]) -> None:
    to = terminal.console()
    terminal.show(summary_lines(Words(path="p" * 200), [], to), to)
    assert capsys.readouterr().err.splitlines()[-1] == "p" * 200


def test_advice_that_makes_nothing_faster_is_not_the_first_to_try():
    assert any(line.startswith("Try first: ") for line in shown(Words(), []))
    same = shown(Words(gains=False), [])
    assert any(line.startswith("Advice: ") for line in same)
    assert not any("Try first" in line for line in same)
