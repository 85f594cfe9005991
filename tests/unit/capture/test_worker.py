"""A worker's queues, timed: played with queues and a clock of the tests' own. Real workers: tests/process."""

from __future__ import annotations

import pickle
import queue
import threading
from typing import Any

import pytest
from recordings import Row, asked, events, rows
from torch.utils.data._utils import worker as torchs

from dlprof.capture import recorder as recorder_module
from dlprof.capture import worker
from dlprof.capture.dataloader import WorkerPosition
from dlprof.capture.recorder import Recorder
from dlprof.model.kinds import Kind, Role


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1000

    def __call__(self) -> int:
        return self.now_ns


class Tasks:
    """Where a worker gets its indices: each answer takes some time, and may be a time-out."""

    def __init__(self, clock: Clock, *answers: tuple[int, Any]) -> None:
        self.clock, self.answers = clock, list(answers)
        self.extra = "as before"

    def get(self, timeout: float | None = None) -> Any:
        takes, answer = self.answers.pop(0)
        self.clock.now_ns += takes
        if isinstance(answer, Exception):
            raise answer
        return answer


class Results:
    """Where finished batches go: ``feed`` is what the feeder thread does with the oldest one."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.items = clock, []
        self.sent: list[bytes] = []
        self._send_bytes = self._send

    def put(self, item: Any) -> None:
        self.items.append(item)

    def _send(self, data: bytes) -> None:
        self.clock.now_ns += 5
        self.sent.append(data)

    def feed(self, pickling: int) -> None:
        data = pickle.dumps(self.items.pop(0))
        self.clock.now_ns += pickling
        self._send_bytes(data)


class Session:
    """A process's session, as far as a worker needs it."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.recorder = recorder

    def look_in_script(self) -> None:
        pass

    def be_watched(self) -> None:
        pass

    def end_watch(self) -> None:
        pass


class Hooks:
    def __init__(self) -> None:
        self.position = WorkerPosition()

    def enter_worker(self) -> Any:
        return self.position


class Resume:
    """Stands for torch's request to begin the next epoch."""


class Played:
    """A worker whose loop has been entered."""

    def __init__(self, recorder: Recorder, clock: Clock, *answers: tuple[int, Any]) -> None:
        self.recorder, self.clock = recorder, clock
        self.results = Results(clock)
        self.hooks = Hooks()
        found: dict[str, Any] = {}

        def _worker_loop(index_queue, data_queue, worker_id) -> str:
            found.update(tasks=index_queue, results=data_queue)
            return "finished"

        session = Session(recorder)
        self.loop = worker.timed_worker_loop(session, self.hooks, _worker_loop)
        self.returned = self.loop(Tasks(clock, *answers), self.results, worker_id=3)
        self.tasks, self.timed_results = found["tasks"], found["results"]

    def spans(self, folder, *kinds: Kind) -> list[Row]:
        self.recorder.flush_all()
        return rows(folder, *kinds)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (worker, recorder_module):
        monkeypatch.setattr(module, "now", clock)
        monkeypatch.setattr(module, "thread_cpu", clock)
    return clock


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path), asked())


@pytest.fixture
def play(recorder, clock):
    return lambda *answers: Played(recorder, clock, *answers)


def test_the_loop_itself_runs_and_the_process_is_a_worker(play, tmp_path):
    assert play().returned == "finished"
    assert [(event["event"], event.get("role"), event.get("number")) for event in events(tmp_path)] == [
        ("process", "worker", None),
        ("worker", None, 3),
    ]


def test_the_start_lasts_until_the_worker_first_waits(play, clock, tmp_path):
    played = play((10, (0, [1])))
    clock.now_ns += 70
    played.tasks.get()
    assert [(row.start_ns, row.end_ns) for row in played.spans(tmp_path, Kind.WORKER_START)] == [(1000, 1070)]
    assert played.spans(tmp_path, Kind.WORKER_START)[0].role == Role.WORKER


def test_waiting_for_an_index_names_the_batch_that_came_of_it(play, tmp_path):
    played = play((10, (4, [1, 2])), (20, (6, [3, 4])), (30, None))
    assert [played.tasks.get(timeout=5) for _ in range(3)] == [(4, [1, 2]), (6, [3, 4]), None]
    waits = played.spans(tmp_path, Kind.WAIT_INDEX)
    assert [(row.batch, row.iterator, row.end_ns - row.start_ns) for row in waits] == [
        (4, 0, 10),
        (6, 0, 20),
        (6, 0, 30),
    ]


