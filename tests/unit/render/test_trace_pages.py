"""What a report on a trace says to its reader, in each form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import ms
from traces import Mark, step, text, trace

from dlprof.analysis.trace_rank import analyse
from dlprof.diagnose_trace import diagnose_trace
from dlprof.formats.torch_trace import read_trace
from dlprof.model.report import Report
from dlprof.render.brief import render_brief
from dlprof.render.html import render_html
from dlprof.render.markdown import render_markdown
from dlprof.render.text import render_text
from dlprof.render.wrapping import width_of
from dlprof.words import LANGUAGES, speaking

WAITING = step(input=ms(30), operator=ms(2), compute=ms(20)) * 12
FORMS = [render_html, render_markdown, render_text, render_brief]
RECORD = "dlprof run --steps 50 train.py"


@pytest.fixture
def report_on(tmp_path: Path) -> Callable[..., Report]:
    def make(marks: list[Mark], name: str = "host_7.1.pt.trace.json", **options: Any) -> Report:
        path = tmp_path / name
        path.write_bytes(text(trace(marks, **options)))
        return diagnose_trace(analyse(read_trace(path)), [name])

    return make


def spoken(page: str) -> str:
    """A page on one line, without what keeps words together."""
    return " ".join(page.replace("\N{NO-BREAK SPACE}", " ").replace("\\_", "_").split())


@pytest.mark.parametrize("form", FORMS)
def test_a_loader_with_workers_is_to_get_more_or_to_be_recorded(form, report_on) -> None:
    said = spoken(form(report_on(WAITING, workers=True)))
    assert "more workers" in said
    assert RECORD in said
    assert "forecast" not in said


@pytest.mark.parametrize("form", FORMS)
def test_what_a_trace_does_not_show_stands_beside_the_advice(form, report_on) -> None:
    said = spoken(form(report_on(WAITING)))
    assert said.index("Raise num_workers") < said.index(RECORD)


def test_the_few_lines_give_two_pieces_of_advice_each_with_what_it_can_gain(report_on) -> None:
    report = report_on(step(input=ms(15), operator=ms(15), compute=ms(20)) * 12)
    lines = [line for line in render_brief(report).splitlines() if line.startswith("Advice")]
    assert len(lines) == 2
    assert all("at most 1.43" in line for line in lines)


@pytest.mark.parametrize("width", [80, 110])
@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_few_lines_are_whole_and_few_at_any_width(width, workers, language, report_on) -> None:
    marks = step(input=ms(1), compute=ms(20)) * 4 + step(input=ms(300), compute=ms(20)) * 12
    report = report_on(marks, marked=False, workers=workers)
    with speaking(language):
        lines = render_brief(report, width).splitlines()
        assert len(lines) < 10
        assert all(width_of(line) <= width for line in lines)
        assert "…" not in "".join(lines)
        told = [slug for slug in ("trace-queue-drained", "trace-cut-by-loader") if slug in _slugs(report)]
        assert len(told) == 2
        assert RECORD in spoken(" ".join(lines))


def test_a_narrow_terminal_gets_the_same_on_more_lines(report_on) -> None:
    report = report_on(WAITING, workers=True)
    assert spoken(render_brief(report, 50)) == spoken(render_brief(report, 80))
    assert max(map(len, render_brief(report, 50).splitlines())) <= 50


def test_notes_without_room_are_counted(report_on) -> None:
    marks = step(input=ms(1), compute=ms(20)) * 4 + step(input=ms(300), compute=ms(20)) * 12
    assert render_brief(report_on(marks, marked=False), 80).endswith("see the whole report (--format html)\n")


@pytest.mark.parametrize("form", FORMS[:3])
def test_copies_from_the_device_stay_when_those_to_it_are_gone(form, report_on) -> None:
    marks = step(h2d=ms(12), d2h=ms(18), compute=ms(1), python=ms(1)) * 12
    said = spoken(form(report_on(marks)))
    assert "Copying between host and device bounds the step" in said
    assert "Without the copies to the device a step would take about 20.0 ms, 18.0 ms of it for those from it." in said
    assert "Copies from the device" in said


def test_the_few_lines_tell_copies_to_the_device_from_those_from_it(report_on) -> None:
    said = spoken(render_brief(report_on(step(h2d=ms(12), d2h=ms(18), compute=ms(1)) * 12)))
    assert "copies to it 12.0 MB per step at 1 GB/s" in said
    assert "from it 18.0 ms per step" in said


def _slugs(report: Report) -> set[str]:
    return {notice.slug for notice in report.notices}


@pytest.mark.parametrize("form", FORMS)
def test_of_a_trace_no_forecast_is_spoken_of(form, report_on) -> None:
    report = report_on(step(compute=ms(20), all_reduce=ms(20)) * 12)
    assert not report.advice
    assert "tried in the forecast" not in spoken(form(report))
