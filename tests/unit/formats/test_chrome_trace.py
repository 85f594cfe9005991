"""Traces: what is read from torch's, and one trace of main, workers and torch with arrows from worker to main."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from builders import FIRST_WORKER_PID, MAIN_PID, Span, end_of_epoch, ms, profile, recorded, step, validation
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.formats.chrome_trace import TorchEvent, read_torch_trace, write_trace
from dlprof.model.kinds import Kind, Role
from dlprof.model.profile import Profile

MARKER = "dlprof.clock"


# ---- torch's traces --------------------------------------------------------------------------------------------------


def complete(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def torch_trace(folder: Path, *events: dict[str, Any], **top: Any) -> Path:
    path = folder / "torch.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events), **top}))
    return path


def read(folder: Path, *events: dict[str, Any]) -> tuple[TorchEvent, ...]:
    return read_torch_trace(torch_trace(folder, *events), MARKER).events


def test_microseconds_become_nanoseconds(tmp_path):
    (event,) = read(tmp_path, complete("aten::mm", 12.345, 1.5))
    assert event == TorchEvent(Kind.OPERATOR, "aten::mm", 12_345, 13_845, 1, False, -1)


def test_of_nested_operators_only_the_outermost_of_each_thread_counts(tmp_path):
    found = read(
        tmp_path,
        complete("aten::matmul", 10, 10),
        complete("aten::linear", 10, 12),
        complete("aten::mm", 15, 7),
        complete("aten::add", 30, 1),
        complete("autograd::engine", 12, 3, tid=2),
    )
    assert [event.name for event in found] == ["aten::linear", "autograd::engine", "aten::add"]


def test_device_work_lies_on_its_stream_and_copies_say_their_bytes(tmp_path):
    (copy,) = read(
        tmp_path, complete("Memcpy HtoD (Pinned -> Device)", 1, 2, "gpu_memcpy", tid=7, stream=20, bytes=4096)
    )
    assert (copy.kind, copy.thread, copy.on_device, copy.size_bytes) == (Kind.COPY_H2D, 20, True, 4096)


def test_markers_come_in_the_order_of_time_and_are_no_events(tmp_path):
    path = torch_trace(
        tmp_path,
        complete(MARKER, 50, 1, "user_annotation"),
        complete(MARKER, 10, 2, "cpu_op"),
    )
    trace = read_torch_trace(path, MARKER)
    assert trace.markers_ns == ((10_000, 12_000), (50_000, 51_000))
    assert trace.events == ()


@pytest.mark.parametrize(
    "event",
    [
        pytest.param({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}, id="metadata"),
        pytest.param({"ph": "M", "name": "sort", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 1.5}, id="text pid"),
        pytest.param({"ph": "X", "cat": "Trace", "ts": 1, "dur": 2, "args": {"Op count": 1}}, id="own"),
        pytest.param({"ph": "s", "id": 3, "cat": "ac2g", "name": "ac2g", "ts": 1, "pid": 1, "tid": 2}, id="flow"),
        pytest.param({"ph": "X", "cat": "cpu_op", "name": 5, "ts": "soon"}, id="of other types"),
        pytest.param({}, id="empty"),
    ],
)
def test_events_that_are_no_spans_are_passed_over(tmp_path, event):
    assert [each.name for each in read(tmp_path, event, complete("aten::mm", 1, 1))] == ["aten::mm"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"traceEvents": 3}', '{"traceEvents": [1, '])
def test_what_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "torch.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"torch\.json is not a trace"):
        read_torch_trace(path, MARKER)


def test_a_name_that_is_not_utf8_costs_the_trace_and_not_the_report(tmp_path):
    path = torch_trace(tmp_path, complete("PLACE", 1, 1))
    path.write_bytes(path.read_bytes().replace(b"PLACE", b"caf\xe9"))
    with contextlib.suppress(ValueError):
        assert len(read_torch_trace(path, MARKER).events) <= 1


def test_a_trace_that_is_gone_is_the_callers_to_know(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_torch_trace(tmp_path / "gone.json", MARKER)


# ---- ours ------------------------------------------------------------------------------------------------------------

MADE = step(getitem=ms(20), tokenizer=ms(10), collate=ms(3), compute=ms(10), pickle=ms(2), send=ms(1), unpickle=ms(1))
EPOCH = MADE * 6 + end_of_epoch() + validation(step(getitem=ms(1)) * 2)
WITH_WORKERS = profile(EPOCH * 2, workers=2, startup=ms(300))
NOT_SHOWN = (Kind.TASK_SENT, Kind.BODY)


def written(folder: Path, found: Profile, torch: Path | None = None, offset_ns: int | None = None) -> dict[str, Any]:
    path = folder / "run.pt.trace.json.gz"
    write_trace(found, path, torch, offset_ns)
    return json.loads(gzip.decompress(path.read_bytes()))


def of_phase(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def shown(found: Profile, base_ns: int = 0) -> list[tuple[int, int, int, int]]:
    spans = found.spans
    return sorted(
        (
            int(spans.start_ns[row]) + base_ns,
            int(spans.end_ns[row]) + base_ns,
            found.tracks[spans.track[row]].pid,
            found.tracks[spans.track[row]].thread,
        )
        for row in range(len(spans))
        if spans.kind[row] not in NOT_SHOWN and spans.kind[row] < Kind.OPERATOR
    )


def bars(document: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    return sorted(
        (round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000), event["pid"], event["tid"])
        for event in of_phase(document, "X")
        if event["cat"] == "dlprof"
    )


def near(found: list[tuple[int, ...]], expected: list[tuple[int, ...]]) -> bool:
    rows = zip(found, expected, strict=True)
    return all(abs(one - other) <= 2 for row in rows for one, other in zip(*row, strict=True))


def test_every_span_is_there_once_on_its_thread(tmp_path):
    assert near(bars(written(tmp_path, WITH_WORKERS)), shown(WITH_WORKERS))


def test_an_arrow_leads_from_each_batch_made_in_a_worker_to_the_request_that_it_answered(tmp_path):
    document = written(tmp_path, WITH_WORKERS)
    starts = {event["id"]: event for event in of_phase(document, "s")}
    ends = {event["id"]: event for event in of_phase(document, "f")}
    assert len(starts) == len(of_phase(document, "s")) == len(ends) == len(of_phase(document, "f")) == 12
    assert set(starts) == set(ends)
    requests = [event for event in of_phase(document, "X") if event["name"] == "next(loader)"]
    for arrow, start in starts.items():
        end = ends[arrow]
        assert start["pid"] >= FIRST_WORKER_PID
        assert (end["pid"], end["bp"]) == (MAIN_PID, "e")
        assert start["ts"] <= end["ts"]
        around = [each for each in requests if each["ts"] <= end["ts"] <= each["ts"] + each["dur"]]
        assert [f"{each['args']['iteration']}.{each['args']['batch']}" for each in around] == [arrow]


@settings(max_examples=30, deadline=None)
@given(
    costs=st.lists(st.tuples(*[st.integers(0, ms(5))] * 5), min_size=1, max_size=6),
    workers=st.integers(1, 3),
    prefetch=st.integers(1, 3),
)
def test_no_arrow_goes_back_in_time(tmp_path_factory, costs, workers, prefetch):
    plan = [
        each
        for getitem, pickle, send, unpickle, compute in costs
        for each in step(getitem=getitem, pickle=pickle, send=send, unpickle=unpickle, compute=compute)
    ]
    document = written(tmp_path_factory.mktemp("run"), profile(plan, workers=workers, prefetch=prefetch))
    starts = {event["id"]: event["ts"] for event in of_phase(document, "s")}
    ends = {event["id"]: event["ts"] for event in of_phase(document, "f")}
    # A request that took no time at all ends before it began: nothing is shorter than the clock's nanosecond.
    assert all(starts[arrow] <= ends[arrow] + 0.001 for arrow in starts)
    assert len(starts) == len(costs)


def test_threads_and_processes_have_names(tmp_path):
    document = written(tmp_path, WITH_WORKERS)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in of_phase(document, "M")
        if event["name"] == "thread_name"
    }
    assert names[MAIN_PID, MAIN_PID] == "main"
    assert sum(name == "DataLoader worker" for name in names.values()) == 4
    assert sum(name == "feeder thread" for name in names.values()) == 4
    processes = [event["args"]["name"] for event in of_phase(document, "M") if event["name"] == "process_name"]
    assert sorted(processes)[0] == "DataLoader worker 0 (rank 0)"
    assert "training process (rank 0)" in processes


def test_a_run_without_a_trace_of_torch_shows_the_wall_clock(tmp_path):
    document = written(tmp_path, WITH_WORKERS)
    run = WITH_WORKERS.run
    assert document["baseTimeNanoseconds"] == run.wall_ns - run.monotonic_ns


def test_torchs_events_stay_as_they_are_and_ours_come_to_their_clock(tmp_path):
    theirs = [complete("aten::mm", 5.25, 1), {"ph": "M", "name": "process_name", "pid": "Spans", "args": {}}]
    path = torch_trace(tmp_path, *theirs, baseTimeNanoseconds=1_234)
    offset = -999_000_000_000
    document = written(tmp_path, WITH_WORKERS, path, offset)
    assert document["baseTimeNanoseconds"] == 1_234
    assert document["traceEvents"][:2] == theirs
    assert near(bars(document), shown(WITH_WORKERS, offset))
    requests = [event for event in of_phase(document, "X") if event["name"] == "next(loader)"]
    for end in of_phase(document, "f"):
        assert any(each["ts"] <= end["ts"] <= each["ts"] + each["dur"] for each in requests)


def test_what_torch_recorded_is_not_written_a_second_time_as_ours(tmp_path):
    traced = profile(step(input_wait=ms(1), compute=ms(2), traced=True) * 3)
    document = written(tmp_path, traced)
    assert "a operator" not in {event["name"] for event in of_phase(document, "X")}
    assert near(bars(document), shown(traced))


def test_a_batch_whose_arrival_was_not_seen_has_no_arrow(tmp_path):
    found = recorded([Span(Kind.SEND, 10, 20, batch=3, iterator=1)])
    assert of_phase(written(tmp_path, found), "s") == []


def test_a_request_that_brought_no_batch_is_no_arrival(tmp_path):
    found = recorded([Span(Kind.SEND, 10, 20, batch=-1, iterator=1), Span(Kind.NEXT, 15, 30, iterator=1, flags=1)])
    assert of_phase(written(tmp_path, found), "f") == []


def test_names_are_those_of_the_seams_where_there_are_any(tmp_path):
    found = recorded([Span(Kind.TOKENIZER, 1, 2, name="tokenizers.Tokenizer.encode"), Span(Kind.DECODE, 3, 4)])
    assert [event["name"] for event in of_phase(written(tmp_path, found), "X")] == [
        "tokenizers.Tokenizer.encode",
        "decode",
    ]


def test_a_name_with_quotes_and_control_characters_stays_json(tmp_path):
    name = 'a"b\\c\n\x00\u2028é'
    found = recorded([Span(Kind.TOKENIZER, 1, 2, name=name)])
    assert of_phase(written(tmp_path, found), "X")[0]["name"] == name


def test_device_streams_are_left_to_torch(tmp_path):
    found = profile(step(input_wait=ms(1), kernel=ms(2), traced=True) * 3, device="cuda:0")
    assert any(track.role is Role.DEVICE_STREAM for track in found.tracks)
    threads = {event["tid"] for event in written(tmp_path, found)["traceEvents"] if event["pid"] == MAIN_PID}
    assert threads == {0, MAIN_PID}
