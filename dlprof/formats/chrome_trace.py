"""torch.profiler's Chrome traces: read what the analysis needs, write one trace with our spans on the same clock."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dlprof.formats.torch_events import kind_of
from dlprof.model.kinds import Flag, Kind, Role
from dlprof.model.profile import Profile, Spans


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: dict[str, Any] = {}


class _Trace(msgspec.Struct):
    traceEvents: list[msgspec.Raw] = []  # noqa: N815 - the format's own name
    baseTimeNanoseconds: int = 0  # noqa: N815


@dataclass(frozen=True, slots=True)
class TorchEvent:
    """One complete event of torch.profiler, times in nanoseconds on the trace's own clock."""

    kind: Kind
    name: str
    start_ns: int
    end_ns: int
    thread: int
    on_device: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TorchTrace:
    """What is read from a trace of our own making.

    Attributes:
        events: Complete events of a known kind; of operators only the outermost of each thread.
        markers_ns: Start and end of each clock marker, in order.
    """

    events: tuple[TorchEvent, ...]
    markers_ns: tuple[tuple[int, int], ...]


def read_torch_trace(path: Path, marker: str) -> TorchTrace:
    """Read a trace that torch.profiler exported during a run.

    Args:
        path: Plain JSON, as ``export_chrome_trace`` writes it.
        marker: Name of the clock markers.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a trace.
    """
    events: list[TorchEvent] = []
    markers: list[tuple[int, int]] = []
    for raw in _decode(path).traceEvents:
        try:
            event = msgspec.json.decode(raw, type=_Event)
        except msgspec.ValidationError:
            # Metadata events carry values of other types; none of them is a span.
            continue
        if event.ph != "X":
            continue
        start = round(event.ts * 1000)
        end = start + round(event.dur * 1000)
        if event.name == marker:
            markers.append((start, end))
            continue
        kind = kind_of(event.cat, event.name)
        if kind is not None:
            events.append(_torch_event(event, kind, start, end))
    return TorchTrace(tuple(_outermost(events)), tuple(sorted(markers)))


def _decode(path: Path) -> _Trace:
    data = path.read_bytes()
    try:
        return msgspec.json.decode(data, type=_Trace)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path.name} is not a trace: {error}") from error


def _torch_event(event: _Event, kind: Kind, start: int, end: int) -> TorchEvent:
    on_device = kind in (Kind.KERNEL, Kind.COLLECTIVE, Kind.COPY_H2D, Kind.COPY_D2H, Kind.COPY_OTHER)
    size = event.args.get("bytes", -1)
    thread = event.args.get("stream", event.tid) if on_device else event.tid
    return TorchEvent(
        kind,
        event.name,
        start,
        end,
        thread if isinstance(thread, int) else 0,
        on_device,
        size if isinstance(size, int) else -1,
    )


def _outermost(events: list[TorchEvent]) -> Iterable[TorchEvent]:
    reach: dict[int, int] = {}
    for event in sorted(events, key=lambda each: (each.start_ns, -each.end_ns)):
        if event.kind is not Kind.OPERATOR:
            yield event
        elif event.end_ns > reach.get(event.thread, -1):
            reach[event.thread] = event.end_ns
            yield event


# ---- writing -------------------------------------------------------------------------------------------------------

_LABELS = {
    Kind.NEXT: "next(loader)",
    Kind.ITER: "iter(loader)",
    Kind.OPTIMIZER: "optimizer.step",
    Kind.CHECKPOINT: "torch.save",
    Kind.FETCH: "fetch",
    Kind.GETITEM: "dataset[...]",
    Kind.COLLATE: "collate_fn",
    Kind.SAMPLER: "sampler",
    Kind.WAIT_INDEX: "wait for an index",
    Kind.PUT: "hand to feeder",
    Kind.PICKLE: "pickle",
    Kind.SEND: "write to pipe",
    Kind.RECEIVE: "read from pipe",
    Kind.UNPICKLE: "unpickle",
    Kind.WORKER_START: "worker start",
    Kind.OWN: "dlprof",
}
_ROLE_NAMES = {
    Role.MAIN: "main",
    Role.WORKER: "DataLoader worker",
    Role.FEEDER: "feeder thread",
    Role.PIN_MEMORY: "pin_memory thread",
    Role.THREAD: "thread",
    Role.DEVICE_STREAM: "stream",
}


