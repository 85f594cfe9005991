"""What was replaced in the script's process, so that all of it can be put back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


class Patches:
    """Attributes that were replaced and other things to undo, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a class or module.

        Raises:
            AttributeError, TypeError: It cannot be replaced there.
        """
        original = vars(owner)[name]
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, original))

    def when_restored(self, undo: Callable[[], Any]) -> None:
        """Call ``undo`` when everything is put back."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Put everything back; what cannot be is left."""
        while self._undo:
            with contextlib.suppress(Exception):
                self._undo.pop()()
