"""What runs in a DataLoader worker: torch's own loop, with the queues around it timed."""

from __future__ import annotations

import functools
import inspect
import threading
from collections import deque
from typing import Any

from dlprof.capture.dataloader import DataLoaderHooks
from dlprof.capture.environment import usable_cores
from dlprof.capture.fetching import WorkerPosition
from dlprof.capture.recorder import Recorder, ThreadRecord, now, thread_cpu
from dlprof.capture.session import Session
from dlprof.model.kinds import Kind, Role

_STARTUP = "_AckStartup"
"""torchdata's stateful loader asks a new worker whether it is there: that resumes nothing."""

_WATCHED = ("index_queue", "data_queue", "worker_id")


def timed_worker_loop(session: Session, hooks: DataLoaderHooks, original: Any) -> Any:
    """Wrap ``torch.utils.data._utils.worker._worker_loop``.

    The wrapper keeps the original's module and name, so that pickling it for a spawned worker finds whatever the
    worker itself has under that name: ours where the hooks are in place, torch's where they are not.

    Args:
        session: The process's session; in a forked worker the parent's, made anew.
        hooks: The loader hooks, told that this process is a worker.
        original: torch's loop.

    Returns:
        A function with the same signature.

    Raises:
        TypeError: The loop takes none of what is watched; workers are then known by public means only.
    """
    signature = inspect.signature(original)
    lacking = [name for name in _WATCHED if name not in signature.parameters]
    if lacking:
        raise TypeError(f"it takes no {', '.join(lacking)}")

    @functools.wraps(original)
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        feeder = None
        try:
            bound = signature.bind(*args, **kwargs)
            session.look_in_script()
            feeder = _enter(session.recorder, hooks.enter_worker(), bound.arguments)
            session.be_watched()
            args, kwargs = bound.args, bound.kwargs
        except Exception as error:
            session.recorder.failed("worker", error)
        try:
            return original(*args, **kwargs)
        finally:
            session.end_watch()
            if feeder is not None and _nothing_is_taken_any_more(bound.arguments):
                feeder.park()

    return _worker_loop


def _nothing_is_taken_any_more(arguments: dict[str, Any]) -> bool:
    done = arguments.get("done_event")
    return done is not None and bool(done.is_set())


def _enter(recorder: Recorder, position: WorkerPosition, arguments: dict[str, Any]) -> WatchedFeeder:
    started = now()
    recorder.become(Role.WORKER)
    recorder.event("worker", number=arguments["worker_id"])
    thread = recorder.thread()
    data_queue = arguments["data_queue"]
    feeder = WatchedFeeder(recorder, data_queue)
    arguments["index_queue"] = TimedIndexQueue(recorder, arguments["index_queue"], thread, position, started)
    arguments["data_queue"] = TimedDataQueue(recorder, data_queue, thread, position, feeder.handed_over)
    return feeder


