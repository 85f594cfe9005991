from __future__ import annotations

import functools
import io
from typing import NamedTuple

import pytest
from compare_cases import RECORDED
from goldtest import REPORTS, check

from dlprof.analysis.moments import find_moments
from dlprof.diagnose import diagnose
from dlprof.errors import DlprofError
from dlprof.formats import run_file
from dlprof.formats.report_json import encode_report
from dlprof.model.moments import Moment
from dlprof.model.report import Report
from dlprof.render import RENDERERS, render_each
from dlprof.words import CHINESE, speaking

FORMATS = {"json": "report.json"} | {name: renderer.file_name for name, renderer in RENDERERS.items()}


class Planted(NamedTuple):
    """What is known of a run by how its script was made."""

    bottleneck: str
    component: str | None
    advice: str
    line: str | None
    """The line of the script that the bottleneck is at."""


CASES = {
    "text-2-workers": Planted(
        "cpu_preprocessing", "tokenizer", "pretokenize-dataset", "document = self.tokenizer.encode(document).ids"
    ),
    "images": Planted("cpu_preprocessing", "decode", "decode-faster", 'image = file.convert("RGB")'),
    "storage": Planted(
        "storage_io", "storage_io", "raise-num-workers", "row = os.pread(self.fd, ROW * 4, int(item) * ROW * 4)"
    ),
    "compute": Planted("device_compute", "compute", "stop-tuning-input", None),
    "crash": Planted("cpu_preprocessing", "dataset_getitem", "speed-up-getitem", "power = np.abs(np.fft.rfft(windows"),
}


@functools.cache
def recorded(case: str) -> tuple[Report, tuple[Moment, ...]]:
    profile = run_file.load(RECORDED / case / run_file.NAME)
    return diagnose(profile), find_moments(profile)


@functools.cache
def documents(case: str) -> dict[str, bytes | DlprofError]:
    """All reports of a recorded run, by the file's name."""
    report, moments = recorded(case)
    return {"report.json": encode_report(report), **dict(render_each(report, RENDERERS, moments))}


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_the_report_of_a_recorded_run_is_the_golden_one(case: str, format_: str, update: bool) -> None:
    check(documents(case)[FORMATS[format_]], REPORTS / case / FORMATS[format_], update)


@pytest.mark.parametrize("case", CASES)
def test_what_the_recorded_run_must_say_whatever_the_golden_file_holds(case: str) -> None:
    report, _ = recorded(case)
    planted = CASES[case]
    verdict = report.verdict
    assert (verdict.bottleneck, verdict.component) == (planted.bottleneck, planted.component)
    assert (report.advice[0].id if report.advice else "") == planted.advice
    lines = report.input.hot_lines if report.input else []
    if planted.line is not None:
        assert lines[0].source.startswith(planted.line)
        assert lines[0].where.startswith(report.run.command[1] + ":")
        assert lines[0].where in verdict.headline
    said = documents(case)["report.txt"]
    assert isinstance(said, bytes)
    assert " ".join(verdict.headline.split()) in " ".join(said.decode().split())


@functools.cache
def in_chinese() -> tuple[Report, dict[str, bytes | DlprofError]]:
    """A recorded run's report and its documents, in Chinese."""
    with speaking(CHINESE):
        profile = run_file.load(RECORDED / "text-2-workers" / run_file.NAME)
        report = diagnose(profile)
        return report, dict(render_each(report, RENDERERS, find_moments(profile)))


@pytest.mark.parametrize("format_", RENDERERS)
def test_the_report_in_chinese_is_the_golden_one(format_: str, update: bool) -> None:
    file_name = RENDERERS[format_].file_name
    check(in_chinese()[1][file_name], REPORTS / "chinese" / file_name, update)


def test_the_json_is_the_same_in_every_language() -> None:
    assert encode_report(in_chinese()[0]) == documents("text-2-workers")["report.json"]


def test_a_step_of_a_recorded_run_is_shown_at_work() -> None:
    _, moments = recorded("text-2-workers")
    assert [it.key for it in moments] == ["typical", "slowest"]
    said = documents("text-2-workers")["report.txt"]
    assert isinstance(said, bytes)
    assert "The pipeline at work" in said.decode()


def test_the_report_of_a_crash_names_the_exception_and_the_place_it_was_raised_at() -> None:
    report, _ = recorded("crash")
    assert (report.run.exit.reason, report.run.exit.status) == ("exception", 1)
    assert report.run.exit.detail is not None
    assert 'File "tests/data/crash/train.py", line 29, in __getitem__' in report.run.exit.detail
    assert report.run.exit.detail.endswith("\nValueError: recording 417: 400 of 32768 samples are missing\n")
    for name, said in documents("crash").items():
        if name.endswith((".txt", ".md", ".html")):
            assert isinstance(said, bytes)
            assert "recording 417: 400 of" in said.decode().replace("\u00a0", " ").replace("\n", " ")


@pytest.mark.parametrize("case", CASES)
def test_its_pdf_has_six_pages_at_most(case: str) -> None:
    made = documents(case)["report.pdf"]
    if isinstance(made, DlprofError):
        pytest.skip(f"{made.message} {made.hint}")
    pages = pytest.importorskip("pypdf").PdfReader(io.BytesIO(made)).pages
    assert 1 < len(pages) <= 6
