"""A process's recording: a file a thread, and an end to it all when something goes wrong."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from recordings import asked, events, open_files, rows

from dlprof.capture.recorder import Recorder, in_words
from dlprof.model.kinds import Kind, Role


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path), asked())


def in_thread(target, *arguments) -> None:
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    thread.join()


# ---- threads ---------------------------------------------------------------------------------------------------------


def test_each_thread_has_a_file_of_its_own(recorder, tmp_path):
    recorder.thread().writer.add(Kind.BODY, 1, 2)
    in_thread(lambda: recorder.thread().writer.add(Kind.FETCH, 3, 4))
    recorder.flush_all()
    found = rows(tmp_path)
    assert [(row.kind, row.role) for row in found] == [(Kind.BODY, Role.MAIN), (Kind.FETCH, Role.THREAD)]
    assert found[0].thread == threading.get_native_id() != found[1].thread


def test_a_thread_that_ends_leaves_its_spans(recorder, tmp_path):
    in_thread(lambda: recorder.thread().writer.add(Kind.FETCH, 3, 4))
    assert [row.kind for row in rows(tmp_path)] == [Kind.FETCH]


def test_a_thread_may_say_what_it_is_for(recorder, tmp_path):
    in_thread(lambda: recorder.thread(Role.FEEDER).writer.add(Kind.SEND, 3, 4))
    assert [row.role for row in rows(tmp_path)] == [Role.FEEDER]


def test_a_thread_asks_for_its_record_as_often_as_it_likes(recorder):
    assert recorder.thread() is recorder.thread()


def test_what_a_process_is_for_is_said_before_its_main_thread_records(recorder, tmp_path):
    recorder.become(Role.WORKER)
    recorder.thread().writer.add(Kind.FETCH, 1, 2)
    recorder.flush_all()
    assert [row.role for row in rows(tmp_path)] == [Role.WORKER]


def test_many_threads_that_live_briefly_leave_no_files_open(recorder):
    recorder.thread()
    gc.collect()
    before = open_files()
    for _ in range(50):
        in_thread(lambda: recorder.thread().writer.add(Kind.FETCH, 3, 4))
    gc.collect()
    assert open_files() == before


def test_data_work_is_what_a_thread_does_within_a_request_or_fetch(recorder):
    assert recorder.active_thread() is None
    recorder.thread().data_depth += 1
    assert recorder.active_thread() is recorder.thread()
    seen = []
    in_thread(lambda: seen.append(recorder.active_thread()))
    assert seen == [None]


def test_asking_for_data_work_makes_no_file(recorder, tmp_path):
    assert recorder.active_thread() is None
    assert list(tmp_path.iterdir()) == []


def test_waiting_for_a_core_is_never_negative_and_never_shrinks(recorder):
    thread = recorder.thread()
    first = thread.runnable_ns()
    assert 0 <= first <= thread.runnable_ns()


def test_spans_that_a_thread_lost_are_counted_after_its_end(tmp_path):
    recorder = Recorder(str(tmp_path), asked(max_disk_bytes=64))

    def fill() -> None:
        for number in range(10):
            recorder.thread().writer.add(Kind.FETCH, number, number)

    in_thread(fill)
    assert recorder.counts() == {"recorded": 10, "lost": 10}


def test_the_limit_of_disk_space_is_the_processs(tmp_path):
    recorder = Recorder(str(tmp_path), asked(max_disk_bytes=640))
    for _ in range(5):
        in_thread(lambda: [recorder.thread().writer.add(Kind.FETCH, 1, 2) for _ in range(10)])
    assert sum(path.stat().st_size - 64 for path in tmp_path.glob("*.spans")) <= 640


# ---- events ----------------------------------------------------------------------------------------------------------


def test_the_first_event_says_who_this_is(recorder, tmp_path):
    recorder.event("loader", id=1)
    process, loader = events(tmp_path)
    assert process["event"] == "process"
    assert (process["pid"], process["ppid"], process["executable"]) == (os.getpid(), os.getppid(), sys.executable)
    assert process["span_cost_ns"] > 0
    assert loader == {"event": "loader", "id": 1}


def test_a_process_that_has_nothing_to_say_leaves_no_file(recorder, tmp_path):
    recorder.flush_all()
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_written_once_and_keeps_its_number(recorder, tmp_path):
    assert [recorder.name(text) for text in ("encode", "decode", "encode")] == [1, 2, 1]
    assert [(event["id"], event["name"]) for event in events(tmp_path, "name")] == [(1, "encode"), (2, "decode")]


def test_names_have_one_number_whichever_thread_asks_first(recorder, tmp_path):
    found: list[tuple[str, int]] = []

    def ask() -> None:
        found.extend((text, recorder.name(text)) for text in map(str, range(20)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 20
    assert {(event["name"], event["id"]) for event in events(tmp_path, "name")} == set(found)


# ---- failures --------------------------------------------------------------------------------------------------------


def test_what_a_signals_handler_raises_within_a_hook_is_the_scripts(recorder, tmp_path):
    def a_worker_died(*_) -> None:
        raise RuntimeError("a worker died")

    def interrupted_hook() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except RuntimeError as error:
            recorder.failed("request", error)

    before = signal.signal(signal.SIGUSR1, a_worker_died)
    try:
        with pytest.raises(RuntimeError, match="a worker died"):
            interrupted_hook()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert recorder.on
    assert events(tmp_path, "notice") == []


def test_a_hook_that_fails_ends_the_recording_and_leaves_a_notice(recorder, tmp_path):
    recorder.failed("fetch", ValueError("no"))
    recorder.event("loader", id=1)
    assert not recorder.on
    (notice,) = events(tmp_path, "notice")
    assert notice == {"event": "notice", "slug": "hook-failed", "hook": "fetch", "error": "ValueError: no"}
    assert events(tmp_path, "loader") == []


def test_a_full_disk_is_called_that(recorder, tmp_path):
    recorder.failed("fetch", OSError(28, "No space left on device"))
    assert [notice["slug"] for notice in events(tmp_path, "notice")] == ["recording-stopped-disk"]


def test_a_folder_that_is_gone_ends_the_recording_silently(tmp_path):
    recorder = Recorder(str(tmp_path / "gone"), asked())
    recorder.event("loader", id=1)
    assert not recorder.on
    with pytest.raises(OSError, match="gone"):
        recorder.thread()


def test_a_full_disk_at_the_end_does_not_reach_the_script(recorder, monkeypatch):
    recorder.thread().writer.add(Kind.BODY, 1, 2)

    def full(*_) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        recorder.flush_all()


def test_a_script_that_closes_all_files_ends_the_recording_and_keeps_its_own_files(tmp_path):
    run(
        START
        + """
