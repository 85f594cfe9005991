"""Times functions of the user's own that ``--span module:function`` names, in the training process and its workers.

A function keeps its identity: only its code is exchanged, for one that calls the original's through here. So it is
timed whoever holds it (a dataset, ``collate_fn``, a registry), pickles as before, and may stand in ``__main__``, which
is there only while it runs: the script's own functions are looked for when a loader is iterated or an optimizer steps.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, ModuleType
from typing import Any

from dlprof.capture.patches import Patches
from dlprof.capture.recorder import Recorder, now, thread_cpu
from dlprof.capture.seams import Thinned
from dlprof.model.kinds import Kind, Role

_MAIN = "__main__"
_PASSED_OVER_BY_WARNINGS = "<dlprof, as importlib._bootstrap>"
"""See ``capture/dataloader.py``: a warning that is about the caller's line names the script's as without us."""


class UserSpans:
    """The functions that were named, as far as they are there yet.

    Args:
        recorder: Where the spans go.
        patches: Can take the exchange back.
        targets: ``module:function`` or ``module:Class.method``.
    """

    def __init__(self, recorder: Recorder, patches: Patches, targets: Iterable[str]) -> None:
        self._recorder = recorder
        self._patches = patches
        self._missing = set(targets)

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        """What to call with each module that was named, once the script has imported it."""
        return {target.partition(":")[0]: self._imported for target in self._missing}

    def _imported(self, module: ModuleType) -> None:
        self._look_in(module, module.__name__)

    def look_in_script(self) -> None:
        """Look for functions of the script itself, which no import tells of. Never raises."""
        if not self._missing:
            return
        try:
            main = sys.modules.get(_MAIN)
            if main is not None:
                for name in (_MAIN, _script_name(main)):
                    self._look_in(main, name)
        except Exception as error:
            self._missing.clear()
            self._recorder.notice("hook-failed", hook="--span", error=f"{type(error).__name__}: {error}")

    def _look_in(self, module: ModuleType, name: str) -> None:
        for target in sorted(self._missing):
            of, _, path = target.partition(":")
            if of != name:
                continue
            function, reason = _function(module, path)
            if function is None and reason is None:
                # A script may define it later.
                continue
            self._missing.discard(target)
            if function is not None:
                reason = self._exchange(function, target)
            self._recorder.event("span", target=target, reason=reason)

    def _exchange(self, function: FunctionType, target: str) -> str | None:
        """Let a function be timed; returns why it cannot be."""
        code = function.__code__
        if any(isinstance(constant, _Timed) for constant in code.co_consts):
            return None
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return "it is a generator or a coroutine, whose body does not run when it is called"
        original = FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        original.__qualname__, original.__module__ = function.__qualname__, function.__module__
        function.__code__ = _calling(_Timed(self._recorder, original, target), code)
        # So that inspect.signature and inspect.getsource find the original's.
        had_own = "__wrapped__" in function.__dict__
        if not had_own:
            function.__wrapped__ = original  # type: ignore[attr-defined]

        def undo() -> None:
            function.__code__ = code
            if not had_own:
                del function.__wrapped__  # type: ignore[attr-defined]

        self._patches.when_restored(undo)
        return None


class _Timed:
    """What a function's new code calls: the original, timed."""

    __slots__ = ("_name", "_original", "_recorder", "_thinned")

    def __init__(self, recorder: Recorder, original: FunctionType, name: str) -> None:
        self._recorder = recorder
        self._original = original
        self._name = name
        self._thinned = Thinned()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if not recorder.on:
            return self._original(*args, **kwargs)
        cpu, start = thread_cpu(), now()
        try:
            return self._original(*args, **kwargs)
        finally:
            end = now()
            try:
                weight = self._thinned.weight(end - start)
                if weight:
                    self._record(start, end, thread_cpu() - cpu, weight)
            except Exception as error:
                recorder.failed(self._name, error)

    def _record(self, start: int, end: int, on_cpu: int, weight: int) -> None:
        recorder = self._recorder
        thread = recorder.active_thread()
        if thread is not None:
            kind = Kind.USER_CALL
        elif recorder.role is Role.MAIN:
            thread, kind = recorder.thread(), Kind.USER_HOST
        else:
            return
        thread.writer.add(kind, start, end, name=recorder.name(self._name), on_cpu_ns=on_cpu, weight=weight)

    def __reduce__(self) -> Any:
        # Picklers that write a function by its code (cloudpickle) write this object too: what arrives is not timed.
        return _untimed, (self._original,)


_Timed.__call__.__code__ = _Timed.__call__.__code__.replace(co_filename=_PASSED_OVER_BY_WARNINGS)


def _untimed(original: FunctionType) -> FunctionType:
    return original


def _trampoline(*args: Any, **kwargs: Any) -> Any:
    timed: Any = "timed"
    return timed(*args, **kwargs)


def _calling(timed: _Timed, code: CodeType) -> CodeType:
    """Code that takes whatever a call gives and passes it to ``timed``, and fits where ``code`` was."""
    template = _trampoline.__code__
    return template.replace(
        co_consts=tuple(timed if constant == "timed" else constant for constant in template.co_consts),
        co_filename=_PASSED_OVER_BY_WARNINGS,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        # A function's cells have to be as many as its code says.
        co_freevars=code.co_freevars,
    )


def _function(module: ModuleType, path: str) -> tuple[FunctionType | None, str | None]:
    """The Python function that a path names; or why it cannot be timed, None where it is not there."""
    thing: Any = module
    for name in path.split("."):
        # Not getattr: neither a module's nor a class's own code is to run, and a method is wanted unbound.
        held = [vars(owner) for owner in (thing.__mro__ if isinstance(thing, type) else (thing,))]
        thing = next((each[name] for each in held if name in each), None)
        if thing is None:
            return None, None
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    if isinstance(thing, property):
        thing = thing.fget
    if isinstance(thing, FunctionType):
        return thing, None
    return None, f"it is not a Python function but a {type(thing).__name__}"


def _script_name(main: ModuleType) -> str:
    """By what name the script would be imported: that given to ``-m``, or its file's."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    # Spawned workers run the script again: its module is then called __mp_main__, under both names.
    return os.path.splitext(os.path.basename(getattr(main, "__file__", None) or ""))[0]
