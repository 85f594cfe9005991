"""A recording folder, as the script and its workers left it, put together into a ``Profile``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dlprof.formats import event_file, span_file
from dlprof.formats.chrome_trace import AlignedTrace, TorchTrace, clock_offset, read_torch_trace
from dlprof.formats.places import made_at
from dlprof.formats.samples import assemble_samples
from dlprof.formats.span_file import SpanFile, read_spans
from dlprof.model.kinds import ExitReason, Flag, Kind, Role
from dlprof.model.profile import (
    BatchShape,
    Ending,
    Iteration,
    Loader,
    Notice,
    Padding,
    Process,
    Profile,
    RunFacts,
    Spans,
    Track,
)

CLOCK_MARKER = "dlprof.clock"
_CLOCK_ERROR_NS = 200_000
_WORKER_KINDS = (Kind.WAIT_INDEX, Kind.FETCH, Kind.PUT, Kind.PICKLE, Kind.SEND)

Events = dict[int, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Recording:
    """The bits of a recording folder, read but not yet interpreted.

    Attributes:
        events: Each process's events.
        files: Each thread's spans.
        damaged: Files that could not be read.
    """

    folder: Path
    events: Events
    files: tuple[SpanFile, ...]
    damaged: tuple[str, ...]


def read_recording(folder: Path) -> Recording:
    """Read all files of a recording folder; those that are damaged are named and passed over."""
    events: Events = {}
    files: list[SpanFile] = []
    damaged: list[str] = []
    for path in sorted(folder.glob("*" + event_file.SUFFIX)):
        try:
            events[int(path.stem)] = event_file.read_events(path)
        except (OSError, ValueError):
            damaged.append(path.name)
    for path in sorted(folder.glob("*" + span_file.SUFFIX)):
        try:
            spans = read_spans(path)
        except OSError:
            spans = None
        if spans is not None:
            files.append(spans)
        elif not _is_empty(path):
            damaged.append(path.name)
    return Recording(folder, events, tuple(files), tuple(damaged))


def _is_empty(path: Path) -> bool:
    # Its thread ended, with the process, between making the file and writing its header: nothing is lost.
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def how_it_ended(recording: Recording, status: int, pid: int | None) -> Ending:
    """Why the script ended.

    Args:
        recording: What it left.
        status: Its exit status, 128+n for signal n.
        pid: The training process; where there is none, the process that was started.
    """
    events = recording.events.get(pid, []) if pid is not None else []
    if any(event["event"] == "stop" for event in events):
        return Ending(0, ExitReason.STEPS_REACHED, None if status == 0 else f"the script ended with {status}")
    error = next((event for event in events if event["event"] == "exit" and event.get("exception")), None)
    if error is not None:
        text = f"{error['exception']}: {error.get('message')}"
        if error["exception"] == "KeyboardInterrupt" and status > 128:
            return Ending(status, ExitReason.SIGNAL, f"signal {status - 128}")
        # What the main process notices of a dead worker may be no more than a closed connection.
        for worker, code in (error.get("dead_workers") or {}).items():
            how = f"of signal {-code}" if code < 0 else f"with status {code}"
            return Ending(status, ExitReason.WORKER_DIED, f"DataLoader worker (pid {worker}) died {how}; {text}")
        if "DataLoader worker" in text and "exited unexpectedly" in text:
            return Ending(status, ExitReason.WORKER_DIED, text)
        return Ending(status, ExitReason.EXCEPTION, text)
    if status > 128:
        return Ending(status, ExitReason.SIGNAL, f"signal {status - 128}")
    return Ending(status, ExitReason.SCRIPT_ENDED, None)


def training_process(recording: Recording) -> int | None:
    """The process with the most batches and optimizer steps that is not a worker."""
    workers = {pid for pid, events in recording.events.items() if any(e["event"] == "worker" for e in events)}
    score: Counter[int] = Counter()
    for file in recording.files:
        if file.pid in workers or file.role not in (Role.MAIN, Role.THREAD):
            continue
        kind, flags = file.records["kind"], file.records["flags"]
        batches = (kind == Kind.NEXT) & ((flags & (Flag.ENDED | Flag.NESTED)) == 0)
        score[file.pid] += int(batches.sum()) + int((kind == Kind.OPTIMIZER).sum())
    ranked = [(count, -pid) for pid, count in score.items() if count]
    return -max(ranked)[1] if ranked else None


def assemble(recording: Recording, run: RunFacts, environment: dict[str, Any]) -> tuple[Profile, AlignedTrace | None]:
    """Put a recording together.

    Args:
        recording: The files.
        run: What was asked for and how it ended.
        environment: Facts about the machine.

    Returns:
        The profile, and torch.profiler's export where there is one that could be aligned.
    """
    main_pid = training_process(recording)
    processes = tuple(_processes(recording))
    rank_of = {process.pid: process.rank for process in processes}
    tracks = [Track(f.pid, f.thread_id, f.role, rank_of.get(f.pid, 0)) for f in recording.files]
    names: dict[str, int] = {"": 0}
    samples, looking_cpu_ns, damaged = assemble_samples(recording.folder, tracks)
    recording = replace(recording, damaged=(*recording.damaged, *damaged))
    parts = [_columns(f, i, _names(recording, f.pid), names) for i, f in enumerate(recording.files)]
    notices = list(_notices(recording, main_pid))
    trace, aligned = _torch_part(recording, main_pid, notices)
    if trace is not None and aligned is not None and main_pid is not None:
        parts.append(_torch_columns(trace, aligned.clock.offset_ns, main_pid, tracks, names))
    iterations = tuple(_iterations(recording))
    loaders = tuple(_loaders(recording, iterations))
    spans = _number_batches(_concatenate(parts, tuple(names)), tracks, iterations, loaders)
    exits = [event for event in recording.events.get(main_pid or -1, []) if event["event"] == "exit"]
    torch = exits[-1].get("torch", {}) if exits else {}
    lost = sum(event.get("spans", {}).get("lost", 0) for event in exits)
    profile = Profile(
        run=run,
        environment=environment
        | _fewest_cores(recording, main_pid, iterations, environment)
        | {f"torch_{key}": value for key, value in torch.items()},
        processes=processes,
        main_pid=main_pid,
        loaders=loaders,
        iterations=iterations,
        batches=tuple(_batches(recording, main_pid)),
        handover=None,
        tracks=tuple(tracks),
        spans=spans,
        device=torch.get("device", "cpu"),
        device_name=torch.get("device_name"),
        lost_spans=lost,
        notices=tuple(notices),
        samples=samples,
        looking_cpu_ns=looking_cpu_ns,
        padding=tuple(_padding(recording, main_pid)),
    )
    return profile, aligned


# ---- processes, loaders, notices -----------------------------------------------------------------------------------


def _each(recording: Recording, kind: str) -> Iterable[tuple[int, dict[str, Any]]]:
    for pid, events in recording.events.items():
        for event in events:
            if event["event"] == kind:
                yield pid, event


def _fewest_cores(
    recording: Recording, main_pid: int | None, iterations: tuple[Iteration, ...], environment: dict[str, Any]
) -> dict[str, Any]:
    """What limits the cores of the training process and its workers: scripts and imports may narrow them."""
    ours = {main_pid, *(pid for each in iterations if each.pid == main_pid for pid in each.workers)}
    known = [event for pid, event in _each(recording, "cores") if pid in ours]
    fewest = min(known, key=lambda event: float(event["cores"]), default=None)
    if fewest is None or fewest["cores"] >= environment.get("cores", 0):
        return {}
    return {key: value for key, value in fewest.items() if key != "event"}


def _processes(recording: Recording) -> Iterable[Process]:
    workers = {pid for pid, _ in _each(recording, "worker")}
    for pid, event in _each(recording, "process"):
        role = Role.WORKER if pid in workers else Role.MAIN
        yield Process(
            pid=pid,
            parent=int(event["ppid"]),
            role=role,
            rank=int(event.get("rank") or 0),
            argv=tuple(map(str, event["argv"])),
            executable=str(event["executable"]),
            python=str(event["python"]),
            began_ns=int(event["monotonic_ns"]),
            span_cost_ns=int(event["span_cost_ns"]),
        )


def _loaders(recording: Recording, iterations: tuple[Iteration, ...]) -> Iterable[Loader]:
    for pid, event in _each(recording, "loader"):
        number = int(event["id"])
        settings = {key: value for key, value in event.items() if key not in ("event", "id", "asking_watched")}
        if settings.get("made_at"):
            settings["made_at"] = made_at(settings["made_at"])
        asks = None
        if event.get("asking_watched"):
            own = [each for each in iterations if (each.pid, each.loader) == (pid, number)]
            asks = _asks_worker(recording, pid, settings.get("index"), {it for each in own for it in each.workers})
        yield Loader(number, pid, settings, asks)


def _asks_worker(recording: Recording, pid: int, dataset: Any, workers: set[int]) -> bool | None:
    """Whether a dataset's code asked which worker it runs in, there where it ran; None where no worker was seen."""
    if workers:
        seen = [recording.events.get(worker, []) for worker in workers]
        known = [events for events in seen if any(event["event"] == "worker" for event in events)]
        asked = any(event["event"] == "asked-worker" for events in known for event in events)
        return asked if known else None
    found = [event["dataset"] for event in recording.events[pid] if event["event"] == "asked-worker"]
    return dataset in found or None in found


