from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import CASES, images, short, tokenizer

from dlprof.model.report import Evidence, SlowSample
from dlprof.render.text import bar_cells, render_text, summary

PATH = "dlprof-runs/train_text-20261130-140211/report.html"


def test_the_summary_says_verdict_parts_advice_and_path() -> None:
    shown = summary(tokenizer(), PATH)
    assert shown.headline.startswith("CPU preprocessing bounds the step: the tokenizer keeps")
    assert [label for label, _ in shown.bar] == ["waiting for input", "compute", "Python in the training loop", "other"]
    assert shown.advice == (
        "Raise num_workers from 0 to 2: 2.3\N{MULTIPLICATION SIGN} (2.1\N{EN DASH}2.5\N{MULTIPLICATION SIGN}) faster "
        "(61.9 → 26.8 ms per step)",
        "    DataLoader(..., num_workers=2, persistent_workers=True)",
    )
    assert shown.path == PATH


@pytest.mark.parametrize(("seen", "said"), [(1, "1 was seen"), (2, "2 were seen")])
def test_what_a_forecast_takes_for_granted_is_said_on_the_terminal_too(seen: int, said: str) -> None:
    report = tokenizer()
    best = replace(report.advice[0], evidence=[Evidence("waiting_at_once", seen, "count")])
    first = summary(replace(report, advice=[best])).advice[0]
    assert first.endswith(f"ms per step), if what it waits for serves 2 at once; {said}")
    assert "at once" not in summary(report).advice[0]


@pytest.mark.parametrize(("ms", "head", "cell"), [(0.0042, "µs", "4.20"), (1.5, "ms", "1.50")])
def test_slow_samples_that_are_fast_are_shown_in_microseconds(ms: float, head: str, cell: str) -> None:
    report = tokenizer()
    assert report.input is not None
    text = render_text(replace(report, input=replace(report.input, slowest_samples=[SlowSample(7, ms)])))
    lines = text.split("The slowest samples")[1].splitlines()
    assert lines[1].split() == ["Dataset", "index", head]
    assert lines[2].split() == ["7", cell]


def test_small_parts_are_one_and_shares_add_up() -> None:
    bar = summary(images()).bar
    assert [label for label, _ in bar] == ["waiting for input", "compute", "the rest"]
    assert sum(share for _, share in bar) == pytest.approx(1)


def test_a_crash_comes_before_other_notices() -> None:
    shown = summary(short())
    assert shown.notices[0].startswith("The script ended with an exception")
    assert len(shown.notices) == 2
    assert shown.bar == ()
    assert shown.advice == ()


def test_unremarkable_notices_stay_in_the_report() -> None:
    assert summary(tokenizer()).notices == ()


@given(st.lists(st.floats(0, 1), max_size=9), st.integers(1, 200))
def test_a_bar_is_always_full(shares: list[float], width: int) -> None:
    cells = bar_cells(shares, width)
    assert sum(cells) == (width if sum(shares) > 0 else 0)
    assert all(cell >= 0 for cell in cells)


@pytest.mark.parametrize("case", ["tokenizer", "images", "gpu", "short"])
def test_text_is_plain(case: str) -> None:
    text = render_text(CASES[case]())
    assert text.endswith(".\n")
    assert all(line == line.rstrip() for line in text.split("\n"))
    assert max(map(len, text.split("\n"))) <= 130
    assert "\n\n\n" not in text


def test_nothing_measured_can_be_said_too() -> None:
    text = render_text(replace(short(), steps=[], input=None, environment={}, notices=[]))
    assert "mean step not measured" in text
