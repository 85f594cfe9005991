"""One profiled process: what its hooks call, and the decisions between two steps.

All functions here may be called from any thread of the script. None raises, except ``SystemExit(0)`` out of
``before_request`` when all steps that were asked for are recorded.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from dlprof.capture import batches, interpreter
from dlprof.capture.ceiling import MOST_BATCHES, Ceiling
from dlprof.capture.device import StarvationPairs, device_facts
from dlprof.capture.environment import usable_cores
from dlprof.capture.inside_watch import InsideWatch
from dlprof.capture.loop import OPTIMIZER_LOOP, Action, Loop
from dlprof.capture.padding import PadCounter
from dlprof.capture.queues import QueueWatch
from dlprof.capture.recorder import Recorder, ThreadRecord, in_words, now, process_cpu, thread_cpu
from dlprof.capture.tracing import Tracer
from dlprof.capture.user_spans import UserSpans
from dlprof.formats.progress_file import ALL_STEPS, Phase, ProgressWriter
from dlprof.formats.sample_file import LOOK_INSIDE
from dlprof.formats.settings_file import Settings
from dlprof.model.kinds import Flag, Kind, Role

STOP_SIGNAL = signal.SIGRTMAX - 7
"""Ends the script when its batches are requested by another thread than the main one. Nothing else uses it."""


_Asked = tuple[ThreadRecord, Any, int, int, int]
"""A thread that asks a queue: its record, events on the device, its wait for a core and CPU time so far, and when."""


class Request:
    """One request for a batch in progress; what ``before_request`` knows and ``after_request`` needs."""

    __slots__ = ("cpu", "events", "flags", "loader", "process_cpu", "runnable", "served", "start", "thread")

    def __init__(self, thread: ThreadRecord, loader: int, flags: int, events: Any) -> None:
        self.thread = thread
        self.loader = loader
        self.flags = flags
        self.served: tuple[Any, int] | None = None
        """A batch that lay ready, and its number: the loader is not to be asked."""
        self.events = events
        self.process_cpu = process_cpu()
        self.runnable = thread.runnable_ns()
        self.cpu = thread_cpu()
        self.start = now()


class Session:
    """The recording of one process.

    Args:
        folder: The recording folder.
        settings: What was asked for.
    """

    def __init__(self, folder: str, settings: Settings) -> None:
        self.recorder = Recorder(folder, settings)
        self._settings = settings
        self.user_spans: UserSpans | None = None
        self._began_ns = now()
        self._begin()
        self._main_listens = False
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._at_exit)

    def _begin(self) -> None:
        self._loop = Loop(self._settings, _any_optimizer)
        self._tracer = Tracer(self.recorder)
        self._starvation = StarvationPairs(self.recorder)
        self._ceiling = Ceiling(self.recorder) if self._settings.ceiling else None
        self._inside: InsideWatch | None = None
        self._watched = False
        self._loaders: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._by_id: dict[int, int] = {}
        self._workers: dict[int, Any] = {}
        self._complete = False
        self._loader_count = 0
        self._iterator_count = 0
        self._counted = OPTIMIZER_LOOP
        self._body: tuple[int, int, int, int, int, int] | None = None
        self._progress: ProgressWriter | None = None
        self._wait_ns = 0
        self._measured_ns = 0
        self._first_batch_ns = 0
        self._stop_ns = 0
        self._batch_described: set[int] = set()
        self._padding: PadCounter | None = PadCounter(self.recorder)
        self._optimizer_start: tuple[int, int] | None = None
        self._trace_thread = 0
        self._asking: set[int] = set()
        """Threads that are inside a request for a batch."""
        self._feeders: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Threads that have requested batches for another one."""
        self._queues = QueueWatch(self._queue_asked, self._queue_gave)

    def _after_fork(self) -> None:
        self._tracer.abandon()
        self._starvation.abandon()
        self._queues.restore()
        if self._inside is not None:
            self._inside.abandon()
        self.recorder.after_fork()
        self._begin()

    def listen(self) -> None:
        """Let loops in other threads end the script; called when torch's loader is imported, and not before."""
        self._main_listens = self._main_listens or _listen_in_main_thread()

    def look_in_script(self) -> None:
        """Time functions of the script that were named with ``--span``, before its workers are started."""
        if self.user_spans is not None:
            self.user_spans.look_in_script()

    # ---- loaders -----------------------------------------------------------------------------------------------

    def loader_number(self, loader: Any, describe: Any) -> int:
        """The number of a DataLoader (from 1), described in an event when it is first seen."""
        number = self._known_number(loader)
        if number is None:
            self._loader_count += 1
            number = self._loader_count
            try:
                self._loaders[loader] = number
            except TypeError:
                # Lists and the like, given to ``dlprof.iterate``, can be neither weakly referenced nor hashed.
                self._by_id[id(loader)] = number
            facts: dict[str, Any] = describe(loader)
            self._loop.loader_made(number, facts.get("length"))
            self.recorder.event("loader", id=number, **facts)
        return number

    def _known_number(self, loader: Any) -> int | None:
        try:
            return self._loaders.get(loader)
        except TypeError:
            return self._by_id.get(id(loader))

    def before_iteration(self, workers: int) -> None:
        """A loader is about to make or reset its iterator."""
        if self._all_done:
            self._stop_script()
        self.look_in_script()
        if workers and self._tracer.on and self._trace_thread == threading.get_ident():
            # Workers forked under the profiler would go on recording into memory that nobody reads. It is on in one
            # thread only, and can be stopped only there.
            self._end_trace()

    def iteration_begun(self, start_ns: int, loader: int, workers: list[Any]) -> int:
        """Record that an iterator was made or reset.

        Args:
            start_ns: When that began.
            loader: The loader's number.
            workers: Its worker processes (``multiprocessing.Process``), in their order.

        Returns:
            The iteration's number (from 1).
        """
        self._iterator_count += 1
        self._workers = {worker.pid: worker for worker in workers} | {
            pid: worker for pid, worker in self._workers.items() if worker.exitcode is None
        }
        number = self._iterator_count
        writer = self.recorder.thread().writer
        writer.add(Kind.ITER, start_ns, now(), iterator=number, value=loader)
        self.recorder.event("iterator", id=number, loader=loader, workers=[worker.pid for worker in workers])
        return number

    # ---- requests for a batch ------------------------------------------------------------------------------------

    def before_request(self, loader: int, *, can_serve: bool = False) -> Request | None:
        """The script asks ``loader`` for a batch. None where recording has ended.

        Args:
            loader: Its number.
            can_serve: Whether the caller can answer with ``Request.served``.

        Raises:
            SystemExit: All steps are recorded and the script is to end.
        """
        recorder = self.recorder
        if not recorder.on or self._complete:
            self._count_unrecorded(loader)
            return None
        try:
            thread = recorder.thread()
            nested = thread.data_depth > 0
            flags = Flag.NESTED if nested else 0
            if not nested:
                self._end_body(loader)
                self._decide(loader, can_serve)
                if self._complete:
                    return None
                flags = self._ceiling_flag(loader)
            events = None if nested or self._tracer.on else self._starvation.entered(thread)
            request = Request(thread, loader, flags, events)
            if flags & Flag.CEILING and self._ceiling is not None and self._ceiling.serving:
                request.served = self._ceiling.serve()
                request.flags |= Flag.SERVED if self._ceiling.settled else 0
            thread.data_depth += 1
            self._asking.add(threading.get_ident())
            return request
        except Exception as error:
            recorder.failed("request", error)
            return None

    def _count_unrecorded(self, loader: int) -> None:
        # Recording has ended early, as on a full disk: the script still ends after the steps that were asked for.
        # Nor are there steps without an input pipeline then.
        if self._loop.done or self._loop.next_action(loader, tracing=False) is Action.STOP:
            self._stop_script()
        self._loop.batch_taken(loader)

    def after_request(
        self, request: Request, *, ended: bool, batch: Any, number: int, iterator: int, ready: int
    ) -> None:
        """The request has returned.

        Args:
            request: What ``before_request`` gave.
            ended: Whether it raised instead of returning a batch.
            batch: The batch.
            number: The batch's number within its iterator, -1 if not known.
            iterator: The iterator's number.
            ready: Batches that lay ready when it was asked, -1 if not known.
        """
        end = now()
        if request.events is not None and not ended:
            self._starvation.left(request.events, request.start, end, number, iterator)
        thread = request.thread
        thread.data_depth -= 1
        if not thread.data_depth:
            self._asking.discard(threading.get_ident())
        try:
            flags = request.flags | (Flag.ENDED if ended else 0)
            thread.writer.add(
                Kind.NEXT,
                request.start,
                end,
                number,
                iterator,
                0,
                thread_cpu() - request.cpu,
                thread.runnable_ns() - request.runnable,
                process_cpu() - request.process_cpu,
                ready,
                1,
                flags,
            )
            if not request.flags & Flag.NESTED:
                self._batch_arrived(request, end, ended, batch, number, iterator)
                thread.writer.flush()
        except Exception as error:
            self.recorder.failed("request", error)

    def _batch_arrived(self, request: Request, end: int, ended: bool, batch: Any, number: int, iterator: int) -> None:
        loop, loader = self._loop, request.loader
        if ended:
            if self._tracer.on and loop.is_training(loader):
                self._end_trace()
            return
        loop.batch_taken(loader)
        if request.flags & Flag.CEILING and self._ceiling is not None:
            self._ceiling.arrived(batch)
        if not self._first_batch_ns:
            self._first_batch_ns = end - self._began_ns
        thread = request.thread
        warm = loop.handed_over or loop.taken(loader) > self._settings.warmup
        if loader not in self._batch_described and warm:
            self._batch_described.add(loader)
            self._describe(loader, batch, thread)
        if warm and self._padding is not None and not self._tracer.on:
            self._count_padding(self._padding, loader, batch)
        if loop.taken(loader) > self._settings.warmup and loop.training in (None, loader):
            self._wait_ns += end - request.start
            self._measured_ns += end - request.start
            self.be_watched()
        self._write_progress(loader, end)
        if self._body is None and not loop.handed_over:
            self._body = (loader, number, iterator, process_cpu(), thread.runnable_ns(), thread_cpu())
            self._body_thread = threading.get_ident()
            self._body_start = now()

    def be_watched(self) -> None:
        """Let the calling thread be looked at: from outside, or where that cannot be by a thread in here."""
        if self._watched:
            return
        self._watched = True
        if self.recorder.role is Role.MAIN:
            self.recorder.event("cores", **usable_cores())
        if not self._settings.sample_hz:
            return
        try:
            if os.path.exists(f"{self.recorder.folder}/{LOOK_INSIDE}"):
                self._inside = InsideWatch(self.recorder)
                if self.recorder.role is Role.MAIN:
                    self.recorder.notice("looked-inside")
                return
            if not interpreter.publish(self.recorder.folder):
                self.recorder.notice("frames-not-found", python=sys.version.split()[0])
        except Exception as error:
            self.recorder.notice("samples-lost", error=f"{type(error).__name__}: {error}")

    def end_watch(self) -> None:
        """End the looking from inside, where there is any."""
        if self._inside is not None:
            self._inside.stop()
            self._inside = None

    def _describe(self, loader: int, batch: Any, thread: ThreadRecord) -> None:
        begin = now()
        try:
            facts = batches.describe(batch)
        except Exception as error:
            # Of a batch that is odd inside only this is lost: what handing it over would cost.
            self.recorder.notice("hook-failed", hook="describe-batch", error=f"{type(error).__name__}: {error}")
            return
        self.recorder.event("batch", loader=loader, **facts)
        thread.writer.add(Kind.OWN, begin, now(), name=self.recorder.name("describe-batch"))

    def _count_padding(self, counter: PadCounter, loader: int, batch: Any) -> None:
        try:
            counter.look(loader, batch)
        except Exception as error:
            self._padding = None
            self.recorder.notice("hook-failed", hook="padding", error=f"{type(error).__name__}: {error}")

    def _end_body(self, loader: int) -> None:
        if self._loop.handed_over:
            # What the requesting thread does between its requests is no part of a step.
            self._body = None
        if self._body is None:
            return
        end = now()
        of_loader, number, iterator, in_process, runnable, cpu = self._body
        if of_loader != loader and self._loop.is_training(of_loader):
            # Another loader's request inside the step: the step goes on.
            return
        self._body = None
        thread = self.recorder.thread()
        # Where another thread took the batch, neither thread's own times say anything of the body.
        same = self._body_thread == threading.get_ident()
        thread.writer.add(
            Kind.BODY,
            self._body_start,
            end,
            number,
            iterator,
            0,
            thread_cpu() - cpu if same else -1,
            thread.runnable_ns() - runnable if same else -1,
            process_cpu() - in_process,
        )
        if self._loop.taken(of_loader) > self._settings.warmup and self._loop.training in (None, of_loader):
            self._measured_ns += end - self._body_start

    # ---- between two steps ---------------------------------------------------------------------------------------

    @property
    def _all_done(self) -> bool:
        """Whether nothing is left to be measured."""
        return self._loop.done and (self._ceiling is None or self._ceiling.done)

    def _ceiling_flag(self, loader: int) -> int:
        """Whether a request is one of those after the measured steps."""
        asked = self._ceiling is not None and self._loop.done and self._loop.is_training(loader)
        return Flag.CEILING if asked else 0

    def _decide(self, loader: int, can_serve: bool = False) -> None:
        if self._loop.handed_over and loader != OPTIMIZER_LOOP:
            self._feeders.add(threading.current_thread())
            # What is next is decided in the thread that trains, since torch.profiler sees the thread that starts it.
            if self._all_done:
                self._stop_script()
            return
        if self._tracer.on and self._tracer.too_large():
            self.recorder.notice("trace-too-large")
            self._end_trace()
        action = self._loop.next_action(loader, tracing=self._tracer.on)
        if action is Action.START_TRACE:
            self._start_trace(loader)
            if not self._tracer.on:
                action = self._loop.next_action(loader, tracing=False)
        if action is Action.STOP_TRACE:
            self._end_trace()
        if action is Action.STOP:
            self._end_trace()
            if self._ceiling is not None and not self._ceiling.done:
                self._raise_ceiling(self._ceiling, loader, can_serve)
            if self._all_done:
                self._stop_script()
        if self._tracer.on:
            self._tracer.mark()

    def _raise_ceiling(self, ceiling: Ceiling, loader: int, can_serve: bool) -> None:
        if self._loop.is_training(loader):
            if can_serve:
                ceiling.before_request()
            else:
                ceiling.give_up("the training thread does not take its batches from a DataLoader itself")

    def _start_trace(self, loader: int) -> None:
        if self._inside is not None:
            self._inside.on = False
        try:
            if threading.current_thread() is not threading.main_thread() and self._main_listens:
                _done_by_main_thread(self._tracer.prepare)
            if self._tracer.start():
                self._trace_thread = threading.get_ident()
                return
        except Exception as error:
            self.recorder.notice("trace-failed", error=f"{type(error).__name__}: {error}")
        self._loop.trace_ended(self._loop.taken(loader))

    def _end_trace(self) -> None:
        if not self._tracer.on:
            return
        training = self._loop.training
        if self._inside is not None:
            self._inside.on = True
        with contextlib.suppress(Exception):
            self._tracer.mark()
        try:
            self._tracer.stop()
        except Exception as error:
            self.recorder.notice("trace-failed", error=f"{type(error).__name__}: {error}")
        if training is not None:
            self._loop.trace_ended(self._loop.taken(training))

    def close(self, error: BaseException | None = None) -> None:
        """Write everything that is known and stop recording, while the process goes on.

        Args:
            error: What ended the recorded block, None where it ended well.
        """
        self._end(error)
        self._queues.restore()
        atexit.unregister(self._at_exit)
        self.recorder.on = False

    def _stop_script(self) -> None:
        if not self._settings.ends_script:
            self._complete = True
            return
        if not self._stop_ns:
            self._stop_ns = now()
            self.recorder.event("stop", monotonic_ns=self._stop_ns)
            self.recorder.flush_all()
            with contextlib.suppress(OSError):
                self._write_progress(self._counted, self._stop_ns)
        feeds = self._loop.handed_over and not self._queues.watches_this_thread()
        if self._loop.handed_over and not feeds:
            self._let_requests_end()
        if threading.current_thread() is not threading.main_thread() and self._main_listens and not feeds:
            # The main thread gets it from the signal's handler; here it ends the thread, which asks for batches.
            _to_end.append(threading.current_thread())
            signal.pthread_kill(threading.main_thread().ident or 0, STOP_SIGNAL)
        raise SystemExit(0)

    def _let_requests_end(self) -> None:
        # A thread that is in torch's C++ code, making a batch or dropping one, while the interpreter is torn down
        # aborts the process: it has to come out first, and is ended at its next request. One that waits for room in
        # its queue stays there.
        until = now() + _PATIENCE_NS
        while self._asking - {threading.get_ident()} and now() < until:
            time.sleep(0.001)
        for feeder in list(self._feeders):
            if feeder is not threading.current_thread() and feeder is not threading.main_thread():
                feeder.join(_TO_NEXT_REQUEST_S)

    def _write_progress(self, loader: int, when: int) -> None:
        loop = self._loop
        if loop.training not in (None, loader):
            return
        self._counted = loader
        if self._progress is None:
            self._progress = ProgressWriter(self.recorder.folder)
        taken = loop.taken(loader)
        if self._all_done:
            phase = Phase.DONE
        elif self._tracer.on:
            phase = Phase.TRACING
        else:
            phase = Phase.MEASURING if taken > self._settings.warmup else Phase.WARM_UP
        total = loop.batches_total
        if total is not None and self._ceiling is not None:
            total += MOST_BATCHES
        self._progress.write(
            phase,
            taken,
            ALL_STEPS if total is None else total,
            self._wait_ns,
            self._measured_ns,
            self._first_batch_ns,
            self._stop_ns,
            when,
        )

    # ---- optimizer ------------------------------------------------------------------------------------------------

    def optimizer_begins(self) -> None:
        """An optimizer's ``step`` is called."""
        self.look_in_script()
        self._optimizer_start = (now(), thread_cpu())

    def optimizer_ends(self) -> None:
        """An optimizer's ``step`` has returned.

        Raises:
            SystemExit: As ``before_request``, in a script without a DataLoader.
        """
        recorder = self.recorder
        begun, self._optimizer_start = self._optimizer_start, None
        if begun is None or self._complete:
            return
        if not recorder.on:
            self._loop.optimizer_stepped()
            return
        try:
            thread = recorder.thread()
            end = now()
            thread.writer.add(Kind.OPTIMIZER, begun[0], end, on_cpu_ns=thread_cpu() - begun[1])
            self._loop.optimizer_stepped()
            self._starvation.trains_here()
            if self._loop.handed_over:
                self._queues.add_thread()
            if self._loop.training == OPTIMIZER_LOOP:
                if not self._first_batch_ns:
                    self._first_batch_ns = end - self._began_ns
                thread.writer.flush()
                self._write_progress(OPTIMIZER_LOOP, end)
                self._decide(OPTIMIZER_LOOP)
        except Exception as error:
            recorder.failed("optimizer", error)

    # ---- batches that another thread hands over -------------------------------------------------------------------

    def _queue_asked(self) -> _Asked | None:
        try:
            if not self.recorder.on or self._complete:
                return None
            thread = self.recorder.thread()
            if thread.data_depth:
                # A queue of the loader's own.
                return None
            events = None if self._tracer.on else self._starvation.entered(thread)
            return thread, events, thread.runnable_ns(), thread_cpu(), now()
        except Exception as error:
            self.recorder.failed("queue", error)
            return None

    def _queue_gave(self, asked: _Asked, number: int) -> None:
        end = now()
        thread, events, runnable, cpu, start = asked
        if events is not None:
            self._starvation.left(events, start, end, -1, -1)
        try:
            on_cpu, no_core = thread_cpu() - cpu, thread.runnable_ns() - runnable
            if self.recorder.on:
                thread.writer.add(Kind.QUEUE_GET, start, end, on_cpu_ns=on_cpu, runnable_ns=no_core, value=number)
        except Exception as error:
            self.recorder.failed("queue", error)

    # ---- the end --------------------------------------------------------------------------------------------------

    def _at_exit(self) -> None:
        # What the interpreter has printed as not caught.
        self._end(getattr(sys, "last_value", None))

    def _end(self, error: BaseException | None) -> None:
        try:
            if self.recorder.role is Role.MAIN:
                self._finish(error)
        except Exception as problem:
            self.recorder.failed("exit", problem)

    def _dead_workers(self) -> dict[int, int]:
        """Exit codes of workers that died: not those that ended well, or were ended when the script did."""
        codes = {pid: worker.exitcode for pid, worker in self._workers.items()}
        return {pid: code for pid, code in codes.items() if code not in (None, 0, -signal.SIGTERM)}

    def _finish(self, error: BaseException | None) -> None:
        # A step that no further request has ended is not a step: what came after it was something else.
        self._starvation.finish()
        self.end_watch()
        try:
            self._tracer.export()
        except Exception as problem:
            self.recorder.notice("trace-failed", error=f"{type(problem).__name__}: {problem}")
        self.recorder.flush_all()
        if self._loader_count or self._loop.optimizer_steps or error is not None:
            self.recorder.event(
                "exit",
                monotonic_ns=now(),
                exception=None if error is None else type(error).__name__,
                message=None if error is None else in_words(error),
                spans=self.recorder.counts(),
                dead_workers=self._dead_workers(),
                torch=_torch_facts(),
            )