def _iterations(recording: Recording) -> Iterable[Iteration]:
    for pid, event in _each(recording, "iterator"):
        yield Iteration(int(event["id"]), pid, int(event["loader"]), tuple(event["workers"]))


def _batches(recording: Recording, main_pid: int | None) -> Iterable[BatchShape]:
    for pid, event in _each(recording, "batch"):
        if pid == main_pid:
            tensors = tuple((tuple(shape), str(dtype)) for shape, dtype in event["tensors"])
            yield BatchShape(event["loader"], tensors, event["bytes"], event["samples"], event["others"])


def _padding(recording: Recording, main_pid: int | None) -> Iterable[Padding]:
    # Each event holds the sums so far.
    last = {int(event["loader"]): event for pid, event in _each(recording, "padding") if pid == main_pid}
    for loader, event in last.items():
        yield Padding(loader, int(event["batches"]), int(event["tokens"]), int(event["pad_tokens"]))


def _notices(recording: Recording, main_pid: int | None) -> Iterable[Notice]:
    grouped: dict[str, tuple[int, dict[str, Any]]] = {}
    for pid, event in _each(recording, "notice"):
        slug = str(event["slug"])
        count, values = grouped.get(slug, (0, {}))
        fresh = {key: value for key, value in event.items() if key not in ("event", "slug")}
        grouped[slug] = (count + 1, values or {"pid": pid, **fresh})
    for slug, (count, values) in grouped.items():
        yield Notice(slug, count, values)
    if recording.damaged:
        yield Notice("recording-damaged", len(recording.damaged), {"files": ", ".join(recording.damaged)})
    others = {pid for pid, event in _each(recording, "exit") if event["spans"]["recorded"]} - {main_pid}
    if others:
        yield Notice("other-process-ignored", len(others), {"pids": ", ".join(map(str, sorted(others)))})


