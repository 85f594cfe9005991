"""One trace of main, workers and torch on one clock: its form, what is in it, and what is left out of a large one."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import FIRST_WORKER_PID, MAIN_PID, Span, end_of_epoch, ms, profile, recorded, step, us, validation
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof import api
from dlprof.analysis.steps import find_steps
from dlprof.formats.chrome_trace import AlignedTrace, ClockOffset
from dlprof.formats.trace_events import ELSEWHERE, SHOWN, STARVED_THREAD, STEPS_THREAD
from dlprof.formats.trace_writer import WrittenTrace, write_trace
from dlprof.model.kinds import Kind, Role
from dlprof.model.profile import Profile, Track

MADE = step(getitem=ms(20), tokenizer=ms(10), collate=ms(3), compute=ms(10), pickle=ms(2), send=ms(1), unpickle=ms(1))
EPOCH = MADE * 6 + end_of_epoch() + validation(step(getitem=ms(1)) * 2)
WITH_WORKERS = profile(EPOCH * 2, workers=2, startup=ms(300))
FROM_TORCH = {kind for kind in Kind if Kind.OPERATOR <= kind <= Kind.ALLOCATOR}
GAP_NS = 2
OUT = "run.pt.trace.json.gz"


def complete(name: str, start_ns: int, end_ns: int, cat: str = "cpu_op", tid: Any = MAIN_PID) -> dict[str, Any]:
    times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
    return {"ph": "X", "cat": cat, "name": name, "pid": MAIN_PID, "tid": tid, **times, "args": {"Ev Idx": 1}}


def torch_trace(folder: Path, *events: dict[str, Any], offset_ns: int = 0, **top: Any) -> AlignedTrace:
    path = folder / "torch.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events), **top}))
    return AlignedTrace(path, ClockOffset(offset_ns, 4_000, 30_000, 11))


def written(folder: Path, found: Profile, torch: AlignedTrace | None = None, **options: Any) -> dict[str, Any]:
    write_trace(found, folder / OUT, torch, **options)
    return json.loads(gzip.decompress((folder / OUT).read_bytes()))


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
        if spans.kind[row] in SHOWN
    )


def is_ours(event: dict[str, Any]) -> bool:
    return event["cat"].startswith("dlprof.") and event["tid"] not in (STEPS_THREAD, STARVED_THREAD)


def bounds_ns(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def bars(document: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    return sorted((*bounds_ns(each), each["pid"], each["tid"]) for each in of_phase(document, "X") if is_ours(each))


def near(found: list[tuple[int, ...]], expected: list[tuple[int, ...]], within_ns: int = 2) -> bool:
    rows = zip(found, expected, strict=True)
    return all(abs(one - other) <= within_ns for row in rows for one, other in zip(*row, strict=True))


def assert_well_formed(document: dict[str, Any]) -> None:
    """The rules of chrome://tracing, and those that Perfetto drops events for."""
    threads: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        assert event["ph"] in "XMCstfi"
        assert isinstance(event["name"], str)
        assert {"pid", "tid"} <= set(event)
        assert isinstance(event["ts"], int | float)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            threads[event["pid"], event["tid"]].append(bounds_ns(event))
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        elif event["ph"] in "stf":
            flows[event["id"]].append(event)
    for slices in threads.values():
        # In the file's order where two start together: the first of them is the outer one.
        open_: list[tuple[int, int]] = []
        for start, end in sorted(slices, key=lambda each: each[0]):
            while open_ and open_[-1][1] <= start:
                open_.pop()
            assert not open_ or end <= open_[-1][1] + 1, (open_[-1], (start, end))
            open_.append((start, end))
    for flow in flows.values():
        assert re.fullmatch("st{0,2}f", "".join(event["ph"] for event in flow))
        assert [event["ts"] for event in flow] == sorted(event["ts"] for event in flow)
        assert flow[-1]["bp"] == "e"
        for event in flow:
            at = round(event["ts"] * 1000)
            around = threads[event["pid"], event["tid"]]
            assert any(start <= at < max(end, start + 1) for start, end in around)


def test_the_form_is_that_of_chrome_tracing(tmp_path):
    document = written(tmp_path, WITH_WORKERS, steps=find_steps(WITH_WORKERS))
    assert_well_formed(document)
    assert document["displayTimeUnit"] == "ms"


