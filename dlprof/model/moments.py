"""Single steps to look at: what the training loop, each worker, the pinning thread and the device did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """What a stretch of a lane is."""

    WAIT = "wait"
    STEP = "step"
    AWAITED = "awaited"
    """The batch of the step that is looked at is being made."""
    OTHERS = "others"
    """Another batch is being made."""
    HAND_OVER = "hand-over"
    """The batch of the step is pickled and sent."""
    UNPICKLE = "unpickle"
    """A batch that has arrived is unpickled by the thread that waits for it."""
    PIN = "pin"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of time, in milliseconds since the step began."""

    start_ms: float
    end_ms: float
    part: Part


@dataclass(frozen=True, slots=True)
class Lane:
    """What one thread did. ``name`` is dlprof's own word, as ``worker 2``."""

    name: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """One step and what led to it.

    Attributes:
        key: ``typical`` or ``slowest``.
        index: The step's number.
        ms: Its length.
        wait_ms: The wait for its batch.
        from_ms: Where the lanes begin, in ms since the step began; not above 0.
        to_ms: Where they end: ``ms``, and what of dlprof's own work or of another loader's lay within the step.
        made_ms: How long the making of its batch took; None where that was not seen.
        made_from_ms: When it began, in ms since the step began; None likewise.
        made_by: The lane that made it; empty likewise.
        lanes: The training loop's first.
    """

    key: str
    index: int
    ms: float
    wait_ms: float
    from_ms: float
    to_ms: float
    made_ms: float | None
    made_from_ms: float | None
    made_by: str
    lanes: tuple[Lane, ...]