def _names(recording: Recording, pid: int) -> dict[int, str]:
    events = recording.events.get(pid, [])
    return {int(event["id"]): str(event["name"]) for event in events if event["event"] == "name"}


# ---- spans ---------------------------------------------------------------------------------------------------------


def _columns(
    file: SpanFile, track: int, local: dict[int, str], names: dict[str, int]
) -> dict[str, np.ndarray[Any, Any]]:
    records = file.records
    columns = {name: records[name].astype(np.int64) for name in Spans.COLUMNS if name not in ("track", "name_id")}
    columns["track"] = np.full(len(records), track, dtype=np.int64)
    known = np.zeros(max(local, default=0) + 1, dtype=np.int64)
    for number, name in local.items():
        known[number] = names.setdefault(name, len(names))
    name_id = records["name"].astype(np.int64)
    columns["name_id"] = known[np.where(name_id < len(known), name_id, 0)]
    return columns


def _concatenate(parts: list[dict[str, np.ndarray[Any, Any]]], names: tuple[str, ...]) -> Spans:
    columns = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.empty(0, dtype=np.int64)
        for name in Spans.COLUMNS
    }
    return Spans(**columns, names=names)


def _number_batches(
    spans: Spans, tracks: list[Track], iterations: tuple[Iteration, ...], loaders: tuple[Loader, ...]
) -> Spans:
    """Give every span the number of its iteration in the main process, and of its batch."""
    iterator, batch, start = spans.iterator.copy(), spans.batch.copy(), spans.start_ns.copy()
    served: dict[int, list[Iteration]] = {}
    for iteration in sorted(iterations, key=lambda each: each.number):
        for pid in iteration.workers:
            served.setdefault(pid, []).append(iteration)
    for outer, inner in ((Kind.NEXT, Kind.FETCH), (Kind.ITER, Kind.TASK_SENT)):
        _inherit(spans, iterator, batch, outer, inner)
    for index, track in enumerate(tracks):
        if track.role not in (Role.WORKER, Role.FEEDER):
            continue
        serves = served.get(track.pid, [])
        rows = np.flatnonzero((spans.track == index) & np.isin(spans.kind, _WORKER_KINDS))
        known = np.array([*(each.number for each in serves), -1], dtype=np.int64)
        generation = spans.iterator[rows]
        iterator[rows] = known[np.where((generation >= 0) & (generation < len(serves)), generation, -1)]
        fetched = (spans.kind[rows] == Kind.FETCH) & (spans.flags[rows] & Flag.NESTED == 0)
        unnumbered = rows[fetched & (batch[rows] < 0)]
        if not len(unnumbered) or not serves:
            continue
        # A worker of an iterable dataset passes over what it is asked for after the end, so it must be known when that
        # was.
        if len(serves) == 1 or iterator[unnumbered[0]] >= 0 or not _is_iterable(serves[0], loaders):
            asked = _tasks(track.pid, serves, spans, tracks, iterator)
            _number_by_order(unnumbered, track.pid, serves, asked, spans, (iterator, batch, start))
    return replace(spans, iterator=iterator, batch=batch, start_ns=start)


