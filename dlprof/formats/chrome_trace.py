"""torch.profiler's Chrome traces, read a piece at a time: what the analysis needs, and the events as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dlprof.formats.torch_events import kind_of
from dlprof.model.kinds import Kind

PIECE_BYTES = 4 * 2**20
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
# How torch lays its events out. Strings in JSON hold no line breaks, so this is never inside one; in a trace that is
# laid out otherwise it is not found, and the trace is read in one piece.
_BETWEEN = b"\n  },\n  {"


class EventArgs(msgspec.Struct, gc=False):
    """What is read of an event's ``args``."""

    bytes: Any = None
    stream: Any = None


class ChromeEvent(msgspec.Struct, gc=False):
    """What is read of an event. Times in microseconds, as they stand."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: EventArgs | None = None

    @property
    def start_ns(self) -> int:
        """Start in nanoseconds on the trace's own clock."""
        return round(self.ts * 1000)

    @property
    def end_ns(self) -> int:
        """End in nanoseconds on the trace's own clock."""
        return round(self.ts * 1000) + round(self.dur * 1000)


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


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What ties torch's clock to ours.

    Attributes:
        offset_ns: What to add to ``CLOCK_MONOTONIC`` to get the trace's clock.
        error_ns: How far that may be off.
        spread_ns: Largest minus smallest offset that single markers give, from their middles.
        markers: How many there were.
    """

    offset_ns: int
    error_ns: int
    spread_ns: int
    markers: int


@dataclass(frozen=True, slots=True)
class AlignedTrace:
    """torch.profiler's export, and how its clock is tied to ours."""

    path: Path
    clock: ClockOffset


class TorchFile:
    """A trace that torch exported, read a piece at a time.

    Args:
        path: Plain JSON, as ``export_chrome_trace`` writes it.

    Attributes:
        top: What stands beside the events, as JSON text by key; complete when ``pieces`` has come to its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.top: dict[str, msgspec.Raw] = {}

    def pieces(self) -> Iterator[bytes]:
        """JSON arrays of events, each of about ``PIECE_BYTES`` where the layout is torch's.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not a trace.
        """
        with open(self._path, "rb") as file:
            pending = b""
            while (opening := _OPENING.search(pending)) is None:
                data = file.read(PIECE_BYTES)
                if not data:
                    # No trace, as a rule; what it is instead is the decoder's to say.
                    yield from self._last(pending)
                    return
                pending += data
            self._note(pending[: opening.end()] + b"]}")
            pending = pending[opening.end() :]
            while data := file.read(PIECE_BYTES):
                pending += data
                cut = pending.rfind(_BETWEEN)
                if cut >= 0:
                    yield _utf8(b"[" + pending[: cut + 4] + b"]")
                    pending = pending[cut + 5 :]
            yield from self._last(b'{"traceEvents":[' + pending)

    def events(self) -> Iterator[ChromeEvent]:
        """The events; those whose values are of other types than a span's are left out.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not a trace.
        """
        for piece in self.pieces():
            yield from self.decoded(piece)

    def decoded(self, piece: bytes) -> Iterable[ChromeEvent]:
        """The events of a piece that have the types of a span's."""
        try:
            return _EVENTS.decode(piece)
        except msgspec.ValidationError:
            return [event for raw in self.raw(piece) if (event := decoded_event(raw)) is not None]
        except msgspec.DecodeError as error:
            raise self._no_trace(error) from error

    def raw(self, piece: bytes) -> list[msgspec.Raw]:
        """The events of a piece as JSON text."""
        try:
            return _RAW.decode(piece)
        except msgspec.DecodeError as error:
            raise self._no_trace(error) from error

    def _last(self, document: bytes) -> Iterator[bytes]:
        self._note(_utf8(document))
        events = self.top.pop("traceEvents", None)
        if events is None:
            return
        if not bytes(events).startswith(b"["):
            raise self._no_trace("its events are no list")
        yield bytes(events)

    def _note(self, document: bytes) -> None:
        try:
            self.top |= msgspec.json.decode(document, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError as error:
            raise self._no_trace(error) from error

    def _no_trace(self, reason: object) -> ValueError:
        return ValueError(f"{self._path.name} is not a trace: {reason}")


_EVENTS = msgspec.json.Decoder(list[ChromeEvent])
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_ONE = msgspec.json.Decoder(ChromeEvent)


def decoded_event(raw: msgspec.Raw) -> ChromeEvent | None:
    """An event, None where its values are of other types than a span's (some metadata)."""
    try:
        return _ONE.decode(raw)
    except msgspec.ValidationError:
        return None


def _utf8(text: bytes) -> bytes:
    # Names of threads and kernels are whatever bytes a program gave: one that is odd must not cost the trace.
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode(errors="replace").encode()
    return text


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
    names: dict[str, str] = {}
    outer: dict[int, tuple[int, int]] = {}
    for event in TorchFile(path).events():
        if event.ph != "X":
            continue
        if event.name == marker:
            markers.append((event.start_ns, event.end_ns))
            continue
        kind = kind_of(event.cat, event.name)
        if kind is None:
            continue
        found = _torch_event(event, kind, names.setdefault(event.name, event.name))
        if kind is Kind.OPERATOR:
            # Torch writes an operator before those inside it: most of these need never be kept.
            start, end = outer.get(found.thread, (0, -1))
            if start <= found.start_ns and found.end_ns <= end:
                continue
            outer[found.thread] = (found.start_ns, found.end_ns)
        events.append(found)
    return TorchTrace(tuple(_outermost(events)), tuple(sorted(markers)))


def clock_offset(ours_ns: list[tuple[int, int]], theirs_ns: Iterable[tuple[int, int]]) -> ClockOffset | None:
    """Tie the two clocks together by the markers that were left in both.

    Each of theirs lies within ours, which bounds the offset from both sides; the tightest bounds of all markers count.

    Args:
        ours_ns: Our readings before and after each marker, on ``CLOCK_MONOTONIC``.
        theirs_ns: Start and end of the same markers in the trace.

    Returns:
        None where there are no markers, or not as many in both.
    """
    theirs = list(theirs_ns)
    if not ours_ns or len(ours_ns) != len(theirs):
        return None
    pairs = list(zip(ours_ns, theirs, strict=True))
    least = max(end - after for (_, after), (_, end) in pairs)
    most = min(begin - before for (before, _), (begin, _) in pairs)
    middles = [(begin + end - before - after) // 2 for (before, after), (begin, end) in pairs]
    # Where the clocks have drifted apart the bounds contradict each other, by as much as the middle is wrong.
    return ClockOffset((least + most) // 2, (abs(most - least) + 1) // 2, max(middles) - min(middles), len(pairs))


def _torch_event(event: ChromeEvent, kind: Kind, name: str) -> TorchEvent:
    on_device = kind in (Kind.KERNEL, Kind.COLLECTIVE, Kind.COPY_H2D, Kind.COPY_D2H, Kind.COPY_OTHER)
    args = event.args or EventArgs()
    thread = event.tid if args.stream is None or not on_device else args.stream
    return TorchEvent(
        kind,
        name,
        event.start_ns,
        event.end_ns,
        thread if isinstance(thread, int) else 0,
        on_device,
        args.bytes if isinstance(args.bytes, int) else -1,
    )


def _outermost(events: list[TorchEvent]) -> Iterable[TorchEvent]:
    reach: dict[int, int] = {}
    for event in sorted(events, key=lambda each: (each.start_ns, -each.end_ns)):
        if event.kind is not Kind.OPERATOR:
            yield event
        elif event.end_ns > reach.get(event.thread, -1):
            reach[event.thread] = event.end_ns
            yield event
