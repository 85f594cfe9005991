from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import CASES, CONTROL, MARKUP, hostile, tokenizer

from dlprof.model.report import Kernel, NotAdvised, NoticeRow
from dlprof.render.markdown import CHARACTERS_AT_MOST, code_block, code_span, escape, render_markdown


def outside_code(text: str) -> str:
    """Markdown without its code blocks and spans."""
    text = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", text)
    return re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


@pytest.mark.parametrize("case", CASES)
def test_every_table_row_has_its_columns(case: str) -> None:
    lines = render_markdown(CASES[case]()).split("\n")
    for index, line in enumerate(lines):
        if re.fullmatch(r"\|(?: -+:? \|)+", line):
            columns = line.count("|")
            for row in (lines[index - 1], *lines[index + 1 : index + 3]):
                if row.startswith("|"):
                    assert len(re.findall(r"(?<!\\)\|", row)) == columns


@pytest.mark.parametrize("case", CASES)
def test_folds_are_closed_and_apart(case: str) -> None:
    text = render_markdown(CASES[case]())
    assert text.count("<details>") == text.count("</details>")
    assert re.findall(r"<summary>[^\n]*</summary>\n(?!\n)", text) == []


def test_hostile_strings_are_neither_markup_nor_mentions() -> None:
    prose = outside_code(render_markdown(hostile()))
    tags = set(re.findall(r"<(\w+)", prose))
    assert tags == {"details", "summary"}
    assert "@everyone" not in prose
    assert not re.search(r"(?<!\\)\[link\]", prose)
    assert "\x1b" not in prose


@pytest.mark.parametrize("size", [1, 400])
def test_it_fits_a_ticket(size: int) -> None:
    report = hostile()
    assert report.device is not None
    text = "x" * 3000 + MARKUP + CONTROL
    report = replace(
        report,
        advice=report.advice * size,
        device=replace(report.device, top_kernels=[Kernel(text, 1, 1)] * size),
        not_advised=[NotAdvised(text, text)] * size,
        notices=[NoticeRow(text, 1, text)] * size,
    )
    made = render_markdown(report)
    assert len(made) < CHARACTERS_AT_MOST
    if size > 1:
        assert "more sections stand in report.html" in made
    assert made.count("<details>") == made.count("</details>")


def test_numbers_and_brackets_are_left_alone() -> None:
    assert escape("61.9 ms (62 %), 2 cores") == "61.9 ms (62 %), 2 cores"
    assert escape("1. one") == "1\\. one"
    assert escape("__getitem__") == "\\_\\_getitem\\_\\_"


@given(st.text(alphabet="`a| \n", max_size=30))
def test_code_cannot_be_left(text: str) -> None:
    fence, *_ = code_block(text).split("\n")
    marks = fence.removesuffix("python")
    assert not any(line.strip().startswith(marks) for line in text.split("\n"))
    span = code_span(text, in_table=True)
    assert "\n" not in span
    assert not re.search(r"(?<!\\)\|", span)


def test_lines_to_paste_stand_in_a_block() -> None:
    paste = "```python\nDataLoader(..., num_workers=2, persistent_workers=True)\n```\n"
    assert paste in render_markdown(tokenizer())