def _listen_in_main_thread() -> bool:
    """Let other threads end the script from its main thread; False where the signal is taken."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(STOP_SIGNAL) not in (signal.SIG_DFL, _end_script):
        return False
    signal.signal(STOP_SIGNAL, _end_script)
    _to_end.clear()
    return True


_to_end: list[threading.Thread] = []
"""The thread that ends when the script is to end: the signal is also sent for what only the main thread can do."""
_errands: list[Callable[[], None]] = []
_TO_NEXT_REQUEST_S = 0.05
_PATIENCE_NS = 2_000_000_000
"""For another thread: one that makes a batch, and the main one, which runs a signal's handler while it waits."""


def _end_script(*_: Any) -> None:
    while _errands:
        _errands.pop()()
    if _to_end:
        # It is on its way out: while it lets go of tensors, in torch's C++ code, the interpreter must not be torn down.
        _to_end[-1].join(_PATIENCE_NS / 1e9)
        raise SystemExit(0)


def _done_by_main_thread(work: Callable[[], None]) -> bool:
    """Have the main thread do something, which must not raise; False where it does not come to it in time."""
    done = threading.Event()

    def errand() -> None:
        work()
        done.set()

    _errands.append(errand)
    signal.pthread_kill(threading.main_thread().ident or 0, STOP_SIGNAL)
    if done.wait(_PATIENCE_NS / 1e9):
        return True
    with contextlib.suppress(ValueError):
        _errands.remove(errand)
    return False


def _any_optimizer() -> bool:
    torch = sys.modules.get("torch")
    optimizer = getattr(getattr(torch, "optim", None), "Optimizer", None)
    # The type and not isinstance(), which would run the __class__ property of proxies.
    return optimizer is not None and any(issubclass(type(thing), optimizer) for thing in gc.get_objects())


def _torch_facts() -> dict[str, Any]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    facts: dict[str, Any] = {"version": str(torch.__version__), "threads": torch.get_num_threads()}
    with contextlib.suppress(Exception):
        facts |= device_facts()
    return facts
