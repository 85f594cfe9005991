"""What is hooked in torch's DataLoader. The only module that knows its private names.

Tried on torch 2.13. Every private name is looked up by feature: where one is missing, the hook that needs it is left
out with a notice and the rest works.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from dlprof.capture.recorder import ThreadRecord, now, process_cpu, thread_cpu
from dlprof.capture.seams import Sampled
from dlprof.capture.session import Session
from dlprof.model.kinds import Kind

_SAMPLER_WORTH_RECORDING_NS = 10_000


class IteratorState:
    """What is remembered of one of torch's iterators, beside it and not on it."""

    __slots__ = ("last_received", "loader", "number", "received")

    def __init__(self, loader: int) -> None:
        self.loader = loader
        self.number = -1
        self.last_received = -1
        self.received: tuple[int, int, int, int] | None = None
        """When the last pickled batch was read from the pipe (start, end), its bytes, and the thread that read."""


class DataLoaderHooks:
    """Patches on torch's loader classes; ``restore`` takes them back.

    Args:
        session: Who is told.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._states: weakref.WeakKeyDictionary[Any, IteratorState] = weakref.WeakKeyDictionary()
        self._originals: list[tuple[Any, str, Any]] = []
        self._in_worker: WorkerPosition | None = None

    def install(self, module: ModuleType) -> None:
        """Patch ``torch.utils.data.dataloader``, given as ``module``; called when it has been imported."""
        base = getattr(module, "_BaseDataLoaderIter", None)
        multi = getattr(module, "_MultiProcessingDataLoaderIter", None)
        kinds = getattr(module, "_DatasetKind", None)
        self._patch(module.DataLoader, "__iter__", self._timed_iter)
        self._patch(base, "__next__", self._timed_next)
        self._patch(base, "_next_index", self._timed_next_index)
        self._patch(multi, "_try_put_index", self._noted_put_index)
        self._patch(multi, "_get_data", self._timed_get_data)
        self._patch(kinds, "create_fetcher", self._timing_fetcher, static=True)

    def restore(self) -> None:
        """Take every patch back, the last one first."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)

    def enter_worker(self) -> WorkerPosition:
        """This process is a worker: fetches belong to the batch that its loop is at."""
        self._in_worker = WorkerPosition()
        return self._in_worker

    def _patch(self, owner: Any, name: str, wrap: Callable[[Any], Any], *, static: bool = False) -> None:
        original = getattr(owner, name, None)
        if original is None:
            self._session.recorder.notice("hook-missing", hook=name)
            return
        wrapper = functools.wraps(original)(wrap(original))
        self._originals.append((owner, name, owner.__dict__.get(name, original)))
        setattr(owner, name, staticmethod(wrapper) if static else wrapper)

    # ---- the main process ----------------------------------------------------------------------------------------

    def _timed_iter(self, original: Any) -> Any:
        session = self._session

        def __iter__(loader: Any) -> Any:  # noqa: N807
            if not session.recorder.on:
                return original(loader)
            start = now()
            session.before_iteration(loader.num_workers)
            with self._guard("iter"):
                self._iteration_begins(loader)
            iterator = original(loader)
            with self._guard("iter"):
                self._iterator_made(loader, iterator, start)
            return iterator

        return __iter__

    def _iteration_begins(self, loader: Any) -> None:
        # An iterator with persistent workers is used again: what it sends from now on is of the next iteration, whose
        # number is not known before it is made.
        iterator = getattr(loader, "_iterator", None)
        state = self._states.get(iterator) if iterator is not None else None
        if state is not None:
            state.number = -1

    def _iterator_made(self, loader: Any, iterator: Any, start: int) -> None:
        session = self._session
        number = session.loader_number(loader, describe_loader)
        state = self._states.get(iterator)
        if state is None:
            state = self._states[iterator] = IteratorState(number)
            self._watch_pipe(iterator, state)
        state.number = session.iteration_begun(start, number, list(getattr(iterator, "_workers", ())))

    @staticmethod
    def _watch_pipe(iterator: Any, state: IteratorState) -> None:
        # Only this object in this process: the workers have their own copy by now.
        queue = getattr(iterator, "_worker_result_queue", None)
        receive = getattr(queue, "_recv_bytes", None)
        if queue is None or receive is None:
            return

        def timed_receive(*args: Any, **kwargs: Any) -> Any:
            start = now()
            data = receive(*args, **kwargs)
            state.received = (start, now(), len(data), get_ident())
            return data

        queue._recv_bytes = timed_receive

    def _timed_next(self, original: Any) -> Any:
        session = self._session
        states = self._states

        def __next__(iterator: Any) -> Any:  # noqa: N807
            state = states.get(iterator)
            if state is None:
                return original(iterator)
            request = session.before_request(state.loader)
            if request is None:
                return original(iterator)
            ready = _ready(iterator)
            ended, batch = True, None
            try:
                batch = original(iterator)
                ended = False
            finally:
                session.after_request(
                    request,
                    ended=ended,
                    batch=batch,
                    number=-1 if ended else _number(iterator, state),
                    iterator=state.number,
                    ready=ready,
                )
            return batch

        return __next__

    def _timed_next_index(self, original: Any) -> Any:
        session = self._session

        def _next_index(iterator: Any) -> Any:
            start = now()
            index = original(iterator)
            end = now()
            if end - start > _SAMPLER_WORTH_RECORDING_NS and session.recorder.on:
                with self._guard("sampler"):
                    session.recorder.thread().writer.add(Kind.SAMPLER, start, end)
            return index

        return _next_index

    def _noted_put_index(self, original: Any) -> Any:
        session = self._session

        def _try_put_index(iterator: Any) -> Any:
            before = iterator._send_idx
            result = original(iterator)
            if iterator._send_idx != before and session.recorder.on:
                with self._guard("put-index"):
                    state = self._states.get(iterator)
                    when = now()
                    # While an iterator is being made its number is the next one.
                    number = state.number if state is not None else -1
                    session.recorder.thread().writer.add(Kind.TASK_SENT, when, when, before, number)
            return result

        return _try_put_index

    def _timed_get_data(self, original: Any) -> Any:
        session = self._session

        def _get_data(iterator: Any) -> Any:
            result = original(iterator)
            end = now()
            state = self._states.get(iterator)
            # With pin_memory another thread reads from the pipe, and this one gets what that one has unpickled.
            received = None if state is None else state.received
            if state is None or received is None or received[3] != get_ident() or not session.recorder.on:
                return result
            with self._guard("receive"):
                begin, read, size, _ = received
                state.received = None
                if isinstance(result[0], int):
                    state.last_received = result[0]
                    writer = session.recorder.thread().writer
                    writer.add(Kind.RECEIVE, begin, read, result[0], state.number, value=size)
                    writer.add(Kind.UNPICKLE, read, end, result[0], state.number)
            return result

        return _get_data

    # ---- wherever a batch is made --------------------------------------------------------------------------------

    def _timing_fetcher(self, original: Any) -> Any:
        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            fetcher = original(*args, **kwargs)
            if self._session.recorder.on:
                with self._guard("fetcher"):
                    self._instrument(fetcher)
            return fetcher

        return create_fetcher

    def _instrument(self, fetcher: Any) -> None:
        recorder = self._session.recorder
        if hasattr(fetcher, "dataset_iter"):
            fetcher.dataset_iter = TimedItems(self._session, fetcher.dataset_iter)
        else:
            fetcher.dataset = TimedDataset(self._session, fetcher.dataset)
        fetcher.collate_fn = _timed_collate(self._session, fetcher.collate_fn)
        fetch = fetcher.fetch

        def timed_fetch(index: Any) -> Any:
            if not recorder.on:
                return fetch(index)
            position = self._in_worker
            thread = self._thread()
            if thread is None:
                return fetch(index)
            thread.data_depth += 1
            in_process, runnable, cpu, start = process_cpu(), thread.runnable_ns(), thread_cpu(), now()
            try:
                return fetch(index)
            finally:
                end = now()
                thread.data_depth -= 1
                with self._guard("fetch"):
                    thread.writer.add(
                        Kind.FETCH,
                        start,
                        end,
                        -1 if position is None else position.batch,
                        -1 if position is None else position.generation,
                        0,
                        thread_cpu() - cpu,
                        thread.runnable_ns() - runnable,
                        process_cpu() - in_process,
                        _samples(index),
                    )

        fetcher.fetch = timed_fetch

    def _thread(self) -> ThreadRecord | None:
        try:
            return self._session.recorder.thread()
        except Exception as error:
            self._session.recorder.failed("thread", error)
            return None

    @contextlib.contextmanager
    def _guard(self, hook: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._session.recorder.failed(hook, error)


class WorkerPosition:
    """Where a worker's loop is: the batch that it makes, and how often its iteration was resumed."""

    __slots__ = ("batch", "generation")

    def __init__(self) -> None:
        self.batch = -1
        self.generation = 0


class TimedDataset:
    """A map-style dataset, seen by torch's fetcher only: times each item.

    Everything else is the dataset's own, ``__getitems__`` included.
    """

    def __init__(self, session: Session, dataset: Any) -> None:
        self._recorder = session.recorder
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
    """An iterable dataset's iterator, seen by torch's fetcher only: times each item."""

    def __init__(self, session: Session, items: Any) -> None:
        self._recorder = session.recorder
        self._items = items
        self._sampled = Sampled()
        self._count = 0

    def __iter__(self) -> TimedItems:
        return self

    def __next__(self) -> Any:
        sampled = self._sampled
        thread = None if sampled.passes() else self._recorder.active_thread()
        self._count += 1
        if thread is None:
            return next(self._items)
        start = now()
        item = next(self._items)
        _record_item(self._recorder, thread, sampled, start, self._count - 1)
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._items, name)


