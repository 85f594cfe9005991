"""torch.profiler over the last steps: started and stopped between steps, exported when the script has ended.

Measured reasons: it slows the steps that it sees, stopping it takes seconds in which queues fill, and workers that
are forked while it is on go on recording. So it comes last, and never while workers are started.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from dlprof.capture.device import Accelerator, accelerator_in_use
from dlprof.capture.recorder import Recorder, now
from dlprof.model.kinds import Kind

MARKER = "dlprof.clock"
"""Name of the zero-length ranges that tie torch's clock to ours."""

_KINETO_LOG_LEVEL = "KINETO_LOG_LEVEL"
_GROWTH_LIMIT_BYTES = 160 * 2**20
"""Memory that the script's process may take on while it is traced, looked at between steps.

An event takes about 224 bytes while it is recorded and up to 1.5 kilobytes when the profiler stops: this bounds the
whole to about a gigabyte. A single step that makes millions of events is past it when it is looked at. What CUPTI
records of the device has a limit of its own in Kineto (``ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB``, 128 by default), after
which the device is traced no further.
"""

_ACTIVITIES = {"cuda": "CUDA", "xpu": "XPU", "hpu": "HPU", "mtia": "MTIA"}
"""Accelerators that torch's profiler knows by name; any other is its ``PrivateUse1``."""


class Tracer:
    """torch.profiler on behalf of dlprof.

    Args:
        recorder: Where its spans, events and notices go.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._profile: Any = None
        self._finished: Any = None
        self._began_ns = 0
        self._resident_at_start = 0
        self._markers: list[tuple[int, int]] = []
        self._restore: list[tuple[Any, str, Any]] = []

    @property
    def on(self) -> bool:
        """Whether the profiler is on by our doing."""
        return self._profile is not None

    def prepare(self) -> None:
        """Let Kineto begin, in the main thread: in another one it would complain on standard error. Never raises.

        Measured: two milliseconds.
        """
        with contextlib.suppress(Exception):
            import torch

            if not self.on and not torch.autograd._profiler_enabled():
                with _quiet_kineto(), torch.autograd.profiler.profile(use_cpu=True, use_kineto=True):
                    pass

    def start(self) -> bool:
        """Start the profiler; False, with a notice, where that cannot be."""
        import torch

        if torch.autograd._profiler_enabled():
            self._recorder.notice("trace-skipped-user-profiler")
            return False
        began = now()
        device = self._traceable(torch)
        # Without use_kineto torch would time operators by events on the device and record no kernel and no copy.
        profile = torch.autograd.profiler.profile(use_cpu=True, use_device=device, use_kineto=True)
        with _quiet_kineto():
            profile.__enter__()
        self._profile = profile
        self._yield_to_user(torch.autograd.profiler)
        self._resident_at_start = _resident_bytes()
        self._began_ns = now()
        self._recorder.thread().writer.add(Kind.OWN, began, self._began_ns, name=self._recorder.name("start-profiler"))
        return True

    def _traceable(self, torch: Any) -> str | None:
        """The accelerator in use if this torch can trace it; a notice where it cannot."""
        found = accelerator_in_use()
        if found is None:
            return None
        if not _supported(torch, found):
            self._recorder.notice("trace-without-device", device=found.type)
            return None
        return found.type

    def mark(self) -> None:
        """Leave a marker in both clocks; between steps only."""
        import torch

        before = now()
        with torch.autograd.profiler.record_function(MARKER):
            pass
        self._markers.append((before, now()))

    def too_large(self) -> bool:
        """Whether the trace has taken so much memory that it has to end now."""
        return _resident_bytes() - self._resident_at_start > _GROWTH_LIMIT_BYTES

    def stop(self) -> None:
        """Stop the profiler; what it saw is kept in memory until ``export``."""
        if self._profile is None:
            return
        ended = now()
        profile, self._profile = self._profile, None
        self._give_back()
        profile.__exit__(None, None, None)
        self._finished = profile
        writer = self._recorder.thread().writer
        writer.add(Kind.TRACED, self._began_ns, ended)
        writer.add(Kind.OWN, ended, now(), name=self._recorder.name("stop-profiler"))

    def export(self) -> None:
        """Write the trace beside the recording. Called when the script has ended."""
        self.stop()
        finished, self._finished = self._finished, None
        if finished is None:
            return
        path = f"{self._recorder.folder}/{os.getpid()}.torch.json"
        finished.export_chrome_trace(path)
        self._recorder.event("trace", path=os.path.basename(path), markers=self._markers)

    def abandon(self) -> None:
        """In a forked child: the parent's profiler must not go on here."""
        if self._profile is not None:
            torch = sys.modules["torch"]
            with contextlib.suppress(Exception):
                torch.autograd._disable_profiler()
        self._profile = self._finished = None
        self._give_back()

    def _yield_to_user(self, module: Any) -> None:
        # torch knows one profiler at a time: one that the user starts inside ours would silently stay empty.
        for name in ("_prepare_profiler", "_enable_profiler"):
            original = getattr(module, name, None)
            if original is not None:
                self._restore.append((module, name, original))
                setattr(module, name, self._yielding(original))

    def _yielding(self, original: Any) -> Any:
        def start_users(*args: Any, **kwargs: Any) -> Any:
            if self._profile is not None:
                try:
                    self.stop()
                    self._recorder.notice("trace-yielded-user-profiler")
                except Exception as error:
                    self._recorder.notice("trace-failed", error=f"{type(error).__name__}: {error}")
            return original(*args, **kwargs)

        return start_users

    def _give_back(self) -> None:
        while self._restore:
            module, name, original = self._restore.pop()
            setattr(module, name, original)


def _supported(torch: Any, accelerator: Accelerator) -> bool:
    name = _ACTIVITIES.get(accelerator.type)
    if name is None:
        registered = getattr(torch._C, "_get_privateuse1_backend_name", None)
        if registered is None or registered() != accelerator.type:
            return False
        name = "PrivateUse1"
    activity = getattr(torch.autograd.ProfilerActivity, name, None)
    supported = getattr(torch.autograd, "_supported_activities", None)
    return activity is not None and supported is not None and activity in supported()


@contextlib.contextmanager
def _quiet_kineto() -> Iterator[None]:
    # Kineto reads its log level once, at its first start, and tells of starts and stops on standard error, which is
    # the script's. 6 is past its highest level; a level that the user has set stays.
    if _KINETO_LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_KINETO_LOG_LEVEL] = "6"
    try:
        yield
    finally:
        del os.environ[_KINETO_LOG_LEVEL]


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
