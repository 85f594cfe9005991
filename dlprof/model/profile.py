"""The one thing that is saved: everything that was recorded of a run, on one clock.

Times are integer nanoseconds on ``CLOCK_MONOTONIC``; ``clock`` holds one paired wall reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dlprof.model.intervals import Intervals, union
from dlprof.model.kinds import ExitReason, Kind, Role
from dlprof.model.machine import Machine

Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Track:
    """A thread or a device queue on which spans lie.

    Attributes:
        pid: Process.
        thread: Native thread id, or the number of the device stream.
        role: What it is for.
        rank: Rank of its process.
    """

    pid: int
    thread: int
    role: Role
    rank: int


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans as columns, all of shape ``(n,)``; -1 is "not known".

    Attributes:
        start_ns: Start.
        end_ns: End, not before the start.
        kind: A ``Kind``.
        track: Index into the profile's tracks.
        name_id: Index into ``names``.
        batch: Batch number within its iterator.
        iterator: Number of the iterator in the main process, or the worker's generation.
        on_cpu_ns: The thread's CPU time within the span.
        runnable_ns: The thread's wait for a core within the span.
        process_cpu_ns: The process's CPU time within the span.
        value: Bytes, samples, a dataset index or a queue depth, by kind.
        weight: How many such spans this one stands for.
        flags: Bits of ``Flag``.
        names: Interned names; ``names[0]`` is empty.
    """

    start_ns: Column
    end_ns: Column
    kind: Column
    track: Column
    name_id: Column
    batch: Column
    iterator: Column
    on_cpu_ns: Column
    runnable_ns: Column
    process_cpu_ns: Column
    value: Column
    weight: Column
    flags: Column
    names: tuple[str, ...] = ("",)

    COLUMNS = (
        "start_ns",
        "end_ns",
        "kind",
        "track",
        "name_id",
        "batch",
        "iterator",
        "on_cpu_ns",
        "runnable_ns",
        "process_cpu_ns",
        "value",
        "weight",
        "flags",
    )

    def __post_init__(self) -> None:
        sizes = {len(getattr(self, name)) for name in self.COLUMNS}
        if len(sizes) > 1:
            raise ValueError(f"columns of different lengths: {sorted(sizes)}")

    def __len__(self) -> int:
        return len(self.start_ns)

    def where(self, mask: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Spans:
        """The spans that ``mask`` (or an index array) selects, in that order."""
        chosen = {name: getattr(self, name)[mask] for name in self.COLUMNS}
        return Spans(**chosen, names=self.names)

    def of(self, *kinds: Kind) -> Spans:
        """The spans of these kinds, in the order of their start."""
        chosen = np.flatnonzero(np.isin(self.kind, [int(kind) for kind in kinds]))
        return self.where(chosen[np.argsort(self.start_ns[chosen], kind="stable")])

    def duration_ns(self) -> Column:
        """End minus start, shape ``(n,)``."""
        return self.end_ns - self.start_ns

    def covered(self) -> Intervals:
        """The set of points that any of the spans covers."""
        return union(self.start_ns, self.end_ns)


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame of a stack.

    Attributes:
        file: As the code object names it.
        line: Line number, from 1.
        function: Qualified name.
        source: Text of the line, empty where it could not be read.
        is_user: Whether it is the user's code: none of the standard library's, of installed packages' or of dlprof's.
    """

    file: str
    line: int
    function: str
    source: str
    is_user: bool


@dataclass(frozen=True, slots=True)
class Stack:
    """Where a thread was.

    Attributes:
        frames: The innermost first; while a batch was made only those of the making.
        in_fetch: Whether a batch was being made.
    """

    frames: tuple[Frame, ...]
    in_fetch: bool


@dataclass(frozen=True, slots=True)
class Samples:
    """What threads were doing when they were looked at, as columns of shape ``(n,)``, by track in the order of time.

    Attributes:
        at_ns: When.
        track: Index into the profile's tracks.
        on_cpu_ns: The thread's CPU time since it began.
        runnable_ns: Its wait for a core since it began.
        kernel_ns: Its CPU time in the kernel since it began; counted in ticks of some milliseconds.
        doing: A ``Doing``.
        stack: Index into ``stacks``.
        stacks: Where threads were; the first one is not known.
    """

    at_ns: Column
    track: Column
    on_cpu_ns: Column
    runnable_ns: Column
    kernel_ns: Column
    doing: Column
    stack: Column
    stacks: tuple[Stack, ...] = (Stack((), in_fetch=False),)

    COLUMNS = ("at_ns", "track", "on_cpu_ns", "runnable_ns", "kernel_ns", "doing", "stack")

    def __post_init__(self) -> None:
        sizes = {len(getattr(self, name)) for name in self.COLUMNS}
        if len(sizes) > 1:
            raise ValueError(f"columns of different lengths: {sorted(sizes)}")

    def __len__(self) -> int:
        return len(self.at_ns)

    def where(self, mask: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Samples:
        """The looks that ``mask`` (or an index array) selects, in that order."""
        return Samples(**{name: getattr(self, name)[mask] for name in self.COLUMNS}, stacks=self.stacks)


_NOTHING: Column = np.empty(0, dtype=np.int64)
NO_SAMPLES = Samples(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING)


@dataclass(frozen=True, slots=True)
class Loader:
    """A DataLoader of one process.

    Attributes:
        number: From 1.
        pid: The process.
        settings: Those in force.
        asks_worker: Whether the code of its iterable dataset asked which worker it runs in; None where the dataset is
            of another kind, or that would not have been seen.
    """

    number: int
    pid: int
    settings: dict[str, Any]
    asks_worker: bool | None = None


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration over a loader: which worker processes served it, in worker order."""

    number: int
    pid: int
    loader: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What one batch of a loader consists of.

    Attributes:
        loader: The loader's number.
        tensors: Shape and dtype of each tensor.
        size_bytes: Bytes of all tensors.
        samples: Samples in the batch, None where that is not known.
        others: Objects in it that are no tensors.
    """

    loader: int
    tensors: tuple[tuple[tuple[int, ...], str], ...]
    size_bytes: int
    samples: int | None
    others: int


@dataclass(frozen=True, slots=True)
class Padding:
    """Pad tokens among the tokens of some batches of a loader.

    Attributes:
        loader: The loader's number.
        batches: Batches that were counted.
        tokens: Tokens that were looked at in them,
        pad_tokens: and those of them that fill up.
    """

    loader: int
    batches: int
    tokens: int
    pad_tokens: int


@dataclass(frozen=True, slots=True)
class Handover:
    """What handing one batch to the main process costs, in nanoseconds; probed with a copy after the run."""

    worker_cpu_ns: int
    main_cpu_ns: int


@dataclass(frozen=True, slots=True)
class Process:
    """A Python process of the run that left a recording."""

    pid: int
    parent: int
    role: Role
    rank: int
    argv: tuple[str, ...]
    executable: str
    python: str
    began_ns: int
    span_cost_ns: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that was lost, odd or assumed; ``values`` fill its sentence."""

    slug: str
    count: int = 1
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ending:
    """How the script ended.

    Attributes:
        status: What dlprof exits with for it: the script's own, 128+n for signal n, 0 where we stopped it.
        reason: Why it ended.
        detail: The exception, the signal, or the status that the script made of being stopped.
    """

    status: int
    reason: ExitReason
    detail: str | None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was asked for and what became of it.

    Attributes:
        command: As it was started.
        created: ISO 8601 with time zone.
        host: Name of the machine.
        steps: Measured steps asked for, None for all.
        warmup: Warm-up steps asked for.
        trace_steps: Traced steps asked for.
        ending: How the script ended.
        monotonic_ns: One reading of the clock that all times are on,
        wall_ns: and the wall clock at the same moment.
    """

    command: tuple[str, ...]
    created: str
    host: str
    steps: int | None
    warmup: int
    trace_steps: int
    ending: Ending
    monotonic_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A whole run.

    Attributes:
        run: What was asked for and what became of it.
        environment: Facts about machine and versions; values that JSON can hold.
        processes: Who left a recording.
        main_pid: The training process, None where there is none.
        loaders: DataLoaders seen.
        iterations: Iterations over them.
        batches: What a batch of a loader consists of.
        handover: Hand-over as probed after the run, None where it was measured or could not be.
        tracks: Threads and device queues.
        spans: What happened on them.
        device: Name as torch gives it (``cuda:0``), ``cpu`` where no accelerator was used.
        device_name: Model of the accelerator.
        lost_spans: Spans that could not be recorded.
        notices: Whatever else a reader has to know.
        samples: What threads were doing.
        looking_cpu_ns: CPU time that looking at them took, in whichever process.
        machine: Its processes' counters and the machine's load, None where nobody watched from outside.
        padding: Pad tokens in the batches of a loader.
    """

    run: RunFacts
    environment: dict[str, Any]
    processes: tuple[Process, ...]
    main_pid: int | None
    loaders: tuple[Loader, ...]
    iterations: tuple[Iteration, ...]
    batches: tuple[BatchShape, ...]
    handover: Handover | None
    tracks: tuple[Track, ...]
    spans: Spans
    device: str
    device_name: str | None
    lost_spans: int
    notices: tuple[Notice, ...]
    samples: Samples = NO_SAMPLES
    looking_cpu_ns: int = 0
    machine: Machine | None = None
    padding: tuple[Padding, ...] = ()
