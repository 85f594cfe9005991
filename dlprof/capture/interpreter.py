"""Where the interpreter keeps a thread's Python frames, so that another process can read them without stopping it.

``locate`` runs in the process that is looked at, once a thread: it finds the offsets by looking for objects that it
knows, and reads memory only through ``/proc/self/mem``, where a wrong address is an error and no crash.
``RemoteStacks`` runs outside. It takes no GIL and stops nothing, so it sees also a line that keeps the GIL; what it
reads while the thread moves on may be torn, and is then dropped.

Works where CPython keeps frames in a chain of structs, from 3.11 on; *run* on 3.11, 3.12 and 3.13.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from dlprof.formats.sample_file import Frames

LAYOUT_SUFFIX = ".layout"
"""A file that is named after process and thread; see ``publish``."""

_WORD = struct.Struct("<Q")
_WORD_BYTES = 8
_INT = struct.Struct("<i")
_FRAME_OBJECT_TO_FRAME = 24
"""``PyFrameObject.f_frame``, behind the object's head and ``f_back``."""
_OBJECT_TYPE = 8
_LENGTH = 16
_FRAME_BYTES = 96
_WINDOW_BYTES = 2048
"""What is read at once: a read costs ten times what taking it apart does."""
_THREAD_STATE_BYTES = 512
_TEXT_STATE = 32
_SHIM = "<shim>"
"""File of the frame that 3.12 puts where C calls Python; the interpreter itself shows none there."""
_DEEPEST = 60
_MOST_KNOWN = 10_000
"""Stacks that are remembered."""
_LONGEST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Layout:
    """Addresses and offsets in bytes of one thread's interpreter.

    Attributes:
        thread_state: Address of its thread state.
        to_frame: Offset there of the pointer to the current frame, or to what holds that.
        through: Offset of the current frame in what holds it, -1 where there is nothing between.
        frame_code: Offset in a frame of its code object.
        frame_previous: Offset of the frame that called it.
        frame_instruction: Offset of the pointer to its instruction.
        code_type: Address of the type of code objects.
        code_file: Offset in a code object of its file's name.
        code_name: Of its qualified name.
        code_lines: Of its table of lines.
        code_first_line: Of the number of its first line.
        code_instructions: Of its instructions.
        text_ascii: Offset in a string of its characters, where they are ASCII,
        text_other: and where they are not.
        text_kind_shift: Bits before the width of a character in a string's state.
        bytes_data: Offset in a bytes object of its data.
    """

    thread_state: int
    to_frame: int
    through: int
    frame_code: int
    frame_previous: int
    frame_instruction: int
    code_type: int
    code_file: int
    code_name: int
    code_lines: int
    code_first_line: int
    code_instructions: int
    text_ascii: int
    text_other: int
    text_kind_shift: int
    bytes_data: int


# ---- in the process that is looked at --------------------------------------------------------------------------------


def locate() -> Layout | None:
    """The layout for the calling thread; None where the interpreter is not built as is known here.

    Raises:
        OSError: The process may not read its own memory.
    """
    if sys.implementation.name != "cpython" or sys.maxsize != (1 << 63) - 1 or sys.byteorder != "little":
        return None
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = _locate(memory)
        return found if found is not None and _is_right(found) else None
    except (ValueError, struct.error, OverflowError):
        return None
    finally:
        os.close(memory)


def publish(folder: str) -> bool:
    """Say in a file of the recording folder how the calling thread's frames are found.

    Returns:
        Whether they can be found at all; that it is this thread that can be looked at, the file says in any case.

    Raises:
        OSError: It cannot be written, or the process may not read its own memory.
    """
    layout = locate()
    path = f"{folder}/{os.getpid()}-{threading.get_native_id()}{LAYOUT_SUFFIX}"
    with open(path + ".part", "w", encoding="ascii") as file:
        json.dump(None if layout is None else {name: getattr(layout, name) for name in Layout.__slots__}, file)
    os.replace(path + ".part", path)
    return layout is not None