def test_every_span_is_there_once_on_its_thread(tmp_path):
    assert near(bars(written(tmp_path, WITH_WORKERS)), shown(WITH_WORKERS))


# ---- what becomes of each kind ---------------------------------------------------------------------------------------


def test_every_kind_is_drawn_or_left_out_on_purpose():
    drawn = [*SHOWN, *ELSEWHERE, *FROM_TORCH]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == set(Kind)
    assert all(reason for reason in ELSEWHERE.values())


@pytest.mark.parametrize("kind", Kind)
def test_a_span_of_each_kind_is_on_its_thread_with_a_name_or_nowhere(tmp_path, kind):
    tracks = (Track(MAIN_PID, MAIN_PID, Role.MAIN, 0), Track(MAIN_PID, 7, Role.PIN_MEMORY, 0))
    document = written(tmp_path, recorded([Span(kind, 1000, 5000, track=1, batch=0, iterator=1)], tracks=tracks))
    assert_well_formed(document)
    found = [event for event in of_phase(document, "X") if is_ours(event)]
    if kind in SHOWN:
        (event,) = found
        assert (event["name"], event["cat"]) == SHOWN[kind]
        assert (bounds_ns(event), event["tid"]) == ((1000, 5000), 7)
        # As in the other names: words, not the name of the constant.
        assert event["name"] != kind.name.lower() or "_" not in event["name"]
    else:
        assert found == []


def test_when_the_device_starved_is_on_a_track_of_its_own(tmp_path):
    rows = [
        Span(Kind.NEXT, 1000, 9000, batch=0, iterator=1),
        Span(Kind.UNPICKLE, 2000, 6000, batch=0, iterator=1),
        Span(Kind.STARVED, 4000, 9000, batch=0, iterator=1, value=6000),
        Span(Kind.STARVED, 8000, 9000, batch=3, iterator=2, value=1000),
        Span(Kind.DEVICE_STEP, 1000, 1000, batch=0, iterator=1, value=20_000),
    ]
    document = written(tmp_path, recorded(rows, device="cuda:0"), steps=find_steps(recorded(rows)))
    assert_well_formed(document)
    (starved,) = [event for event in of_phase(document, "X") if event["tid"] == STARVED_THREAD]
    assert bounds_ns(starved) == (4000, 9000)
    assert starved["args"] == {"by_its_own_clock_ms": 0.006}
    names = {event["tid"]: event["args"]["name"] for event in of_phase(document, "M") if event["name"] == "thread_name"}
    assert names[STARVED_THREAD] == "device starved"
    assert len(bars(document)) == 2


def test_without_a_device_there_is_no_track_for_it(tmp_path):
    document = written(tmp_path, WITH_WORKERS, steps=find_steps(WITH_WORKERS))
    assert all(event["tid"] != STARVED_THREAD for event in document["traceEvents"])


# ---- arrows ----------------------------------------------------------------------------------------------------------


def test_an_arrow_leads_from_each_batch_made_in_a_worker_to_the_request_that_it_answered(tmp_path):
    document = written(tmp_path, WITH_WORKERS)
    starts = {event["id"]: event for event in of_phase(document, "s")}
    steps = {event["id"]: event for event in of_phase(document, "t")}
    ends = {event["id"]: event for event in of_phase(document, "f")}
    assert len(starts) == len(of_phase(document, "s")) == len(ends) == len(of_phase(document, "f")) == 12
    assert set(starts) == set(ends) == set(steps)
    requests = [event for event in of_phase(document, "X") if event["name"] == "next(loader)"]
    made = [event for event in of_phase(document, "X") if event["name"] == "make a batch"]
    for arrow, start in starts.items():
        end = ends[arrow]
        assert start["pid"] >= FIRST_WORKER_PID
        assert (end["pid"], end["bp"]) == (MAIN_PID, "e")
        assert start["ts"] <= steps[arrow]["ts"] <= end["ts"]
        for slices, event in ((requests, end), (made, start)):
            around = [
                each
                for each in slices
                if each["pid"] == event["pid"] and each["ts"] <= event["ts"] < each["ts"] + each["dur"]
            ]
            assert [(each["args"]["iteration"] << 32) + each["args"]["batch"] for each in around] == [arrow]