def test_a_time_out_goes_on_counting_as_the_same_wait(play, tmp_path):
    played = play((50, queue.Empty()), (50, queue.Empty()), (7, (0, [1])))
    for _ in range(2):
        with pytest.raises(queue.Empty):
            played.tasks.get(timeout=5)
    played.tasks.get(timeout=5)
    assert [row.end_ns - row.start_ns for row in played.spans(tmp_path, Kind.WAIT_INDEX)] == [107]
    assert len(played.spans(tmp_path, Kind.WORKER_START)) == 1


def test_each_time_that_the_iteration_is_resumed_is_a_generation(play, tmp_path):
    played = play((1, (0, [])), (1, Resume()), (1, (0, [])), (1, Resume()), (1, (2, [])))
    seen = []
    for _ in range(5):
        played.tasks.get()
        seen.append((played.hooks.position.batch, played.hooks.position.generation))
    assert seen == [(0, 0), (-1, 1), (0, 1), (-1, 2), (2, 2)]


def test_what_else_the_queues_can_do_stays(play):
    played = play()
    assert played.tasks.extra == "as before"
    assert played.timed_results.sent is played.results.sent


def test_pickling_lasts_from_the_hand_over_to_the_feeder_until_the_bytes_are_sent(play, clock, tmp_path):
    played = play((1, (7, [])))
    played.tasks.get()
    handed_over = clock()
    played.timed_results.put((7, "batch"))
    played.results.feed(pickling=40)
    (pickled,), (sent,) = played.spans(tmp_path, Kind.PICKLE), played.spans(tmp_path, Kind.SEND)
    assert (pickled.batch, pickled.start_ns, pickled.end_ns) == (7, handed_over, handed_over + 40)
    assert (sent.batch, sent.start_ns, sent.end_ns) == (7, handed_over + 40, handed_over + 45)
    assert sent.value == len(pickle.dumps((7, "batch")))
    assert [row.batch for row in played.spans(tmp_path, Kind.PUT)] == [7]


def test_a_batch_that_waited_for_the_one_before_it_was_not_being_pickled_then(play, clock, tmp_path):
    played = play((1, (0, [])), (1, (1, [])))
    for number in range(2):
        played.tasks.get()
        played.timed_results.put((number, "batch"))
    played.results.feed(pickling=40)
    first_sent = clock()
    played.results.feed(pickling=30)
    pickled = played.spans(tmp_path, Kind.PICKLE)
    assert [(row.batch, row.end_ns - row.start_ns) for row in pickled][1] == (1, 30)
    assert pickled[1].start_ns == first_sent


def test_a_batch_that_is_sent_after_the_iteration_was_resumed_belongs_to_the_one_before(play, tmp_path):
    played = play((1, (3, [])), (1, Resume()))
    played.tasks.get()
    played.timed_results.put((3, "batch"))
    played.tasks.get()
    played.results.feed(pickling=40)
    assert [row.iterator for row in played.spans(tmp_path, Kind.PICKLE)] == [0]


def test_an_answer_that_is_no_batch_has_no_number(play, tmp_path):
    played = play((1, Resume()))
    played.tasks.get()
    played.timed_results.put((Resume, None))
    played.results.feed(pickling=1)
    assert [row.batch for row in played.spans(tmp_path, Kind.PICKLE)] == [-1]


def test_batches_are_on_disk_once_they_were_handed_over(play, tmp_path):
    played = play((1, (0, [])))
    played.tasks.get()
    played.timed_results.put((0, "batch"))
    assert {row.kind for row in rows(tmp_path)} == {Kind.WORKER_START, Kind.WAIT_INDEX, Kind.PUT}


def test_a_recording_that_has_ended_leaves_the_queues_working(play, recorder, tmp_path):
    played = play((1, (0, [])), (1, None))
    played.tasks.get()
    recorder.on = False
    played.timed_results.put((0, "batch"))
    played.results.feed(pickling=1)
    assert played.tasks.get() is None
    assert played.results.sent == [pickle.dumps((0, "batch"))]
    assert {row.kind for row in played.spans(tmp_path)} == {Kind.WORKER_START, Kind.WAIT_INDEX}


def full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_does_not_reach_the_workers_loop(play, recorder, monkeypatch):
    played = play((1, (0, [])), (1, (1, [])))
    played.tasks.get()
    monkeypatch.setattr(type(recorder.thread().writer), "flush", full)
    played.timed_results.put((0, "batch"))
    assert not recorder.on
    played.results.feed(pickling=1)
    assert played.tasks.get() == (1, [])


