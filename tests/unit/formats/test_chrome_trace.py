"""What is read of torch's traces, and how its clock is tied to ours."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from dlprof.formats.chrome_trace import TorchEvent, TorchFile, clock_offset, read_torch_trace
from dlprof.model.kinds import Kind

MARKER = "dlprof.clock"


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


def test_a_name_that_is_not_utf8_is_read_with_a_stand_in(tmp_path):
    path = torch_trace(tmp_path, complete("PLACE", 1, 1))
    path.write_bytes(path.read_bytes().replace(b"PLACE", b"caf\xe9"))
    assert [event.name for event in read_torch_trace(path, MARKER).events] == ["caf\ufffd"]


@pytest.mark.parametrize("piece_bytes", [200, 1000, 10**6])
def test_a_trace_in_torchs_layout_is_read_in_pieces(tmp_path, monkeypatch, piece_bytes):
    monkeypatch.setattr("dlprof.formats.chrome_trace.PIECE_BYTES", piece_bytes)
    events = [complete(f"aten::op{number}", number * 10, 5, note="  },\n  {") for number in range(50)]
    text = ",\n  ".join(json.dumps(event, indent=2).replace("\n", "\n  ") for event in events)
    path = tmp_path / "torch.json"
    head = '{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 7,' + " " * 150
    path.write_text(head + '"traceEvents": [\n  ' + text + '\n  ],"traceName": "x" }')
    file = TorchFile(path)
    pieces = list(file.pieces())
    assert len(pieces) > 1 or piece_bytes > 1000
    assert [event for piece in pieces for event in json.loads(piece)] == events
    assert {key: json.loads(bytes(raw)) for key, raw in file.top.items()} == {
        "schemaVersion": 1,
        "baseTimeNanoseconds": 7,
        "traceName": "x",
    }
    assert [event.name for event in read_torch_trace(path, MARKER).events] == [event["name"] for event in events]


def test_the_clocks_are_tied_by_the_tightest_bounds_that_markers_give():
    # The second marker was interrupted before torch saw it, the third after.
    ours = [(100, 200), (1_000, 9_000), (10_000, 19_000)]
    theirs = [(5_120, 5_190), (13_940, 13_990), (15_010, 15_060)]
    clock = clock_offset(ours, theirs)
    assert clock is not None
    # From the first: at least 4990, at most 5020; from the third: at most 5010.
    assert (clock.offset_ns, clock.error_ns) == (5_000, 10)
    assert (clock.spread_ns, clock.markers) == (8_965 - 535, 3)


def test_clocks_that_drift_apart_are_as_uncertain_as_their_markers_contradict():
    clock = clock_offset([(0, 10), (1_000, 1_010)], [(0, 10), (1_400, 1_410)])
    assert clock is not None
    assert (clock.offset_ns, clock.error_ns) == (200, 200)


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([(1, 2)], []), ([(1, 2)], [(1, 2), (3, 4)])])
def test_clocks_without_the_same_markers_are_not_tied(ours, theirs):
    assert clock_offset(ours, theirs) is None