def _is_iterable(iteration: Iteration, loaders: tuple[Loader, ...]) -> bool:
    return any(
        (each.pid, each.number) == (iteration.pid, iteration.loader) and each.settings.get("iterable")
        for each in loaders
    )


def _tasks(
    pid: int, serves: list[Iteration], spans: Spans, tracks: list[Track], iterator: np.ndarray[Any, Any]
) -> list[np.ndarray[Any, Any] | None]:
    """Rows of what a worker was asked for, for each iteration that it served; None where that is not known."""
    own = np.array([track.pid == serves[0].pid for track in tracks], dtype=bool)
    sent = np.flatnonzero((spans.kind == Kind.TASK_SENT) & own[spans.track])
    asked: list[np.ndarray[Any, Any] | None] = []
    for serving in serves:
        mine = sent[iterator[sent] == serving.number]
        known = len(mine) > 0 and bool(np.all(spans.value[mine] >= 0))
        asked.append(mine[spans.value[mine] == serving.workers.index(pid)] if known else None)
    return asked


def _number_by_order(
    rows: np.ndarray[Any, Any],
    pid: int,
    serves: list[Iteration],
    asked: list[np.ndarray[Any, Any] | None],
    spans: Spans,
    columns: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]],
) -> None:
    """Number the batches of a worker whose loop could not be watched: it makes them in the order they are asked for."""
    iterator, batch, start = columns
    if iterator[rows[0]] < 0:
        # Not even where one iteration ends and the next begins.
        known = [tasks for tasks in asked if tasks is not None]
        groups = [(rows, np.concatenate(known) if len(known) == len(asked) else None, serves[0])]
    else:
        groups = [(rows[iterator[rows] == s.number], tasks, s) for s, tasks in zip(serves, asked, strict=True)]
    for mine, tasks, serving in groups:
        if tasks is not None:
            count = min(len(mine), len(tasks))
            done, task = mine[:count], tasks[:count]
            iterator[done], batch[done] = iterator[task], spans.batch[task]
            # Where the fetch itself could not be watched, it is known only not to have begun before it was asked for.
            start[done] = np.clip(start[done], spans.start_ns[task], spans.end_ns[done])
        elif len(groups) == len(serves):
            number = serving.workers.index(pid) + np.arange(len(mine)) * len(serving.workers)
            iterator[mine], batch[mine] = serving.number, number


