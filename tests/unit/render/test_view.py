from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from report_cases import CASES, images, tokenizer

from dlprof.model.kinds import Cause, Confidence, ExitReason
from dlprof.model.report import BudgetRow, Exit, Forecast, Report, StepRow
from dlprof.render.background import flat, gpu_facts, labelled
from dlprof.render.blocks import Code, Facts, Figure, Prose, Section, Table
from dlprof.render.html import render_html
from dlprof.render.markdown import render_markdown
from dlprof.render.sections import build
from dlprof.render.text import render_text
from dlprof.render.view import ended, paragraphs, view


def strings(value: Any) -> Iterator[str]:
    """All strings of a view, and a failure for anything else in it."""
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from strings(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from strings(item)
    else:
        assert value is None


@pytest.mark.parametrize("case", CASES)
def test_a_view_is_strings_without_computer_words(case: str) -> None:
    shown = view(CASES[case]())
    for said in strings(shown):
        assert not re.search(r"\b(nan|inf|None)\b|: (True|False)\b", said), said
        assert "\x1b" not in said


def section(case: Any, id: str) -> Section | None:
    return next((found for found in build(case, ()) if found.id == id), None)


def test_the_first_screen_has_two_pieces_of_advice_and_the_rest_follows() -> None:
    report = images()
    report = replace(report, advice=[*tokenizer().advice, *report.advice])
    shown = view(report)
    assert [item.id for item in shown.advice] == ["raise-num-workers", "pretokenize-dataset"]
    assert any("Decode fewer pixels" in said for said in strings(shown.sections[0]))
    assert shown.sections[0].id == "more-advice"


def test_five_pieces_of_advice_are_shown_and_the_rest_is_folded() -> None:
    report = tokenizer()
    for count in (5, 6):
        shown = view(replace(report, advice=[report.advice[0]] * count))
        found = {section.id: section for section in shown.sections}
        assert len(shown.advice) == 2
        assert not found["more-advice"].folded
        assert ("rest-of-advice" in found) is (count > 5)
    page = render_html(replace(report, advice=[report.advice[0]] * 6))
    assert page.count("<details>") == 1
    assert "<summary>The rest of the advice</summary>" in render_markdown(
        replace(report, advice=[report.advice[0]] * 6)
    )


def test_gain_goes_with_the_step_it_forecasts() -> None:
    best = view(tokenizer()).advice[0]
    assert best.gain.startswith("2.3")
    assert best.gain_word == "faster"
    assert best.gain_note == "forecast: 61.9 → 26.8 ms per step"
    assert best.title == "Raise num_workers from 0 to 2"


def test_a_gain_of_nothing_is_not_called_faster() -> None:
    report = tokenizer()
    report = replace(report, advice=[replace(report.advice[0], speedup=(0.98, 1.0, 1.02))])
    assert view(report).advice[0].gain_word == ""


def test_advice_without_a_forecast_says_so() -> None:
    report = tokenizer()
    shown = view(replace(report, advice=[replace(report.advice[0], speedup=None)])).advice[0]
    assert (shown.gain, shown.gain_note) == ("", "gain not forecast")


def test_budget_is_sorted_with_other_last_and_without_empty_rows() -> None:
    rows = [
        BudgetRow(Cause.OTHER, 30.0, 0.5, "traced"),
        BudgetRow(Cause.PYTHON, 10.0, 0.2, "traced"),
        BudgetRow(Cause.INPUT_WAIT, 20.0, 0.3, "light"),
        BudgetRow(Cause.CHECKPOINT, 0.0, 0.0, "traced"),
    ]
    budget = view(replace(tokenizer(), budget=rows)).budget
    assert budget is not None
    assert [row.cause for row in budget.rows] == ["input_wait", "python", "other"]


@pytest.mark.parametrize("reason", ExitReason)
def test_a_bad_end_is_told(reason: ExitReason) -> None:
    report = tokenizer()
    told = ended(replace(report, run=replace(report.run, exit=Exit(1, reason, "boom"))))
    assert told.endswith("(exit status 1): boom")


IN_A_WORKER = """ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/home/user/train.py", line 8, in __getitem__
    raise ValueError(f"bad sample: {index}")
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: bad sample: 30
"""


@pytest.mark.parametrize(
    ("detail", "shown"),
    [
        (IN_A_WORKER, "ValueError: bad sample: 30"),
        (IN_A_WORKER.replace("ValueError: bad sample: 30", "my.module.Wrong"), "my.module.Wrong"),
        ("ValueError: first\nsecond: line", "ValueError: first second: line"),
    ],
)
def test_of_an_error_that_quotes_a_traceback_the_last_line_is_told(detail: str, shown: str) -> None:
    report = tokenizer()
    told = ended(replace(report, run=replace(report.run, exit=Exit(1, ExitReason.EXCEPTION, detail))))
    assert told.endswith(f"(exit status 1): {shown}")


def test_a_good_end_is_not() -> None:
    assert ended(tokenizer()) == ""


def test_how_is_cut_into_sentences_and_lines_to_paste() -> None:
    how = "Do this\nand that:\n\n    a = 1\n\n        b = 2\n    c = 3\n\nThen rest.\n    d = 4"
    assert paragraphs(how) == (
        Prose("Do this and that:"),
        Code("a = 1\n\n    b = 2\nc = 3"),
        Prose("Then rest."),
        Code("d = 4"),
    )
    assert paragraphs("") == ()


def test_no_section_without_data() -> None:
    report = replace(tokenizer(), input=None, forecast=[], steps=[], not_advised=[], notices=[], budget=[])
    ids = [found.id for found in view(report).sections]
    assert ids == ["parts", "environment", "method"]


def test_the_forecast_names_the_fewest_workers_that_do() -> None:
    report = tokenizer()
    rows = [
        Forecast(
            "num_workers", 0, to, (low, middle, high), (61.9 / high, 61.9 / middle, 61.9 / low), Confidence.HIGH, None
        )
        for to, low, middle, high in [(2, 26.0, 27.0, 28.0), (4, 26.0, 26.8, 28.0)]
    ]
    found = section(replace(report, forecast=rows), "forecast")
    assert found is not None
    assert isinstance(found.blocks[0], Figure)
    assert found.blocks[0].description.endswith("Best in the forecast: 27.0 ms with 2 workers.")


def test_a_forecast_without_a_sure_gain_recommends_nothing() -> None:
    found = section(images(), "forecast")
    assert found is not None
    assert isinstance(found.blocks[0], Figure)
    assert found.blocks[0].description.endswith("No other number of workers is clearly faster in the forecast.")


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([StepRow(5, 61.2, 38.0, False)], "One measured step took 61.2 ms"),
        ([StepRow(5, 61.2, 38.0, True)], "Every step was traced"),
        ([StepRow(5, 60.0, 30.0, False), StepRow(6, 62.0, 30.0, False)], "2 measured steps took 60.0 ms to 62.0 ms"),
    ],
)
def test_few_steps_read_well(steps: list[StepRow], words: str) -> None:
    found = section(replace(tokenizer(), steps=steps), "steps")
    assert found is not None
    assert isinstance(found.blocks[0], Figure)
    assert found.blocks[0].description.startswith(words)