def _locate(memory: int) -> Layout | None:
    import ctypes

    get: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))
    thread_state = int(get())
    inner = sys._getframe()
    outer = inner.f_back
    # A frame that is held by one of its own variables lives on with all its callers', and what theirs hold: a loader's
    # iterator and its workers.
    try:
        if outer is None:
            return None
        frame, caller = (_word(memory, id(each) + _FRAME_OBJECT_TO_FRAME) for each in (inner, outer))
        instructions = CodeType.__basicsize__
        to_frame, through = _way_to(memory, thread_state)
        # A method's: of other functions the name and the qualified name may be one object.
        code = RemoteStacks.frames.__code__
        text_ascii = sys.getsizeof("a") - 2
        return Layout(
            thread_state=thread_state,
            to_frame=to_frame,
            through=through,
            frame_code=_offset(memory, caller, _FRAME_BYTES, id(outer.f_code)),
            frame_previous=_offset(memory, frame, _FRAME_BYTES, caller),
            frame_instruction=_offset(memory, caller, _FRAME_BYTES, id(outer.f_code) + instructions + outer.f_lasti),
            code_type=id(CodeType),
            code_file=_offset(memory, id(code), instructions, id(code.co_filename)),
            code_name=_offset(memory, id(code), instructions, id(code.co_qualname)),
            code_lines=_offset(memory, id(code), instructions, id(code.co_linetable)),
            code_first_line=_first_line_offset(memory, (code, inner.f_code), instructions),
            code_instructions=instructions,
            text_ascii=text_ascii,
            text_other=sys.getsizeof("\u4e2d") - 4,
            text_kind_shift=16 if sys.version_info >= (3, 14) else 2,
            bytes_data=sys.getsizeof(b"") - 1,
        )
    finally:
        del inner, outer


def _is_right(layout: Layout) -> bool:
    """Whether what is read is what the interpreter itself says, from the caller on."""
    stacks = RemoteStacks(os.getpid(), layout)
    read = stacks.frames()
    stacks.close()
    told: list[tuple[str, int, str]] = []
    frame = sys._getframe().f_back
    while frame is not None and len(told) < _DEEPEST // 2:
        told.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    callers = [place for place, (_, _, name) in enumerate(read) if name == told[0][2]]
    return bool(callers) and read[callers[0] : callers[0] + len(told)] == tuple(told)


def _way_to(memory: int, thread_state: int) -> tuple[int, int]:
    """Where in the thread state the pointer to the current frame is, at once or through one struct more."""
    frame = _word(memory, id(sys._getframe()) + _FRAME_OBJECT_TO_FRAME)
    # Read here and not in a function of its own, whose frame would be the current one.
    data = os.pread(memory, _THREAD_STATE_BYTES, thread_state)
    words = [word for (word,) in _WORD.iter_unpack(data)]
    if frame in words:
        return words.index(frame) * _WORD_BYTES, -1
    for place, word in enumerate(words):
        for through in (0, _WORD_BYTES):
            try:
                if os.pread(memory, _WORD_BYTES, word + through) == _WORD.pack(frame):
                    return place * _WORD_BYTES, through
            except (OSError, OverflowError):
                continue
    raise ValueError


def _first_line_offset(memory: int, codes: tuple[CodeType, ...], size: int) -> int:
    places = None
    for code in codes:
        data = os.pread(memory, size, id(code))
        found = {at for at in range(16, size - 3, 4) if _INT.unpack_from(data, at)[0] == code.co_firstlineno}
        places = found if places is None else places & found
    if not places:
        raise ValueError
    return min(places)


def _offset(memory: int, address: int, size: int, value: int) -> int:
    return _words(memory, address, size).index(value) * _WORD_BYTES


def _words(memory: int, address: int, size: int) -> list[int]:
    data = os.pread(memory, size, address)
    return [word for (word,) in _WORD.iter_unpack(data[: len(data) - len(data) % _WORD_BYTES])]


def _word(memory: int, address: int) -> int:
    return int(_WORD.unpack(os.pread(memory, _WORD_BYTES, address))[0])


def load_layout(path: Path) -> Layout | None:
    """What ``publish`` has said; None where the frames cannot be found.

    Raises:
        OSError, ValueError, TypeError: It cannot be read.
    """
    found = json.loads(path.read_text(encoding="ascii"))
    return None if found is None else Layout(**found)


