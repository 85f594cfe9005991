"""A recording folder put together: who trained, how it ended, which iteration and batch a worker's spans belong to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import recorded

from dlprof.formats.event_file import EventWriter
from dlprof.formats.recording import Recording, assemble, how_it_ended, read_recording, training_process
from dlprof.formats.span_file import DiskBudget, SpanWriter
from dlprof.model.kinds import ExitReason, Flag, Kind, Role
from dlprof.model.profile import Ending, Notice, Profile, RunFacts

MAIN, WORKER, FEEDER_THREAD = 100, 200, 5200
RUN: RunFacts = recorded([]).run


class Folder:
    """A recording folder that is written as several processes would write it."""

    def __init__(self, path: Path, be: Callable[[int], None]) -> None:
        self.path = path
        self._be = be

    def spans(self, pid: int, *rows: dict[str, Any], role: Role = Role.MAIN, thread: int | None = None) -> Folder:
        self._be(pid)
        writer = SpanWriter(str(self.path), role, thread or pid, DiskBudget(1 << 30))
        for row in rows:
            writer.add(**row)
        writer.close()
        return self

    def events(self, pid: int, *events: dict[str, Any], rank: int | None = None) -> Folder:
        self._be(pid)
        writer = EventWriter(str(self.path))
        facts = {"ppid": 1, "argv": ["python"], "executable": "/usr/bin/python", "python": "3.11.7"}
        writer.write("process", pid=pid, monotonic_ns=5, span_cost_ns=900, rank=rank, **facts)
        for event in events:
            writer.write(**event)
        writer.close()
        return self

    def read(self) -> Recording:
        return read_recording(self.path)

    def profile(self) -> Profile:
        return assemble(self.read(), RUN, {"cores": 4})[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return Folder(tmp_path, lambda pid: monkeypatch.setattr(os, "getpid", lambda: pid))


def span(kind: Kind, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "start_ns": start, "end_ns": end, **more}


def taken(start: int, end: int, batch: int = 0, iterator: int = 1, flags: int = 0) -> dict[str, Any]:
    return span(Kind.NEXT, start, end, batch=batch, iterator=iterator, flags=flags)


def iterator(number: int, *workers: int, loader: int = 1) -> dict[str, Any]:
    return {"event": "iterator", "id": number, "loader": loader, "workers": list(workers)}


def rows_of(found: Profile, kind: Kind) -> list[tuple[int, int]]:
    chosen = found.spans.of(kind)
    return list(zip(chosen.iterator.tolist(), chosen.batch.tolist(), strict=True))


# ---- who trained -----------------------------------------------------------------------------------------------------


def test_the_process_that_takes_most_batches_and_optimizer_steps_trains(folder):
    folder.events(50).spans(50, taken(0, 1), taken(2, 3))
    folder.events(MAIN).spans(MAIN, taken(0, 1), span(Kind.OPTIMIZER, 1, 2), span(Kind.OPTIMIZER, 3, 4))
    assert training_process(folder.read()) == MAIN


def test_a_worker_is_no_training_process_though_it_has_a_loader_of_its_own(folder):
    folder.events(WORKER, {"event": "worker", "number": 0})
    folder.spans(WORKER, *[taken(i, i + 1) for i in range(9)], role=Role.WORKER)
    folder.events(MAIN).spans(MAIN, taken(0, 1))
    assert training_process(folder.read()) == MAIN


def test_of_two_that_did_the_same_the_first_process_trains(folder):
    for pid in (MAIN + 1, MAIN):
        folder.events(pid).spans(pid, taken(0, 1))
    assert training_process(folder.read()) == MAIN


def test_requests_that_ended_the_iteration_or_lay_in_another_request_are_no_batches(folder):
    folder.events(MAIN).spans(MAIN, taken(0, 1, flags=Flag.ENDED), taken(2, 3, flags=Flag.NESTED))
    assert training_process(folder.read()) is None


def test_batches_that_another_thread_takes_count_too(folder):
    folder.events(MAIN).spans(MAIN, taken(0, 1), role=Role.THREAD, thread=77)
    assert training_process(folder.read()) == MAIN


def test_without_loader_and_optimizer_nobody_trains(folder):
    folder.events(MAIN).spans(MAIN, span(Kind.CHECKPOINT, 0, 1))
    assert training_process(folder.read()) is None
    assert folder.profile().main_pid is None


# ---- how it ended ----------------------------------------------------------------------------------------------------

STOP = {"event": "stop", "monotonic_ns": 9}


def exit_with(
    exception: str | None, message: str | None = None, *, recorded: int = 9, dead: dict[str, int] | None = None
) -> dict[str, Any]:
    facts = {"spans": {"recorded": recorded, "lost": 0}, "dead_workers": dead or {}, "torch": {}}
    return {"event": "exit", "exception": exception, "message": message, **facts}


KILLED = "DataLoader worker (pid 201) is killed by signal: Killed. "
GONE = "DataLoader worker (pid(s) 201) exited unexpectedly"


@pytest.mark.parametrize(
    ("events", "status", "ending"),
    [
        pytest.param([STOP], 0, Ending(0, ExitReason.STEPS_REACHED, None), id="stopped by us"),
        pytest.param(
            [STOP, exit_with("RuntimeError", "bye")],
            1,
            Ending(0, ExitReason.STEPS_REACHED, "the script ended with 1"),
            id="stopped by us and sulked",
        ),
        pytest.param([exit_with(None)], 0, Ending(0, ExitReason.SCRIPT_ENDED, None), id="returned"),
        pytest.param([exit_with(None)], 3, Ending(3, ExitReason.SCRIPT_ENDED, None), id="sys.exit(3)"),
        pytest.param([], 7, Ending(7, ExitReason.SCRIPT_ENDED, None), id="os._exit(7)"),
        pytest.param(
            [exit_with("ValueError", "no")], 1, Ending(1, ExitReason.EXCEPTION, "ValueError: no"), id="exception"
        ),
        pytest.param(
            [exit_with("RuntimeError", GONE)],
            1,
            Ending(1, ExitReason.WORKER_DIED, f"RuntimeError: {GONE}"),
            id="a worker exited",
        ),
        pytest.param(
            [exit_with("RuntimeError", KILLED, dead={"201": -9})],
            1,
            Ending(1, ExitReason.WORKER_DIED, f"DataLoader worker (pid 201) died of signal 9; RuntimeError: {KILLED}"),
            id="a worker was killed",
        ),
        pytest.param(
            [exit_with("ConnectionResetError", "[Errno 104]", dead={"201": -9})],
            1,
            Ending(
                1,
                ExitReason.WORKER_DIED,
                "DataLoader worker (pid 201) died of signal 9; ConnectionResetError: [Errno 104]",
            ),
            id="a worker was killed and the main process met a closed connection",
        ),
        pytest.param(
            [exit_with("RuntimeError", "Caught ValueError in DataLoader worker process 0.")],
            1,
            Ending(1, ExitReason.EXCEPTION, "RuntimeError: Caught ValueError in DataLoader worker process 0."),
            id="the dataset raised in a worker",
        ),
        pytest.param([], 137, Ending(137, ExitReason.SIGNAL, "signal 9"), id="killed"),
        pytest.param([], 143, Ending(143, ExitReason.SIGNAL, "signal 15"), id="terminated"),
    ],
)
def test_how_the_script_ended(folder, events, status, ending):
    assert how_it_ended(folder.events(MAIN, *events).read(), status, MAIN) == ending


def test_without_a_training_process_the_status_says_how_it_ended(folder):
    assert how_it_ended(folder.read(), 2, None) == Ending(2, ExitReason.SCRIPT_ENDED, None)


def test_what_another_process_raised_is_not_how_the_script_ended(folder):
    folder.events(50, exit_with("ValueError", "no")).events(MAIN, exit_with(None))
    assert how_it_ended(folder.read(), 0, MAIN).reason is ExitReason.SCRIPT_ENDED


# ---- iterations and batches ------------------------------------------------------------------------------------------


def test_a_fetch_in_the_main_process_belongs_to_the_request_around_it(folder):
    folder.events(MAIN, iterator(1), iterator(2))
    folder.spans(
        MAIN,
        span(Kind.FETCH, 2, 8),
        taken(0, 10, batch=0, iterator=1),
        span(Kind.FETCH, 21, 29),
        taken(20, 30, batch=5, iterator=2),
    )
    assert rows_of(folder.profile(), Kind.FETCH) == [(1, 0), (2, 5)]


def test_a_fetch_outside_all_requests_belongs_to_none(folder):
    folder.events(MAIN).spans(MAIN, taken(0, 10), span(Kind.FETCH, 12, 14), span(Kind.FETCH, 8, 12))
    assert rows_of(folder.profile(), Kind.FETCH) == [(-1, -1), (-1, -1)]


def test_the_first_tasks_are_sent_while_their_iterator_is_made(folder):
    folder.events(MAIN, iterator(1), iterator(2)).spans(
        MAIN,
        span(Kind.TASK_SENT, 3, 3, batch=0),
        span(Kind.TASK_SENT, 4, 4, batch=1),
        span(Kind.ITER, 0, 10, iterator=1),
        taken(11, 12),
        span(Kind.TASK_SENT, 20, 20, batch=0),
        span(Kind.ITER, 19, 30, iterator=2),
    )
    assert rows_of(folder.profile(), Kind.TASK_SENT) == [(1, 0), (1, 1), (2, 0)]


def test_a_persistent_workers_generations_are_the_iterations_that_it_served(folder):
    folder.events(MAIN, iterator(1, WORKER, WORKER + 1), iterator(2, loader=2), iterator(3, WORKER, WORKER + 1))
    folder.spans(MAIN, taken(0, 1))
    for number in range(2):
        pid = WORKER + number
        folder.events(pid, {"event": "worker", "number": number})
        folder.spans(
            pid,
            span(Kind.FETCH, 10, 11, batch=number, iterator=0),
            span(Kind.FETCH, 20, 21, batch=number, iterator=1),
            role=Role.WORKER,
        )
        folder.spans(
            pid, span(Kind.PICKLE, 12, 13, batch=number, iterator=1), role=Role.FEEDER, thread=FEEDER_THREAD + number
        )
    found = folder.profile()
    assert sorted(rows_of(found, Kind.FETCH)) == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert sorted(rows_of(found, Kind.PICKLE)) == [(3, 0), (3, 1)]


def test_workers_that_are_started_anew_serve_one_iteration_each(folder):
    folder.events(MAIN, iterator(1, WORKER), iterator(2, WORKER + 1)).spans(MAIN, taken(0, 1))
    for number in range(2):
        folder.events(WORKER + number, {"event": "worker", "number": 0})
        folder.spans(WORKER + number, span(Kind.FETCH, 10, 11, batch=0, iterator=0), role=Role.WORKER)
    assert sorted(rows_of(folder.profile(), Kind.FETCH)) == [(1, 0), (2, 0)]


def test_a_generation_that_the_main_process_knows_nothing_of_belongs_to_no_iteration(folder):
    folder.events(MAIN, iterator(1, WORKER)).spans(MAIN, taken(0, 1))
    folder.events(WORKER, {"event": "worker", "number": 0})
    folder.spans(WORKER, span(Kind.FETCH, 10, 11, batch=0, iterator=1), role=Role.WORKER)
    assert rows_of(folder.profile(), Kind.FETCH) == [(-1, 0)]


# ---- names, tracks, the rest -----------------------------------------------------------------------------------------


def test_each_process_has_its_own_numbers_for_names(folder):
    folder.events(MAIN, {"event": "name", "id": 1, "name": "encode"}, {"event": "name", "id": 2, "name": "resize"})
    folder.spans(MAIN, taken(0, 1), span(Kind.TOKENIZER, 2, 3, name=1), span(Kind.TRANSFORM, 4, 5, name=2))
    folder.events(WORKER, {"event": "name", "id": 1, "name": "resize"})
    folder.spans(WORKER, span(Kind.TRANSFORM, 6, 7, name=1), span(Kind.DECODE, 8, 9, name=9), role=Role.WORKER)
    spans = folder.profile().spans
    assert [spans.names[spans.of(kind).name_id[0]] for kind in (Kind.TOKENIZER, Kind.TRANSFORM, Kind.DECODE)] == [
        "encode",
        "resize",
        "",
    ]
    transforms = spans.of(Kind.TRANSFORM).name_id
    assert transforms[0] == transforms[1]


def test_tracks_know_process_thread_role_and_rank(folder):
    folder.events(MAIN, rank=3).spans(MAIN, taken(0, 1)).spans(MAIN, role=Role.THREAD, thread=77)
    tracks = folder.profile().tracks
    assert {(t.pid, t.thread, t.role, t.rank) for t in tracks} == {
        (MAIN, MAIN, Role.MAIN, 3),
        (MAIN, 77, Role.THREAD, 3),
    }


def test_loaders_and_batches_are_those_of_their_process(folder):
    loader = {"event": "loader", "id": 1, "num_workers": 2, "length": None}
    batch = {"event": "batch", "loader": 1, "tensors": [[[8, 3], "float32"]], "bytes": 96, "samples": 8, "others": 1}
    folder.events(MAIN, loader, batch).spans(MAIN, taken(0, 1))
    folder.events(50, loader, batch)
    found = folder.profile()
    assert [(each.pid, each.settings) for each in found.loaders] == [
        (MAIN, {"num_workers": 2, "length": None}),
        (50, {"num_workers": 2, "length": None}),
    ]
    (shape,) = found.batches
    assert (shape.tensors, shape.size_bytes, shape.samples, shape.others) == ((((8, 3), "float32"),), 96, 8, 1)


def test_a_notice_that_several_processes_leave_is_counted_once(folder):
    folder.events(MAIN, {"event": "notice", "slug": "no-schedstat"}).spans(MAIN, taken(0, 1))
    folder.events(WORKER, {"event": "notice", "slug": "no-schedstat"})
    assert folder.profile().notices == (Notice("no-schedstat", 2, {"pid": MAIN}),)


def test_other_processes_that_iterated_are_named(folder):
    folder.events(MAIN, exit_with(None)).spans(MAIN, taken(0, 1), taken(2, 3))
    folder.events(50, exit_with(None)).spans(50, taken(0, 1))
    assert folder.profile().notices == (Notice("other-process-ignored", 1, {"pids": "50"}),)


def test_a_process_that_recorded_nothing_is_not_worth_a_word(folder):
    folder.events(MAIN, exit_with(None)).spans(MAIN, taken(0, 1), taken(2, 3))
    folder.events(50, exit_with(None, recorded=0))
    assert folder.profile().notices == ()


def test_damaged_files_are_named_and_the_rest_is_used(folder):
    folder.events(MAIN).spans(MAIN, taken(0, 1))
    (folder.path / "7-7.spans").write_bytes(b"nonsense")
    (folder.path / "x.events").write_text("{}")
    found = folder.profile()
    assert found.main_pid == MAIN
    assert found.notices == (Notice("recording-damaged", 2, {"files": "x.events, 7-7.spans"}),)


def test_a_process_that_died_before_it_said_anything_has_spans_all_the_same(folder):
    folder.spans(MAIN, taken(0, 1), span(Kind.BODY, 1, 5, batch=0, iterator=1))
    found = folder.profile()
    assert (found.main_pid, found.processes) == (MAIN, ())
    assert len(found.spans) == 2


def test_an_empty_folder_is_a_run_of_nothing(folder):
    found = folder.profile()
    assert (len(found.spans), found.main_pid, found.tracks, found.notices) == (0, None, (), ())


def test_torch_and_lost_spans_come_from_the_exit_of_the_training_process(folder):
    leaving = exit_with(None) | {
        "spans": {"recorded": 9, "lost": 4},
        "torch": {"version": "2.13.0", "threads": 2, "device": "cuda:1", "device_name": "H200"},
    }
    found = folder.events(MAIN, leaving).spans(MAIN, taken(0, 1)).profile()
    assert (found.device, found.device_name, found.lost_spans) == ("cuda:1", "H200", 4)
    assert found.environment["torch_version"] == "2.13.0"
    assert found.environment["cores"] == 4


# ---- torch.profiler --------------------------------------------------------------------------------------------------

OFFSET = 1_000_000
MARKERS = [(1000, 1200), (5000, 5200)]


def torch_export(folder: Folder, markers: list[tuple[int, int]]) -> dict[str, Any]:
    def complete(category: str, name: str, thread: int, start: int, end: int) -> dict[str, Any]:
        times = {"ts": (start + OFFSET) / 1000, "dur": (end - start) / 1000}
        return {"ph": "X", "cat": category, "name": name, "pid": MAIN, "tid": thread, **times}

    events = [complete("cpu_op", "dlprof.clock", MAIN, *marker) for marker in markers]
    events += [complete("cpu_op", "aten::mm", MAIN, 2000, 2500), complete("kernel", "gemm", 7, 2100, 2400)]
    (folder.path / "torch.json").write_text(json.dumps({"traceEvents": events}))
    return {"event": "trace", "path": "torch.json", "markers": MARKERS}


def test_torchs_events_come_to_our_clock_by_the_markers_that_both_have(folder):
    folder.events(MAIN, torch_export(folder, MARKERS)).spans(MAIN, taken(0, 1))
    found, aligned = assemble(folder.read(), RUN, {})
    assert aligned is not None
    assert aligned.clock.offset_ns == OFFSET
    operator, kernel = found.spans.of(Kind.OPERATOR), found.spans.of(Kind.KERNEL)
    assert (operator.start_ns[0], operator.end_ns[0]) == (2000, 2500)
    assert found.tracks[operator.track[0]].role is Role.MAIN
    assert found.tracks[kernel.track[0]].role is Role.DEVICE_STREAM
    assert (kernel.weight[0], kernel.flags[0], kernel.batch[0]) == (1, 0, -1)


def test_a_trace_that_lacks_a_marker_is_not_used(folder):
    folder.events(MAIN, torch_export(folder, MARKERS[:1])).spans(MAIN, taken(0, 1))
    found, aligned = assemble(folder.read(), RUN, {})
    assert aligned is None
    assert len(found.spans.of(Kind.OPERATOR)) == 0
    assert found.notices == (Notice("trace-not-aligned", 1, {"markers": 1, "expected": 2}),)


@pytest.mark.parametrize("damage", ["gone", "cut off"])
def test_a_trace_that_cannot_be_read_is_named(folder, damage):
    event = torch_export(folder, MARKERS)
    path = folder.path / "torch.json"
    if damage == "gone":
        path.unlink()
    else:
        path.write_text(path.read_text()[:-20])
    found = folder.events(MAIN, event).spans(MAIN, taken(0, 1)).profile()
    assert [notice.slug for notice in found.notices] == ["trace-unreadable"]


# ---- who asks which worker it is -------------------------------------------------------------------------------------


def asked(dataset: int | None) -> dict[str, Any]:
    return {"event": "asked-worker", "dataset": dataset}


def streaming(*, watched: bool = True) -> dict[str, Any]:
    return {"event": "loader", "id": 1, "index": 0, "asking_watched": watched}


@pytest.mark.parametrize(
    ("said", "watched", "asks"),
    [
        ([], True, False),
        ([asked(0)], True, True),
        ([asked(1)], True, False),
        # A thread of some dataset: it may be this one's.
        ([asked(None)], True, True),
        ([asked(0)], False, None),
    ],
)
def test_without_workers_a_dataset_asks_in_the_training_process(folder, said, watched, asks):
    folder.events(MAIN, streaming(watched=watched), iterator(1), *said).spans(MAIN, taken(0, 1))
    (loader,) = folder.profile().loaders
    assert loader.asks_worker is asks
    assert loader.settings == {"index": 0}


@pytest.mark.parametrize(
    ("first", "second", "asks"),
    [
        ([{"event": "worker", "number": 0}], [], False),
        ([{"event": "worker", "number": 0}, asked(None)], [], True),
        ([{"event": "worker", "number": 0}], [{"event": "worker", "number": 1}, asked(3)], True),
        # Workers without the hooks would not be heard.
        ([], [], None),
    ],
)
def test_with_workers_a_dataset_asks_in_them(folder, first, second, asks):
    folder.events(MAIN, streaming(), iterator(1, WORKER, WORKER + 1), asked(0)).spans(MAIN, taken(0, 1))
    folder.events(WORKER, *first).events(WORKER + 1, *second)
    (loader,) = folder.profile().loaders
    assert loader.asks_worker is asks
