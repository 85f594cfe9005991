"""Times the writing of checkpoints: ``torch.save``, and the renaming that puts what it wrote into its place."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from dlprof.capture.patches import Patches
from dlprof.capture.recorder import Recorder, now
from dlprof.model.kinds import Kind

_MOST_PATHS = 64
_RENAMING = ("replace", "rename")


class Checkpoints:
    """What the script has saved, as far as it has not been renamed.

    Args:
        recorder: Where the spans go.
        patches: Can take the patches back.
    """

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self._recorder = recorder
        self._patches = patches
        self._written: dict[str, None] = {}
        self._watches_renaming = False

    def hook(self, module: Any) -> None:
        """Patch ``torch.serialization``, given as ``module``."""
        original = module.save

        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            start = now()
            try:
                return original(*args, **kwargs)
            finally:
                self._record(start)
                self._remember(args[1] if len(args) > 1 else kwargs.get("f"))

        self._patches.set(module, "save", save)
        torch = sys.modules.get("torch")
        if getattr(torch, "save", None) is original:
            # torch was imported before us and has taken the name over.
            self._patches.set(torch, "save", save)

    def _record(self, start: int) -> None:
        if self._recorder.on:
            try:
                self._recorder.thread().writer.add(Kind.CHECKPOINT, start, now())
            except Exception as error:
                self._recorder.failed("save", error)

    def _remember(self, file: Any) -> None:
        # Scripts write to another name first, so that no half of a checkpoint takes the place of a whole one. Renaming
        # is part of the writing: *measured* on ext4, as long as the save, since it waits until the pages are written.
        if not isinstance(file, str | os.PathLike):
            return
        try:
            self._written[os.path.abspath(os.fspath(file))] = None
            if len(self._written) > _MOST_PATHS:
                self._written.pop(next(iter(self._written)))
            if not self._watches_renaming:
                self._watches_renaming = True
                for name in _RENAMING:
                    self._patches.set(os, name, self._timed(getattr(os, name)))
        except Exception as error:
            self._recorder.notice("hook-failed", hook="save", error=f"{type(error).__name__}: {error}")

    def _timed(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def renamed(src: Any, *args: Any, **kwargs: Any) -> None:
            start = now()
            original(src, *args, **kwargs)
            if self._recorder.on and self._was_written(src):
                self._record(start)

        return renamed

    def _was_written(self, path: Any) -> bool:
        """Whether it is a checkpoint, or a folder that holds one; then it is forgotten."""
        try:
            renamed = os.path.abspath(os.fspath(path))
            found = [each for each in self._written if each == renamed or each.startswith(f"{renamed}{os.sep}")]
            for each in found:
                del self._written[each]
        except Exception:
            # Given as bytes or as a descriptor's name.
            return False
        return bool(found)
