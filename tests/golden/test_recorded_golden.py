from __future__ import annotations

import functools
from pathlib import Path

import pytest
from compare_cases import RECORDED
from goldtest import compare

from dlprof.analysis.moments import find_moments
from dlprof.diagnose import diagnose
from dlprof.formats import run_file
from dlprof.model.moments import Moment
from dlprof.model.report import Report
from dlprof.render import render_each

REPORTS = Path(__file__).parents[2] / "reports"
CASE = "text-2-workers"


@functools.cache
def recorded() -> tuple[Report, tuple[Moment, ...]]:
    profile = run_file.load(RECORDED / CASE / run_file.NAME)
    return diagnose(profile), find_moments(profile)


@pytest.mark.parametrize("format_", ["html", "md", "txt"])
def test_the_report_of_a_recorded_run_is_the_golden_one(format_: str, update: bool) -> None:
    report, moments = recorded()
    ((file_name, page),) = render_each(report, [format_], moments)
    assert isinstance(page, bytes)
    compare(page.decode(), REPORTS / CASE / file_name, update)


def test_what_the_recorded_run_must_say_whatever_the_golden_file_holds() -> None:
    report, moments = recorded()
    assert (report.verdict.bottleneck, report.verdict.component) == ("cpu_preprocessing", "tokenizer")
    assert report.advice[0].id == "pretokenize-dataset"
    assert [it.key for it in moments] == ["typical", "slowest"]
    ((_, page),) = render_each(report, ["txt"], moments)
    assert isinstance(page, bytes)
    assert "examples/train_text.py:117" in page.decode()
    assert "The pipeline at work" in page.decode()
