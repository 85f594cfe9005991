"""Finds the training loop among the script's loaders, counts its batches, and says when to trace and when to stop.

A step is one batch taken by the training loop. The loop's loader is the one whose batches are followed by optimizer
steps; without a DataLoader, and where another thread than the training one requests its batches, the steps are
optimizer steps; without an optimizer the batches of the loader in use.
The same rule is applied again, with hindsight, when the recording is analysed.
"""

from __future__ import annotations

import threading
from _thread import get_ident
from collections.abc import Callable
from enum import Enum

from dlprof.formats.settings_file import Settings

OPTIMIZER_LOOP = 0
"""Stands for the training loop's loader in a script that steps an optimizer without a DataLoader."""

_TRACE_AFTER_STEPS_IF_ALL = 50
_PATIENCE = 4


class Action(Enum):
    """What to do before the next batch is requested."""

    NOTHING = 0
    START_TRACE = 1
    STOP_TRACE = 2
    STOP = 3


class Loop:
    """The training loop as far as it is known.

    Args:
        settings: What was asked for.
        has_optimizer: Whether any optimizer exists in the process; asked once, when a loader has given as many
            batches as there are steps before the trace and no optimizer step was seen.
    """

    def __init__(self, settings: Settings, has_optimizer: Callable[[], bool]) -> None:
        self._settings = settings
        self._has_optimizer = has_optimizer
        self._expects_optimizer: bool | None = None
        # A script may take batches in one thread and step its optimizer in another.
        self._lock = threading.Lock()
        self._counted = 0
        self._pending: dict[int, int] = {}
        self._first: int | None = None
        self._trace_at: int | None = None
        self._trace_until: int | None = None
        self._lengths: dict[int, int | None] = {}
        self._takers: set[int] = set()
        self._steps_of_takers = 0
        self._steps_of_others = 0
        self.handed_over = False
        """Whether another thread than the one that trains requests the batches, and hands them over to it."""
        self.training: int | None = None
        self.optimizer_steps = 0
        self.done = False

    def loader_made(self, loader: int, length: int | None) -> None:
        """A loader is iterated for the first time; ``length`` in batches, None where it is not known."""
        self._lengths.setdefault(loader, length)

    def batch_taken(self, loader: int) -> None:
        """The script has received one batch."""
        with self._lock:
            self._takers.add(get_ident())
            # Kept in the order of the last batch of each.
            self._pending[loader] = self._pending.pop(loader, 0) + 1

    def optimizer_stepped(self) -> None:
        """An optimizer has taken a step: the batches since the one before were the training loop's."""
        with self._lock:
            self.optimizer_steps += 1
            self._look_at_threads()
            if self.handed_over:
                self._pending.clear()
            elif self._pending:
                # A script may make a new DataLoader for each epoch: they count as one.
                if self.training not in self._pending:
                    self.training = next(reversed(self._pending))
                if self._first is None:
                    self._first = self.training
                self._counted += self._pending[self.training]
                self._pending.clear()
            elif self.training is None:
                self.training = OPTIMIZER_LOOP

    def _look_at_threads(self) -> None:
        # Both may happen in one script: a second optimizer that steps on the same batch while a thread of its own
        # evaluates, a sanity check by the thread that trains before another one feeds it. What happens more often
        # counts.
        takers, self._takers = self._takers, set()
        if not takers or self.handed_over:
            return
        if get_ident() in takers:
            self._steps_of_takers += 1
        else:
            self._steps_of_others += 1
        if self._steps_of_others > self._steps_of_takers:
            # The other thread is ahead by as much as it may prefetch, which can be a whole epoch: steps are counted
            # where they are made.
            self._first = next(reversed(self._pending), self._first)
            self.handed_over, self.training = True, OPTIMIZER_LOOP

    def taken(self, loader: int) -> int:
        """Batches that the training loop has taken, if ``loader`` is its loader; else optimizer steps."""
        with self._lock:
            return self.optimizer_steps if loader == OPTIMIZER_LOOP else self._counted + self._pending.get(loader, 0)

    def is_training(self, loader: int) -> bool:
        """Whether ``loader`` is the training loop's, as far as can be told now."""
        if self.training is not None:
            return loader == self.training
        taken = self.taken(loader)
        before_trace = self._settings.warmup + (self._settings.steps or _TRACE_AFTER_STEPS_IF_ALL)
        if taken < min(before_trace, self._planned_trace(loader)[0]):
            return False
        if self._expects_optimizer is None:
            self._expects_optimizer = self._has_optimizer()
        # An optimizer that has not stepped yet may belong to gradient accumulation; one that never steps does not.
        return not self._expects_optimizer or taken > _PATIENCE * self._total()

    def next_action(self, loader: int, *, tracing: bool) -> Action:
        """What to do before ``loader`` is asked for its next batch.

        Args:
            loader: Whose batch is requested.
            tracing: Whether torch.profiler is on by our doing.
        """
        if self.done:
            return Action.STOP
        if not self.is_training(loader):
            return Action.NOTHING
        taken = self.taken(loader)
        if tracing:
            if self._trace_until is not None and taken >= self._trace_until:
                return self._after_trace(taken)
            return Action.NOTHING
        if self._trace_until is not None:
            # The user's own profiler may have ended ours in the middle of a step.
            self._trace_until = min(self._trace_until, taken)
        if self._trace_at is None and self._settings.trace_steps:
            begin, length = self._planned_trace(loader)
            if length and taken >= begin:
                self._trace_at, self._trace_until = taken, taken + length
                return Action.START_TRACE
        return self._stop_if_all_taken(taken)

    def trace_ended(self, loader_taken: int) -> None:
        """The trace ended before its time (end of an epoch, too large, or it could not be started)."""
        self._trace_at = self._trace_at if self._trace_at is not None else loader_taken
        self._trace_until = loader_taken

    @property
    def batches_total(self) -> int | None:
        """Batches until the script is stopped, None for never."""
        return None if self._settings.steps is None else self._total()

    def _after_trace(self, taken: int) -> Action:
        if self._stop_if_all_taken(taken) is Action.STOP:
            return Action.STOP
        return Action.STOP_TRACE

    def _total(self) -> int:
        settings = self._settings
        return settings.warmup + (settings.steps or _TRACE_AFTER_STEPS_IF_ALL) + settings.trace_steps

    def _stop_if_all_taken(self, taken: int) -> Action:
        settings = self._settings
        if settings.steps is None:
            return Action.NOTHING
        traced = 0
        if self._trace_at is not None and self._trace_until is not None:
            traced = min(taken, self._trace_until) - self._trace_at
        if taken - traced < settings.warmup + settings.steps:
            return Action.NOTHING
        self.done = True
        return Action.STOP

    def _planned_trace(self, loader: int) -> tuple[int, int]:
        """First traced batch and how many; from the end of the first epoch where that is shorter than the run."""
        settings = self._settings
        begin = settings.warmup + (settings.steps or _TRACE_AFTER_STEPS_IF_ALL)
        length = self._lengths.get(loader if self._first is None else self._first)
        if length is None or length >= begin + settings.trace_steps:
            return begin, settings.trace_steps
        # Half of what is left of the epoch stays untraced: the step time comes from there.
        traced = min(settings.trace_steps, max(0, length - settings.warmup) // 2)
        return (length - traced, traced) if traced else (begin, settings.trace_steps)
