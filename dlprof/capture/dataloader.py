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

from dlprof.capture.construction import Constructions
from dlprof.capture.fetching import Fetching, WorkerPosition
from dlprof.capture.overrides import Overrides
from dlprof.capture.pinning import Pinning
from dlprof.capture.recorder import now, thread_cpu
from dlprof.capture.session import Session
from dlprof.capture.sharding import ShardWatch
from dlprof.model.kinds import Kind, Role

_SAMPLER_WORTH_RECORDING_NS = 10_000
_PASSED_OVER_BY_WARNINGS = "<dlprof, as importlib._bootstrap>"
"""A warning with a ``stacklevel`` is about the caller's line: Python counts no frames whose file has both words in its
name, and so names the script's line as it would without us."""


class IteratorState:
    """What is remembered of one of torch's iterators, beside it and not on it."""

    __slots__ = ("answers_to", "dataset", "last_received", "loader", "number", "pinning", "read_cpu", "received")

    def __init__(self, loader: int, dataset: int | None = None) -> None:
        self.loader = loader
        self.dataset = dataset
        self.number = -1
        """The iteration that batches are asked for; -1 while it is being begun."""
        self.answers_to = -1
        """The iteration that batches are received for: the one before, while the next one is being begun."""
        self.pinning: Pinning | None = None
        """Where another thread reads from the pipe."""
        self.last_received = -1
        self.read_cpu: tuple[int, int] | None = None
        """CPU time of the reading thread when it began to read and when it had read."""
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
        self._beginning: set[int] = set()
        self._fetching = Fetching(session.recorder)
        self._constructions = Constructions()
        self._overrides = Overrides(session.recorder, session.recorder.settings.overrides)
        self.shards = ShardWatch(session.recorder)
        self._times_fetchers = True

    def install(self, module: ModuleType) -> None:
        """Patch ``torch.utils.data.dataloader``, given as ``module``; called when it has been imported."""
        self._session.listen()
        base = getattr(module, "_BaseDataLoaderIter", None)
        multi = getattr(module, "_MultiProcessingDataLoaderIter", None)
        kinds = getattr(module, "_DatasetKind", None)
        self._patch(module.DataLoader, "__init__", self._changed_init)
        self._patch(module.DataLoader, "__iter__", self._timed_iter)
        if hasattr(module.DataLoader, "_get_iterator"):
            self._patch(module.DataLoader, "_get_iterator", self._timed_iter)
        self._patch(base, "__next__", self._timed_next)
        self._patch(base, "_next_index", self._timed_next_index)
        self._patch(multi, "_try_put_index", self._noted_put_index)
        self._patch(multi, "_get_data", self._timed_get_data)
        self._patch(multi, "_shutdown_workers", self._timed_shutdown)
        self._times_fetchers = self._patch(kinds, "create_fetcher", self._fetching.timing_fetcher, static=True)

    def install_stateful(self, module: ModuleType) -> None:
        """Patch torchdata's ``StatefulDataLoader``, whose module is given: it has its own copy of torch's methods."""
        multi = getattr(module, "_StatefulMultiProcessingDataLoaderIter", None)
        self._patch(module.StatefulDataLoader, "__init__", self._changed_init)
        self._patch(module.StatefulDataLoader, "__iter__", self._timed_iter)
        self._patch(multi, "_try_put_index", self._noted_put_index)
        self._patch(multi, "_get_data", self._timed_get_data)
        self._patch(multi, "_shutdown_workers", self._timed_shutdown)

    def restore(self) -> None:
        """Take every patch back, the last one first."""
        self._fetching.forget()
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)

    def enter_worker(self) -> WorkerPosition:
        """This process is a worker: fetches belong to the batch that its loop is at."""
        # Forked while the iterator was being made.
        self._beginning.clear()
        return self._fetching.enter_worker()

    def _patch(self, owner: Any, name: str, wrap: Callable[[Any], Any], *, static: bool = False) -> bool:
        original = None if owner is None else getattr(owner, name, None)
        if original is None:
            self._session.recorder.notice("hook-missing", hook=name)
            return False
        wrapper: Any = functools.wraps(original)(wrap(original))
        wrapper.__code__ = wrapper.__code__.replace(co_filename=_PASSED_OVER_BY_WARNINGS)
        self._originals.append((owner, name, owner.__dict__.get(name, original)))
        setattr(owner, name, staticmethod(wrapper) if static else wrapper)
        return True

    def _changed_init(self, original: Any) -> Any:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            made_at = self._constructions.noted(loader)
            plan = self._overrides.plan(original, loader, args, kwargs, made_at)
            if plan is None:
                original(loader, *args, **kwargs)
            else:
                self._overrides.make(plan, original, loader, args, kwargs)

        return __init__

    # ---- the main process ----------------------------------------------------------------------------------------

    def _timed_iter(self, original: Any) -> Any:
        """Wrap a loader's ``__iter__``, and ``_get_iterator`` for loaders of the script's own that call only that."""
        session = self._session

        def begin(loader: Any) -> Any:
            if not session.recorder.on or id(loader) in self._beginning:
                return original(loader)
            start = now()
            session.before_iteration(loader.num_workers)
            with self._guard("iter"):
                self._iteration_begins(loader)
            self._beginning.add(id(loader))
            before = self.shards.enter(self._dataset_of(loader))
            try:
                with contextlib.nullcontext() if self._times_fetchers else self._fetching.swapped(loader):
                    iterator = original(loader)
            finally:
                self._beginning.discard(id(loader))
                self.shards.leave(before)
            with self._guard("iter"):
                self._iterator_made(loader, iterator, start)
            return iterator

        return begin

    def _iteration_begins(self, loader: Any) -> None:
        # An iterator with persistent workers is used again: what it sends from now on is of the next iteration, whose
        # number is not known before it is made.
        iterator = getattr(loader, "_iterator", None)
        state = self._states.get(iterator) if iterator is not None else None
        if state is not None:
            state.number = -1

    def _iterator_made(self, loader: Any, iterator: Any, start: int) -> None:
        session = self._session
        number = session.loader_number(loader, self._describe)
        state = self._states.get(iterator)
        if state is None:
            state = self._states[iterator] = IteratorState(number, self._dataset_of(loader))
            self._watch_pipe(iterator, state)
        state.number = session.iteration_begun(start, number, list(getattr(iterator, "_workers", ())))
        state.answers_to = state.number
        if state.pinning is not None:
            state.pinning.iteration_begun(state.number)

    def _describe(self, loader: Any) -> dict[str, Any]:
        facts = describe_loader(loader) | {"index": self._overrides.index_of(loader.dataset)}
        places = self._constructions.of(loader)
        facts |= {"made_at": places} if places else {}
        return facts | {"asking_watched": bool(facts["iterable"]) and self.shards.watched(loader)}

    def _dataset_of(self, loader: Any) -> int | None:
        try:
            return self._overrides.index_of(loader.dataset)
        except Exception:
            # A loader of the script's own that has none is described as such later.
            return None

    def _watch_pipe(self, iterator: Any, state: IteratorState) -> None:
        # Only this object in this process: the workers have their own copy by now.
        queue = getattr(iterator, "_worker_result_queue", None)
        receive = getattr(queue, "_recv_bytes", None)
        if queue is None or receive is None:
            return
        if getattr(iterator, "_pin_memory_thread", None) is not None:
            state.pinning = Pinning(self._session.recorder, len(iterator._workers))
            state.pinning.watch(queue, iterator._data_queue)
            return

        def timed_receive(*args: Any, **kwargs: Any) -> Any:
            cpu, start = thread_cpu(), now()
            data = receive(*args, **kwargs)
            state.received = (start, now(), len(data), get_ident())
            state.read_cpu = (cpu, thread_cpu())
            return data

        queue._recv_bytes = timed_receive

    def _timed_next(self, original: Any) -> Any:
        session = self._session
        states = self._states

        def __next__(iterator: Any) -> Any:  # noqa: N807
            state = states.get(iterator)
            if state is None:
                return original(iterator)
            request = session.before_request(state.loader, can_serve=True)
            if request is None:
                return original(iterator)
            ready = _ready(iterator)
            self._fetching.requested_ns = request.start
            before = self.shards.enter(state.dataset)
            ended, batch = True, None
            try:
                batch = original(iterator) if request.served is None else request.served[0]
                ended = False
            finally:
                self.shards.leave(before)
                number = -1 if ended else _number(iterator, state)
                session.after_request(
                    request,
                    ended=ended,
                    batch=batch,
                    number=number if request.served is None else request.served[1],
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
                    worker = _worker_of(iterator, before)
                    session.recorder.thread().writer.add(Kind.TASK_SENT, when, when, before, number, value=worker)
            return result

        return _try_put_index

    def _timed_get_data(self, original: Any) -> Any:
        session = self._session

        def _get_data(iterator: Any) -> Any:
            result = original(iterator)
            end = now()
            state = self._states.get(iterator)
            if state is None:
                return result
            received, state.received = state.received, None
            if not isinstance(result[0], int):
                return result
            state.last_received = result[0]
            # With pin_memory another thread reads from the pipe, and this one gets what that one has unpickled.
            if received is None or received[3] != get_ident() or not session.recorder.on:
                return result
            with self._guard("receive"):
                begin, read, size, _ = received
                before, after = state.read_cpu or (0, 0)
                on_cpu = (after - before, thread_cpu() - after) if state.read_cpu else (-1, -1)
                writer = session.recorder.thread().writer
                of = state.answers_to
                writer.add(Kind.RECEIVE, begin, read, result[0], of, on_cpu_ns=on_cpu[0], value=size)
                writer.add(Kind.UNPICKLE, read, end, result[0], of, on_cpu_ns=on_cpu[1])
            return result

        return _get_data

    def _timed_shutdown(self, original: Any) -> Any:
        clock = now

        def _shutdown_workers(iterator: Any) -> Any:
            # Called again when the iterator is dropped. That may be when the interpreter is torn down, where torch does
            # nothing any more and the names of this module are gone.
            if getattr(iterator, "_shutdown", True):
                return original(iterator)
            start = clock()
            try:
                return original(iterator)
            finally:
                if iterator._shutdown:
                    self._workers_ended(iterator, start)

        return _shutdown_workers

    def _workers_ended(self, iterator: Any, start: int) -> None:
        recorder = self._session.recorder
        with self._guard("shutdown"):
            state = self._states.get(iterator)
            # A forked process drops its copy of the iterator.
            if state is not None and recorder.on and recorder.role is Role.MAIN:
                writer = recorder.thread().writer
                writer.add(Kind.WORKERS_ENDED, start, now(), iterator=state.number, value=state.loader)

    @contextlib.contextmanager
    def _guard(self, hook: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._session.recorder.failed(hook, error)


def _worker_of(iterator: Any, batch: int) -> int:
    """Which worker makes a batch, -1 where torch no longer keeps that in its table."""
    try:
        return int(iterator._task_info[batch][0])
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return -1


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
