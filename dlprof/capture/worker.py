"""What runs in a DataLoader worker: torch's own loop, with the queues around it timed."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from typing import Any

from dlprof.capture.dataloader import DataLoaderHooks
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
        try:
            bound = signature.bind(*args, **kwargs)
            _enter(session.recorder, hooks.enter_worker(), bound.arguments)
            args, kwargs = bound.args, bound.kwargs
        except Exception as error:
            session.recorder.failed("worker", error)
        return original(*args, **kwargs)

    return _worker_loop


def _enter(recorder: Recorder, position: WorkerPosition, arguments: dict[str, Any]) -> None:
    started = now()
    recorder.become(Role.WORKER)
    recorder.event("worker", number=arguments["worker_id"])
    thread = recorder.thread()
    handed_over: deque[tuple[int, int, int]] = deque()
    data_queue = arguments["data_queue"]
    _watch_pipe(recorder, data_queue, handed_over)
    arguments["index_queue"] = TimedIndexQueue(recorder, arguments["index_queue"], thread, position, started)
    arguments["data_queue"] = TimedDataQueue(recorder, data_queue, thread, position, handed_over)


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


def _watch_pipe(recorder: Recorder, queue: Any, handed_over: deque[tuple[int, int, int]]) -> None:
    # The feeder thread pickles an item and then calls this: what passed since the item was handed over, or since the
    # item before it was sent, is pickling.
    send = getattr(queue, "_send_bytes", None)
    if send is None:
        recorder.notice("hook-missing", hook="_send_bytes")
        return
    last_sent = 0
    last_cpu = 0

    def timed_send(data: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal last_sent, last_cpu
        start = now()
        send(data, *args, **kwargs)
        end = now()
        number, generation, handed = handed_over.popleft() if handed_over else (-1, -1, start)
        if not recorder.on:
            return
        try:
            writer = recorder.thread(Role.FEEDER).writer
            pickling = max(handed, last_sent)
            cpu = thread_cpu()
            writer.add(Kind.PICKLE, pickling, start, number, generation, on_cpu_ns=cpu - last_cpu)
            writer.add(Kind.SEND, start, end, number, generation, value=len(data))
            writer.flush()
            last_sent, last_cpu = end, cpu
        except Exception as error:
            recorder.failed("feeder", error)

    queue._send_bytes = timed_send
