"""Traces made from a described schedule, whose budget is known exactly.

    trace(step(input=ms(3), compute=ms(5)) * 10)
    trace(step(compute=ms(5), all_reduce=us(300)) * 4, rank=1, ranks=2)

Every part of a step lasts for as long as is said and nothing else goes on at that time, unless it is ``hidden``. All
times are nanoseconds. ``trace`` gives the JSON document, as Kineto would write it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlprof.model.kinds import Cause

MAIN, AUTOGRAD = 100, 101
COMPUTE_STREAM, COMMUNICATION_STREAM, COPY_STREAM = 7, 20, 13
NEXT = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"

CAUSE_OF = {
    "input": Cause.INPUT_WAIT,
    "compute": Cause.DEVICE_COMPUTE,
    "fill": Cause.DEVICE_COMPUTE,
    "copy_within": Cause.DEVICE_COMPUTE,
    "h2d": Cause.H2D_COPY,
    "d2h": Cause.H2D_COPY,
    "all_reduce": Cause.COMMUNICATION,
    "synchronize": Cause.SYNCHRONIZATION,
    "launch": Cause.KERNEL_LAUNCH,
    "operator": Cause.KERNEL_LAUNCH,
    "allocate": Cause.KERNEL_LAUNCH,
    "save": Cause.CHECKPOINT,
    "python": Cause.PYTHON,
}
"""What each part of a step counts as."""


@dataclass(frozen=True)
class Part:
    """Something that goes on alone for a while, and what else goes on beside it and changes nothing."""

    what: str
    length_ns: int
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A step that the script marks as ``ProfilerStep#number``, or does not."""

    parts: tuple[Part, ...]
    number: int | None = None


def step(hidden: dict[str, Sequence[str]] | None = None, number: int | None = None, **parts: int) -> list[Mark]:
    """A step with these parts, in this order; ``hidden`` names what goes on beside a part."""
    beside = hidden or {}
    return [Mark(tuple(Part(what, length, tuple(beside.get(what, ()))) for what, length in parts.items()), number)]


@dataclass
class Maker:
    """Events of one process, in the order of their making."""

    pid: int = MAIN
    device: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0

    def host(self, name: str, start: int, end: int, category: str, tid: int = MAIN, **args: Any) -> None:
        self._add(name, start, end, category, self.pid, tid, args)

    def launched(self, name: str, start: int, end: int, category: str, stream: int, **args: Any) -> None:
        """Something on the device, with the zero-length call that launched it."""
        self.calls += 1
        # A call between two parts takes no time of either.
        self.host("cudaLaunchKernel", start, start, "cuda_runtime", correlation=self.calls)
        args = {"correlation": self.calls, "stream": stream, "device": self.device, **args}
        self._add(name, start, end, category, self.device, stream, args)

    def part(self, what: str, start: int, end: int, workers: bool) -> None:
        if what == "input":
            kind = "MultiProcessing" if workers else "SingleProcess"
            self.host(NEXT.format(kind), start, end, "user_annotation")
        elif what == "compute":
            self.launched("gemm", start, end, "kernel", COMPUTE_STREAM)
        elif what == "all_reduce":
            self.launched("ncclDevKernel_AllReduce_Sum_f32", start, end, "kernel", COMMUNICATION_STREAM)
        elif what == "fill":
            self.launched("Memset (Device)", start, end, "gpu_memset", COMPUTE_STREAM, bytes=8)
        elif what in ("h2d", "d2h", "copy_within"):
            names = {"h2d": "HtoD (Pinned -> Device)", "d2h": "DtoH (Device -> Pageable)"}
            name = f"Memcpy {names.get(what, 'DtoD (Device -> Device)')}"
            self.launched(name, start, end, "gpu_memcpy", COPY_STREAM, bytes=end - start)
        elif what == "python":
            self.host("train.py(3): <module>", start, end, "python_function")
        elif what == "save":
            self.host("torch/serialization.py(944): save", start, end, "python_function")
        else:
            name, category = {
                "synchronize": ("cudaStreamSynchronize", "cuda_runtime"),
                "launch": ("cudaLaunchKernel", "cuda_runtime"),
                "allocate": ("cudaMalloc", "cuda_runtime"),
                "operator": ("aten::add", "cpu_op"),
            }[what]
            self.host(name, start, end, category)

    def _add(self, name: str, start: int, end: int, category: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": start / 1000,
                "dur": (end - start) / 1000,
                "args": args,
            }
        )


def events(marks: Iterable[Mark], *, marked: bool = True, workers: bool = False, began_ns: int = 1_000_000) -> Maker:
    """The events of a schedule, one step after the other.

    Args:
        marks: The steps.
        marked: Whether the script marks its steps.
        workers: Whether the loader has workers.
        began_ns: Where the clock stands at the first.
    """
    made, now = Maker(), began_ns
    # Some work of the host and the device, so that neither is taken for not recorded; it takes no time.
    made.host("aten::empty", now, now, "cpu_op")
    made.launched("gemm", now, now, "kernel", COMPUTE_STREAM)
    for order, mark in enumerate(marks):
        begin = now
        for part in mark.parts:
            for beside in part.hidden:
                made.part(beside, now, now + part.length_ns, workers)
            made.part(part.what, now, now + part.length_ns, workers)
            now += part.length_ns
        if marked:
            number = order if mark.number is None else mark.number
            made.host(f"ProfilerStep#{number}", begin, now, "user_annotation")
    return made


def trace(marks: Iterable[Mark], *, rank: int | None = None, ranks: int = 1, **options: Any) -> dict[str, Any]:
    """The JSON document of a schedule; options as of ``events``."""
    document: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}
    if rank is not None:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": ranks}
    return document | {"traceEvents": events(marks, **options).events, "baseTimeNanoseconds": 1_700_000_000_000_000_000}


def text(document: object) -> bytes:
    """As bytes of a file."""
    return json.dumps(document).encode()


def budget_ns(marks: Sequence[Mark]) -> dict[Cause, float]:
    """The mean step by cause: what an analysis has to find."""
    found = dict.fromkeys(Cause, 0.0)
    for mark in marks:
        for part in mark.parts:
            found[CAUSE_OF[part.what]] += part.length_ns / len(marks)
    return found