def test_an_arrow_goes_on_to_the_request_where_the_batch_had_come_before(tmp_path):
    tracks = [Track(pid, pid, role, 0) for pid, role in ((MAIN_PID, Role.MAIN), (FIRST_WORKER_PID, Role.WORKER))]
    at = {"iterator": 1}
    rows = [
        Span(Kind.FETCH, 1_000, 2_000, track=1, batch=1, **at),
        Span(Kind.SEND, 2_000, 3_000, track=1, batch=1, **at),
        # Batch 1 is read while batch 0 is waited for.
        Span(Kind.UNPICKLE, 3_500, 4_000, batch=1, **at),
        Span(Kind.NEXT, 500, 6_000, batch=0, **at),
        Span(Kind.NEXT, 7_000, 8_000, batch=1, **at),
        # Of batch 2 nothing is known between worker and request, as where a thread pins memory.
        Span(Kind.FETCH, 2_000, 7_500, track=1, batch=2, **at),
        Span(Kind.NEXT, 9_000, 9_500, batch=2, **at),
    ]
    document = written(tmp_path, recorded(rows, tracks=tracks))
    arrows: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] in "stf":
            arrows[event["id"]].append((event["ph"], event["ts"]))
    assert list(arrows.values()) == [[("s", 1), ("t", 2), ("t", 3.5), ("f", 7)], [("s", 2), ("f", 9)]]


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
        for each in step(getitem=getitem, pickle=pickle, send=send, unpickle=1 + unpickle, compute=compute)
    ]
    document = written(tmp_path_factory.mktemp("run"), profile(plan, workers=workers, prefetch=prefetch))
    assert_well_formed(document)
    assert len(of_phase(document, "s")) == len(costs)


@settings(max_examples=60, deadline=None)
@given(
    off=st.integers(-us(40), us(40)),
    theirs=st.lists(st.tuples(st.integers(0, ms(70)), st.integers(1, ms(9))), max_size=12),
)
def test_slices_nest_whatever_the_clocks_error(tmp_path_factory, off, theirs):
    found = profile(step(input_wait=ms(4), collate=ms(1), python=ms(3)) * 10)
    began = int(found.spans.start_ns.min())
    # Torch's own nest: those that cut another are left out here.
    kept: list[tuple[int, int]] = []
    for at, length in theirs:
        start, end = began + at, began + at + length
        if all(end < a or start > b or (a < start and end < b) or (start < a and b < end) for a, b in kept):
            kept.append((start, end))
    events = [complete("aten::mm", start + off, end + off) for start, end in sorted(kept)]
    folder = tmp_path_factory.mktemp("run")
    document = written(folder, found, torch_trace(folder, *events))
    assert_well_formed(document)
    assert len(bars(document)) == len(shown(found))


def test_a_bound_inside_an_event_of_torchs_goes_to_its_nearer_end(tmp_path):
    found = recorded([Span(Kind.NEXT, 1_000, 9_000, batch=1, iterator=1), Span(Kind.OPTIMIZER, 20_000, 29_000)])
    theirs = [complete("__next__", 900, 8_000), complete("Optimizer.step", 21_000, 29_500)]
    result = write_trace(found, tmp_path / OUT, torch_trace(tmp_path, *theirs))
    document = json.loads(gzip.decompress((tmp_path / OUT).read_bytes()))
    assert bars(document) == [
        (900 - GAP_NS, 9_000, MAIN_PID, MAIN_PID),
        (20_000, 29_500 + GAP_NS, MAIN_PID, MAIN_PID),
    ]
    assert result.moved_ns == 500 + GAP_NS


def test_threads_and_processes_have_names_and_an_order(tmp_path):
    document = written(tmp_path, WITH_WORKERS, steps=find_steps(WITH_WORKERS))
    about = {(event["name"], event["pid"], event["tid"]): event["args"] for event in of_phase(document, "M")}
    assert about["thread_name", MAIN_PID, MAIN_PID] == {"name": "main"}
    assert about["thread_name", MAIN_PID, STEPS_THREAD] == {"name": "steps"}
    names = [args["name"] for (kind, _, _), args in about.items() if kind == "thread_name"]
    assert names.count("DataLoader worker") == names.count("feeder thread") == 4
    order = {pid: args["sort_index"] for (kind, pid, _), args in about.items() if kind == "process_sort_index"}
    pids = sorted(order, key=order.__getitem__)
    assert [about["process_name", pid, 0]["name"] for pid in pids] == [
        "training process (rank 0)",
        "DataLoader worker 0 (rank 0)",
        "DataLoader worker 1 (rank 0)",
        "DataLoader worker 0 (rank 0)",
        "DataLoader worker 1 (rank 0)",
    ]
    assert about["process_labels", pids[1], 0] != about["process_labels", pids[3], 0]