class TimedIndexQueue:
    """A worker's queue of what to do: times the waiting, and knows which batch comes next."""

    def __init__(
        self, recorder: Recorder, queue: Any, thread: ThreadRecord, position: WorkerPosition, started: int
    ) -> None:
        self._recorder = recorder
        self._queue = queue
        self._thread = thread
        self._position = position
        self._started: int | None = started
        self._waiting_since: int | None = None

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """As the queue's own; a time-out goes on counting as the same wait."""
        start = self._waiting_since or now()
        self._waiting_since = start
        if self._started is not None:
            self._ready(self._started, start)
            self._started = None
        task = self._queue.get(*args, **kwargs)
        self._waiting_since = None
        if self._recorder.on:
            try:
                self._took(task, start)
            except Exception as error:
                self._recorder.failed("index-queue", error)
        return task

    def _ready(self, started: int, ready: int) -> None:
        try:
            # The script's worker_init_fn has run by now, and may have narrowed them.
            self._recorder.event("cores", **usable_cores())
            self._thread.writer.add(Kind.WORKER_START, started, ready)
            self._thread.writer.flush()
        except Exception as error:
            self._recorder.failed("worker-start", error)

    def _took(self, task: Any, start: int) -> None:
        position = self._position
        position.since = now()
        if isinstance(task, tuple):
            position.batch = task[0]
        elif task is not None and type(task).__name__ != _STARTUP:
            position.generation += 1
            position.batch = -1
        self._thread.writer.add(Kind.WAIT_INDEX, start, now(), position.batch, position.generation)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class TimedDataQueue:
    """A worker's queue of finished batches: notes when each was handed to the feeder thread."""

    def __init__(
        self,
        recorder: Recorder,
        queue: Any,
        thread: ThreadRecord,
        position: WorkerPosition,
        handed_over: deque[tuple[int, int, int]],
    ) -> None:
        self._recorder = recorder
        self._queue = queue
        self._thread = thread
        self._position = position
        self._handed_over = handed_over

    def put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        """As the queue's own."""
        start = now()
        number = item[0] if isinstance(item[0], int) else -1
        self._handed_over.append((number, self._position.generation, start))
        self._queue.put(item, *args, **kwargs)
        if self._recorder.on:
            try:
                self._thread.writer.add(Kind.PUT, start, now(), number, self._position.generation)
                self._thread.writer.flush()
            except Exception as error:
                self._recorder.failed("data-queue", error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class WatchedFeeder:
    """The thread that pickles finished batches and sends them: times both.

    It pickles an item and then calls the queue's ``_send_bytes``: what passed since the item was handed over, or since
    the item before it was sent, is pickling.
    """

    PARKED_WITHIN_S = 1.0
    """Seconds to wait for a batch that is being pickled when the worker ends; pickling takes milliseconds."""

    def __init__(self, recorder: Recorder, queue: Any) -> None:
        self.handed_over: deque[tuple[int, int, int]] = deque()
        """Batches not sent yet: number, generation, time of hand-over in ns."""
        self.ending = False
        self._recorder = recorder
        self._send: Any = getattr(queue, "_send_bytes", None)
        self._last_sent = 0
        self._last_cpu = 0
        self._sending = False
        self._at_lock = False
        self._parked = threading.Event()
        if self._send is None:
            recorder.notice("hook-missing", hook="_send_bytes")
            return
        queue._send_bytes = self._timed_send
        lock = getattr(queue, "_wlock", None)
        if lock is not None:
            queue._wlock = WatchedLock(self, lock)

    def park(self) -> None:
        """Keep the thread from starting on another batch; to be called when the loader no longer takes any.

        A spawned worker ends by finalising its interpreter. A feeder thread that is inside torch's C++ code then, to
        move a tensor to shared memory, is unwound through a destructor and aborts the process (plain torch does so
        in about one of twenty early ends), which the loader reports as a worker that was killed.
        """
        self.ending = True
        if self._send is not None and self.handed_over and not self._sending and not self._at_lock:
            self._parked.wait(self.PARKED_WITHIN_S)

    def acquire(self, lock: Any) -> Any:
        """A batch is pickled, and the pipe is now waited for.

        Another worker that ends may have kept the lock for good: a worker whose batch waits for it does no more torch
        code and may end, or leaving a loop early would take its loader a second longer with us.
        """
        self._at_lock = True
        self._stop_if_ending()
        try:
            return lock.acquire()
        finally:
            self._at_lock = False

    def _timed_send(self, data: Any, *args: Any, **kwargs: Any) -> None:
        start = now()
        self._sending = True
        self._stop_if_ending()
        try:
            self._send(data, *args, **kwargs)
        finally:
            self._sending = False
        self._stop_if_ending()
        end = now()
        number, generation, handed = self.handed_over.popleft() if self.handed_over else (-1, -1, start)
        if self._recorder.on:
            try:
                self._record(max(handed, self._last_sent), start, end, number, generation, len(data))
            except Exception as error:
                self._recorder.failed("feeder", error)

    def _stop_if_ending(self) -> None:
        if self.ending:
            self._parked.set()
            threading.Event().wait()

    def _record(self, pickling: int, start: int, end: int, number: int, generation: int, size: int) -> None:
        writer = self._recorder.thread(Role.FEEDER).writer
        cpu = thread_cpu()
        writer.add(Kind.PICKLE, pickling, start, number, generation, on_cpu_ns=cpu - self._last_cpu)
        writer.add(Kind.SEND, start, end, number, generation, value=size)
        writer.flush()
        self._last_sent, self._last_cpu = end, cpu


class WatchedLock:
    """The lock of the pipe that workers share, as one of their feeder threads takes it."""

    def __init__(self, feeder: WatchedFeeder, lock: Any) -> None:
        self._feeder = feeder
        self._lock = lock

    def acquire(self) -> Any:
        """As the lock's own, for a thread that has pickled a batch."""
        return self._feeder.acquire(self._lock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)
