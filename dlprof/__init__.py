"""dlprof says what bounds a PyTorch training step.

This module is imported inside the profiled script and in its workers, so it loads nothing by itself: the public
names are resolved on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlprof.capture.in_process import profile
    from dlprof.capture.marks import iterate, span
    from dlprof.formats.torch_trace import read_trace

__version__ = "0.1.0"
__all__ = ["__version__", "iterate", "profile", "read_trace", "span"]


def __getattr__(name: str) -> Any:
    if name in ("iterate", "span"):
        from dlprof.capture import marks

        return getattr(marks, name)
    if name == "profile":
        from dlprof.capture.in_process import profile

        return profile
    if name == "read_trace":
        from dlprof.formats.torch_trace import read_trace

        return read_trace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