thread = recorder.thread()
thread.runnable_ns()
os.closerange(3, 256)
own = [os.open(f"{sys.argv[1]}/own-{n}", os.O_RDWR | os.O_CREAT) for n in range(20)]
assert thread.runnable_ns() == 0
thread.writer.add(Kind.BODY, 1, 2)
try:
    thread.writer.flush()
    raise SystemExit("written into a file of the script")
except OSError as error:
    recorder.failed("flush", error)
assert not recorder.on
assert all(os.fstat(fd).st_size == 0 for fd in own)
""",
        str(tmp_path),
    )


# ---- fork ------------------------------------------------------------------------------------------------------------


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    folders = f"{Path(__file__).parents[3]}:{Path(__file__).parent}"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": folders},
        capture_output=True,
        text=True,
        check=True,
    )


START = """
import os, sys, threading
from dlprof.capture.recorder import Recorder
from dlprof.model.kinds import Kind, Role
from recordings import asked
recorder = Recorder(sys.argv[1], asked())
os.register_at_fork(after_in_child=recorder.after_fork)
"""


def test_a_forked_child_writes_its_own_files_and_not_the_parents_spans(tmp_path):
    run(
        START
        + """
recorder.thread().writer.add(Kind.BODY, 1, 2)
recorder.name("parents")
pid = os.fork()
if not pid:
    assert recorder.active_thread() is None
    recorder.thread().writer.add(Kind.FETCH, 3, 4, name=recorder.name("childs"))
    recorder.flush_all()
    os._exit(0)
os.waitpid(pid, 0)
recorder.flush_all()
""",
        str(tmp_path),
    )
    found = rows(tmp_path)
    assert [(row.kind, row.role) for row in found] == [(Kind.BODY, Role.MAIN), (Kind.FETCH, Role.THREAD)]
    assert len(list(tmp_path.glob("*.spans"))) == len(list(tmp_path.glob("*.events"))) == 2
    names = {event["name"]: event["id"] for path in tmp_path.glob("*.events") for event in read(path)}
    assert names == {"parents": 1, "childs": 1}


def read(path: Path) -> list[dict]:
    return events(path.parent, "name", pid=int(path.stem))


def test_a_child_that_is_forked_within_data_work_is_in_none(tmp_path):
    run(
        START
        + """
recorder.thread().data_depth = 1
pid = os.fork()
if not pid:
    os._exit(0 if recorder.active_thread() is None else 1)
assert os.waitpid(pid, 0)[1] == 0
""",
        str(tmp_path),
    )


def test_a_child_leaves_none_of_the_parents_files_open(tmp_path):
    run(
        START
        + """
recorder.thread().writer.add(Kind.BODY, 1, 2)
recorder.event("loader", id=1)
pid = os.fork()
if not pid:
    held = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) > 2 and
            os.path.exists(f"/proc/self/fd/{n}")]
    os._exit(any(sys.argv[1] in name or "schedstat" in name for name in held))
assert os.waitpid(pid, 0)[1] == 0
""",
        str(tmp_path),
    )


def test_spans_that_another_thread_holds_in_memory_are_not_written_by_the_child_too(tmp_path):
    run(
        START
        + """
recorded, forked = threading.Event(), threading.Event()
def other():
    recorder.thread().writer.add(Kind.FETCH, 3, 4)
    recorded.set()
    forked.wait()
thread = threading.Thread(target=other)
thread.start()
recorded.wait()
pid = os.fork()
if not pid:
    os._exit(0)
os.waitpid(pid, 0)
forked.set()
thread.join()
""",
        str(tmp_path),
    )
    assert [row.kind for row in rows(tmp_path)] == [Kind.FETCH]


def test_of_a_long_message_both_ends_are_kept() -> None:
    text = in_words(ValueError("begin" + "x" * 5000 + "end"))
    assert len(text) < 2100
    assert text.startswith("begin")
    assert text.endswith("end")
    assert in_words(ValueError("x" * 2000)) == "x" * 2000
