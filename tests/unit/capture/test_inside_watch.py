"""A thread looked at by one of ours in the same process, and who looks at which thread."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recordings import asked, begin, events, open_files

from dlprof.capture import inside_watch, interpreter
from dlprof.capture.inside_watch import InsideWatch
from dlprof.capture.interpreter import LAYOUT_SUFFIX
from dlprof.capture.recorder import Recorder
from dlprof.formats.sample_file import LOOK_INSIDE, Frames, SampleWriter, read_samples
from dlprof.model.kinds import Doing

LONG_S = 60


class Looks:
    """Lets a test wait for looks instead of for time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = threading.Semaphore(0)
        original = SampleWriter.add

        def add(writer: SampleWriter, *values: Any) -> None:
            original(writer, *values)
            self._count.release()

        monkeypatch.setattr(SampleWriter, "add", add)

    def wait_for(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._count.acquire(timeout=LONG_S)


@pytest.fixture
def looks(monkeypatch):
    return Looks(monkeypatch)


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path), asked(sample_hz=1000))


@pytest.fixture
def watching(recorder) -> Iterator[Callable[[], InsideWatch]]:
    made: list[InsideWatch] = []

    def make() -> InsideWatch:
        made.append(InsideWatch(recorder))
        return made[-1]

    yield make
    for watch in made:
        watch.stop()


def read(folder: Path, pid: int | None = None) -> tuple[list[tuple[int, int, Doing, Frames]], int]:
    found = read_samples(folder / f"{pid or os.getpid()}.samples")
    assert found is not None
    records, stacks, spent_ns = found
    rows = [
        (
            int(each["pid"]),
            int(each["thread"]),
            Doing(each["doing"]),
            stacks[each["stack"] - 1] if each["stack"] else (),
        )
        for each in records
    ]
    return rows, spent_ns


# ---- looking ---------------------------------------------------------------------------------------------------------


def test_the_thread_that_made_it_is_looked_at(tmp_path, watching, looks):
    watch = watching()
    looks.wait_for(5)
    watch.stop()
    found, spent_ns = read(tmp_path)
    assert {(pid, thread) for pid, thread, _, _ in found} == {(os.getpid(), threading.get_native_id())}
    assert spent_ns > 0
    names = [[name for _, _, name in frames] for _, _, _, frames in found]
    here = test_the_thread_that_made_it_is_looked_at.__qualname__
    waiting = [stack for stack in names if "Looks.wait_for" in stack]
    assert waiting
    # The innermost first.
    for stack in waiting:
        assert stack.index("Looks.wait_for") == stack.index(here) - 1


def test_times_and_lines_are_those_of_the_thread(tmp_path, watching, looks):
    watch = watching()
    looks.wait_for(3)
    watch.stop()
    records = read_samples(tmp_path / f"{os.getpid()}.samples")
    assert records is not None
    for column in ("at_ns", "on_cpu_ns", "runnable_ns"):
        values = records[0][column].tolist()
        assert values == sorted(values)
    source = Path(__file__).read_text().splitlines()
    lines = {line for _, _, _, frames in read(tmp_path)[0] for file, line, _ in frames if file == __file__}
    assert any("self._count.acquire" in source[line - 1] for line in lines)


def test_a_deep_stack_is_kept_from_the_inside(tmp_path, watching, looks):
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        else:
            looks.wait_for(5)

    watch = watching()
    deep(100)
    watch.stop()
    stacks = [frames for _, _, _, frames in read(tmp_path)[0] if any(name.endswith("deep") for _, _, name in frames)]
    assert {len(frames) for frames in stacks} == {inside_watch._DEEPEST}


@pytest.mark.parametrize("switch", ["watch", "recorder"])
def test_nothing_is_looked_at_while_it_is_off(tmp_path, watching, recorder, looks, monkeypatch, switch):
    turns = threading.Semaphore(0)
    original = inside_watch.thread_cpu

    def counted() -> int:
        turns.release()
        return original()

    watch = watching()
    looks.wait_for()
    # One look may have been begun.
    (watch if switch == "watch" else recorder).on = False
    monkeypatch.setattr(inside_watch, "thread_cpu", counted)
    for _ in range(4):
        assert turns.acquire(timeout=LONG_S)
    before = looks._count._value
    for _ in range(6):
        assert turns.acquire(timeout=LONG_S)
    assert looks._count._value == before
    (watch if switch == "watch" else recorder).on = True
    looks.wait_for(before + 1)


class Waits:
    """Stands in for an event: says how long it was waited for, and is set after some turns."""

    def __init__(self, turns: int) -> None:
        self.pauses: list[float] = []
        self.turns = turns

    def wait(self, pause: float) -> bool:
        self.pauses.append(pause)
        return len(self.pauses) > self.turns

    def set(self) -> None:
        """Nobody waits."""


def test_looks_that_cost_much_are_fewer(recorder, monkeypatch):
    waits = Waits(3)
    costs = iter([0, 20_000_000, 100, 100, 100, 5_000_100, 9])
    monkeypatch.setattr(inside_watch, "thread_cpu", lambda: next(costs))
    monkeypatch.setattr(inside_watch.threading, "Event", lambda: waits)
    InsideWatch(recorder).stop()
    # A hundred times what the look took, and never more often than was asked for.
    assert waits.pauses == pytest.approx([0.001, 2.0, 0.001, 0.5])


