"""Looks at a thread from a thread of ours in the same process, where nobody can look from outside.

The look needs the GIL: while the watched thread keeps it, the look comes late (*measured:* 4 Hz instead of 98 in
``json.loads``), at the line that gave the GIL up. That may be the line after the one that kept it for so long; from
outside (``thread_watch.py``) no GIL is needed and the line is the right one.

The thread is none of ``threading``'s: the script does not see it in ``threading.enumerate()``, and it keeps no process
from ending.
"""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
from types import FrameType

from dlprof.capture.recorder import Recorder, now, thread_cpu
from dlprof.capture.thread_watch import Thread
from dlprof.formats.sample_file import Frames, SampleWriter

_DEEPEST = 60
"""Frames of a stack that are kept, the innermost first."""
_COST_RATIO = 100
"""A look is followed by a pause of at least so many times its own CPU time."""


class InsideWatch:
    """Looks at the thread that makes it.

    Args:
        recorder: Where the looks go.

    Attributes:
        on: Whether to look at present.

    Raises:
        OSError: The file cannot be made, or the process may not look at itself.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pause_s = 1.0 / recorder.settings.sample_hz
        self._ident = threading.get_ident()
        self._thread = Thread(os.getpid(), threading.get_native_id())
        self._samples = SampleWriter(recorder.folder, recorder.settings.max_disk_bytes // 10)
        self.on = True
        self._stop = threading.Event()
        self._stopped = _thread.allocate_lock()
        self._stopped.acquire()
        _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        """End the looking, and wait until it has ended."""
        self._stop.set()
        self._stopped.acquire()
        self._stopped.release()

    def abandon(self) -> None:
        """Close the files in a forked child: the looking thread is the parent's."""
        self._thread.close()
        self._samples.abandon()

    def _run(self) -> None:
        try:
            self._look_until_stopped()
        except Exception as error:
            self._recorder.notice("samples-lost", error=f"{type(error).__name__}: {error}")
        finally:
            self._stopped.release()

    def _look_until_stopped(self) -> None:
        pause = self._pause_s
        while not self._stop.wait(pause):
            begin, at = thread_cpu(), now()
            if self.on and self._recorder.on:
                frames = self._frames()
                thread = self._thread
                times = (*thread.times(), thread.kernel_ns())
                self._samples.add(at, thread.pid, thread.thread, times, thread.doing(), frames)
            pause = max(self._pause_s, (thread_cpu() - begin) * _COST_RATIO / 1e9)
        self._thread.close()
        self._samples.close(thread_cpu())

    def _frames(self) -> Frames:
        # No frame of the script may live longer for our having looked at it: only texts and numbers are kept.
        found: list[tuple[str, int, str]] = []
        frame = _current_frame(self._ident)
        while frame is not None and len(found) < _DEEPEST:
            code = frame.f_code
            found.append((code.co_filename, frame.f_lineno, code.co_qualname))
            frame = frame.f_back
        return tuple(found)


def _current_frame(ident: int) -> FrameType | None:
    # Before 3.12 a garbage collection within the call may free a threading.local, which needs a lock that the call
    # holds: the process would hang (https://github.com/python/cpython/issues/106883). The GIL was just taken, and
    # nothing in here gives it up, so the script does not see that its collector is off.
    collects = sys.version_info < (3, 12) and gc.isenabled()
    if collects:
        gc.disable()
    try:
        return sys._current_frames().get(ident)
    finally:
        if collects:
            gc.enable()
