"""Which line of the script makes a DataLoader."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from dlprof.formats.places import Place, is_users

_NOT_NAMED = ("torch", "torchdata", "dlprof")
"""Packages whose lines say nothing of which loader it is."""


class Constructions:
    """Where the loaders of this process were made; keeps none of them alive."""

    def __init__(self) -> None:
        self._places: weakref.WeakKeyDictionary[Any, tuple[Place, ...]] = weakref.WeakKeyDictionary()

    def noted(self, loader: Any) -> tuple[Place, ...]:
        """Remember where ``loader``, which is being made, is made: the first call counts. Raises nothing.

        Returns:
            As `of`.
        """
        try:
            if loader not in self._places:
                self._places[loader] = _places(sys._getframe(1), loader)
            return self._places[loader]
        except Exception:
            # A loader of the script's own that cannot be a key, or is compared in a way that fails as yet.
            return ()

    def of(self, loader: Any) -> tuple[Place, ...]:
        """The line that made a loader, and where that is not the user's own, the user's nearest; may be empty."""
        try:
            return self._places.get(loader, ())
        except Exception:
            return ()


def _places(frame: FrameType | None, loader: Any) -> tuple[Place, ...]:
    found: list[Place] = []
    while frame is not None:
        if not _passed_over(frame, loader):
            users = is_users(frame.f_code.co_filename)
            if users or not found:
                found.append((frame.f_code.co_filename, frame.f_lineno))
            if users:
                break
        frame = frame.f_back
    return tuple(found)


def _passed_over(frame: FrameType, loader: Any) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if package in _NOT_NAMED:
        return True
    # The constructor of a class of the script's own: what is looked for is who calls it.
    code = frame.f_code
    return code.co_name == "__init__" and code.co_argcount > 0 and frame.f_locals.get(code.co_varnames[0]) is loader