def test_a_rank_is_in_the_names_and_where_other_tools_look_for_it(tmp_path):
    processes = tuple(replace(each, rank=3) for each in WITH_WORKERS.processes)
    document = written(tmp_path, replace(WITH_WORKERS, processes=processes))
    assert document["distributedInfo"]["rank"] == document["dlprof"]["rank"] == 3
    # HolisticTraceAnalysis finds the rank so.
    assert re.search(r'"rank":\s+(\d+)', gzip.decompress((tmp_path / OUT).read_bytes()).decode())[1] == "3"
    names = [event["args"]["name"] for event in of_phase(document, "M") if event["name"] == "process_name"]
    assert all(name.endswith("(rank 3)") for name in names)


def test_a_step_is_a_slice_on_a_track_of_its_own(tmp_path):
    found = replace(WITH_WORKERS, run=replace(WITH_WORKERS.run, warmup=2))
    steps = find_steps(found)
    document = written(tmp_path, found, steps=steps)
    slices = [event for event in of_phase(document, "X") if event["cat"] == "dlprof.step"]
    assert {event["tid"] for event in slices} == {STEPS_THREAD}
    assert [event["name"] for event in slices[:3]] == ["warm-up step 0", "warm-up step 1", "step 2"]
    expected = [(step.wait_start_ns, step.body_end_ns) for step in steps.all]
    assert near([bounds_ns(event) for event in slices], expected)
    assert [event["args"]["measured"] for event in slices] == [step.measured for step in steps.all]


def test_traced_steps_say_so_and_lie_under_the_profilers_time(tmp_path):
    found = profile(step(input_wait=ms(1), compute=ms(2)) * 3 + step(input_wait=ms(1), compute=ms(2), traced=True) * 2)
    document = written(tmp_path, found, steps=find_steps(found))
    names = [event["name"] for event in of_phase(document, "X") if event["cat"] == "dlprof.step"]
    assert names == ["torch.profiler is on", "step 0", "step 1", "step 2", "traced step 3", "traced step 4"]
    assert_well_formed(document)


def counted(folder: Path, found: Profile) -> list[tuple[str, float, dict[str, Any]]]:
    return [(each["name"], each["ts"], each["args"]) for each in of_phase(written(folder, found), "C")]


def test_counters_show_batches_that_lay_ready_and_the_cores_used(tmp_path):
    found = recorded(
        [
            Span(Kind.NEXT, ms(1), ms(5), batch=0, iterator=1, value=3, process_cpu_ns=ms(2)),
            Span(Kind.BODY, ms(5), ms(9), batch=0, iterator=1, process_cpu_ns=ms(6)),
            Span(Kind.NEXT, ms(9), ms(10), batch=1, iterator=1, value=-1),
        ]
    )
    assert counted(tmp_path, found) == [
        ("batches ready (loader ?)", 1000, {"batches": 3}),
        ("cores used", 1000, {"cores": 0.5}),
        ("cores used", 5000, {"cores": 1.5}),
        ("cores used", 9000, {"cores": 0}),
    ]


def test_cores_are_not_counted_over_less_than_the_schedulers_tick(tmp_path):
    found = recorded(
        [
            Span(Kind.NEXT, 0, us(20), batch=0, iterator=1, process_cpu_ns=us(500)),
            Span(Kind.BODY, us(20), ms(5), batch=0, iterator=1, process_cpu_ns=ms(2)),
            Span(Kind.NEXT, ms(5), ms(5) + us(20), batch=1, iterator=1, process_cpu_ns=us(10)),
        ]
    )
    assert [(when, args["cores"]) for _, when, args in counted(tmp_path, found)] == [(0, 0.5), (5000, 0.5), (5020, 0)]


