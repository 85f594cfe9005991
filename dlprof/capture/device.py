"""The accelerator that the script uses, and how long its stream lay idle while the script waited for a batch.

Only an accelerator that the script itself has initialised is touched: initialising one costs memory and seconds, and
makes a later fork fail. Nothing here waits for the device.
"""

from __future__ import annotations

import sys
import threading
from _thread import get_ident
from collections import deque
from dataclasses import dataclass
from typing import Any

from dlprof.capture.recorder import Recorder, ThreadRecord, in_words
from dlprof.model.kinds import Kind

_PENDING = 64

_kept_after_fork: list[Any] = []
"""A parent's events in a forked child: destroying them there would call into a driver that must not be called."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator that the script has initialised.

    Attributes:
        type: Its name in torch: ``cuda`` (also AMD's), ``xpu``, ``hpu``, ``npu``, ...
        module: torch's module for it, such as ``torch.cuda``.
    """

    type: str
    module: Any


def accelerator_in_use() -> Accelerator | None:
    """The accelerator that the script has initialised, None where there is none; never initialises one."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    for kind in _types(torch):
        module = getattr(torch, kind, None)
        initialised = getattr(module, "is_initialized", None)
        # Asking whether a device is *available* would be enough to make a later fork fail.
        if initialised is not None and initialised():
            return Accelerator(kind, module)
    return None


def _types(torch: Any) -> list[str]:
    # Which accelerator this torch was built for, or which was registered by an extension; looks at no device.
    current = getattr(getattr(torch, "accelerator", None), "current_accelerator", None)
    device = current() if current is not None else None
    # Older versions of torch have no torch.accelerator.
    return [device.type] if device is not None else ["cuda", "xpu"]


def device_facts() -> dict[str, Any]:
    """``device`` (``cuda:0``) and ``device_name`` of the accelerator in use; empty without one."""
    found = accelerator_in_use()
    if found is None:
        return {}
    index = found.module.current_device()
    facts = {"device": f"{found.type}:{index}"}
    named = getattr(found.module, "get_device_name", None)
    return facts if named is None else facts | {"device_name": named(index)}


class _Pair:
    """Two events around one request for a batch.

    Attributes:
        entry: The first event.
        exit: The second.
        stream: Where both are recorded.
        device_index: The stream's device, to which the events belong.
        request: When it began and returned, its batch and iterator.
    """

    __slots__ = ("device_index", "entry", "exit", "request", "stream")

    def __init__(self, entry: Any, exit_: Any) -> None:
        self.entry = entry
        self.exit = exit_
        self.stream: Any = None
        self.device_index: int | None = None
        self.request = (0, 0, -1, -1)


class StarvationPairs:
    """Device starvation per request, from two events on the stream that is current when a batch is requested.

    The first event is recorded when ``next()`` is entered, the second when it has returned. A device runs a stream in
    order, so the first one's time is when the host entered or when the work queued before had ended, whichever was
    later; the second one's is when the host came back, unless the queued work lasted longer. What lies between them
    is therefore *the part of the request in which this stream had nothing to run*, and it is the request's last part:
    it is written as a span of kind ``STARVED`` that ends with the request (``value``: nanoseconds as the device's
    clock counted them, not clamped to the request).

    What it does not say:

    - Other streams (copies, collectives) may have been busy: it bounds from above how long the *device* was idle.
    - Work that ``next()`` itself puts on the stream counts as starvation: a dataset that computes on the device, a
      loader that copies ahead. So does what another thread puts on the same stream meanwhile.
    - A stream that waits for another stream's event counts as busy.
    - After ``next()`` has returned the stream stays idle until something is launched: that is the host's time.
    - It cannot be shorter than two events back to back, some microseconds.

    The time from one pair's first event to the next one's is written too (``DEVICE_STEP``). Where the host runs
    ahead of the device by many steps, its own step times say how fast it launches; only this says how fast it trains.
    It is there for batches that follow each other in one iteration.

    Events are read at later requests, only when ``query()`` says that they have happened, so nothing ever waits; at
    most 64 requests are kept unread, those that come on top are counted and left out. No pair is made while a CUDA
    graph is captured on the current stream, where events would become part of the graph, and none under
    torch.profiler, whose steps show the same more finely. Events are used again, so none is made once their number
    has reached that of the unread ones.

    Args:
        recorder: Where notices go.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._on = True
        self._device: Accelerator | None = None
        self._index: int | None = None
        self._free: list[_Pair] = []
        self._pending: deque[_Pair] = deque()
        self._last: _Pair | None = None
        self._dropped = 0
        self._trains = threading.main_thread().ident

    def entered(self, thread: ThreadRecord) -> _Pair | None:
        """A batch is about to be requested: read what has happened, record the first event.

        Args:
            thread: The calling thread's record, where the spans go.

        Returns:
            What ``left`` needs; None where there is no accelerator in use, or it is not to be touched now, and in
            threads other than the one that trains.
        """
        if not self._on or get_ident() != self._trains:
            # Each thread has a current stream of its own; what the training thread queues may be on the same one.
            return None
        try:
            device = self._device or self._find()
            if device is None or _capturing(device.module):
                return None
            self._read(thread)
            if len(self._pending) >= _PENDING:
                self._dropped += 1
                return None
            pair = self._pair(device)
            pair.entry.record(pair.stream)
        except Exception as error:
            self._failed(error)
            return None
        return pair

    def trains_here(self) -> None:
        """The calling thread is the one that trains; until this is called it is taken to be the main one."""
        self._trains = get_ident()

    def left(self, pair: _Pair, start_ns: int, end_ns: int, batch: int, iterator: int) -> None:
        """The request has returned with a batch: record the second event.

        Args:
            pair: What ``entered`` gave.
            start_ns: When the batch was requested.
            end_ns: When it had arrived.
            batch: Its number within its iterator.
            iterator: The iterator's number.
        """
        if not self._on or self._device is None:
            return
        try:
            if _capturing(self._device.module):
                self._free.append(pair)
                return
            # The stream of the first event, whatever ``next()`` has made current.
            pair.exit.record(pair.stream)
            pair.request = (start_ns, end_ns, batch, iterator)
            self._pending.append(pair)
        except Exception as error:
            self._failed(error)

    def finish(self) -> None:
        """Read what has happened by now and leave the rest; called in the main thread when the script has ended."""
        if not self._on or self._device is None:
            return
        try:
            if not _capturing(self._device.module):
                self._read(self._recorder.thread())
        except Exception as error:
            self._failed(error)
        if self._dropped:
            self._recorder.notice("device-events-dropped", events=self._dropped)

    def abandon(self) -> None:
        """In a forked child: leave the parent's events alone."""
        if self._device is not None:
            _kept_after_fork.append((self._free, self._pending, self._last))
        self._free, self._pending, self._last = [], deque(), None
        self._on = False

    def _find(self) -> Accelerator | None:
        found = accelerator_in_use()
        if found is not None and not callable(getattr(found.module, "Event", None)):
            self._on = False
            return None
        self._device = found
        return found

    def _pair(self, device: Accelerator) -> _Pair:
        stream = device.module.current_stream()
        index = getattr(stream, "device_index", None)
        if index != self._index:
            # An event belongs to the device on which it was first recorded.
            self._index = index
            self._free.clear()
        if self._free:
            pair = self._free.pop()
        else:
            event = device.module.Event
            pair = _Pair(event(enable_timing=True), event(enable_timing=True))
        pair.stream, pair.device_index = stream, index
        return pair

    def _read(self, thread: ThreadRecord) -> None:
        while self._pending and self._pending[0].exit.query():
            pair, last = self._pending.popleft(), self._last
            start, end, batch, iterator = pair.request
            starved = _elapsed_ns(pair.entry, pair.exit)
            begin = max(start, end - max(starved, 0))
            thread.writer.add(Kind.STARVED, begin, end, batch, iterator, value=starved)
            if last is not None:
                at, _, before, of = last.request
                if (of, before + 1) == (iterator, batch) and before >= 0 and pair.stream == last.stream:
                    step = _elapsed_ns(last.entry, pair.entry)
                    thread.writer.add(Kind.DEVICE_STEP, at, at, before, of, value=step)
                if last.device_index == self._index:
                    self._free.append(last)
            self._last = pair

    def _failed(self, error: Exception) -> None:
        # Of the device nothing more is asked; everything else goes on being recorded.
        self._on = False
        self._pending.clear()
        self._free.clear()
        self._last = None
        self._recorder.notice("device-events-failed", error=f"{type(error).__name__}: {in_words(error)}"[:500])


def _elapsed_ns(begin: Any, end: Any) -> int:
    elapsed_ms: float = begin.elapsed_time(end)
    return round(elapsed_ms * 1e6)


def _capturing(module: Any) -> bool:
    capturing = getattr(module, "is_current_stream_capturing", None)
    return capturing is not None and bool(capturing())
