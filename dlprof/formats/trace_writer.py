"""One Chrome trace of a run: main process, workers, their threads and torch's own events on one clock.

Written event by event, so that memory stays bounded; opens in Perfetto, chrome://tracing and HolisticTraceAnalysis.
"""

from __future__ import annotations

import gzip
import itertools
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dlprof.formats.chrome_trace import AlignedTrace, TorchFile, decoded_event
from dlprof.formats.trace_events import (
    INNER,
    SHOWN,
    Event,
    batch_arrows,
    counters,
    metadata,
    slice_of,
    starved_slices,
    step_slices,
    thread_names,
)
from dlprof.formats.trace_nesting import ThreadEvents, clipped
from dlprof.formats.trace_samples import MOST_SLICES, sample_slices, sampled_threads
from dlprof.model.kinds import Kind
from dlprof.model.profile import Profile, Spans
from dlprof.model.steps import Steps

LIMIT_BYTES = 200 * 2**20
"""Of the trace before compression: what Perfetto loads in a few seconds. Compressed it is a tenth to a twentieth."""

# Measured: bytes of one slice with its arguments, and of a batch's arrow and counters.
_SLICE_BYTES = 220
_BATCH_BYTES = 900
_COMPACT_RATIO = 0.75
_HELD_BYTES = 2**20
_ROWS_AT_ONCE = 20_000
_COMPRESSION = 4

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WrittenTrace:
    """What became of a trace.

    Attributes:
        size_bytes: Before compression.
        items: Slices of single samples, of calls inside them and of looks, that were left out for size,
        spans: of other slices the oldest,
        torch_events: and the oldest of torch's.
        moved_ns: The furthest that a slice of ours was moved to nest with torch's.
    """

    size_bytes: int
    items: int
    spans: int
    torch_events: int
    moved_ns: int

    @property
    def cut(self) -> bool:
        """Whether anything was left out."""
        return bool(self.items or self.spans or self.torch_events)


@dataclass(frozen=True, slots=True)
class _TorchPart:
    """What has to be known of torch's trace before it is copied."""

    file: TorchFile
    bytes: int
    starts_ns: Rows
    threads: dict[tuple[int, int], ThreadEvents]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which of the spans are shown, and from when on."""

    rows: Rows
    since_ns: int
    items: int
    spans: int
    torch_events: int


def write_trace(
    profile: Profile,
    path: Path,
    torch: AlignedTrace | None = None,
    steps: Steps | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> WrittenTrace:
    """Write a run's trace.

    Args:
        profile: The run.
        path: Where to, ``.json.gz``.
        torch: torch.profiler's export of the same run, None where there is none.
        steps: What its steps are; None shows none.
        limit_bytes: What is above this before compression is left out: single samples first, then the oldest.

    Returns:
        Its size, and what was left out.

    Raises:
        OSError: It cannot be written.
        ValueError: ``torch`` is not a trace.
    """
    tracks = {(track.pid, track.thread) for track in profile.tracks}
    part = _look_through(torch, tracks) if torch is not None else None
    offset = torch.clock.offset_ns if torch is not None else 0
    plan = _plan(profile, part, offset, limit_bytes)
    placed = _Placed(profile, plan.rows, offset, part.threads if part is not None else {})
    unfinished = path.with_name(path.name + ".part")
    with gzip.open(unfinished, "wb", compresslevel=_COMPRESSION) as file:
        sink = _Sink(file)
        sink.text(_opening(profile, path, torch, part, plan))
        # Ours come before torch's: of two that start at the same time, the first is the outer one.
        sink.events(metadata(profile, steps is not None))
        sink.events(itertools.chain.from_iterable(thread_names(*each, order=50) for each in sampled_threads(profile)))
        sink.events(placed.events())
        since = plan.since_ns
        looks = sample_slices(profile, since, offset)
        sink.events(looks[-MOST_SLICES:])
        sink.events(step_slices(profile, steps, since, offset))
        sink.events(starved_slices(profile, since, offset))
        sink.events(counters(profile, since, offset))
        if part is not None:
            _copy_torch(part, profile, since, sink)
        sink.text(b"]}\n")
        sink.flush()
    unfinished.replace(path)
    items = plan.items + max(len(looks) - MOST_SLICES, 0)
    return WrittenTrace(sink.written, items, plan.spans, plan.torch_events, placed.moved_ns)


class _Sink:
    """JSON text on its way to the file."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._held = bytearray()
        self._encode = msgspec.json.Encoder().encode
        self._first = True
        self.written = 0

    def events(self, events: Iterable[Event]) -> None:
        for event in events:
            self.raw(self._encode(event))

    def raw(self, event: bytes | msgspec.Raw) -> None:
        if not self._first:
            self._held += b",\n"
        self._first = False
        self._held += event
        if len(self._held) > _HELD_BYTES:
            self.flush()

    def text(self, text: bytes) -> None:
        self._held += text

    def flush(self) -> None:
        self._file.write(self._held)
        self.written += len(self._held)
        self._held.clear()


def _opening(profile: Profile, path: Path, torch: AlignedTrace | None, part: _TorchPart | None, plan: _Plan) -> bytes:
    rank = next((each.rank for each in profile.processes if each.pid == profile.main_pid), 0)
    about: dict[str, Any] = {"rank": rank, "left_out": {"items": plan.items, "spans": plan.spans}}
    if torch is not None:
        about["clock"] = asdict(torch.clock)
        about["left_out"]["torch_events"] = plan.torch_events
    top: dict[str, Any] = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": profile.run.wall_ns - profile.run.monotonic_ns,
        **(part.file.top if part is not None else {}),
        "traceName": path.name,
        "dlprof": about,
    }
    # With spaces and line breaks: HolisticTraceAnalysis looks for the rank line by line, with a regular expression.
    text = msgspec.json.format(msgspec.json.encode(top), indent=1)
    return text.removesuffix(b"\n}") + b',\n "traceEvents": [\n'


