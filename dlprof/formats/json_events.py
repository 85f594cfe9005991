"""The text of a Chrome trace, whoever wrote it and however it is damaged, cut into pieces of whole events."""

from __future__ import annotations

import os
import re
import shlex
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
import numpy.typing as npt

from dlprof.errors import UnreadableInputError
from dlprof.words import marked, tr

BLOCK_BYTES = 2 * 2**20
"""What is read, decompressed and decoded at a time."""
MAX_JSON_MB = 8000
"""Text that is read at most unless more is asked for. Compressed, a few MB can hold any amount of it."""

_DAMAGE_STEP = 64
_HEAD_BYTES = 64 * 2**20
"""Where the events must have begun, and the most that one event may take."""
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
# How Kineto lays its events out. A cut here may lie inside an event of another layout; the piece is then no JSON.
_BETWEEN = b"\n  },\n  {"
_EVENT_BEGINS = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args)"\s*:)')
"""Where the next event begins even if the text before it is damaged, whatever the layout."""
_SCALAR = re.compile(rb'(?:null|true|false|-?\d[\d.eE+-]*|"(?:[^"\\]|\\.)*")\s*$')
_LIST_ENDS = re.compile(rb'\s*(?:,\s*"\w+"\s*:|\}?\s*$)')
_LONG_EVENT_BYTES = 16 * 2**20
"""Text without the end of an event, from which it is taken to be damaged."""
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_STRING_OR_ODD = re.compile(
    rb'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|nan|Infinity|inf)\b|,(?=\s*[\]}])',
    re.DOTALL,
)
_NO_JSON = (msgspec.DecodeError, RecursionError)
_UNDECODABLE = (msgspec.MsgspecError, RecursionError)
"""What cannot be decoded, what is nested too deeply among it."""
_QUOTE, _BACKSLASH, _COMMA = ord('"'), ord("\\"), ord(",")
_OPENS, _CLOSES = (ord("{"), ord("[")), (ord("}"), ord("]"))
_FOREIGN = (
    (b"\x80\x02", marked("it is a Python pickle"), ""),
    (b"\x80\x03", marked("it is a Python pickle"), ""),
    (b"\x80\x04", marked("it is a Python pickle"), ""),
    (b"\x80\x05", marked("it is a Python pickle"), ""),
    (b"PK\x03\x04", marked("it is a zip archive (or a file of torch.save)"), "unzip"),
    (b"\x28\xb5\x2f\xfd", marked("it is compressed with zstd"), "zstd -d"),
    (b"BZh", marked("it is compressed with bzip2"), "bunzip2 -k"),
    (b"\xfd7zXZ\x00", marked("it is compressed with xz"), "xz -dk"),
    (b"\xff\xfe", marked("it is text in UTF-16"), "iconv -f UTF-16 -t UTF-8 -o trace.json"),
    (b"\xfe\xff", marked("it is text in UTF-16"), "iconv -f UTF-16 -t UTF-8 -o trace.json"),
    (b"version https://git-lfs", marked("it stands for a file that Git LFS has not fetched"), "git lfs pull --include"),
    (b"<", marked("it is a web page or XML"), ""),
    (b"SQLite format 3", marked("it is a database (Nsight's, perhaps)"), ""),
)
"""How files begin that are no trace, what they are, and the command that makes one of them."""


class Args(msgspec.Struct, gc=False):
    """What is read of an event's ``args``; -1 is "not said"."""

    correlation: int = -1
    # ROCm's runtime gives it as text.
    bytes: int | str = -1


class Event(msgspec.Struct, gc=False):
    """What is read of an event. Times in microseconds, as they stand; not a number where there is none."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = float("nan")
    dur: float = float("nan")
    pid: int | str = ""
    tid: int | str = ""
    args: Args | None = None


Decode = Callable[[bytes], list[Event]]
"""A JSON array to its events; raises msgspec's errors."""


@dataclass(slots=True)
class Damage:
    """What was not as it should be.

    Attributes:
        truncated: The text ends within the events.
        compressed: That is because the compressed data ends, or is damaged.
        broken: Entries that are no JSON even after what can be mended was mended,
        foreign: entries that are no event at all.
        lost_bytes: Text of the former: what was overwritten may have been many entries.
        mended: Whether NaN, commas before a closing bracket, or bytes that are no UTF-8 had to be replaced.
    """

    truncated: bool = False
    compressed: bool = False
    broken: int = 0
    foreign: int = 0
    lost_bytes: int = 0
    mended: bool = False


