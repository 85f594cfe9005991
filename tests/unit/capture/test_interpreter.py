"""Python frames of another process, read without stopping it."""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from children import Child, child, eventually
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dlprof.capture import interpreter
from dlprof.capture.interpreter import LAYOUT_SUFFIX, Layout, RemoteStacks, lines_of, load_layout, locate, publish
from dlprof.capture.thread_watch import Thread
from dlprof.formats.sample_file import Frames
from dlprof.model.kinds import Doing

MODULES = ("argparse", "asyncio.base_events", "dataclasses", "inspect", "json.decoder", "typing", "zipfile")


def _pythons() -> Iterator[Any]:
    yield pytest.param(sys.executable, id="this one")
    for version in ("3.12", "3.13"):
        found = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
        skip = pytest.mark.skipif(not found, reason=f"there is no Python {version} in ~/.pyenv/versions")
        yield pytest.param(str(found[-1]) if found else "", id=version, marks=skip)


pythons = pytest.mark.parametrize("python", list(_pythons()))

# ---- lines -----------------------------------------------------------------------------------------------------------


def codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def told_lines(code: CodeType) -> dict[int, int]:
    """Line of every instruction that has one, as Python says."""
    spans = [(start, end, line) for start, end, line in code.co_lines() if line is not None]
    return {at // 2: line for start, end, line in spans for at in range(start, end, 2)}


def module_code(name: str) -> CodeType:
    found = importlib.util.find_spec(name)
    assert found is not None
    code = found.loader.get_code(name)  # type: ignore[union-attr]
    assert code is not None
    return code


@pytest.mark.parametrize("name", MODULES)
def test_lines_are_those_that_python_says(name):
    codes = list(codes_of(module_code(name)))
    assert len(codes) > 10
    for code in codes:
        assert lines_of(code.co_linetable, code.co_firstlineno) == told_lines(code)


def test_instructions_without_a_line_have_none():
    codes = [code for name in MODULES for code in codes_of(module_code(name))]
    with_gaps = [code for code in codes if any(line is None for _, _, line in code.co_lines())]
    assert with_gaps
    for code in with_gaps:
        assert len(lines_of(code.co_linetable, code.co_firstlineno)) < len(code.co_code) // 2


def test_a_table_that_says_nothing_gives_no_lines():
    code = module_code("json.decoder")
    assert lines_of(b"", 7) == {}
    # Kind 15, eight instructions: a position that is not known.
    nothing = bytes([0x80 | 15 << 3 | 7])
    assert lines_of(nothing, 7) == told_lines(code.replace(co_linetable=nothing)) == {}


LINES_IN_ANOTHER = """
import importlib.util
from types import CodeType
from dlprof.capture.interpreter import lines_of

def codes_of(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)

count = wrong = 0
for name in sys.argv[1:]:
    for code in codes_of(importlib.util.find_spec(name).loader.get_code(name)):
        said = {i // 2: n for a, b, n in code.co_lines() if n is not None for i in range(a, b, 2)}
        count += 1
        wrong += lines_of(code.co_linetable, code.co_firstlineno) != said
tell(count, wrong)
"""


@pythons
def test_lines_of_other_pythons(tmp_path, python):
    with child(tmp_path, LINES_IN_ANOTHER, *MODULES, python=python) as other:
        count, wrong = other.told()
    assert count > 100
    assert wrong == 0


# ---- where they are --------------------------------------------------------------------------------------------------


def test_frames_of_this_thread_are_found_here():
    layout = locate()
    assert layout is not None
    read = stacks_of(os.getpid(), layout)
    names = [name for _, _, name in read]
    assert test_frames_of_this_thread_are_found_here.__qualname__ in names
    assert names.index("RemoteStacks.frames") < names.index("stacks_of")
    place = names.index("stacks_of")
    told, frame = [], sys._getframe()
    while frame is not None and len(told) < 10:
        told.append((frame.f_code.co_filename, frame.f_code.co_qualname))
        frame = frame.f_back
    assert [(file, name) for file, _, name in read[place + 1 : place + 1 + len(told)]] == told


def test_nothing_is_found_in_an_interpreter_of_another_kind(monkeypatch):
    monkeypatch.setattr(sys.implementation, "name", "pypy")
    assert locate() is None


def test_nothing_is_found_where_what_is_read_is_not_what_the_interpreter_says(monkeypatch):
    monkeypatch.setattr(RemoteStacks, "frames", lambda self: (("other.py", 1, "other"),))
    assert locate() is None


def test_locating_leaves_no_file_open():
    before = os.listdir("/proc/self/fd")
    locate()
    assert os.listdir("/proc/self/fd") == before


def test_what_is_published_can_be_loaded(tmp_path):
    assert publish(str(tmp_path))
    (path,) = tmp_path.iterdir()
    assert path.name == f"{os.getpid()}-{threading.get_native_id()}{LAYOUT_SUFFIX}"
    assert load_layout(path) == locate()


def test_a_thread_whose_frames_are_not_found_is_published_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(interpreter, "locate", lambda: None)
    assert not publish(str(tmp_path))
    (path,) = tmp_path.iterdir()
    assert load_layout(path) is None


@pytest.mark.parametrize("text", ["", "{", '{"thread_state": 1}', '{"more": 1}', "5"])
def test_a_layout_that_is_none_cannot_be_loaded(tmp_path, text):
    path = tmp_path / f"1-1{LAYOUT_SUFFIX}"
    path.write_text(text)
    with pytest.raises((ValueError, TypeError)):
        load_layout(path)


IN_A_CALLBACK = """
from dlprof.capture.interpreter import publish

class Batches:
    def __iter__(self):
        return self

    def __next__(self):
        return publish(sys.argv[1])

for found in Batches():
    tell(found, max([1], key=lambda _: tell(publish(sys.argv[1]))))
    break
"""


@pythons
def test_frames_are_found_where_c_has_called_python(tmp_path, python):
    """As it calls the ``__next__`` of a loader's iterator in a ``for`` loop."""
    with child(tmp_path, IN_A_CALLBACK, str(tmp_path), python=python) as other:
        assert other.told() == [True]
        assert other.told()[0] is True


# ---- another process -------------------------------------------------------------------------------------------------

PLACES = """
import ctypes, os
from dlprof.capture.interpreter import publish

published = publish(sys.argv[1])
library, buffer = ctypes.PyDLL(None), ctypes.create_string_buffer(1)

def keeping_the_gil(_):
    library.read(0, buffer, 1)

def leaving_the_gil(_):
    os.read(0, 1)

def stack():
    frame, found = sys._getframe(1), []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return found

block = keeping_the_gil if "gil" in sys.argv[2:] else leaving_the_gil

def plain():
    block(tell(*stack()))

def größe():
    block(tell(*stack()))

def размер():
    block(tell(*stack()))

def 𐎠():
    block(tell(*stack()))

def values():
    yield 1
    yield block(tell(*stack()))

def generator():
    return list(values())

def deep(left=150):
    return deep(left - 1) if left else block(tell(*stack()))

class Dataset:
    def __getitem__(self, index):
        def inner():
            return (
                1,
                block(tell(*stack())),
            )
        return inner()

def method():
    return Dataset()[3]

def callback():
    return sorted([2, 1], key=lambda _: block(tell(*stack())))

def executed():
    exec(compile("\\n\\nblock(tell(*stack()))", "<made>", "exec"))

if published:
    globals()[sys.argv[2]]()
else:
    tell()
"""
DEEPEST = 60


def stacks_of(pid: int, layout: Layout) -> Frames:
    stacks = RemoteStacks(pid, layout)
    try:
        return stacks.frames()
    finally:
        stacks.close()


def layout_of(folder: Path, pid: int) -> Layout:
    layout = load_layout(folder / f"{pid}-{pid}{LAYOUT_SUFFIX}")
    assert layout is not None
    return layout


def frames_where_blocked(other: Child, stacks: RemoteStacks) -> Frames:
    """The frames once the process is blocked in the function that it told of."""
    thread = Thread(other.pid, other.pid)

    def look() -> tuple[Doing, Frames]:
        return thread.doing(), stacks.frames()

    def is_there(found: tuple[Doing, Frames]) -> bool:
        doing, frames = found
        return doing is Doing.PIPE and bool(frames) and frames[0][2].endswith("_the_gil")

    try:
        return eventually(look, is_there)[1]
    finally:
        thread.close()


PLACE_NAMES = ("plain", "größe", "размер", "𐎠", "generator", "deep", "method", "callback", "executed")


@pythons
@pytest.mark.parametrize("gil", ["free", "gil"])
@pytest.mark.parametrize("place", PLACE_NAMES)
def test_frames_are_those_that_the_process_says_itself(tmp_path, python, place, gil):
    with child(tmp_path, PLACES, str(tmp_path), place, gil, python=python) as other:
        told = tuple(tuple(frame) for frame in other.told())
        stacks = RemoteStacks(other.pid, layout_of(tmp_path, other.pid))
        read = frames_where_blocked(other, stacks)
        again = stacks.frames()
        stacks.close()
    # The innermost function is the one that blocks; what it was called from has told where it was.
    assert read[1:] == told[: DEEPEST - 1]
    assert again is read


def test_the_line_of_a_function_that_keeps_the_gil_is_known(tmp_path):
    with child(tmp_path, PLACES, str(tmp_path), "plain", "gil") as other:
        stacks = RemoteStacks(other.pid, layout_of_told(other, tmp_path))
        read = frames_where_blocked(other, stacks)
        stacks.close()
        source = (tmp_path / "c.py").read_text().splitlines()
    assert source[read[0][1] - 1].strip() == "library.read(0, buffer, 1)"


def layout_of_told(other: Child, folder: Path) -> Layout:
    other.told()
    return layout_of(folder, other.pid)


@pytest.mark.parametrize("name", ["größe.py", "скрипт.py", "𐎠 中.py"])
def test_a_files_name_may_have_any_characters(tmp_path, name):
    with child(tmp_path, PLACES, str(tmp_path), "plain", name=name) as other:
        stacks = RemoteStacks(other.pid, layout_of_told(other, tmp_path))
        read = frames_where_blocked(other, stacks)
        stacks.close()
    assert {file for file, _, _ in read} == {str(tmp_path / name)}


def test_a_deep_stack_is_read_from_the_inside(tmp_path):
    with child(tmp_path, PLACES, str(tmp_path), "deep") as other:
        stacks = RemoteStacks(other.pid, layout_of_told(other, tmp_path))
        read = frames_where_blocked(other, stacks)
        stacks.close()
    assert len(read) == DEEPEST
    assert {name for _, _, name in read[1:]} == {"deep"}


def test_what_is_around_the_outermost_function_is_left_out(tmp_path):
    with child(tmp_path, PLACES, str(tmp_path), "method") as other:
        layout = layout_of_told(other, tmp_path)
        whole = RemoteStacks(other.pid, layout)
        frames_where_blocked(other, whole)
        stacks = RemoteStacks(other.pid, layout, (str(tmp_path / "c.py"), "Dataset.__getitem__"))
        first, second = stacks.frames(), stacks.frames()
        elsewhere = RemoteStacks(other.pid, layout, ("another.py", "Dataset.__getitem__"))
        uncut = elsewhere.frames()
        known = whole.frames()
        for each in (stacks, elsewhere, whole):
            each.close()
    names = ["leaving_the_gil", "Dataset.__getitem__.<locals>.inner", "Dataset.__getitem__"]
    assert [name for _, _, name in first] == names
    assert second == first
    assert uncut == known
    assert len(uncut) == len(first) + 2


def test_of_a_process_that_has_ended_there_are_no_frames(tmp_path):
    with child(tmp_path, PLACES, str(tmp_path), "plain") as other:
        stacks = RemoteStacks(other.pid, layout_of_told(other, tmp_path))
        assert eventually(stacks.frames, bool)
        other.end()
        assert stacks.frames() == ()
        stacks.close()


def test_there_is_no_such_process():
    layout = locate()
    assert layout is not None
    with pytest.raises(OSError, match="No such file"):
        RemoteStacks(1 << 30, layout)


# ---- offsets that are wrong ------------------------------------------------------------------------------------------

addresses = st.integers(0, (1 << 64) - 1)
offsets = st.integers(0, 200) | st.integers(0, 1 << 20)
NAMES = tuple(field.name for field in dataclasses.fields(Layout))
_strategies = dict.fromkeys(NAMES, offsets) | {
    "thread_state": addresses,
    "code_type": addresses,
    "through": st.integers(-1, 64),
    "text_kind_shift": st.integers(0, 70),
}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    wrong=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: _strategies[name] for name in names})
    )
)
@example(wrong={"text_kind_shift": 0})
@example(wrong={"code_lines": 128})
def test_a_wrong_layout_gives_no_error(wrong):
    right = locate()
    assert right is not None
    for _, line, name in stacks_of(os.getpid(), dataclasses.replace(right, **wrong)):
        assert isinstance(line, int)
        assert isinstance(name, str)


@given(table=st.binary(max_size=60), first_line=st.integers(1, 1000), instruction=st.integers(0, 200))
def test_a_torn_table_of_lines_gives_some_line(table, first_line, instruction):
    code = interpreter._Code("f.py", "f", first_line, table)
    assert isinstance(code.line(instruction), int)


def test_nothing_of_the_callers_lives_on(tmp_path):
    """A loader's iterator, for one: its workers would go on, and forked processes would try to end them."""

    class Held:
        pass

    def caller() -> weakref.ref[Held]:
        held = Held()
        assert publish(str(tmp_path))
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert caller()() is None
    finally:
        gc.enable()
