"""``dlprof analyze``: what is printed and written, and what becomes of files that are no traces."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import pickle
from pathlib import Path

import jsonschema
import pytest
from builders import ms, us
from traces import step, text, trace

from dlprof.cli.main import main
from dlprof.formats.report_json import decode_report, report_schema

WAITING = step(input=ms(30), operator=ms(2), compute=ms(20)) * 12
COMPUTING = step(input=us(10), operator=ms(2), compute=ms(40)) * 12


@pytest.fixture(autouse=True)
def _work_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, document: object, compressed: bool = False) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text(document)) if compressed else text(document))
    return name


def analyze(capsys, *arguments: str, status: int = 0) -> tuple[str, str]:
    assert main(["analyze", *arguments]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.mark.parametrize("compressed", [False, True])
def test_text_is_printed_in_under_ten_lines_and_nothing_is_written(capsys, compressed):
    name = write("a.pt.trace.json", trace(WAITING), compressed)
    out, err = analyze(capsys, name, "--format", "txt")
    assert len(out.splitlines()) < 10
    assert out.startswith("The input pipeline bounds the step")
    assert "Raise num_workers from 0 to" in out
    assert err == ""
    assert [path.name for path in Path().iterdir()] == [name]


@pytest.mark.parametrize("columns", [60, 90])
def test_printed_lines_are_as_wide_as_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    out, _ = analyze(capsys, write("a.pt.trace.json", trace(WAITING)), "--format", "txt")
    assert columns - 30 < max(map(len, out.splitlines())) <= columns


def test_reports_are_written_to_a_new_folder_and_named(capsys):
    out, _ = analyze(capsys, write("a.pt.trace.json", trace(WAITING)), "--format", "json,md,txt,html")
    paths = [Path(line) for line in out.splitlines() if line.startswith("dlprof-runs/")]
    assert {path.name for path in paths} == {"report.json", "report.md", "report.txt", "report.html"}
    assert all(path.is_file() for path in paths)


def test_the_json_is_an_ordinary_report(capsys):
    out, _ = analyze(capsys, write("a.pt.trace.json", trace(WAITING)), "--out", "-", "--format", "json")
    jsonschema.validate(json.loads(out), report_schema())
    report = decode_report(out.encode())
    assert report.verdict.bottleneck == "input_pipeline"
    assert report.verdict.share == pytest.approx(30 / 52)
    assert sum(row.ms_per_step for row in report.budget) == pytest.approx(report.step.mean_ms)
    assert [row.traced for row in report.steps] == [False] * 12


def test_a_table_of_the_steps(capsys):
    name = write("a.pt.trace.json", trace(WAITING))
    pytest.importorskip("pandas")
    out, _ = analyze(capsys, name, "--out", "-", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 12
    assert float(rows[3]["input_wait_ms"]) == 30


def test_only_some_steps(capsys):
    name = write("a.pt.trace.json", trace([*COMPUTING, *WAITING]))
    out, _ = analyze(capsys, name, "--out", "-", "--format", "json", "--only-steps", "0:12")
    report = decode_report(out.encode())
    assert [row.index for row in report.steps] == list(range(12))
    assert report.verdict.bottleneck == "device_compute"


def test_steps_that_are_not_there_are_said(capsys):
    name = write("a.pt.trace.json", trace(WAITING))
    _, err = analyze(capsys, name, "--only-steps", "12:20", status=70)
    assert err.splitlines() == ["dlprof: a.pt.trace.json has no steps 12:20", "  its steps are numbered 0 to 11"]


@pytest.mark.parametrize(("top", "named"), [("1", 1), ("20", 2)])
def test_as_many_names_as_asked_for(capsys, top, named):
    name = write("a.pt.trace.json", trace(step(compute=ms(3), all_reduce=ms(2), python=ms(1)) * 3))
    out, _ = analyze(capsys, name, "--out", "-", "--format", "json", "--top", top)
    assert len(decode_report(out.encode()).device.top_kernels) == named


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only-steps", "5:5"], "5:5 is not of the form A:B"),
        (["--only-steps", "5"], "not of the form A:B"),
        (["--top", "0"], "--top"),
        (["--max-size", "x"], "--max-size"),
        (["--format", "png"], "there is no format 'png', only html, pdf, json, md, txt, csv"),
        (["--out", "-", "--format", "md,json"], "--out - prints one format"),
        (["--out", "full"], "full exists and is not empty"),
        (["--out", "full", "--force"], "full exists and is not empty"),
        (["--out", "full/a.txt"], "is not a folder"),
    ],
)
def test_usage_errors_come_before_anything_is_read(capsys, monkeypatch, arguments, says):
    write("full/a.txt", 1)
    monkeypatch.setattr(importlib.import_module("dlprof.api"), "analyze", None)
    out, err = analyze(capsys, "none.json", *arguments, status=2)
    assert out == ""
    assert says in err


def test_force_overwrites_reports_and_nothing_else(capsys):
    name = write("a.pt.trace.json", trace(WAITING))
    analyze(capsys, name, "--out", "there", "--format", "md")
    analyze(capsys, name, "--out", "there", "--format", "md", status=2)
    analyze(capsys, name, "--out", "there", "--format", "md", "--force")


def test_what_dlprof_left_in_a_folder_is_no_bad_trace(capsys):
    write("traces/a.json", trace(WAITING))
    analyze(capsys, "traces", "--out", "traces/reports", "--format", "json")
    analyze(capsys, "traces", "--format", "txt")


# ---- what is no trace ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"<html>", "web page"),
        (pickle.dumps([1]), "pickle"),
        (b"", "empty"),
        (b'{"traceEvents": []}', "no PyTorch activity found"),
    ],
)
def test_a_bad_file_gets_a_clear_line_and_status_70(capsys, data, says):
    Path("bad.pt.trace.json").write_bytes(data)
    out, err = analyze(capsys, "bad.pt.trace.json", "--format", "txt", status=70)
    assert out == ""
    assert says in err.splitlines()[0]
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(("lost", "confidence"), [(50, "low"), (5, "low"), (10**6, "high")])
def test_the_more_of_a_trace_is_lost_the_less_is_claimed(capsys, lost, confidence):
    document = trace(step(input=us(800), compute=us(200)) * 60)
    events = document["traceEvents"]
    document["traceEvents"] = [
        each | ({"ts": None} if number % lost == 1 else {}) for number, each in enumerate(events)
    ]
    analyze(capsys, write("a.json", document), "--format", "json", "--out", "out")
    verdict = json.loads(Path("out/report.json").read_text())["verdict"]
    assert verdict["confidence"] == confidence
    assert (verdict["bottleneck"] == "inconclusive") == (lost == 5)


def test_a_missing_file_and_a_folder_without_traces(capsys):
    Path("empty").mkdir()
    assert "no such file" in analyze(capsys, "none.json", status=70)[1]
    assert "there is no trace in empty" in analyze(capsys, "empty", status=70)[1]
    assert not Path("dlprof-runs").exists()


def test_a_trace_larger_than_allowed_says_how_to_read_it(capsys):
    name = write("a.pt.trace.json", trace(COMPUTING * 400))
    assert "--max-size 4" in analyze(capsys, name, "--max-size", "1", status=70)[1]
    assert analyze(capsys, name, "--max-size", "9", "--format", "txt")[0]


def test_other_files_of_a_folder_are_reported_all_the_same(capsys):
    write("traces/good.pt.trace.json", trace(WAITING))
    Path("traces/bad.pt.trace.json").write_bytes(b"<html>")
    out, err = analyze(capsys, "traces", "--format", "txt", status=70)
    assert out.startswith("The input pipeline bounds the step")
    assert "bad.pt.trace.json is not a trace" in err


# ---- folders -------------------------------------------------------------------------------------------------------


def ranks(folder: str, number: int, late: int) -> None:
    """Ranks of one job, of which one takes longer to compute and the others wait for it in the collective."""
    for rank in range(number):
        compute, waits = (ms(9), ms(1)) if rank == late else (ms(4), ms(6))
        marks = step(compute=compute, all_reduce=waits, python=us(100)) * 10
        write(f"{folder}/rank{rank}.pt.trace.json", trace(marks, rank=rank, ranks=number))


def test_ranks_of_one_job_make_one_report_that_says_who_is_late(capsys):
    ranks("job", 4, late=2)
    out, _ = analyze(capsys, "job", "--out", "-", "--format", "json")
    report = decode_report(out.encode())
    assert [row["rank"] for row in report.ranks] == [0, 1, 2, 3]
    assert [row["waited_most_for"] for row in report.ranks] == ["2", "2", "none", "2"]
    assert report.ranks[0]["waited_for_others_ms"] == pytest.approx(5)
    assert report.run.world_size == 4
    texts = [notice.text for notice in report.notices if notice.slug == "trace-straggler"]
    assert texts[0].startswith("Rank 2 arrives last at the collectives: the others wait 5 ms per step for it.")
    # What bounds the job is what holds that rank up, and not the others' waiting.
    assert report.verdict.bottleneck == "device_compute"
    assert report.verdict.share == pytest.approx(9 / 10.1)


def test_ranks_that_are_missing_are_named(capsys):
    ranks("job", 6, late=2)
    for rank in (1, 4, 5):
        Path(f"job/rank{rank}.pt.trace.json").unlink()
    out, _ = analyze(capsys, "job", "--format", "txt")
    assert "3 of 6 ranks were found; missing: 1, 4\N{EN DASH}5." in " ".join(out.split())
    assert "all above is of rank 2" in " ".join(out.split())
    out, _ = analyze(capsys, "job/rank3.pt.trace.json", "--format", "txt")
    assert "This is rank 3 of 6;" in " ".join(out.split())


def test_a_rank_whose_trace_is_cut_off_is_in_no_comparison(capsys):
    ranks("job", 4, late=2)
    path = Path("job/rank3.pt.trace.json")
    # As torch writes it: what is said of the job stands before the events, and kernels behind what the host did.
    document = json.loads(path.read_text())
    events = sorted(document.pop("traceEvents"), key=lambda each: each["cat"] == "kernel")
    text = json.dumps({**document, "traceEvents": events})
    path.write_text(text[: len(text) // 3])
    out, _ = analyze(capsys, "job", "--out", "-", "--format", "json")
    report = decode_report(out.encode())
    assert [row["rank"] for row in report.ranks] == [0, 1, 2]
    assert (report.run.world_size, report.verdict.bottleneck) == (4, "device_compute")
    texts = {notice.slug: notice.text for notice in report.notices}
    assert "rank 3" in texts["trace-ranks-left-out"]
    assert "trace-truncated" in texts
    assert "trace-ranks-missing" not in texts


@pytest.mark.parametrize("place", ["rank{}/trace.json", "rank{}/pytorch.pt.trace.json", "trace_rank{}.json"])
@pytest.mark.parametrize("said", [True, False])
def test_ranks_are_known_by_what_the_trace_says_or_by_the_names_of_files_and_folders(capsys, place, said):
    for rank in range(3):
        document = trace(step(compute=ms(9), all_reduce=ms(1)) * 3, rank=rank if said else None, ranks=3)
        write("job/" + place.format(rank), document)
    out, _ = analyze(capsys, "job", "--out", "-", "--format", "json")
    report = decode_report(out.encode())
    assert [row["rank"] for row in report.ranks] == [0, 1, 2]
    assert report.run.world_size == 3


def test_jobs_of_one_folder_are_told_apart(capsys):
    ranks("mixed", 2, late=1)
    write("mixed/other.pt.trace.json", trace(WAITING))
    out, _ = analyze(capsys, "mixed", "--out", "there", "--format", "json")
    found = {path.parent.name: decode_report(path.read_bytes()) for path in Path("there").glob("*/report.json")}
    assert {name: len(report.ranks) for name, report in found.items()} == {"other": 0, "mixed": 2}
    assert out.count("report.json") == 2


def test_spans_of_one_process_are_one_job_and_not_ranks(capsys):
    for number, when in enumerate(("1700000000001", "1700000009001")):
        document = trace(COMPUTING, began_ns=10**9 * (1 + number))
        write(f"spans/host_12.{when}.pt.trace.json", document)
    out, _ = analyze(capsys, "spans", "--out", "-", "--format", "json")
    report = decode_report(out.encode())
    assert report.run.steps_measured == 24
    assert "waited_most_for" not in report.ranks[0]
    assert report.host == "host"


def test_large_folders_are_read_by_several_processes_with_the_same_result(capsys, monkeypatch):
    from dlprof import trace_files

    ranks("job", 2, late=0)
    Path("job/bad.pt.trace.json").write_bytes(b"<html>")
    alone, said = analyze(capsys, "job", "--format", "txt", status=70)
    monkeypatch.setattr(trace_files, "_SIDE_BY_SIDE_BYTES", 0)
    assert analyze(capsys, "job", "--format", "txt", status=70) == (alone, said)
