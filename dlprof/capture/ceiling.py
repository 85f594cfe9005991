"""``--ceiling``: some more steps on copies of batches, made beforehand: the step without an input pipeline.

It trains on repeated batches, so it runs only where it was asked for, after everything else has been measured.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from dlprof.capture import batches
from dlprof.capture.recorder import Recorder

_TEMPLATES = 4
"""Real batches that are copied: loops may treat some differently."""
_SETTLE = 2
"""Served steps that do not count: the device may still work off what came before."""
_STEPS = 20
_FEWEST_STEPS = 5
MOST_BATCHES = _TEMPLATES + _SETTLE + _STEPS
"""Batches that the loop takes meanwhile, at most."""
_MOST_BYTES = 1_000_000_000
_OF_MEMORY = 0.25
_FIRST_NUMBER = 1_000_000_000
"""Served batches are numbered from here within their iteration: no loader has given as many."""


class Ceiling:
    """First takes real batches, then serves copies of them.

    Args:
        recorder: Is told why it cannot be done.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._templates: list[Any] = []
        self._ready: list[Any] = []
        self._served = 0
        self._steps = 0
        self.done = False

    @property
    def serving(self) -> bool:
        """Whether the next batch is a copy."""
        return self._steps > 0

    @property
    def settled(self) -> bool:
        """Whether the step of the batch that was served last counts."""
        return self._served > _SETTLE

    def give_up(self, reason: str) -> None:
        """It cannot be done here."""
        self.done = True
        self._drop()
        self._recorder.notice("ceiling-not-run", reason=reason)

    def before_request(self) -> None:
        """The loop is about to ask for a batch, and the step before has ended. Copying takes place here: in no step."""
        try:
            if self.serving and not self._ready:
                self.done = True
                self._drop()
            elif not self.serving and len(self._templates) == _TEMPLATES:
                self._begin()
        except Exception as error:
            self.give_up(f"a batch could not be copied: {type(error).__name__}: {error}")

    def arrived(self, batch: Any) -> None:
        """A real batch has come, and the loop has not seen it yet."""
        try:
            if not self.done and not self.serving:
                self._templates.append(_copied(batch))
        except Exception as error:
            self.give_up(f"a batch could not be copied: {type(error).__name__}: {error}")

    def serve(self) -> tuple[Any, int]:
        """The next copy, and its number within the iteration."""
        self._served += 1
        return self._ready.pop(), _FIRST_NUMBER + self._served

    def _begin(self) -> None:
        size = max(batches.describe(each)["bytes"] for each in self._templates)
        room = min(_MOST_BYTES, _OF_MEMORY * _available_bytes())
        self._steps = int(min(_STEPS, room // max(size, 1) - _SETTLE))
        if self._steps < _FEWEST_STEPS:
            self.give_up(f"there is no memory for copies of batches of {size} bytes")
            return
        wanted = self._steps + _SETTLE
        # Each is served once, since a loop may change what it gets.
        self._ready = [_copied(self._templates[index % _TEMPLATES]) for index in range(wanted)]

    def _drop(self) -> None:
        self._templates.clear()
        self._ready.clear()


def _copied(batch: Any) -> Any:
    """A copy that shares nothing with ``batch``; pinned where that is."""
    tensors = {id(each): each.clone().pin_memory() for each in batches.tensors(batch) if each.is_pinned()}
    return copy.deepcopy(batch, tensors)


def _available_bytes() -> float:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return 1024.0 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return float(sys.maxsize)
