"""Anybody's torch.profiler trace into columns: every generation of the format since torch 1.4."""

from __future__ import annotations

import gc
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dlprof.errors import UnreadableInputError
from dlprof.formats.json_events import MAX_JSON_MB, Args, Event, EventText
from dlprof.formats.torch_events import FILL_CATEGORIES, KERNEL_CATEGORIES, kind_of
from dlprof.model.kinds import Kind
from dlprof.model.profile import Notice
from dlprof.model.trace import Activity, Events, Lane, Origin, Trace
from dlprof.words import tr

_EXACT_US = 2.0**42
"""Times from here on are not exact to the nanosecond as floating-point numbers."""
_SPARSELY = 16
_LATEST_US = 2.0**53
"""Later, and what stands there is no time."""
_FRACTION = re.compile(rb'"ts"\s*:\s*-?\d{13,}\.\d*[1-9]')
_UNKNOWN, _NOTHING = -2, -1
_FEWEST_TWICE = 10
"""Events whose likes follow all of them, from which that is no chance."""

_OF_KIND = {
    Kind.OPERATOR: Activity.OPERATOR,
    Kind.KERNEL: Activity.KERNEL,
    Kind.COLLECTIVE: Activity.COLLECTIVE,
    Kind.COPY_H2D: Activity.COPY_H2D,
    Kind.COPY_D2H: Activity.COPY_D2H,
    Kind.COPY_OTHER: Activity.COPY_OTHER,
    Kind.LAUNCH: Activity.LAUNCH,
    Kind.SYNCHRONIZE: Activity.SYNCHRONIZE,
    Kind.ALLOCATOR: Activity.ALLOCATOR,
}
_STEP = re.compile(r"ProfilerStep\*?#?\d*$")
_REQUEST = re.compile(r"enumerate\(DataLoader\)#|_BaseDataLoaderIter\.__next__")
_OPTIMIZER = re.compile(r"Optimizer\.step#")
_SAVE = re.compile(r"torch/serialization\.py\(\d+\): save$")
_OF_OURS = {
    ("dlprof.loop", "next(loader)"): Activity.NEXT,
    ("dlprof.loop", "optimizer.step"): Activity.OPTIMIZER,
    ("dlprof.loop", "torch.save"): Activity.CHECKPOINT,
}
"""What dlprof's own traces have; of their steps only those count that torch.profiler saw."""
_STEP_OF_OURS = re.compile(r"traced step \d+$")
# The autograd profiler before Kineto gave no category: processes are called so, and streams "stream 7".
_OLD_HOST = re.compile(r"CPU functions", re.IGNORECASE)
_OLD_DEVICE = re.compile(r"CUDA functions|^stream\b", re.IGNORECASE)
_OLD_OPERATOR = re.compile(r"^(aten|torch|prim|autograd|c10d?|nccl|profiler|torchvision)::|Backward\d*$")

