"""The result of ``dlprof tune`` in its formats, whatever the script's strings hold."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from report_cases import CONTROL, MARKUP
from tune_cases import CASES

from dlprof.model.tune import Ending
from dlprof.render import render_tune, tune_lines
from dlprof.render.wording import tune_conclusion, tune_how


def page(case: str, format_: str) -> str:
    ((_, made),) = render_tune(CASES[case](), [format_])
    assert isinstance(made, bytes)
    return made.decode()


@pytest.mark.parametrize("case", CASES)
def test_the_page_loads_nothing_and_runs_nothing(case: str) -> None:
    html = page(case, "html")
    assert "default-src 'none'" in html
    assert MARKUP not in html
    assert "<script" not in html
    assert "url(" not in html
    assert "\x1b" not in html


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("format_", ["html", "md", "txt"])
def test_no_computer_words(case: str, format_: str) -> None:
    text = re.sub(r"<style>.*?</style>", "", page(case, format_), flags=re.S)
    assert not re.search(r"\b(nan|NaN|None|undefined)\b", text)


def test_the_file_names() -> None:
    assert [name for name, _ in render_tune(CASES["won"](), ["html", "md", "txt"])] == [
        "report.html",
        "report.md",
        "report.txt",
    ]


def test_the_terminal_gets_a_table_and_the_lines_to_paste() -> None:
    lines = tune_lines(CASES["won"]())
    assert lines[0].startswith("With num_workers=2 a step takes 29.2 ms")
    assert [line.split()[0] for line in lines[1:7]] == [
        "settings",
        "as",
        "*",
        "num_workers=1",
        *["num_workers=2,"],
        "num_workers=8",
    ]
    assert "worker died" in lines[6]
    assert lines[-1] == "    DataLoader(..., num_workers=2)"


def test_the_terminal_gets_no_control_characters() -> None:
    assert not any(control in line for line in tune_lines(CASES["hostile"]()) for control in CONTROL[1:3])


def test_lines_to_paste() -> None:
    made = {"num_workers": 2, "prefetch_factor": 2}
    assert "    DataLoader(..., prefetch_factor=4)" in tune_how({"prefetch_factor": 4}, made)
    fewer = tune_how({"num_workers": 0}, made)
    assert "Fewer workers" in fewer
    assert "Without workers torch refuses prefetch_factor" in fewer
    trainer = tune_how({"num_workers": 4, "pin_memory": False}, {**made, "made_by": "transformers.trainer"})
    assert "TrainingArguments(..., dataloader_num_workers=4, dataloader_pin_memory=False)" in trainer


@pytest.mark.parametrize(
    ("forecast", "says"),
    [((20.0, 22.0, 24.0), " was too short."), ((40.0, 44.0, 48.0), " was too long."), ((20.0, 26.0, 40.0), "")],
)
def test_a_forecast_that_missed_what_was_measured_is_said(forecast: tuple[float, float, float], says: str) -> None:
    won = CASES["won"]()
    rows = [won.baseline, *won.trials]
    number = next(place for place, row in enumerate(rows) if row.number == won.winner)
    promise = rows[number].forecast
    assert promise is not None
    rows[number] = replace(rows[number], forecast=replace(promise, step_ms=forecast))
    said = tune_conclusion(rows, won.winner, won.ending)
    assert ("The forecast" in said) is bool(says)
    assert said.endswith(says)


@pytest.mark.parametrize("ending", Ending)
def test_that_repeated_samples_were_not_tried_is_said_beside_what_was(ending: Ending) -> None:
    won = CASES["won"]()
    for rows, winner in (([won.baseline, *won.trials], won.winner), ([won.baseline], None)):
        found = tune_conclusion(rows, winner, ending)
        assert tune_conclusion(rows, winner, ending, repeats=True).startswith(
            f"{found} More than one worker was not tried"
        )