def test_a_disk_that_is_full_when_the_worker_starts_does_not_reach_its_loop(play, recorder, monkeypatch):
    played = play((1, (0, [])))
    monkeypatch.setattr(type(recorder.thread().writer), "flush", full)
    assert played.tasks.get() == (0, [])


def test_a_recording_that_cannot_begin_leaves_torchs_own_loop(clock, tmp_path):
    played = Played(Recorder(str(tmp_path / "gone"), asked()), clock, (1, (0, [])))
    assert played.returned == "finished"
    assert isinstance(played.tasks, Tasks)
    played.timed_results.put((0, "batch"))
    played.results.feed(pickling=1)
    assert len(played.results.sent) == 1


def test_the_loop_keeps_its_name_so_that_a_spawned_worker_finds_it(play):
    assert play().loop.__name__ == "_worker_loop"
    session = Session(None)
    wrapped = worker.timed_worker_loop(session, Hooks(), torchs._worker_loop)
    assert (wrapped.__module__, wrapped.__qualname__) == (torchs.__name__, "_worker_loop")


def ended_loop(recorder: Recorder, results: Any, *, done: bool) -> Any:
    """torch's loop, at its end with one batch handed over; ``done``: the loader takes no more of them."""
    set_or_not = threading.Event()
    if done:
        set_or_not.set()

    def _worker_loop(index_queue, data_queue, worker_id, done_event) -> None:
        data_queue.put((0, "batch"))

    session = Session(recorder)
    loop = worker.timed_worker_loop(session, Hooks(), _worker_loop)
    return lambda: loop(None, results, 0, set_or_not)


def test_a_feeder_thread_starts_on_no_batch_once_the_worker_has_ended(recorder, clock):
    class EndedMeanwhile(Results):
        def feed(self, pickling: int) -> None:
            while not self._send_bytes.__self__.ending:
                pass
            super().feed(pickling)

    results = EndedMeanwhile(clock)
    worker_thread = threading.Thread(target=ended_loop(recorder, results, done=True))
    worker_thread.start()
    while not results.items:
        pass
    threading.Thread(target=results.feed, args=(40,), daemon=True).start()
    worker_thread.join()
    assert results.sent == []


def test_a_feeder_thread_that_is_blocked_in_sending_keeps_no_worker_from_ending(recorder, clock):
    in_send, ended, after = threading.Event(), threading.Event(), threading.Event()

    class Blocked(Results):
        def put(self, item: Any) -> None:
            super().put(item)
            threading.Thread(target=self.feed_and_go_on, daemon=True).start()
            in_send.wait()

        def feed_and_go_on(self) -> None:
            self.feed(pickling=1)
            after.set()

        def _send(self, data: bytes) -> None:
            in_send.set()
            ended.wait()
            super()._send(data)

    results = Blocked(clock)
    ended_loop(recorder, results, done=True)()
    ended.set()
    while not results.sent:
        pass
    assert not after.is_set()


class HeldLock:
    """The pipe's lock, which another worker took before it ended: nobody gets it any more."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def acquire(self) -> None:
        self.asked.set()
        threading.Event().wait()


def test_a_feeder_thread_that_waits_for_the_pipe_is_not_waited_for(recorder, clock):
    class Waiting(Results):
        def __init__(self, clock: Clock) -> None:
            super().__init__(clock)
            self._wlock = HeldLock()

        def put(self, item: Any) -> None:
            super().put(item)
            held = self._wlock._lock
            threading.Thread(target=self._wlock.acquire, daemon=True).start()
            held.asked.wait()

    class NeverParked:
        def wait(self, timeout: float) -> None:
            raise AssertionError("the worker waits for a thread that cannot come")

    results = Waiting(clock)
    feeder = worker.WatchedFeeder(recorder, results)
    feeder._parked = NeverParked()
    feeder.handed_over.append((0, 0, 0))
    results.put((0, "batch"))
    feeder.park()


def test_a_feeder_thread_is_stopped_before_it_takes_the_pipe(recorder, clock):
    results = Results(clock)
    results._wlock = HeldLock()
    held = results._wlock
    feeder = worker.WatchedFeeder(recorder, results)
    feeder.park()
    feeder.handed_over.append((0, 0, 0))
    threading.Thread(target=results._wlock.acquire, daemon=True).start()
    feeder._parked.wait()
    assert not held.asked.is_set()


def test_a_worker_whose_batches_are_still_taken_sends_them_all(recorder, clock):
    results = Results(clock)
    ended_loop(recorder, results, done=False)()
    results.feed(pickling=40)
    assert results.sent == [pickle.dumps((0, "batch"))]
