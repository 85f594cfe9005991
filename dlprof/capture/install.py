"""Puts the hooks in place in one process; called by the bootstrap before the script's own code runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dlprof.capture import seams
from dlprof.capture.checkpoints import Checkpoints
from dlprof.capture.dataloader import DataLoaderHooks
from dlprof.capture.patches import Patches
from dlprof.capture.post_import import PostImportFinder
from dlprof.capture.session import Session
from dlprof.capture.user_spans import UserSpans
from dlprof.capture.worker import timed_worker_loop
from dlprof.formats import event_file
from dlprof.formats.settings_file import load_settings

_session: Session | None = None


def current() -> Session | None:
    """This process's session, None where nothing is recorded."""
    return _session


def install(folder: str) -> Patches:
    """Hook torch's loader and optimizers, ``torch.save`` and the seams, each when the script imports it.

    Args:
        folder: The recording folder.

    Returns:
        What was replaced; ``restore`` takes all hooks back.

    Raises:
        OSError, ValueError, TypeError: The folder holds no settings that can be read.
    """
    global _session  # noqa: PLW0603 - one session a process
    patches = Patches()
    settings = load_settings(folder)
    session = Session(folder, settings)
    # An empty file tells that the hooks are in place here, whether or not there will be anything to record.
    os.close(os.open(f"{folder}/{os.getpid()}{event_file.SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    _session = session
    patches.when_restored(_forget)
    loader_hooks = DataLoaderHooks(session)
    patches.when_restored(loader_hooks.restore)
    table: dict[str, Callable[[ModuleType], None]] = {
        "torch.utils.data._utils.worker": _one_after_the_other(
            lambda module: _hook_worker(session, loader_hooks, patches, module),
            lambda module: _hook_worker_info(loader_hooks, patches, module),
        ),
        "torch.utils.data.dataloader": loader_hooks.install,
        "torchdata.stateful_dataloader.worker": lambda module: _hook_worker(session, loader_hooks, patches, module),
        "torchdata.stateful_dataloader.stateful_dataloader": loader_hooks.install_stateful,
        "torch.optim.optimizer": lambda module: _hook_optimizers(session, patches, module),
        "torch.serialization": Checkpoints(session.recorder, patches).hook,
        **seams.hooks(session.recorder, patches),
    }
    if settings.spans:
        session.user_spans = UserSpans(session.recorder, patches, settings.spans)
        for name, hook in session.user_spans.hooks().items():
            table[name] = _one_after_the_other(table[name], hook) if name in table else hook
    guarded = {name: _guarded(session, name, hook) for name, hook in table.items()}
    finder = PostImportFinder(guarded)
    finder.install()
    patches.when_restored(lambda: sys.meta_path.remove(finder))
    return patches


def _forget() -> None:
    global _session  # noqa: PLW0603 - see install
    _session = None


def _one_after_the_other(
    first: Callable[[ModuleType], None], second: Callable[[ModuleType], None]
) -> Callable[[ModuleType], None]:
    def run(module: ModuleType) -> None:
        first(module)
        second(module)

    return run


def _guarded(session: Session, name: str, hook: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def run(module: ModuleType) -> None:
        try:
            hook(module)
        except Exception as error:
            session.recorder.notice("hook-missing", hook=name, error=f"{type(error).__name__}: {error}")

    return run


def _hook_worker(session: Session, loader_hooks: DataLoaderHooks, patches: Patches, module: Any) -> None:
    patches.set(module, "_worker_loop", timed_worker_loop(session, loader_hooks, module._worker_loop))


def _hook_worker_info(loader_hooks: DataLoaderHooks, patches: Patches, module: Any) -> None:
    watched = loader_hooks.shards.hook(module)
    if watched is not None:
        patches.set(module, "get_worker_info", watched)


def _hook_optimizers(session: Session, patches: Patches, module: Any) -> None:
    def before(*_: Any) -> None:
        session.optimizer_begins()

    def after(*_: Any) -> None:
        session.optimizer_ends()

    patches.when_restored(module.register_optimizer_step_pre_hook(before).remove)
    patches.when_restored(module.register_optimizer_step_post_hook(after).remove)
