"""What is timed wherever a batch is made: in torch's fetcher, or where that cannot be hooked, around public seams.

A worker that torch's own loop does not tell us about knows itself by ``torch.utils.data.get_worker_info``. Its batches
have no number here; ``formats/recording.py`` numbers them by their order.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from dlprof.capture.recorder import Recorder, ThreadRecord, now, process_cpu, thread_cpu
from dlprof.capture.seams import Sampled
from dlprof.model.kinds import Flag, Kind, Role

_UNKNOWN = -1

_here: Fetching | None = None
"""This process's own: what a wrapper that was pickled by another process finds here."""


class WorkerPosition:
    """Where a worker's loop is: the batch that it makes, how often its iteration was resumed, and since when.

    Attributes:
        since: Not before this was the batch begun.
    """

    __slots__ = ("batch", "generation", "since")

    def __init__(self) -> None:
        self.batch = _UNKNOWN
        self.generation = 0
        self.since = now()


class Fetching:
    """Times the making of batches in this process.

    Args:
        recorder: Where the spans go.
    """

    def __init__(self, recorder: Recorder) -> None:
        global _here  # noqa: PLW0603 - one a process, as its recording
        self.recorder = recorder
        self.position: WorkerPosition | None = None
        self.requested_ns = 0
        self._looked = False
        self._fetchers = 0
        _here = self

    def forget(self) -> None:
        """Wrappers that are left over do nothing from now on."""
        global _here  # noqa: PLW0603 - see __init__
        if _here is self:
            _here = None

    def enter_worker(self) -> WorkerPosition:
        """This process is a worker: fetches belong to the batch that its loop is at."""
        self.position = WorkerPosition()
        return self.position

    def find_worker(self) -> WorkerPosition | None:
        """This worker's position, also where nobody has said that this process is one. None in other processes."""
        if self.position is None and not self._looked:
            info = _worker_info()
            if info is None:
                return None
            self._looked = True
            self.recorder.become(Role.WORKER)
            self.recorder.event("worker", number=info.id)
            self.enter_worker()
        return self.position

    # ---- torch's fetcher -----------------------------------------------------------------------------------------

    def timing_fetcher(self, original: Any) -> Any:
        """Wrap ``create_fetcher``: what it makes is timed."""

        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            fetcher = original(*args, **kwargs)
            if self.recorder.on:
                with self._guard("fetcher"):
                    self._follow_generation()
                    self._instrument(fetcher)
            return fetcher

        return create_fetcher

    def _follow_generation(self) -> None:
        # A worker that is used again makes a new fetcher for each iteration. One that is made within data work belongs
        # to a loader inside the dataset.
        position = self.find_worker()
        if position is None or not self._looked or self.recorder.active_thread() is not None:
            return
        position.generation = self._fetchers
        self._fetchers += 1

    def _instrument(self, fetcher: Any) -> None:
        items: TimedItems | None = None
        if hasattr(fetcher, "dataset_iter"):
            timed = timed_items(self.recorder, fetcher.dataset_iter)
            if fetcher.dataset_iter is fetcher.dataset:
                # Stateful loaders ask whether the two are one.
                fetcher.dataset = timed
            fetcher.dataset_iter = items = timed
        else:
            fetcher.dataset = TimedDataset(self.recorder, fetcher.dataset)
        fetcher.collate_fn = _timed_collate(self.recorder, fetcher.collate_fn)
        fetcher.fetch = self._timed_fetch(fetcher.fetch, items)

    def _timed_fetch(self, fetch: Any, items: TimedItems | None) -> Any:
        recorder = self.recorder

        def timed_fetch(index: Any) -> Any:
            if not recorder.on:
                return fetch(index)
            thread = self._thread()
            if thread is None:
                return fetch(index)
            position = self.position
            # In the main process a fetch lies within a request.
            nested = thread.data_depth > (1 if position is None else 0)
            thread.data_depth += 1
            given = 0 if items is None else items._given
            in_process, runnable, cpu, start = process_cpu(), thread.runnable_ns(), thread_cpu(), now()
            try:
                return fetch(index)
            finally:
                end = now()
                thread.data_depth -= 1
                with self._guard("fetch"):
                    known = position is not None and not nested
                    thread.writer.add(
                        Kind.FETCH,
                        start,
                        end,
                        position.batch if known and position is not None else _UNKNOWN,
                        position.generation if known and position is not None else _UNKNOWN,
                        0,
                        thread_cpu() - cpu,
                        thread.runnable_ns() - runnable,
                        process_cpu() - in_process,
                        # What is asked of an iterable dataset may be more than it has left.
                        _samples(index) if items is None else items._given - given,
                        1,
                        Flag.NESTED if nested else 0,
                    )
                    if self._looked and not nested:
                        thread.writer.flush()

        return timed_fetch

    # ---- public seams --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def swapped(self, loader: Any) -> Iterator[None]:
        """Give a loader's workers functions of ours that call the loader's own, and give those back afterwards."""
        with self._guard("public-seams"):
            if loader.num_workers and not isinstance(loader.worker_init_fn, TimedInit):
                loader.worker_init_fn = TimedInit(loader.worker_init_fn)
            if not isinstance(loader.collate_fn, TimedCollate):
                loader.collate_fn = TimedCollate(loader.collate_fn)
        try:
            yield
        finally:
            with self._guard("public-seams"):
                if isinstance(loader.worker_init_fn, TimedInit):
                    loader.worker_init_fn = loader.worker_init_fn.original
                if isinstance(loader.collate_fn, TimedCollate):
                    loader.collate_fn = loader.collate_fn.original

    def worker_begins(self) -> None:
        """A worker is ready: all that its main thread does from now on is data work."""
        with self._guard("worker"):
            told = self.position is not None
            position = self.find_worker()
            if position is None:
                return
            self.recorder.thread().data_depth = 1
            if not told:
                position.since = now()
                position.generation = _UNKNOWN

    def collated(self, collate_fn: Any, samples: Any) -> Any:
        """Collate a batch, and record that and the making of the batch as far as it can be known."""
        thread = self._thread() if self.recorder.on else None
        if thread is None or (not thread.data_depth and self.position is None):
            return collate_fn(samples)
        cpu, start = thread_cpu(), now()
        try:
            return collate_fn(samples)
        finally:
            with self._guard("collate"):
                end, used = now(), thread_cpu() - cpu
                thread.writer.add(Kind.COLLATE, start, end, on_cpu_ns=used)
                self._batch_made(thread, end, len(samples) if isinstance(samples, list) else 1)

    def _batch_made(self, thread: ThreadRecord, end: int, samples: int) -> None:
        position = self.position
        if position is None:
            if thread.data_depth == 1:
                thread.writer.add(Kind.FETCH, self.requested_ns, end, value=samples)
            return
        if thread.data_depth > 1:
            return
        thread.writer.add(Kind.FETCH, position.since, end, position.batch, position.generation, value=samples)
        thread.writer.flush()
        position.since = now()

    def _thread(self) -> ThreadRecord | None:
        try:
            return self.recorder.thread()
        except Exception as error:
            self.recorder.failed("thread", error)
            return None

    @contextlib.contextmanager
    def _guard(self, hook: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.recorder.failed(hook, error)


class TimedInit:
    """A worker's ``worker_init_fn`` where nothing else of torch's worker can be hooked; pickled with the original."""

    def __init__(self, original: Callable[[int], Any] | None) -> None:
        self.original = original

    def __call__(self, worker: int) -> Any:
        """Call the original, if there is one."""
        if self.original is not None:
            self.original(worker)
        if _here is not None:
            _here.worker_begins()


class TimedCollate:
    """A ``collate_fn`` where torch's fetcher cannot be hooked; pickled with the original."""

    def __init__(self, original: Callable[[Any], Any]) -> None:
        self.original = original

    def __call__(self, samples: Any) -> Any:
        """Call the original."""
        return self.original(samples) if _here is None else _here.collated(self.original, samples)


class TimedDataset:
    """A map-style dataset, seen by torch's fetcher only: times each item.

    Everything else is the dataset's own, ``__getitems__`` included.
    """

    def __init__(self, recorder: Recorder, dataset: Any) -> None:
        self._recorder = recorder
        self._dataset = dataset
        self._sampled = Sampled()

    def __getitem__(self, index: Any) -> Any:
        sampled = self._sampled
        thread = None if sampled.passes() else self._recorder.active_thread()
        if thread is None:
            return self._dataset[index]
        start = now()
        item = self._dataset[index]
        _record_item(self._recorder, thread, sampled, start, index)
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


class TimedItems:
    """An iterable dataset's iterator, seen by torch's fetcher only: times each item, and counts those given."""

    def __init__(self, recorder: Recorder, items: Any) -> None:
        self._recorder = recorder
        self._items = items
        self._sampled = Sampled()
        self._given = 0

    def __iter__(self) -> TimedItems:
        return self

    def __next__(self) -> Any:
        sampled = self._sampled
        thread = None if sampled.passes() else self._recorder.active_thread()
        start = 0 if thread is None else now()
        item = next(self._items)
        self._given += 1
        if thread is not None:
            _record_item(self._recorder, thread, sampled, start, self._given - 1)
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._items, name)


