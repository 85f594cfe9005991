from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.render.wrapping import padded, width_of, wrap

PIECES = st.lists(st.sampled_from(["数据", "，", "。", "（", "）", "“", "”", "worker", "62 %", " ", "a/b.py:12", "…"]))


@given(PIECES, st.integers(12, 40))
def test_lines_hold_the_whole_text_and_are_not_too_wide(pieces: list[str], width: int) -> None:
    text = "数" + "数".join(pieces)
    lines = wrap(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    for line in lines:
        # What belongs to a word or a character may stand out: marks that may not begin a line.
        assert width_of(line.rstrip("，。）”…").lstrip("（“")) <= width


@given(PIECES, st.integers(12, 40))
def test_no_line_begins_with_a_mark_that_closes(pieces: list[str], width: int) -> None:
    text = "数据" + "".join(piece for piece in pieces if piece != " ")
    assert not [line for line in wrap(text, width)[1:] if line[0] in "，。）”"]


def test_a_text_without_wide_characters_is_broken_between_words_only() -> None:
    text = "A step is one batch taken by the training-loop; the rest is left out. " * 4
    lines = wrap(text, 30, subsequent_indent="  ")
    assert " ".join(line.strip() for line in lines) == text.strip()
    assert max(map(len, lines)) <= 30
    assert all(line.startswith("  ") for line in lines[1:])


def test_a_word_that_is_longer_than_a_line_is_broken_unless_it_has_to_stay_whole() -> None:
    path = "/data/" + "very/" * 20 + "long.bin"
    assert max(map(len, wrap(f"at {path}", 30))) <= 30
    assert wrap(f"at {path}", 30, whole_words=True) == ["at", path]


def test_a_number_stays_with_its_unit() -> None:
    for width in range(12, 40):
        assert not [
            line
            for line in wrap("训练循环在等 tokenizer，占每步的 58 %（61.9 ms 中的 36.1 ms）。", width)
            if line[:1] in "%m"
        ]


def test_lines_at_most_end_with_dots() -> None:
    lines = wrap("训练循环在等下一个 batch。" * 10, 40, subsequent_indent="  ", max_lines=2)
    assert len(lines) == 2
    assert lines[1].startswith("  ")
    assert lines[1].endswith(" …")
    assert max(map(width_of, lines)) <= 40


@pytest.mark.parametrize(("text", "columns"), [("", 0), ("step", 4), ("步", 2), ("每步，ms", 8), ("…", 1)])
def test_a_wide_character_takes_two_columns(text: str, columns: int) -> None:
    assert width_of(text) == columns


def test_columns_are_filled_up_by_width() -> None:
    assert padded("步", 4) == "步  "
    assert padded("步", 4, right=True) == "  步"