_RANK = re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)
_WORKER_NUMBER = re.compile(r"(?:^|[^a-z])worker[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)
_ENDING = re.compile(r"(\.\d{9,})?(\.pt)?(\.trace)?(\.json)?(\.gz)?$")


class _ExactEvent(Event, gc=False):
    """An event whose time is too long for a floating-point number."""

    ts: Decimal = Decimal("NaN")  # type: ignore[assignment]


class _LooseEvent(msgspec.Struct, gc=False):
    """An event of any types."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Any = None
    dur: Any = None
    pid: Any = None
    tid: Any = None
    args: Any = None


_FAST = msgspec.json.Decoder(list[Event])
_EXACT = msgspec.json.Decoder(list[_ExactEvent])
_LOOSE = msgspec.json.Decoder(list[_LooseEvent])
_NO_ARGS = Args()


def read_trace(
    path: str | Path, max_json_mb: int = MAX_JSON_MB, progress: Callable[[int, int], None] | None = None
) -> Trace:
    """Read a trace that torch.profiler exported.

    Args:
        path: JSON as ``export_chrome_trace`` or ``tensorboard_trace_handler`` write it, compressed or not. What is
            damaged is read as far as it goes, and a notice says so.
        max_json_mb: MB of JSON that are read at most.
        progress: Called with bytes of the file that have been read, and its size.

    Raises:
        UnreadableInputError: It cannot be read, is no trace, is too large, or holds nothing of PyTorch.
    """
    path = Path(path)
    text = EventText(path, max_json_mb * 1_000_000, progress)
    table = _Table()
    decode = _Decoder()
    with _no_collection():
        for piece in text.pieces(decode, _loose):
            table.add(piece)
    events = table.events()
    if not table.seen:
        raise UnreadableInputError(
            "no-pytorch-activity",
            tr("no PyTorch activity found in {path}: there is no event in it", path=path),
            tr("record again, and let some steps pass between the profiler's start and its export"),
        )
    if not len(events):
        raise UnreadableInputError(
            "no-pytorch-activity",
            tr("no PyTorch activity found in {path}: of {seen} events none is torch's", path=path, seen=table.seen),
            tr("give a trace that torch.profiler exported"),
        )
    return Trace(
        origin=_origin(path, text.top),
        events=events,
        names=tuple(table.names),
        lanes=table.lanes(),
        seen=table.seen,
        json_bytes=text.json_bytes,
        notices=tuple(_notices(text, table)),
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the garbage collector, which would look through each piece's events and find nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Decoder:
    """Decodes with floating-point times until one is met that they do not hold exactly."""

    def __init__(self) -> None:
        self._exact = False
        self._looked = False

    def __call__(self, piece: bytes) -> list[Event]:
        if not self._exact:
            events = _FAST.decode(piece)
            if not self._inexact(events, piece):
                return events
            self._exact = True
        return _EXACT.decode(piece)  # type: ignore[return-value]

    def _inexact(self, events: Sequence[Event], piece: bytes) -> bool:
        # Some of a piece's events tell how all of its times are written.
        looked_at = events[::_SPARSELY]
        times = np.fromiter(map(_TS, looked_at), dtype=np.float64, count=len(looked_at))
        large = times[np.abs(times) >= _EXACT_US]
        if not len(large):
            return False
        # All of a few may be rounded to whole numbers; so the text of the first is looked at, too.
        first, self._looked = not self._looked, True
        return bool(np.any(large != np.floor(large))) or (first and _FRACTION.search(piece) is not None)


def _loose(piece: bytes) -> list[Event]:
    return [
        Event(
            each.ph if isinstance(each.ph, str) else "",
            each.cat if isinstance(each.cat, str) else "",
            each.name if isinstance(each.name, str) else str(each.name),
            _number(each.ts),
            _number(each.dur),
            each.pid if isinstance(each.pid, int | str) else str(each.pid),
            each.tid if isinstance(each.tid, int | str) else str(each.tid),
            _args(each.args),
        )
        for each in _LOOSE.decode(piece)
    ]


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float | str) else float("nan")
    except (ValueError, OverflowError):
        return float("nan")


def _args(value: object) -> Args:
    if not isinstance(value, dict):
        return _NO_ARGS
    correlation, size = value.get("correlation"), value.get("bytes")
    return Args(_whole(correlation), _whole(size))


def _whole(value: object) -> int:
    number = _number(value)
    return int(number) if 0 <= number < _LATEST_US else -1


# ---- columns -------------------------------------------------------------------------------------------------------

_TS, _DUR, _ARGS = attrgetter("ts"), attrgetter("dur"), attrgetter("args")
_CORRELATION = attrgetter("correlation")
_SIZED = tuple(map(int, (Activity.COPY_H2D, Activity.COPY_D2H, Activity.COPY_OTHER, Activity.FILL)))


def _interning() -> defaultdict[Any, int]:
    """A table that gives each new key the next number."""
    return defaultdict(count().__next__)


class _Table:
    """Columns that grow by a piece at a time."""

    def __init__(self) -> None:
        self.seen = 0
        self.without_time = 0
        self.kept = 0
        self.doubled = False
        self.names = _interning()
        self._categories = _interning()
        self._pids = _interning()
        self._tids = _interning()
        self._lanes = _interning()
        # By category and name, since these say what an event is: looked up once for each pair.
        self._known = np.full((8, 1024), _UNKNOWN, dtype=np.int8)
        self._pieces: list[tuple[npt.NDArray[Any], ...]] = []

    def add(self, events: Sequence[Event]) -> None:
        """Take in a piece's events."""
        self.seen += len(events)
        events = [event for event in events if event.ph == "X"]
        if not events:
            return
        name = _codes(events, "name", self.names)
        category = _codes(events, "cat", self._categories)
        pid, tid = _codes(events, "pid", self._pids), _codes(events, "tid", self._tids)
        activity = self._activities(events, category, name)
        start, length, timed = _times(events)
        kept = np.flatnonzero((activity >= 0) & timed)
        self.without_time += int(np.count_nonzero((activity >= 0) & ~timed))
        if not len(kept):
            return
        args = [args or _NO_ARGS for args in map(_ARGS, events)]
        lanes, of = np.unique(pid[kept].astype(np.int64) << 32 | tid[kept], return_inverse=True)
        lane = np.array([self._lanes[each] for each in lanes.tolist()], dtype=np.int32)[of]
        self._pieces.append(
            (
                start[kept],
                start[kept] + length[kept],
                activity[kept],
                name[kept],
                lane,
                _correlations(args)[kept],
                _sizes(args, activity, kept),
            )
        )

    def events(self) -> Events:
        """All of it, once if all stands there twice; the table is empty afterwards."""
        columns = []
        for place, type_ in enumerate((np.int64, np.int64, np.int8, np.int32, np.int32, np.int64, np.int64)):
            parts = [piece[place] for piece in self._pieces]
            columns.append(np.concatenate(parts) if parts else np.empty(0, dtype=type_))
        self._pieces = []
        half = len(columns[0]) // 2
        self.doubled = half >= _FEWEST_TWICE and all(np.array_equal(column[:half], column[half:]) for column in columns)
        if self.doubled:
            columns = [column[:half] for column in columns]
        self.kept = len(columns[0])
        return Events(*columns)

    def lanes(self) -> tuple[Lane, ...]:
        """The lanes in the order of their numbers."""
        pids, tids = ([_as_number(key) for key in table] for table in (self._pids, self._tids))
        return tuple(Lane(pids[key >> 32], tids[key & 0xFFFFFFFF]) for key in self._lanes)

    def _activities(
        self,
        events: Sequence[Event],
        category: npt.NDArray[np.int32],
        name: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.int8]:
        self._make_room(len(self._categories), len(self.names))
        found = self._known[category, name]
        for place in _firsts(found == _UNKNOWN, category, name):
            event = events[place]
            self._known[category[place], name[place]] = _activity(event.cat, event.name) if event.cat else _UNKNOWN
        found = self._known[category, name]
        # Without a category it depends on the lane; such traces are old and small.
        for place in np.flatnonzero(found == _UNKNOWN).tolist():
            found[place] = _old_activity(events[place])
        return found

    def _make_room(self, categories: int, names: int) -> None:
        rows, columns = self._known.shape
        if categories <= rows and names <= columns:
            return
        larger = np.full((max(rows, 2 * categories), max(columns, 2 * names)), _UNKNOWN, dtype=np.int8)
        larger[:rows, :columns] = self._known
        self._known = larger


def _firsts(mask: npt.NDArray[np.bool_], category: npt.NDArray[np.int32], name: npt.NDArray[np.int32]) -> Iterable[int]:
    """Places of the first of each pair among those that the mask selects."""
    places = np.flatnonzero(mask)
    _, first = np.unique(category[places].astype(np.int64) << 32 | name[places], return_index=True)
    return [int(each) for each in places[first]]


def _codes(events: Sequence[Event], attribute: str, table: defaultdict[Any, int]) -> npt.NDArray[np.int32]:
    return np.fromiter(map(table.__getitem__, map(attrgetter(attribute), events)), dtype=np.int32, count=len(events))


def _correlations(args: Sequence[Args]) -> npt.NDArray[np.int64]:
    try:
        return np.fromiter(map(_CORRELATION, args), dtype=np.int64, count=len(args))
    except OverflowError:
        return np.array([_whole(each.correlation) for each in args], dtype=np.int64)


def _sizes(args: Sequence[Args], activity: npt.NDArray[np.int8], kept: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bytes that the kept events moved, -1 where that is not said."""
    sizes = np.full(len(kept), -1, dtype=np.int64)
    for place in np.flatnonzero(np.isin(activity[kept], _SIZED)).tolist():
        sizes[place] = _whole(args[kept[place]].bytes)
    return sizes


def _times(
    events: Sequence[Event],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Start and length in nanoseconds, and which of them are times at all."""
    length = np.fromiter(map(_DUR, events), dtype=np.float64, count=len(events))
    if isinstance(events[0], _ExactEvent):
        exact = [_exact_ns(event.ts) for event in events]
        timed = np.array([each is not None for each in exact])
        start = np.array([each or 0 for each in exact], dtype=np.int64)
    else:
        floating = np.fromiter(map(_TS, events), dtype=np.float64, count=len(events))
        timed = np.abs(floating) < _LATEST_US
        floating = np.where(timed, floating, 0.0)
        whole = np.floor(floating)
        start = whole.astype(np.int64) * 1000 + np.rint((floating - whole) * 1000).astype(np.int64)
    timed &= (length >= 0) & (length < _LATEST_US)
    return start, np.rint(np.where(timed, length, 0.0) * 1000).astype(np.int64), timed


def _exact_ns(time_us: Decimal | float) -> int | None:
    if isinstance(time_us, float):
        return round(time_us * 1000) if abs(time_us) < _LATEST_US else None
    return round(time_us * 1000) if time_us.is_finite() and abs(time_us) < _LATEST_US else None


def _as_number(key: Any) -> int | str:
    """An id that some events give as a number and others as text is one id."""
    if isinstance(key, str) and key.isdecimal() and len(key) < 20:
        return int(key)
    return key if isinstance(key, str) else int(key)


# ---- what an event is ----------------------------------------------------------------------------------------------


def _activity(category: str, name: str) -> int:
    """The activity of an event with a category, ``_NOTHING`` where it says nothing about where time goes."""
    if category == "python_function":
        return Activity.CHECKPOINT if _SAVE.search(name) else Activity.FRAME
    if category.startswith("dlprof."):
        traced = category == "dlprof.step" and _STEP_OF_OURS.match(name)
        return Activity.STEP if traced else _OF_OURS.get((category, name), _NOTHING)
    if category in FILL_CATEGORIES:
        return Activity.FILL
    if category.startswith("gpu_user"):
        # Annotations again, where the device got to them.
        return _NOTHING
    if _STEP.match(name):
        return Activity.STEP
    if _REQUEST.match(name):
        return Activity.NEXT
    if _OPTIMIZER.match(name):
        return Activity.OPTIMIZER
    if category == "user_annotation":
        return Activity.ANNOTATION
    kind = kind_of(category, name)
    return _OF_KIND.get(kind, _NOTHING) if kind is not None else _NOTHING


def _old_activity(event: Event) -> int:
    pid, tid = str(event.pid), str(event.tid)
    if _OLD_DEVICE.search(pid) or _OLD_DEVICE.search(tid):
        if "Memset" in event.name:
            return Activity.FILL
        category = "Memcpy" if event.name.startswith("Memcpy") else next(iter(KERNEL_CATEGORIES))
        return _activity(category, event.name)
    if _OLD_HOST.search(pid) or _OLD_OPERATOR.search(event.name) or _STEP.match(event.name):
        return _activity("cpu_op", event.name)
    return Activity.NEXT if _REQUEST.match(event.name) else _NOTHING


# ---- where it is from ----------------------------------------------------------------------------------------------


def _origin(path: Path, top: dict[str, msgspec.Raw]) -> Origin:
    said = {key: _value(raw) for key, raw in top.items() if len(bytes(raw)) < 2**20}
    ranks = said.get("distributedInfo")
    ranks = ranks if isinstance(ranks, dict) else {}
    devices = said.get("deviceProperties")
    names = [each.get("name") for each in devices if isinstance(each, dict)] if isinstance(devices, list) else None
    base = said.get("baseTimeNanoseconds")
    rank = ranks.get("rank")
    return Origin(
        file=path.name,
        folder=str(path.parent),
        rank=rank if isinstance(rank, int) else _rank_in(path),
        world_size=ranks["world_size"] if isinstance(ranks.get("world_size"), int) else 1,
        worker=_ENDING.sub("", path.name),
        devices=None if names is None else tuple(str(name) for name in names if name),
        base_ns=base if isinstance(base, int) else 0,
        made_by={key: value for key, value in said.items() if isinstance(value, str | int | float | dict)},
    )


def _value(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _rank_in(path: Path) -> int | None:
    name = path.name
    found = _RANK.search(name) or _WORKER_NUMBER.search(name) or _RANK.search(path.absolute().parent.name)
    return int(found[1]) if found else None


def _notices(text: EventText, table: _Table) -> Iterator[Notice]:
    damage = text.damage
    if "dlprof" in text.top:
        yield Notice("trace-of-dlprof")
    if damage.truncated:
        read = {"events": table.seen, "megabytes": round(text.json_bytes / 1e6, 1)}
        yield Notice("trace-truncated", 1, read | {"compressed": damage.compressed})
    lost = damage.broken + damage.foreign
    if lost:
        # What was overwritten may have been more entries than its remains look like.
        share = max(lost / (lost + table.seen), damage.lost_bytes / max(text.json_bytes, 1))
        yield Notice("trace-entries-lost", lost, {"entries": lost, "events": table.seen, "share": share})
    if damage.mended:
        yield Notice("trace-mended")
    if table.without_time:
        share = table.without_time / (table.without_time + table.kept)
        yield Notice("trace-events-without-time", table.without_time, {"events": table.without_time, "share": share})
    if table.doubled:
        yield Notice("trace-doubled", 1, {"events": table.kept})
