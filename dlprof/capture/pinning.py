"""Times the thread that reads, unpickles and pins batches where a loader has ``pin_memory`` and an accelerator."""

from __future__ import annotations

from typing import Any

from dlprof.capture.recorder import Recorder, now, thread_cpu
from dlprof.model.kinds import Kind, Role

_RESUMED = "_ResumeIteration"

Reading = tuple[int, int, int, int, int]
"""When the bytes of a batch were read (start, end), how many there were, and the thread's CPU time then (both)."""


class Pinning:
    """What a pin thread is at. Its methods are called by that thread, except ``iteration_begun``.

    Args:
        recorder: Where the spans go.
        workers: How many workers answer when an iteration is resumed.
    """

    def __init__(self, recorder: Recorder, workers: int) -> None:
        self._recorder = recorder
        self._workers = max(workers, 1)
        self._numbers: list[int] = []
        self._resumed = 0
        self._reading: Reading | None = None
        self._unpickled = (0, 0)
        self._waiting: list[tuple[int, tuple[Any, ...]]] = []

    def watch(self, read_queue: Any, pinned_queue: Any) -> None:
        """Replace methods of these two objects: in this process, and only theirs."""
        receive, get, put = read_queue._recv_bytes, read_queue.get, pinned_queue.put

        def timed_receive(*args: Any, **kwargs: Any) -> Any:
            cpu, start = thread_cpu(), now()
            data = receive(*args, **kwargs)
            self._reading = start, now(), len(data), cpu, thread_cpu()
            return data

        def timed_get(*args: Any, **kwargs: Any) -> Any:
            item = get(*args, **kwargs)
            self._unpickled = now(), thread_cpu()
            return item

        def timed_put(item: Any, *args: Any, **kwargs: Any) -> Any:
            self._pinned(item)
            return put(item, *args, **kwargs)

        read_queue._recv_bytes, read_queue.get, pinned_queue.put = timed_receive, timed_get, timed_put

    def iteration_begun(self, number: int) -> None:
        """The iteration that is being served has this number."""
        self._numbers.append(number)

    def _pinned(self, item: Any) -> None:
        end, cpu = now(), thread_cpu()
        reading, self._reading = self._reading, None
        if not self._recorder.on:
            return
        try:
            if type(item[0]).__name__ == _RESUMED:
                self._resumed += 1
            elif isinstance(item[0], int) and reading is not None:
                self._waiting.append((self._resumed // self._workers, (item[0], reading, end, cpu, self._unpickled)))
                self._write()
        except Exception as error:
            self._recorder.failed("pin-memory", error)

    def _write(self) -> None:
        # While an iteration is being begun its number is not known yet.
        writer = self._recorder.thread(Role.PIN_MEMORY).writer
        while self._waiting and self._waiting[0][0] < len(self._numbers):
            generation, (batch, reading, end, cpu, (unpickled, after)) = self._waiting.pop(0)
            start, read, size, before, done = reading
            number = self._numbers[generation]
            unpickled = max(unpickled, read)
            writer.add(Kind.RECEIVE, start, read, batch, number, on_cpu_ns=done - before, value=size)
            writer.add(Kind.UNPICKLE, read, unpickled, batch, number, on_cpu_ns=max(after - done, 0))
            writer.add(Kind.PIN_MEMORY, unpickled, end, batch, number, on_cpu_ns=max(cpu - after, 0), value=size)
        writer.flush()