def write_trace(profile: Profile, path: Path, torch_trace: Path | None, offset_ns: int | None) -> None:
    """Write main process, workers and torch's own events as one trace.

    Args:
        profile: The run.
        path: Where to, ``.json.gz``.
        torch_trace: torch.profiler's export of the same run, None where there is none.
        offset_ns: What to add to ``CLOCK_MONOTONIC`` to get that trace's clock, None without such a trace.
    """
    raw: list[msgspec.Raw] = []
    base = profile.run.wall_ns - profile.run.monotonic_ns
    offset = 0
    if torch_trace is not None and offset_ns is not None:
        decoded = _decode(torch_trace)
        raw, base, offset = decoded.traceEvents, decoded.baseTimeNanoseconds, offset_ns
    document = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        "traceEvents": [*raw, *_metadata(profile), *_span_events(profile, offset)],
    }
    with gzip.open(path, "wb", compresslevel=5) as file:
        file.write(msgspec.json.encode(document))


def _metadata(profile: Profile) -> Iterable[dict[str, Any]]:
    workers = [pid for iteration in profile.iterations for pid in iteration.workers]
    for process in profile.processes:
        name = "training process" if process.pid == profile.main_pid else _ROLE_NAMES[process.role]
        if process.pid in workers:
            name = f"{name} {workers.index(process.pid)}"
        yield _meta(process.pid, 0, "process_name", {"name": f"{name} (rank {process.rank})"})
        order = 0 if process.pid == profile.main_pid else 1
        yield _meta(process.pid, 0, "process_sort_index", {"sort_index": order})
    for track in profile.tracks:
        if track.role is not Role.DEVICE_STREAM:
            yield _meta(track.pid, track.thread, "thread_name", {"name": _ROLE_NAMES[track.role]})


def _meta(pid: int, thread: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": thread, "ts": 0, "args": args}


def _span_events(profile: Profile, offset: int) -> Iterable[dict[str, Any]]:
    spans = profile.spans
    arrivals = _arrivals(spans)
    for row in np.flatnonzero(spans.kind < int(Kind.OPERATOR)):
        kind = Kind(int(spans.kind[row]))
        if kind in (Kind.TASK_SENT, Kind.BODY):
            continue
        track = profile.tracks[int(spans.track[row])]
        start, end = int(spans.start_ns[row]) + offset, int(spans.end_ns[row]) + offset
        label = spans.names[int(spans.name_id[row])] or _LABELS.get(kind, kind.name.lower())
        place = {"pid": track.pid, "tid": track.thread}
        key = (int(spans.iterator[row]), int(spans.batch[row]))
        args = {} if key[1] < 0 else {"iteration": key[0], "batch": key[1]}
        yield {
            "ph": "X",
            "cat": "dlprof",
            "name": label,
            "ts": start / 1000,
            "dur": (end - start) / 1000,
            "args": args,
            **place,
        }
        if kind is Kind.SEND and key in arrivals:
            # An arrow from the worker that made the batch to the request that it answered.
            arrow = {"cat": "dlprof", "name": "batch", "id": f"{key[0]}.{key[1]}"}
            to_track, when = arrivals[key]
            to = profile.tracks[to_track]
            yield {"ph": "s", "ts": start / 1000, **arrow, **place}
            yield {
                "ph": "f",
                "bp": "e",
                "ts": (when + offset) / 1000,
                "pid": to.pid,
                "tid": to.thread,
                **arrow,
            }


def _arrivals(spans: Spans) -> dict[tuple[int, int], tuple[int, int]]:
    taken = spans.of(Kind.NEXT)
    taken = taken.where((taken.flags & int(Flag.ENDED)) == 0)
    return {
        (int(iterator), int(batch)): (int(track), int(end) - 1)
        for iterator, batch, track, end in zip(taken.iterator, taken.batch, taken.track, taken.end_ns, strict=True)
    }
