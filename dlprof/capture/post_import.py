"""Calls a function as soon as the user's code has imported a module, and not before.

Importing torch or tokenizers ourselves would change what the script does and when; so hooks wait for the script.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]


class PostImportFinder(MetaPathFinder):
    """Finds nothing by itself: asks the other finders, and adds a call after the module's code has run.

    Args:
        hooks: Module name to the function called with the module. It must not raise.
    """

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self._hooks = hooks
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' answer, with the hook tied to its loader."""
        hook = self._hooks.get(fullname)
        # Another finder may ask all finders as well, this one included.
        if hook is None or getattr(self._asking, "name", None) == fullname:
            return None
        before = getattr(self._asking, "name", None)
        self._asking.name = fullname
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._asking.name = before
        if spec is not None:
            _call_after(spec, hook)
        return spec

    def _ask_others(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                return spec
        return None

    def install(self) -> None:
        """Put the finder first, and call hooks of modules that are already there."""
        sys.meta_path.insert(0, self)
        for name, hook in self._hooks.items():
            module = sys.modules.get(name)
            if module is not None:
                hook(module)


def _call_after(spec: ModuleSpec, hook: Hook) -> None:
    # The loader keeps its type, which importlib.resources and inspect look at: only this one instance's method is
    # replaced, and only until it has run. A loader may be shared (zip files), hence the comparison of names.
    loader: Any = spec.loader
    original = getattr(loader, "exec_module", None)
    if original is None:
        return

    def exec_module(module: ModuleType) -> None:
        original(module)
        if module.__spec__ is not None and module.__spec__.name == spec.name:
            loader.__dict__.pop("exec_module", None)
            hook(module)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        return
