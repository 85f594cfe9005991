"""The thread that pins batches, played with torch's own queues: here is no accelerator to pin for."""

from __future__ import annotations

import queue
import threading

import pytest
from recordings import asked, rows
from torch import multiprocessing

from dlprof.capture.pinning import Pinning
from dlprof.capture.recorder import Recorder
from dlprof.model.kinds import Kind, Role

KINDS = (Kind.RECEIVE, Kind.UNPICKLE, Kind.PIN_MEMORY)


class _ResumeIteration:
    """Named as torch's; a worker answers with it when an iteration is resumed."""


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path), asked())


def pin(read_queue, pinned_queue, count):
    """As torch's ``_pin_memory_loop``, without the pinning."""
    for _ in range(count):
        pinned_queue.put(read_queue.get(timeout=10), timeout=10)


def played(recorder, tmp_path, items, begun=(5,)):
    read_queue, pinned_queue = multiprocessing.Queue(), queue.Queue()
    pinning = Pinning(recorder, workers=2)
    pinning.watch(read_queue, pinned_queue)
    for number in begun:
        pinning.iteration_begun(number)
    for item in items:
        read_queue.put(item)
    thread = threading.Thread(target=pin, args=(read_queue, pinned_queue, len(items)))
    thread.start()
    thread.join()
    read_queue.close()
    read_queue.join_thread()
    assert pinned_queue.qsize() == len(items)
    recorder.flush_all()
    return pinning, rows(tmp_path, *KINDS)


def test_reading_unpickling_and_pinning_follow_each_other_in_the_pin_thread(recorder, tmp_path):
    _, found = played(recorder, tmp_path, [(0, "a batch")])
    assert [row.kind for row in found] == list(KINDS)
    assert {(row.role, row.batch, row.iterator) for row in found} == {(str(Role.PIN_MEMORY), 0, 5)}
    assert [row.end_ns for row in found[:2]] == [row.start_ns for row in found[1:]]
    assert all(row.end_ns >= row.start_ns and row.on_cpu_ns >= 0 for row in found)


def test_batches_after_all_workers_have_resumed_are_of_the_next_iteration(recorder, tmp_path):
    items = [(0, "x"), (_ResumeIteration(), None), (1, "x"), (_ResumeIteration(), None), (0, "x")]
    _, found = played(recorder, tmp_path, items, begun=(5, 8))
    assert [(row.batch, row.iterator) for row in found if row.kind == Kind.PIN_MEMORY] == [(0, 5), (1, 5), (0, 8)]


def test_what_comes_before_the_iterations_number_is_known_waits_for_it(recorder, tmp_path):
    pinning, found = played(recorder, tmp_path, [(0, "x")], begun=())
    assert found == []
    pinning.iteration_begun(5)
    pinning._reading = (1, 2, 3, 4, 5)
    pinning._pinned((1, "x"))
    recorder.flush_all()
    assert {(row.batch, row.iterator) for row in rows(tmp_path, *KINDS)} == {(0, 5), (1, 5)}


def test_a_full_disk_does_not_reach_the_pin_thread(recorder, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "thread", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    played(recorder, tmp_path, [(0, "x"), (1, "x")])
    assert not recorder.on