@dataclass(slots=True)
class EventText:
    """A trace's events, a piece at a time.

    Args:
        path: A JSON object with ``traceEvents`` or a JSON array; compressed with gzip or not, whatever its name.
        max_json_bytes: Text that is read at most.
        progress: Called with bytes of the file that have been read, and its size.

    Attributes:
        top: What stands beside the events, as JSON text by key; complete when the pieces have come to their end.
        damage: What was odd, complete at that time, too.
        json_bytes: Text that has been read.
    """

    path: Path
    max_json_bytes: int = MAX_JSON_MB * 1_000_000
    progress: Callable[[int, int], None] | None = None
    top: dict[str, msgspec.Raw] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)
    json_bytes: int = 0

    def pieces(self, decode: Decode, loose: Decode) -> Iterator[list[Event]]:
        """The events, piece by piece.

        Args:
            decode: For events that have the types of torch's.
            loose: For one event of any types, as an array of one.

        Raises:
            UnreadableInputError: It cannot be read, is no trace, or is larger than allowed.
        """
        blocks = self._blocks()
        pending = self._head(blocks)
        reader = _Pieces(decode, loose, self.damage)
        closed = False
        for block in blocks:
            if closed:
                pending += block
                continue
            events, pending, closed = reader.take(pending, block)
            yield from events
            if not closed and len(pending) > _HEAD_BYTES:
                break
        events = [[]]
        while events and not closed:
            events, pending, closed = reader.take(pending)
            yield from events
        if closed:
            self._note(b"{" + pending.lstrip(b", \t\r\n"))
        else:
            self.damage.truncated = True

    # ---- bytes

    def _blocks(self) -> Iterator[bytes]:
        """The text. Compressed, a thread decompresses the next block while one is decoded."""
        try:
            with open(self.path, "rb") as file:
                first = file.read(4)
                file.seek(0)
                source = self._inflated(file) if first.startswith(_GZIP) else self._plain(file)
                with ThreadPoolExecutor(1) as ahead:
                    coming = ahead.submit(next, source, b"")
                    while block := coming.result():
                        self.json_bytes += len(block)
                        if self.json_bytes > self.max_json_bytes:
                            raise self._too_large(_said_size(file))
                        coming = ahead.submit(next, source, b"")
                        yield block
        except OSError as error:
            raise UnreadableInputError(
                "trace-unreadable", tr("cannot read {path}: {reason}", path=self.path, reason=error.strerror or error)
            ) from error

    def _plain(self, file: IO[bytes]) -> Iterator[bytes]:
        size = self.path.stat().st_size
        if size > self.max_json_bytes:
            raise self._too_large(size)
        while block := file.read(BLOCK_BYTES):
            self._tell(file.tell(), size)
            yield block

    def _inflated(self, file: IO[bytes]) -> Iterator[bytes]:
        size = self.path.stat().st_size
        member = before = zlib.decompressobj(wbits=31)
        compressed = b""
        try:
            while compressed := compressed or file.read(BLOCK_BYTES // 8):
                self._tell(file.tell(), size)
                before = member.copy()
                block = member.decompress(compressed, BLOCK_BYTES)
                compressed = member.unconsumed_tail
                if member.eof:
                    # Another member may follow, or zeros up to the end of a tape's block.
                    compressed = member.unused_data.lstrip(b"\0")
                    member = zlib.decompressobj(wbits=31)
                if block:
                    yield block
            while rest := member.decompress(member.unconsumed_tail, BLOCK_BYTES):
                yield rest
        except zlib.error:
            self.damage.compressed = True
            yield from _up_to_damage(before, compressed)

    def _tell(self, done: int, size: int) -> None:
        if self.progress is not None:
            self.progress(done, size)

    def _too_large(self, size: int) -> UnreadableInputError:
        limit = self.max_json_bytes // 1_000_000
        needed = max(-(-size // 1_000_000), limit + 1)
        return UnreadableInputError(
            "trace-too-large",
            tr("{path} holds more than {limit} MB of JSON", path=self.path, limit=limit),
            tr("read it with --max-size {limit}, if it is a trace", limit=needed),
        )

    # ---- what stands around the events

    def _head(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event; returns what comes after the bracket before it."""
        text = next(blocks, b"").removeprefix(_BYTE_ORDER_MARK)
        start = text.lstrip(_SPACE)
        if not start:
            if self.damage.compressed:
                raise self._no_trace(tr("its gzip data is damaged"))
            text += b"".join(block for _, block in zip(range(4), blocks, strict=False))
            start = text.lstrip(_SPACE)
            if not start:
                raise self._no_trace(tr("it is empty"))
        for magic, what, command in _FOREIGN:
            if start.startswith(magic):
                raise self._no_trace(tr(what), command)
        if start.startswith(b"["):
            return start[1:]
        if not start.startswith(b"{"):
            value = _SCALAR.match(start) is not None
            raise self._no_trace(tr("it is a single value and no list of events") if value else tr("it is no JSON"))
        searched = 0
        while (opening := _OPENING.search(text, max(0, searched - 100))) is None:
            searched = len(text)
            block = next(blocks, b"")
            if not block or searched > _HEAD_BYTES:
                raise self._no_trace(tr("there is no list of traceEvents in it"))
            text += block
        self._note(text[: opening.end()] + b"]}")
        return text[opening.end() :]

    def _note(self, document: bytes) -> None:
        for text in (document, _mended(document)):
            try:
                found = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            except _NO_JSON:
                continue
            found.pop("traceEvents", None)
            self.top |= {key: msgspec.Raw(bytes(value)) for key, value in found.items()}
            return

    def _no_trace(self, reason: str, command: str = "") -> UnreadableInputError:
        hint = tr("give a file that torch.profiler exported (*.pt.trace.json, compressed or not)")
        if command:
            hint = tr("to get at what is in it: {command}", command=f"{command} {shlex.quote(str(self.path))}")
        return UnreadableInputError(
            "not-a-trace", tr("{path} is not a trace: {reason}", path=self.path, reason=reason), hint
        )


def _said_size(file: IO[bytes]) -> int:
    """Bytes that a gzip file says it holds, modulo 2**32: of its last member."""
    file.seek(-4, os.SEEK_END)
    return int.from_bytes(file.read(4), "little")


def _up_to_damage(member: zlib._Decompress, compressed: bytes) -> Iterator[bytes]:
    """What comes out before the place that cannot be decompressed."""
    for place in range(0, len(compressed), _DAMAGE_STEP):
        try:
            block = member.decompress(compressed[place : place + _DAMAGE_STEP])
        except zlib.error:
            return
        if block:
            yield block


class _Pieces:
    """Cuts text at the borders of events and decodes what lies between."""

    def __init__(self, decode: Decode, loose: Decode, damage: Damage) -> None:
        self._decode = decode
        self._loose = loose
        self._damage = damage

    def take(self, pending: bytes, block: bytes = b"") -> tuple[list[list[Event]], bytes, bool]:
        """The whole events that stand at the beginning of a text.

        Args:
            pending: What was left of the text before.
            block: What comes next.

        Returns:
            The events; what is left of the text; whether the list of events has ended, and the rest stands after it.
        """
        cut = block.rfind(_BETWEEN)
        if cut >= 0:
            whole = b"".join((b"[", pending, memoryview(block)[: cut + 4], b"]"))
            try:
                return [self._decode(whole)], block[cut + 5 :], False
            except _UNDECODABLE:
                # Laid out otherwise, or something is wrong with it.
                pass
        text = pending + block
        borders = _borders(text)
        damaged = borders.close is not None and not _is_end(text, borders.close)
        if not len(borders.ends) and not damaged:
            left, closed = (text, False) if borders.close is None else (text[borders.close + 1 :], True)
            if closed or (block and len(text) <= _LONG_EVENT_BYTES):
                return [], left, closed
            # A quote too many or too few makes all that follows a string.
            damaged = True
        end = int(borders.ends[-1]) if len(borders.ends) else 0
        events = None if damaged else self._whole(text[:end].lstrip(b", \t\r\n"), text, borders)
        if events is None:
            parts = _event_texts(text)
            if len(parts) > 1:
                return list(self._halves(parts[:-1])), parts[-1], False
            if damaged:
                # No event begins in it: what follows the bracket may be read again.
                return [], text if borders.close is None else text[borders.close + 1 :], False
            events = list(self._one_by_one(text, borders))
        if borders.close is not None:
            return [events], text[borders.close + 1 :], True
        return [events], text[end:].lstrip(b", \t\r\n"), False

    def _whole(self, piece: bytes, text: bytes, borders: _Borders) -> list[Event] | None:
        """The events of a piece; None where it is no JSON."""
        try:
            return self._decode(b"[" + piece + b"]")
        except msgspec.ValidationError:
            return list(self._one_by_one(text, borders))
        except _NO_JSON:
            mended = _mended(piece)
        try:
            found = self._decode(b"[" + mended + b"]")
        except msgspec.ValidationError:
            found = list(self._one_by_one(text, borders))
        except _NO_JSON:
            return None
        self._damage.mended = True
        return found

    def _halves(self, parts: list[bytes]) -> Iterator[list[Event]]:
        """The events of texts that are one event each if they are whole; those that are not are found by halving."""
        try:
            yield self._decode(b"[" + b",".join(parts) + b"]")
        except _UNDECODABLE:
            if len(parts) == 1:
                yield self._one(parts[0])
                return
            middle = len(parts) // 2
            yield from self._halves(parts[:middle])
            yield from self._halves(parts[middle:])

    def _one_by_one(self, text: bytes, borders: _Borders) -> Iterator[Event]:
        reached = 0
        for start, end in zip(borders.starts.tolist(), borders.ends.tolist(), strict=False):
            if text[reached:start].strip(b", \t\r\n"):
                self._damage.foreign += 1
            reached = end
            if text[start] != _OPENS[0]:
                self._damage.foreign += 1
                continue
            yield from self._one(text[start:end])

    def _one(self, event: bytes) -> list[Event]:
        for mend in (bytes, _mended):
            try:
                return self._loose(b"[" + mend(event) + b"]")
            except _UNDECODABLE:
                continue
        self._damage.broken += 1
        self._damage.lost_bytes += len(event)
        return []


@dataclass(frozen=True, slots=True)
class _Borders:
    """Where the entries of a list stand in a text: shape ``(n,)`` each; the last start may have no end.

    ``close`` is the place of the bracket that ends the list, None where the text ends before it.
    """

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    close: int | None


def _borders(text: bytes) -> _Borders:
    raw = np.frombuffer(text, dtype=np.uint8)
    quotes = np.flatnonzero(raw == _QUOTE)
    escaped = [
        place
        for place in np.flatnonzero(raw[np.maximum(quotes - 1, 0)] == _BACKSLASH).tolist()
        if _backslashes_before(text, int(quotes[place])) % 2
    ]
    quotes = np.delete(quotes, escaped)
    # One bit tells braces from square brackets.
    folded = raw | (_OPENS[0] ^ _OPENS[1])
    brackets = np.flatnonzero((folded == _OPENS[0]) | (folded == _CLOSES[0]))
    brackets = brackets[np.searchsorted(quotes, brackets) % 2 == 0]
    opens = folded[brackets] == _OPENS[0]
    depth = np.cumsum(np.where(opens, 1, -1))
    after = np.flatnonzero(depth < 0)
    close = int(brackets[after[0]]) if len(after) else None
    if len(after):
        brackets, opens, depth = brackets[: after[0]], opens[: after[0]], depth[: after[0]]
    return _Borders(brackets[opens & (depth == 1)], brackets[~opens & (depth == 0)] + 1, close)


def _is_end(text: bytes, close: int) -> bool:
    """Whether a bracket can be the one that ends the list: behind an event, and before the next key or the end."""
    before = text[max(0, close - 1000) : close].rstrip(_SPACE)[-1:]
    return before in (b"}", b"[", b",", b"") and _LIST_ENDS.match(text, close + 1) is not None


def _event_texts(text: bytes) -> list[bytes]:
    """A damaged text, parted where events begin; the last part may lack its end."""
    begins = [found.end() for found in _EVENT_BEGINS.finditer(text)]
    parts = [text[begin:end] for begin, end in zip([0, *begins], [*begins, len(text)], strict=True)]
    return [*(part.strip(b", \t\r\n") for part in parts[:-1]), parts[-1]]


def _backslashes_before(text: bytes, place: int) -> int:
    begin = place
    while begin and text[begin - 1] == _BACKSLASH:
        begin -= 1
    return place - begin


def _mended(text: bytes) -> bytes:
    """The text with what some writers leave in it and JSON does not allow replaced."""
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
    return _STRING_OR_ODD.sub(_mend, text)


def _mend(found: re.Match[bytes]) -> bytes:
    what = found[0]
    if what[0] == _QUOTE:
        return what
    return b"" if what[0] == _COMMA else b"null"