# ---- what fits -----------------------------------------------------------------------------------------------------


def _plan(profile: Profile, part: _TorchPart | None, offset: int, limit: int) -> _Plan:
    spans = profile.spans
    rows = np.flatnonzero(np.isin(spans.kind, [int(kind) for kind in SHOWN]))
    theirs = part.starts_ns if part is not None else np.empty(0, dtype=np.int64)
    each = part.bytes / max(len(theirs), 1) if part is not None else 0.0
    if _size(spans, rows).sum() + each * len(theirs) <= limit:
        return _Plan(rows, 0, 0, 0, 0)
    kept = rows[~np.isin(spans.kind[rows], [int(kind) for kind in INNER])]
    items = len(rows) - len(kept)
    times = np.concatenate([spans.start_ns[kept] + offset, theirs])
    sizes = np.concatenate([_size(spans, kept), np.full(len(theirs), each)])
    newest = np.argsort(-times, kind="stable")
    beyond = np.flatnonzero(np.cumsum(sizes[newest]) > limit)
    if not len(beyond):
        return _Plan(kept, 0, items, 0, 0)
    since = int(times[newest[beyond[0]]]) + 1
    late = kept[spans.start_ns[kept] + offset >= since]
    return _Plan(late, since, items, len(kept) - len(late), int((theirs < since).sum()))


def _size(spans: Spans, rows: Rows) -> npt.NDArray[np.float64]:
    batch = np.isin(spans.kind[rows], [int(Kind.NEXT), int(Kind.FETCH)])
    return np.where(batch, float(_SLICE_BYTES + _BATCH_BYTES), float(_SLICE_BYTES))


# ---- our slices ----------------------------------------------------------------------------------------------------


class _Placed:
    """Spans where they are shown: in the order of time on each thread, nesting."""

    def __init__(self, profile: Profile, rows: Rows, offset: int, threads: dict[tuple[int, int], ThreadEvents]) -> None:
        spans = profile.spans
        self._profile = profile
        self.moved_ns = 0
        starts, ends = spans.start_ns[rows] + offset, spans.end_ns[rows] + offset
        order = np.lexsort((-ends, starts, spans.track[rows]))
        self._rows, self._starts, self._ends = rows[order], starts[order], ends[order]
        tracks = spans.track[self._rows]
        for track in np.unique(tracks):
            own = np.flatnonzero(tracks == track)
            place = profile.tracks[int(track)]
            theirs = threads.get((place.pid, place.thread))
            if theirs is not None:
                self._move(own, theirs)
            again = own[np.lexsort((-self._ends[own], self._starts[own]))]
            self._rows[own], self._starts[own], self._ends[own] = (
                column[again] for column in (self._rows, self._starts, self._ends)
            )
            self._ends[own] = clipped(self._starts[own], self._ends[own])

    def _move(self, own: Rows, theirs: ThreadEvents) -> None:
        for index in own.tolist():
            start, end = int(self._starts[index]), int(self._ends[index])
            self._starts[index], self._ends[index] = theirs.beside(start, end)
            moved = max(abs(int(self._starts[index]) - start), abs(int(self._ends[index]) - end))
            self.moved_ns = max(self.moved_ns, moved)

    def events(self) -> Iterator[Event]:
        """The slices, then the arrows between them."""
        for first in range(0, len(self._rows), _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            found = self._profile.spans.where(self._rows[part])
            for index, (start, end) in enumerate(
                zip(self._starts[part].tolist(), self._ends[part].tolist(), strict=True)
            ):
                yield slice_of(self._profile, found, index, start, end)
        shown = self._profile.spans.where(self._rows)
        yield from batch_arrows(self._profile, shown, self._starts, self._ends)


# ---- torch's events ------------------------------------------------------------------------------------------------


def _look_through(torch: AlignedTrace, tracks: set[tuple[int, int]]) -> _TorchPart:
    file = TorchFile(torch.path)
    starts = array("q")
    bounds: dict[tuple[int, int], tuple[array[int], array[int]]] = {}
    for event in file.events():
        if event.ph == "M":
            continue
        starts.append(event.start_ns)
        place = (event.pid, event.tid)
        if event.ph == "X" and isinstance(place[0], int) and isinstance(place[1], int) and place in tracks:
            first, last = bounds.setdefault((place[0], place[1]), (array("q"), array("q")))
            first.append(event.start_ns)
            last.append(event.end_ns)
    size = round(torch.path.stat().st_size * _COMPACT_RATIO)
    threads = {
        place: ThreadEvents(np.array(first, dtype=np.int64), np.array(last, dtype=np.int64))
        for place, (first, last) in bounds.items()
    }
    return _TorchPart(file, size, np.array(starts, dtype=np.int64), threads)


def _copy_torch(part: _TorchPart, profile: Profile, since_ns: int, sink: _Sink) -> None:
    # Processes and threads that have names of ours must not have two.
    ours = {(track.pid, track.thread) for track in profile.tracks} | {(each.pid, 0) for each in profile.processes}
    for piece in part.file.pieces():
        compact = msgspec.json.format(piece, indent=-1)
        if not since_ns and b'"ph":"M"' not in compact:
            if compact != b"[]":
                sink.raw(compact[1:-1])
            continue
        for raw in part.file.raw(compact):
            event = decoded_event(raw)
            if event is not None and event.ph == "M" and (event.pid, event.tid) in ours:
                continue
            if event is None or event.ph == "M" or event.start_ns >= since_ns:
                sink.raw(raw)