def test_the_cores_of_a_worker_are_those_of_its_batches(tmp_path):
    worker = Track(FIRST_WORKER_PID, FIRST_WORKER_PID, Role.WORKER, 0)
    found = recorded(
        [
            Span(Kind.FETCH, 1_000, 2_000, track=1, batch=0, iterator=1, process_cpu_ns=2_000),
            Span(Kind.FETCH, 3_000, 4_000, track=1, batch=1, iterator=1, process_cpu_ns=500),
        ],
        tracks=[Track(MAIN_PID, MAIN_PID, Role.MAIN, 0), worker],
    )
    counters = [(each["pid"], each["ts"], each["args"]["cores"]) for each in of_phase(written(tmp_path, found), "C")]
    assert counters == [(FIRST_WORKER_PID, *each) for each in ((1.0, 2.0), (2.0, 0), (3.0, 0.5), (4.0, 0))]


def test_slices_say_what_is_known_of_them(tmp_path):
    found = recorded(
        [
            Span(Kind.NEXT, 1_000, 2_000, batch=4, iterator=1, value=3, on_cpu_ns=250_000, runnable_ns=1_000),
            Span(Kind.GETITEM, 3_000, 4_000, value=17, weight=16),
            Span(Kind.SEND, 5_000, 6_000, batch=4, iterator=1, value=512),
        ]
    )
    assert [event["args"] for event in of_phase(written(tmp_path, found), "X")] == [
        {"iteration": 1, "batch": 4, "queue_depth": 3, "on_cpu_ms": 0.25, "no_core_ms": 0.001},
        {"sample": 17, "stands_for": 16},
        {"iteration": 1, "batch": 4, "bytes": 512},
    ]


def test_a_run_without_a_trace_of_torch_shows_the_wall_clock(tmp_path):
    document = written(tmp_path, WITH_WORKERS)
    run = WITH_WORKERS.run
    assert document["baseTimeNanoseconds"] == run.wall_ns - run.monotonic_ns
    assert "clock" not in document["dlprof"]


