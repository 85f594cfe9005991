"""What the training thread takes from a queue that another thread fills is timed; nothing else is touched."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from typing import Any

import pytest

from dlprof.capture.queues import QueueWatch

ORIGINAL = queue.Queue.get


class Heard:
    """What a watch told: numbers of queues, each with what the first try began with."""

    def __init__(self, *, timed: bool = True) -> None:
        self.begun = 0
        self.gets: list[tuple[Any, int]] = []
        self.timed = timed

    def begin(self) -> Any:
        self.begun += 1
        return (self.begun,) if self.timed else None

    def end(self, begun: Any, number: int) -> None:
        self.gets.append((begun[0], number))


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def watch(heard):
    found = QueueWatch(heard.begin, heard.end)
    yield found
    found.restore()
    assert queue.Queue.get is ORIGINAL


def filled(*items: Any, kind: type[queue.Queue] = queue.Queue) -> Any:
    made = kind()
    for item in items:
        made.put(item)
    return made


def test_nothing_is_replaced_before_a_thread_is_watched(watch):
    assert queue.Queue.get is ORIGINAL
    assert not watch.watches_this_thread()
    watch.add_thread()
    assert queue.Queue.get is not ORIGINAL
    assert watch.watches_this_thread()
    watch.restore()
    assert queue.Queue.get is ORIGINAL
    assert not watch.watches_this_thread()


@pytest.mark.parametrize("kind", [queue.Queue, queue.LifoQueue, queue.PriorityQueue])
def test_items_come_as_without_us_and_each_is_told_of(watch, heard, kind):
    watch.add_thread()
    one, other = filled(1, 2, kind=kind), filled(3)
    assert {one.get(), one.get(timeout=1)} == {1, 2}
    assert other.get_nowait() == 3
    assert heard.gets == [(1, 0), (2, 0), (3, 1)]


def test_other_threads_are_left_alone(watch, heard):
    watch.add_thread()
    taken: list[int] = []
    thread = threading.Thread(target=lambda: taken.append(filled(1).get()))
    thread.start()
    thread.join()
    assert (taken, heard.begun) == ([1], 0)


def test_tries_that_found_nothing_belong_to_the_one_that_did(watch, heard):
    watch.add_thread()
    slow = filled()
    for _ in range(3):
        with pytest.raises(queue.Empty):
            slow.get_nowait()
    slow.put(7)
    assert slow.get(timeout=1) == 7
    assert (heard.begun, heard.gets) == (1, [(1, 0)])


def test_what_is_not_to_be_timed_is_not_told_of():
    heard = Heard(timed=False)
    watch = QueueWatch(heard.begin, heard.end)
    try:
        watch.add_thread()
        assert filled(1).get() == 1
        assert heard.gets == []
    finally:
        watch.restore()


def test_a_queue_that_the_script_drops_is_freed_with_its_batches(watch):
    watch.add_thread()
    dropped = filled(1, 2)
    dropped.get()
    gone = weakref.ref(dropped)
    del dropped
    gc.collect()
    assert gone() is None


def test_each_queue_has_a_number_of_its_own_though_addresses_come_again(watch, heard):
    watch.add_thread()
    for _ in range(5):
        filled(1).get()
    assert [number for _, number in heard.gets] == [0, 1, 2, 3, 4]
