"""A trace that somebody's torch.profiler exported: its events as columns, and what is known of where it is from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from dlprof.model.intervals import Intervals, union
from dlprof.model.profile import Notice


class Activity(IntEnum):
    """What an event of a trace is."""

    # On the device.
    KERNEL = 1
    COLLECTIVE = 2
    COPY_H2D = 3
    COPY_D2H = 4
    COPY_OTHER = 5
    """Within the device, or between devices."""
    FILL = 6

    # On the host.
    OPERATOR = 10
    LAUNCH = 11
    SYNCHRONIZE = 12
    ALLOCATOR = 13
    STEP = 20
    """``ProfilerStep#N``: what the script called a step."""
    NEXT = 21
    """A request for a batch from torch's DataLoader."""
    OPTIMIZER = 22
    ANNOTATION = 23
    """What a script calls a part of its own work."""
    FRAME = 24
    """A call of a Python function."""
    CHECKPOINT = 25


ON_DEVICE = (
    Activity.KERNEL,
    Activity.COLLECTIVE,
    Activity.COPY_H2D,
    Activity.COPY_D2H,
    Activity.COPY_OTHER,
    Activity.FILL,
)


@dataclass(frozen=True, slots=True)
class Lane:
    """Where events lie: a thread of a process, or a stream of a device, as the trace names them."""

    pid: int | str
    tid: int | str


@dataclass(frozen=True, slots=True)
class Events:
    """Complete events as columns, all of shape ``(n,)``, in the order of the file.

    Attributes:
        start_ns: Start on the trace's own clock.
        end_ns: End, not before the start.
        activity: An ``Activity``.
        name_id: Index into the trace's names.
        lane: Index into its lanes.
        correlation: Ties an event on the device to the call that launched it; -1 is none.
        size_bytes: Copied or filled, -1 where that is not said.
    """

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    activity: npt.NDArray[np.int8]
    name_id: npt.NDArray[np.int32]
    lane: npt.NDArray[np.int32]
    correlation: npt.NDArray[np.int64]
    size_bytes: npt.NDArray[np.int64]

    COLUMNS = ("start_ns", "end_ns", "activity", "name_id", "lane", "correlation", "size_bytes")

    def __post_init__(self) -> None:
        sizes = {len(getattr(self, name)) for name in self.COLUMNS}
        if len(sizes) > 1:
            raise ValueError(f"columns of different lengths: {sorted(sizes)}")

    def __len__(self) -> int:
        return len(self.start_ns)

    def where(self, mask: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Events:
        """The events that ``mask`` (or an index array) selects, in that order."""
        return Events(*(getattr(self, name)[mask] for name in self.COLUMNS))

    def of(self, *activities: Activity) -> Events:
        """The events of these activities, in the order of their start."""
        chosen = np.flatnonzero(np.isin(self.activity, [int(each) for each in activities]))
        return self.where(chosen[np.argsort(self.start_ns[chosen], kind="stable")])

    def duration_ns(self) -> npt.NDArray[np.int64]:
        """End minus start, shape ``(n,)``."""
        return self.end_ns - self.start_ns

    def covered(self) -> Intervals:
        """The set of points that any of the events covers."""
        return union(self.start_ns, self.end_ns)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a trace is from, as far as it says.

    Attributes:
        file: Name of the file.
        folder: Where it lies.
        rank: Rank of its process, None where it is not one of several or that is not said.
        world_size: Number of ranks, 1 where nothing else is said.
        worker: Name of the process, from the file's name; empty where that has none.
        devices: Models of the devices that it may use, None where that is not said.
        base_ns: Wall clock where the trace's own clock stands at 0.
        made_by: The backend of the ranks, schema and other facts, as they stand in the trace.
    """

    file: str
    folder: str = ""
    rank: int | None = None
    world_size: int = 1
    worker: str = ""
    devices: tuple[str, ...] | None = None
    base_ns: int = 0
    made_by: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as it was read.

    Attributes:
        origin: Where it is from.
        events: Those that say where time goes.
        names: What they are called.
        lanes: Where they lie.
        seen: Events of any kind in the file.
        json_bytes: Size of its text.
        notices: What was lost or mended.
    """

    origin: Origin
    events: Events
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    seen: int
    json_bytes: int
    notices: tuple[Notice, ...] = ()