def test_no_object_of_the_script_lives_longer(watching, looks):
    class Thing:
        pass

    def holds() -> weakref.ref[Thing]:
        thing = Thing()
        looks.wait_for(3)
        return weakref.ref(thing)

    watching()
    assert holds()() is None


# ---- its thread and its files ----------------------------------------------------------------------------------------


def threads_here() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_the_script_does_not_see_the_thread(watching, looks):
    before, known = threads_here(), threading.enumerate()
    watching()
    looks.wait_for()
    # One of an earlier test may only now have ended.
    assert len(threads_here() - before) == 1
    assert threading.enumerate() == known


def test_nothing_is_left_when_it_has_stopped(watching, looks):
    files = open_files()
    watch = watching()
    looks.wait_for()
    watch.stop()
    watch.stop()
    assert open_files() == files


def test_a_failure_ends_the_looking_with_a_notice(tmp_path, watching, monkeypatch):
    failed = threading.Event()

    def full(*_: Any) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SampleWriter, "add", full)
    watch = watching()
    assert failed.wait(LONG_S)
    watch.stop()
    (notice,) = events(tmp_path, "notice")
    assert notice["slug"] == "samples-lost"
    assert "No space left" in notice["error"]


def test_a_forked_child_closes_its_copies_and_writes_nothing(tmp_path, watching, looks):
    before = open_files()
    watch = watching()
    looks.wait_for(3)
    child = os.fork()
    if not child:
        status = 1
        try:
            watch.abandon()
            status = 0 if open_files() == before else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    looks.wait_for(3)
    watch.stop()
    assert len(read(tmp_path)[0]) >= 6


KEEPS_RUNNING = """
import os, sys
from dlprof.capture.inside_watch import InsideWatch
from dlprof.capture.recorder import Recorder
from dlprof.formats.settings_file import Settings
recorder = Recorder(sys.argv[1], Settings(1, 0, 0, 1 << 30, os.getppid()))
watch = InsideWatch(recorder)
print("ends", flush=True)
"""


def test_a_process_that_does_not_stop_it_ends_all_the_same(tmp_path):
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", KEEPS_RUNNING, str(tmp_path)], cwd=root, capture_output=True, text=True, timeout=LONG_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


COLLECTS_GARBAGE = """
import faulthandler, gc, os, sys, threading
from dlprof.capture import inside_watch
from dlprof.capture.recorder import Recorder
from dlprof.formats.settings_file import Settings

faulthandler.dump_traceback_later(50, exit=True)
looks = 0

def add(writer, *values):
    global looks
    looks += 1

class Node:
    def __init__(self):
        self.me, self.local = self, threading.local()
        self.local.value = 1

inside_watch.SampleWriter.add = add
watch = inside_watch.InsideWatch(Recorder(sys.argv[1], Settings(1, 0, 0, 1 << 30, os.getppid(), True, 10_000)))
gc.set_threshold(20)
while looks < 300:
    for _ in range(50):
        Node()
    threading.Event().wait(0.0001)
watch.stop()
print(gc.isenabled())
"""


def test_a_script_that_collects_garbage_goes_on(tmp_path):
    # In 3.11 sys._current_frames alone hangs the process: https://github.com/python/cpython/issues/106883
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", COLLECTS_GARBAGE, str(tmp_path)], cwd=root, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_collector_that_is_off_stays_off(watching, looks):
    gc.disable()
    try:
        watching()
        looks.wait_for(3)
        assert not gc.isenabled()
    finally:
        gc.enable()


# ---- who looks -------------------------------------------------------------------------------------------------------


def layouts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(LAYOUT_SUFFIX))


def test_a_thread_says_where_its_frames_are_so_that_others_can_look(tmp_path):
    session = begin(tmp_path)
    session.be_watched()
    session.be_watched()
    assert layouts(tmp_path) == [f"{os.getpid()}-{threading.get_native_id()}{LAYOUT_SUFFIX}"]
    assert list(tmp_path.glob("*.samples")) == []
    session.end_watch()


def test_where_nobody_can_look_from_outside_it_is_looked_at_from_inside(tmp_path, looks):
    (tmp_path / LOOK_INSIDE).touch()
    session = begin(tmp_path, sample_hz=1000)
    files = open_files()
    session.be_watched()
    looks.wait_for()
    session.end_watch()
    session.end_watch()
    assert layouts(tmp_path) == []
    assert len(read(tmp_path)[0]) > 0
    assert [event["slug"] for event in events(tmp_path, "notice")] == ["looked-inside"]
    assert [file for file in open_files() - files if ".events" not in file] == []


def test_without_looks_nothing_is_said_and_nothing_is_started(tmp_path):
    (tmp_path / LOOK_INSIDE).touch()
    before = threads_here()
    session = begin(tmp_path, sample_hz=0)
    session.be_watched()
    assert threads_here() <= before
    assert layouts(tmp_path) == []
    assert list(tmp_path.glob("*.samples")) == []


def test_frames_that_are_not_found_leave_a_notice(tmp_path, monkeypatch):
    monkeypatch.setattr(interpreter, "locate", lambda: None)
    session = begin(tmp_path)
    session.be_watched()
    assert [event["slug"] for event in events(tmp_path, "notice")] == ["frames-not-found"]
    assert len(layouts(tmp_path)) == 1


def test_what_goes_wrong_does_not_reach_the_script(tmp_path, monkeypatch):
    def refused() -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(interpreter, "locate", refused)
    session = begin(tmp_path)
    session.be_watched()
    (notice,) = events(tmp_path, "notice")
    assert notice["slug"] == "samples-lost"
    assert session.recorder.on
