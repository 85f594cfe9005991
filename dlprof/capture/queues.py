"""Times what the training thread waits for where another thread requests the batches and hands them over in a queue.

``queue.Queue.get`` is replaced when an optimizer has stepped in a thread that took no batch itself, and not before:
scripts whose loop requests its own batches never see it. Waits at other things (``queue.SimpleQueue``, which is written
in C, a deque with a lock) cannot be seen this way.
"""

from __future__ import annotations

import functools
import queue
import weakref
from _thread import get_ident
from collections.abc import Callable
from typing import Any

Begin = Callable[[], Any]
End = Callable[[Any, int], None]


class QueueWatch:
    """Tells of each item that certain threads take from a ``queue.Queue``.

    Args:
        begin: Called in such a thread before it asks a queue; what it returns goes to ``end``. None: not to be timed.
        end: Called when it has got an item, with what the first of its tries began with and the queue's number (from
            0, by first use).
    """

    def __init__(self, begin: Begin, end: End) -> None:
        self._begin = begin
        self._end = end
        self._original: Any = None
        self._threads: set[int] = set()
        self._count = 0
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._tries: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def add_thread(self) -> None:
        """The calling thread's gets are told of from now on."""
        self._threads.add(get_ident())
        if self._original is None:
            self._original = queue.Queue.get
            queue.Queue.get = self._timed(self._original)  # type: ignore[method-assign]

    def watches_this_thread(self) -> bool:
        """Whether the calling thread's gets are told of."""
        return get_ident() in self._threads

    def restore(self) -> None:
        """Take the patch back; in a forked child too."""
        if self._original is not None:
            queue.Queue.get = self._original  # type: ignore[method-assign]
        self._original = None
        self._threads.clear()
        self._tries.clear()

    def _timed(self, original: Any) -> Any:
        threads, tries = self._threads, self._tries

        @functools.wraps(original)
        def get(asked: Any, *args: Any, **kwargs: Any) -> Any:
            if get_ident() not in threads:
                return original(asked, *args, **kwargs)
            begun = tries.pop(asked, None) or self._begin()
            if begun is None:
                return original(asked, *args, **kwargs)
            try:
                item = original(asked, *args, **kwargs)
            except queue.Empty:
                # With a time limit, or without waiting: the script will try again.
                tries[asked] = begun
                raise
            self._end(begun, self._number(asked))
            return item

        return get

    def _number(self, asked: Any) -> int:
        number = self._numbers.get(asked)
        if number is None:
            number = self._numbers[asked] = self._count
            self._count += 1
        return number