def timed_items(recorder: Recorder, items: Any) -> TimedItems:
    """Time an iterator, and let the result have the methods that its type has.

    ``isinstance`` with a protocol, such as torchdata's ``Stateful``, looks at the type.
    """
    methods = [name for name in dir(type(items)) if not name.startswith("_")]
    if not methods:
        return TimedItems(recorder, items)
    kind: type[TimedItems] = type("TimedItems", (TimedItems,), {name: _forwarded(name) for name in methods})
    return kind(recorder, items)


def _forwarded(name: str) -> property:
    return property(lambda timed: getattr(timed._items, name))


def _record_item(recorder: Recorder, thread: ThreadRecord, sampled: Sampled, start: int, index: Any) -> None:
    end = now()
    try:
        value = index if isinstance(index, int) else _UNKNOWN
        thread.writer.add(Kind.GETITEM, start, end, value=value, weight=sampled.weight)
        sampled.took(end - start)
    except Exception as error:
        recorder.failed("item", error)


def _timed_collate(recorder: Recorder, collate_fn: Any) -> Any:
    def collate(samples: Any) -> Any:
        thread = recorder.active_thread() if recorder.on else None
        if thread is None:
            return collate_fn(samples)
        cpu, start = thread_cpu(), now()
        try:
            return collate_fn(samples)
        finally:
            try:
                thread.writer.add(Kind.COLLATE, start, now(), on_cpu_ns=thread_cpu() - cpu)
            except Exception as error:
                recorder.failed("collate", error)

    return collate


def _samples(index: Any) -> int:
    return len(index) if isinstance(index, list | tuple) else 1


def _worker_info() -> Any:
    data = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()