def test_environment_is_flattened_and_carries_units() -> None:
    values = {"cpu": {"cores": 2}, "gpus": [{"name": "H200", "memory_bytes": 150e9}], "limit_bytes": None}
    shown = [labelled(key, value) for key, value in flat(values)]
    assert shown == [
        ("cpu.cores", "2"),
        ("gpus.0.name", "H200"),
        ("gpus.0.memory", "150 GB"),
        ("limit", "not known"),
    ]
    assert labelled("cpu_quota", None) == ("cpu quota", "none")


GPU = {
    "index": 0,
    "name": "NVIDIA H200",
    "matched_by": "pid",
    "memory_total_bytes": 150_754_820_096,
    "memory_used_max_bytes": 12_345_678_901,
    "memory_of_run_max_bytes": 11_000_000_000,
    "utilization_mean_ratio": 0.374,
    "utilization_samples": 120,
    "pcie_link": "4 x16",
    "pcie_link_max": "5 x16",
    "pcie_received_mean_bytes_per_s": 2.1e9,
    "pcie_received_max_bytes_per_s": 12.4e9,
    "other_processes_max": 0,
}


def gpu_rows(*gpus: Any) -> list[tuple[str, dict[str, str]]]:
    return [(each.caption, {row.label: row.value for row in each.rows}) for each in gpu_facts(gpus)]


