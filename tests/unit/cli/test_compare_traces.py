"""``dlprof compare`` on traces of torch.profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from builders import ms, us
from traces import step, text, trace

from dlprof.cli.main import main

WAITING = step(input=ms(30), operator=ms(2), compute=ms(20)) * 12
FED = step(input=us(10), operator=ms(2), compute=ms(20)) * 12


@pytest.fixture(autouse=True)
def _work_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, document: object) -> str:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text(document)) if path.suffix == ".gz" else text(document))
    return name


def compared(capsys, before: str, after: str) -> dict[str, Any]:
    assert main(["compare", before, after, "--out", "-", "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_two_traces_differ_in_what_they_differ_in(capsys):
    write("fed/a.pt.trace.json", trace(FED))
    found = compared(capsys, write("waiting.pt.trace.json.gz", trace(WAITING)), "fed")
    assert found["step"]["direction"] == "shorter"
    assert (found["step"]["before_ms"], found["step"]["after_ms"]) == pytest.approx((52, 22), abs=1)
    directions = {row["cause"]: row["direction"] for row in found["causes"]}
    assert directions["input_wait"] == "shorter"
    assert directions["device_compute"] == "not-significant"
    assert {caution["slug"] for caution in found["cautions"]} == {"batch-unknown", "load-unknown", "settings-unknown"}


def test_a_report_on_a_trace_compares_with_the_trace(capsys):
    name = write("a.pt.trace.json", trace(WAITING))
    assert main(["analyze", name, "--out", "reports", "--format", "json"]) == 0
    capsys.readouterr()
    found = compared(capsys, "reports", name)
    assert found["step"]["direction"] == "not-significant"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("page.html", "page.html is not a trace"),
        ("report.json", "cannot be read as a dlprof report"),
        ("jobs", "traces of 2 jobs in jobs"),
        ("empty", "empty is not a run, and there is no trace in it"),
        ("none", "no such run: none"),
    ],
)
def test_what_cannot_be_compared_is_said(capsys, name, says):
    Path("page.html").write_text("<html></html>")
    Path("report.json").write_text("{}")
    Path("empty").mkdir()
    write("jobs/one.pt.trace.json", trace(WAITING))
    write("jobs/two.pt.trace.json", trace(step(operator=ms(5)) * 8))
    assert main(["compare", name, write("a.pt.trace.json", trace(FED)), "--out", "-", "--format", "txt"]) == 70
    assert says in capsys.readouterr().err