def _record_item(recorder: Any, thread: ThreadRecord, sampled: Sampled, start: int, index: Any) -> None:
    end = now()
    try:
        value = index if isinstance(index, int) else -1
        thread.writer.add(Kind.GETITEM, start, end, value=value, weight=sampled.weight)
        sampled.took(end - start)
    except Exception as error:
        recorder.failed("item", error)


def _timed_collate(session: Session, collate_fn: Any) -> Any:
    recorder = session.recorder

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


def _ready(iterator: Any) -> int:
    queue = getattr(iterator, "_data_queue", None)
    if queue is None:
        return -1
    try:
        held = sum(len(task) == 2 for task in iterator._task_info.values())
        return int(queue.qsize()) + held
    except Exception:
        return -1


def _number(iterator: Any, state: IteratorState) -> int:
    if hasattr(iterator, "_rcvd_idx"):
        in_order = getattr(iterator, "_in_order", True)
        return int(iterator._rcvd_idx) - 1 if in_order else state.last_received
    return int(getattr(iterator, "_num_yielded", 0)) - 1


def describe_loader(loader: Any) -> dict[str, Any]:
    """The settings in force of a DataLoader.

    Args:
        loader: A ``torch.utils.data.DataLoader``.

    Returns:
        Values that JSON can hold; ``length`` in batches, None where it is not known.
    """
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    batch_size = loader.batch_size
    if batch_size is None:
        batch_size = getattr(loader.batch_sampler, "batch_size", None)
    context = loader.multiprocessing_context
    iterable = hasattr(loader, "_dataset_kind") and loader._dataset_kind == 1
    return {
        "num_workers": loader.num_workers,
        "batch_size": batch_size,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        "pin_memory": loader.pin_memory,
        "drop_last": loader.drop_last,
        "timeout": loader.timeout,
        "in_order": getattr(loader, "in_order", True),
        "start_method": _start_method(context) if loader.num_workers else None,
        "dataset": _type_name(loader.dataset),
        "iterable": iterable,
        "sampler": _type_name(sampler),
        "collate_fn": _function_name(loader.collate_fn),
        # For an iterable dataset torch would warn about this length later, had we asked for it.
        "length": None if iterable else _length(loader),
    }


def _start_method(context: Any) -> str | None:
    import multiprocessing

    # allow_none: asking must not fix the start method for the script.
    method = (context or multiprocessing).get_start_method(allow_none=True)
    return method or multiprocessing.get_all_start_methods()[0]


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except Exception:
        return None


def _type_name(thing: Any) -> str:
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


def _function_name(function: Any) -> str:
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{name}" if name else _type_name(function)
