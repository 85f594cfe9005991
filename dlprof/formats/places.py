"""Files and lines as a report names them. Standard library only: the profiled script imports this module."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_PACKAGES = re.compile(r"^.*/(site|dist)-packages/")
_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3(\.\d+)?/|/python3\d+\.zip/|^<(?!ipython|stdin)")
"""File names of installed packages and the standard library; of the names in angle brackets only those of code that a
user types are the user's."""

Place = tuple[str, int]
"""File and line number."""


def is_users(file: str) -> bool:
    """Whether a file is the user's own, by its name."""
    return _INSTALLED.search(file) is None


def shown_file(file: str) -> str:
    """Relative to the working folder where it is inside that; an installed package's from its name on."""
    return _PACKAGES.sub("", file.removeprefix(os.getcwd() + os.sep))


def made_at(places: Sequence[Place]) -> str:
    """Where something was made: ``train.py:40``, ``transformers/trainer.py:1050 (called from train.py:70)``.

    Args:
        places: The line that made it, and where that is not the user's own, the user's nearest, if there is one.
    """
    first, *callers = (f"{shown_file(file)}:{line}" for file, line in places)
    return first + "".join(f" (called from {caller})" for caller in callers)
