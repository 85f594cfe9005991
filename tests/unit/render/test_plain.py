from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.render.plain import cut, name, setting, text, tie


@given(st.text(max_size=2000), st.integers(5, 300))
def test_a_name_is_one_visible_line_within_its_limit(value: str, limit: int) -> None:
    shown = name(value, limit)
    assert len(shown) <= limit
    assert all(unicodedata.category(character) not in ("Cc", "Cf", "Cs") for character in shown)


@given(st.text(max_size=2000))
def test_a_text_keeps_lines_and_can_be_encoded(value: str) -> None:
    shown = text(value)
    assert all(character == "\n" or unicodedata.category(character)[0] != "C" for character in shown)
    shown.encode()


def test_the_middle_goes_first() -> None:
    assert cut("/data/a/very/long/path/train.py", 15) == "/data/a…rain.py"
    assert cut("short", 5) == "short"
    assert len(name("x" * 10_000)) == 160


@pytest.mark.parametrize("limit", range(200, 220))
def test_words_of_sentences_stay_whole(limit: int) -> None:
    said = " ".join(["some", "words", "that", "nobody", "has", "counted"] * 20)
    assert set(cut(said, limit).replace("…", "").split()) <= set(said.split())
    assert limit - 12 < len(cut(said, limit)) <= limit


def test_what_cannot_be_seen_is_spelled_out() -> None:
    assert name("a\x00\x1b[31m\u202eb\nc") == "a\\x00\\x1b[31m\\u202eb c"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "not set"), (True, "yes"), (False, "no"), (16, "16"), (0.5, "0.5"), ([0, 1], "0, 1"), ([], "none")],
)
def test_settings_as_a_person_reads_them(value: object, shown: str) -> None:
    assert setting(value) == shown


def test_numbers_stay_with_their_units() -> None:
    assert tie("62 % of it (38 ms of 61 ms), 2 cores") == "62\u00a0% of it (38\u00a0ms of 61\u00a0ms), 2 cores"