def test_torchs_events_stay_as_they_are_and_ours_come_to_their_clock(tmp_path):
    theirs = [
        {**complete("aten::mm", 5_250, 6_250), "args": {"shape": [[3, 4], []], "s": "a  b\n\u00e9"}},
        {"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "ts": 1.5, "args": {}},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 9.5},
    ]
    offset = -999_000_000_000
    torch = torch_trace(tmp_path, *theirs, offset_ns=offset, baseTimeNanoseconds=1_234, deviceProperties=[{"id": 0}])
    document = written(tmp_path, WITH_WORKERS, torch)
    assert (document["baseTimeNanoseconds"], document["deviceProperties"]) == (1_234, [{"id": 0}])
    assert document["traceEvents"][-3:] == theirs
    assert near(bars(document), shown(WITH_WORKERS, offset))
    assert document["dlprof"]["clock"] == {
        "offset_ns": offset,
        "error_ns": 4_000,
        "spread_ns": 30_000,
        "markers": 11,
    }
    assert_well_formed(document)


def test_a_process_and_a_thread_have_one_name(tmp_path):
    theirs = [
        {"ph": "M", "name": "process_name", "pid": MAIN_PID, "tid": 0, "ts": 1, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": MAIN_PID, "tid": MAIN_PID, "ts": 1, "args": {"name": "thread 1"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 1, "args": {"name": "stream 7"}},
    ]
    document = written(tmp_path, WITH_WORKERS, torch_trace(tmp_path, *theirs))
    named = [(each["name"], each["pid"], each["tid"]) for each in of_phase(document, "M")]
    assert len(named) == len(set(named))
    assert ("thread_name", 0, 7) in named


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


def test_a_batch_made_in_the_training_process_has_no_arrow(tmp_path):
    assert of_phase(written(tmp_path, profile(step(input_wait=ms(1)) * 3)), "s") == []


def test_names_are_those_of_the_seams_where_there_are_any(tmp_path):
    found = recorded([Span(Kind.TOKENIZER, 1, 2, name="tokenizers.Tokenizer.encode"), Span(Kind.DECODE, 3, 4)])
    assert [event["name"] for event in of_phase(written(tmp_path, found), "X")] == [
        "tokenizers.Tokenizer.encode",
        "decode",
    ]


@pytest.mark.parametrize(
    ("name", "as_written"), [('a"b\\c\n\x00\u2028é', 'a"b\\c\n\x00\u2028é'), ("caf\udce9", "caf?")]
)
def test_an_odd_name_stays_json(tmp_path, name, as_written):
    found = recorded([Span(Kind.TOKENIZER, 1, 2, name=name)])
    assert of_phase(written(tmp_path, found), "X")[0]["name"] == as_written


def test_device_streams_are_left_to_torch(tmp_path):
    found = profile(step(input_wait=ms(1), kernel=ms(2), traced=True) * 3, device="cuda:0")
    assert any(track.role is Role.DEVICE_STREAM for track in found.tracks)
    threads = {event["tid"] for event in written(tmp_path, found)["traceEvents"] if event["pid"] == MAIN_PID}
    assert threads == {0, MAIN_PID}


# ---- the limit -------------------------------------------------------------------------------------------------------


def cut(folder: Path, found: Profile, limit: int, torch: AlignedTrace | None = None) -> WrittenTrace:
    return write_trace(found, folder / OUT, torch, find_steps(found), limit)


def test_a_small_trace_is_whole(tmp_path):
    assert cut(tmp_path, WITH_WORKERS, 10**6).cut is False


def test_single_samples_go_first(tmp_path):
    found = profile(step(getitem=ms(20), tokenizer=ms(10), collate=ms(3), items=100) * 6, workers=2)
    whole = cut(tmp_path, found, 10**7).size_bytes
    result = cut(tmp_path, found, whole // 2)
    document = json.loads(gzip.decompress((tmp_path / OUT).read_bytes()))
    names = {event["name"] for event in of_phase(document, "X")}
    assert not names & {"dataset[...]", "tokenizer"}
    assert names >= {"make a batch", "collate_fn", "next(loader)"}
    assert result.items == len(found.spans.of(Kind.GETITEM, Kind.TOKENIZER)) == 6 * 200
    assert (result.spans, result.torch_events) == (0, 0)
    assert result.size_bytes < whole // 2
    assert document["dlprof"]["left_out"] == {"items": result.items, "spans": 0}


def test_then_the_oldest_go_from_ours_and_from_torchs(tmp_path):
    first, last = int(WITH_WORKERS.spans.start_ns.min()), int(WITH_WORKERS.spans.end_ns.max())
    places = range(first, last, (last - first) // 200)
    torch = torch_trace(tmp_path, *[complete("aten::mm", at, at + 10, tid=5) for at in places])
    limit = 30_000
    result = cut(tmp_path, WITH_WORKERS, limit, torch)
    document = json.loads(gzip.decompress((tmp_path / OUT).read_bytes()))
    assert_well_formed(document)
    kept = [event for event in document["traceEvents"] if event["ph"] != "M"]
    assert result.size_bytes < 1.2 * limit
    assert result.spans > 0
    assert result.torch_events > 0
    assert len([event for event in kept if event["name"] == "aten::mm"]) == len(places) - result.torch_events
    oldest = min(event["ts"] for event in kept if event["ph"] == "X")
    assert (last / 1000 - oldest) < 0.5 * (last - first) / 1000
    assert max(event["ts"] for event in kept) > last / 1000 - 10_000


def test_an_interrupted_trace_leaves_no_half_of_one(tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("dlprof.formats.trace_writer.counters", fail)
    with pytest.raises(OSError, match="no space"):
        write_trace(WITH_WORKERS, tmp_path / OUT)
    assert not list(tmp_path.glob("*.gz"))


@pytest.mark.parametrize(
    ("outcome", "slug", "values"),
    [
        (WrittenTrace(1, 5, 6, 7, 0), "trace-cut", {"items": 5, "spans": 6, "torch_events": 7}),
        (OSError("disk full"), "trace-not-written", {"error": "disk full"}),
        (WrittenTrace(1, 0, 0, 0, 9), None, {}),
    ],
)
def test_what_became_of_the_trace_is_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Any, slug: str | None, values: dict[str, Any]
) -> None:
    def write(*_: Any) -> WrittenTrace:
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    monkeypatch.setattr(api, "write_trace", write)
    found = api._with_trace(profile(step(input_wait=1000, compute=1000) * 40), tmp_path, None)
    assert [(notice.slug, notice.values) for notice in found.notices] == ([(slug, values)] if slug else [])
    if slug:
        said = next(notice.text for notice in api.diagnose(found).notices if notice.slug == slug)
        assert all(str(value) in said for value in values.values())