# ---- outside ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Code:
    """A code object of the other process."""

    file: str
    name: str
    first_line: int
    table: bytes
    lines: dict[int, int] = field(default_factory=dict)

    def line(self, instruction: int) -> int:
        """The line of an instruction, counted in bytes."""
        if not self.lines:
            # A table that was overwritten while it was read may end within an entry.
            with contextlib.suppress(IndexError):
                self.lines = lines_of(self.table, self.first_line)
        return self.lines.get(instruction // 2, self.first_line)


class RemoteStacks:
    """Reads one thread's Python frames.

    Args:
        pid: Its process.
        layout: What ``locate`` found there.
        outermost: File and qualified name of a function; frames around one of it are left out.

    Raises:
        OSError: The process's memory may not be read.
    """

    def __init__(self, pid: int, layout: Layout, outermost: tuple[str, str] | None = None) -> None:
        self._outermost = outermost
        self._outermost_codes: set[int] = set()
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        self._layout = layout
        self._codes: dict[int, _Code | None] = {}
        self._known: dict[tuple[tuple[int, int], ...], Frames] = {}

    def close(self) -> None:
        """Close the memory."""
        os.close(self._memory)

    def frames(self) -> Frames:
        """The frames now, the innermost first; empty where they could not be read.

        The same frames are the same object.
        """
        try:
            chain = self._chain()
        except (OSError, struct.error, OverflowError):
            return ()
        found = self._known.get(chain)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                # Also what is known of codes: over hours an address may come to hold another one.
                self._known.clear()
                self._codes.clear()
            found = self._known[chain] = tuple(self._named(chain))
        return found

    def _chain(self) -> tuple[tuple[int, int], ...]:
        """Code object and instruction, in bytes from the first, of each frame."""
        layout, memory = self._layout, self._memory
        holder = _word(memory, layout.thread_state + layout.to_frame)
        frame = holder if layout.through < 0 else _word(memory, holder + layout.through)
        read = _WORD.unpack_from
        chain: list[tuple[int, int]] = []
        data, begin = b"", 0
        while frame and len(chain) < _DEEPEST:
            at = frame - begin
            if not 0 <= at <= len(data) - _FRAME_BYTES:
                data, begin = self._around(frame)
                at = frame - begin
            # The low bits of a reference are marks in newer interpreters.
            code = read(data, at + layout.frame_code)[0] & ~3
            instruction = read(data, at + layout.frame_instruction)[0]
            chain.append((code, instruction - code - layout.code_instructions))
            if code in self._outermost_codes:
                break
            frame = read(data, at + layout.frame_previous)[0]
        return tuple(chain)

    def _around(self, frame: int) -> tuple[bytes, int]:
        """Memory that holds a frame and, where they lie before it as those of one thread do, its callers'."""
        begin = frame + _FRAME_BYTES - _WINDOW_BYTES
        with contextlib.suppress(OSError):
            data = os.pread(self._memory, _WINDOW_BYTES, begin)
            if len(data) == _WINDOW_BYTES:
                return data, begin
        return os.pread(self._memory, _FRAME_BYTES, frame), frame

    def _named(self, chain: tuple[tuple[int, int], ...]) -> list[tuple[str, int, str]]:
        found = []
        for address, instruction in chain:
            code = self._code(address)
            if code is not None and 0 <= instruction < _LONGEST_BYTES * 2:
                if (code.file, code.name) == self._outermost:
                    self._outermost_codes.add(address)
                found.append((code.file, code.line(instruction), code.name))
                if address in self._outermost_codes:
                    break
        return found

    def _code(self, address: int) -> _Code | None:
        if address not in self._codes:
            try:
                self._codes[address] = self._read_code(address)
            except (OSError, struct.error, OverflowError, UnicodeError, LookupError):
                # What lies there is no code object any more; a string may then have any width.
                self._codes[address] = None
        return self._codes[address]

    def _read_code(self, address: int) -> _Code | None:
        layout, memory = self._layout, self._memory
        if _word(memory, address + _OBJECT_TYPE) != layout.code_type:
            return None
        first_line = _INT.unpack(os.pread(memory, _INT.size, address + layout.code_first_line))[0]
        file, name, table = (
            _word(memory, address + offset) for offset in (layout.code_file, layout.code_name, layout.code_lines)
        )
        size = min(_word(memory, table + _LENGTH), _LONGEST_BYTES)
        path = self._text(file)
        if path == _SHIM:
            return None
        return _Code(path, self._text(name), first_line, os.pread(memory, size, table + layout.bytes_data))

    def _text(self, address: int) -> str:
        layout, memory = self._layout, self._memory
        length = min(_word(memory, address + _LENGTH), _LONGEST_BYTES)
        state = _INT.unpack(os.pread(memory, _INT.size, address + _TEXT_STATE))[0] >> layout.text_kind_shift
        width, ascii_only = state & 7, state >> 4 & 1
        data = os.pread(memory, length * width, address + (layout.text_ascii if ascii_only else layout.text_other))
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width], "replace")


def lines_of(table: bytes, first_line: int) -> dict[int, int]:
    """Line of every instruction, by its number.

    Args:
        table: ``co_linetable``, in the format of CPython 3.11 and later (``Objects/locations.md`` there).
        first_line: ``co_firstlineno``.
    """
    lines: dict[int, int] = {}
    at, instruction, line = 0, 0, first_line
    while at < len(table):
        head = table[at]
        at += 1
        kind, units = head >> 3 & 15, (head & 7) + 1
        has_line = kind != 15
        if kind in (13, 14):
            delta, at = _signed(table, at)
            line += delta
            if kind == 14:
                # End line, column and end column follow.
                for _ in range(3):
                    _, at = _unsigned(table, at)
        elif kind in (10, 11, 12):
            line += kind - 10
            at += 2
        elif kind < 10:
            at += 1
        if has_line:
            lines.update(dict.fromkeys(range(instruction, instruction + units), line))
        instruction += units
    return lines


def _unsigned(table: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        part = table[at]
        at += 1
        value |= (part & 63) << shift
        shift += 6
        if not part & 64:
            return value, at


def _signed(table: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(table, at)
    return (-(value >> 1) if value & 1 else value >> 1), at