def test_a_gpu_is_shown_with_good_units() -> None:
    assert gpu_rows(GPU) == [
        (
            "GPU 0",
            {
                "GPU 0": "NVIDIA H200",
                "Memory used, at most": "12.3 GB of 151 GB",
                "Memory of this run, at most": "11.0 GB of 151 GB",
                "Kernels ran (of any process)": "37 % of the time, 120 samples",
                "PCIe link": "generation 4, 16 lanes; it can do generation 5, 16 lanes",
                "Received over PCIe": "mean 2.1 GB/s, at most 12.4 GB/s",
                "Other processes on it, at most": "0",
            },
        )
    ]


@pytest.mark.parametrize("missing", GPU)
@pytest.mark.parametrize("how", ["left out", "none"])
def test_what_the_driver_does_not_say_of_a_gpu_is_left_out(missing: str, how: str) -> None:
    known = {key: value for key, value in GPU.items() if key != missing}
    ((caption, rows),) = gpu_rows(known if how == "left out" else known | {missing: None})
    assert caption
    assert rows
    assert "None" not in caption + str(rows)
    assert "not measured" not in str(rows)


def test_of_a_gpu_nothing_may_be_known_and_what_is_no_gpu_is_not_shown() -> None:
    assert gpu_rows({}, "H200", None, 3) == [("GPU", {"GPU": "model not known"})]


def test_a_gpu_that_may_not_be_the_runs_says_so() -> None:
    ((_, rows),) = gpu_rows(GPU | {"matched_by": "visible", "other_processes_max": None, "mig": True})
    assert rows["Why it is shown"].startswith("the run may see it")
    assert rows["Divided (MIG)"] == "yes"


@pytest.mark.parametrize("form", [render_text, render_markdown, render_html])
def test_every_form_shows_the_gpus_apart_from_the_machine(form: Callable[[Report], str]) -> None:
    report = tokenizer()
    shown = form(replace(report, environment=report.environment | {"gpus": [GPU, GPU | {"index": 1}]}))
    for said in ("GPU 0", "GPU 1", "NVIDIA H200", "12.3 GB of 151 GB", "37 % of the time"):
        assert said in shown.replace("\N{NO-BREAK SPACE}", " ")
    assert "gpus.0" not in shown
    assert "GPU 0" not in form(report)


def test_a_forecast_of_the_advice_is_the_one_in_the_table() -> None:
    report = tokenizer()
    row = replace(report.forecast[1], step_ms=(24.9, 27.4, 30.1))
    advised = replace(report.advice[0], speedup=row.speedup)
    report = replace(report, forecast=[row], advice=[advised])
    assert view(report).advice[0].gain_note == "forecast: 61.9 → 27.4 ms per step"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"from_": 2, "to": 4}, "num_workers 2 → 4"),
        ({"from_": 2, "to": 2}, "num_workers 2, as it is"),
        ({"setting": "dataset_getitem removed", "to": 0.0}, "without dataset __getitem__"),
        ({"setting": "input removed", "to": 0.0}, "without any data work"),
    ],
)
def test_what_a_forecast_supposes_is_said_in_words(change: dict[str, Any], words: str) -> None:
    report = replace(tokenizer(), forecast=[replace(tokenizer().forecast[0], **change)])
    found = section(report, "forecast")
    assert found is not None
    (table,) = (block for block in found.blocks if isinstance(block, Table))
    assert table.rows[0][0] == words


def test_what_happened_during_the_steps_stands_apart_from_the_machine() -> None:
    report = replace(tokenizer(), environment={"cores": 2, "during_the_steps": {"cores_used": 1.9}})
    found = section(report, "environment")
    assert found is not None
    machine, during = (block for block in found.blocks if isinstance(block, Facts))
    assert ("cores", "2") in [(fact.label, fact.value) for fact in machine.rows]
    assert [(fact.label, fact.value) for fact in during.rows] == [("cores used", "1.9")]


def test_the_stack_of_an_exception_in_a_worker_is_shown_whole() -> None:
    detail = 'ValueError: Caught\nTraceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: gap\n'
    report = replace(tokenizer(), run=replace(tokenizer().run, exit=Exit(1, ExitReason.EXCEPTION, detail)))
    found = section(report, "traceback")
    assert found is not None
    assert [block.text for block in found.blocks if isinstance(block, Code)] == [detail.rstrip()]
    plain = replace(report, run=replace(report.run, exit=Exit(1, ExitReason.EXCEPTION, "ValueError: gap")))
    assert section(plain, "traceback") is None


def test_without_advice_the_headlines_work_is_what_would_help() -> None:
    assert view(replace(tokenizer(), advice=[])).advice_note.endswith("Less of the work that the headline names would.")