def _inherit(
    spans: Spans,
    iterator: np.ndarray[Any, Any],
    batch: np.ndarray[Any, Any],
    outer: Kind,
    inner: Kind,
) -> None:
    # A fetch in the main process lies within its request, the first tasks within the making of their iterator.
    rows = np.flatnonzero((spans.kind == inner) & (iterator < 0))
    around = np.flatnonzero(spans.kind == outer)
    around = around[np.argsort(spans.start_ns[around], kind="stable")]
    for track in np.unique(spans.track[rows]):
        own = around[spans.track[around] == track]
        mine = rows[spans.track[rows] == track]
        if not len(own):
            continue
        place = np.searchsorted(spans.start_ns[own], spans.start_ns[mine], side="right") - 1
        inside = (place >= 0) & (spans.end_ns[mine] <= spans.end_ns[own[np.maximum(place, 0)]])
        iterator[mine[inside]] = spans.iterator[own[place[inside]]]
        if inner is Kind.FETCH:
            batch[mine[inside]] = spans.batch[own[place[inside]]]


# ---- torch.profiler ------------------------------------------------------------------------------------------------


def _torch_part(
    recording: Recording, main_pid: int | None, notices: list[Notice]
) -> tuple[TorchTrace | None, AlignedTrace | None]:
    events = recording.events.get(main_pid, []) if main_pid is not None else []
    found = next((event for event in events if event["event"] == "trace"), None)
    if found is None:
        return None, None
    path = recording.folder / Path(str(found["path"])).name
    try:
        trace = read_torch_trace(path, CLOCK_MARKER)
    except (OSError, ValueError) as error:
        notices.append(Notice("trace-unreadable", 1, {"error": str(error)}))
        return None, None
    ours = [(int(begin), int(end)) for begin, end in found["markers"]]
    clock = clock_offset(ours, trace.markers_ns)
    if clock is None:
        notices.append(Notice("trace-not-aligned", 1, {"markers": len(trace.markers_ns), "expected": len(ours)}))
        return None, None
    if clock.error_ns > _CLOCK_ERROR_NS:
        notices.append(Notice("clock-uncertain", 1, {"error_ms": round(clock.error_ns / 1e6, 3)}))
    return trace, AlignedTrace(path, clock)


def _torch_columns(
    trace: TorchTrace, offset_ns: int, pid: int, tracks: list[Track], names: dict[str, int]
) -> dict[str, np.ndarray[Any, Any]]:
    rank = next((track.rank for track in tracks if track.pid == pid), 0)
    index = {(track.thread, False): i for i, track in enumerate(tracks) if track.pid == pid}
    rows: list[tuple[int, ...]] = []
    for event in trace.events:
        key = (event.thread, event.on_device)
        if key not in index:
            role = Role.DEVICE_STREAM if event.on_device else Role.THREAD
            index[key] = len(tracks)
            tracks.append(Track(pid, event.thread, role, rank))
        name = names.setdefault(event.name, len(names))
        rows.append(
            (
                event.start_ns - offset_ns,
                event.end_ns - offset_ns,
                int(event.kind),
                index[key],
                name,
                event.size_bytes,
            )
        )
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 6)
    columns = {name: np.full(len(rows), -1, dtype=np.int64) for name in Spans.COLUMNS}
    for place, column in enumerate(("start_ns", "end_ns", "kind", "track", "name_id", "value")):
        columns[column] = table[:, place]
    columns["weight"] = np.ones(len(rows), dtype=np.int64)
    columns["flags"] = np.zeros(len(rows), dtype=np.int64)
    return columns
