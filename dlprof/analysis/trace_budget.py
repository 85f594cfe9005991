"""Where the time of a trace's steps went: exclusive by cause, and overlapped as the device and the host saw it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dlprof.analysis.partition import CAUSES, Partition, Table
from dlprof.analysis.trace_scope import Scope
from dlprof.analysis.trace_steps import TraceStep, requests
from dlprof.model.diagnosis import Breakdown
from dlprof.model.intervals import Intervals, intersect, overlap, subtract, union
from dlprof.model.kinds import Cause
from dlprof.model.report import Source
from dlprof.model.trace import Activity

_COPIES = (Activity.COPY_H2D, Activity.COPY_D2H)
_BUSY = (*_COPIES, Activity.KERNEL, Activity.COLLECTIVE, Activity.COPY_OTHER, Activity.FILL)


@dataclass(frozen=True, slots=True)
class Measures:
    """Nanoseconds of each step, shape ``(n,)``, overlapped: they do not add up to anything.

    Attributes:
        wall: The step.
        compute: Kernels other than collectives.
        busy: Anything ran on the device.
        communication_exposed: Collectives while no kernel computed,
        h2d_exposed: copies to the device while neither ran,
        d2h_exposed: and copies from it.
        request: The training loop asked for a batch,
        request_idle: and the device had nothing to do.
        synchronize_idle: A call waited for a device that had nothing to do.
        launch: Calls of the device's runtime that launch something.
        kernels: Number of kernels and collectives that began.
        idle: Why the device had nothing to do, by reason; these add up to wall less busy.
    """

    wall: npt.NDArray[np.int64]
    compute: npt.NDArray[np.int64]
    busy: npt.NDArray[np.int64]
    communication_exposed: npt.NDArray[np.int64]
    h2d_exposed: npt.NDArray[np.int64]
    d2h_exposed: npt.NDArray[np.int64]
    request: npt.NDArray[np.int64]
    request_idle: npt.NDArray[np.int64]
    synchronize_idle: npt.NDArray[np.int64]
    launch: npt.NDArray[np.int64]
    kernels: npt.NDArray[np.int64]
    idle: dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Budget:
    """What the steps' time went to.

    Attributes:
        causes: Nanoseconds per step and cause, exclusive, shape ``(n, len(CAUSES))``; rows sum to the steps.
        measures: The same steps, overlapped.
        on_device: Whether the trace has a device's record; else the CPU is the device.
    """

    causes: Table
    measures: Measures
    on_device: bool

    def rows(self, mask: npt.NDArray[np.bool_]) -> Budget:
        """The budget of the steps that ``mask`` selects."""
        columns = {item.name: getattr(self.measures, item.name) for item in fields(Measures)}
        idle = {reason: spent[mask] for reason, spent in columns.pop("idle").items()}
        measures = Measures(**{name: column[mask] for name, column in columns.items()}, idle=idle)
        return Budget(self.causes[mask], measures, self.on_device)


def cut(scope: Scope, steps: tuple[TraceStep, ...]) -> Budget:
    """Cut steps into causes, the first that matches, in the order of ``Cause``.

    Args:
        scope: The process's events.
        steps: Its steps; they do not overlap.
    """
    starts = np.array([step.start_ns for step in steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in steps], dtype=np.int64)
    asked = requests(scope).covered()
    on_device = bool(len(scope.device))
    table = np.zeros((len(steps), len(CAUSES)))
    taken: list[Intervals] = []
    for cause, covered in _by_cause(scope, asked, on_device):
        own = covered
        for earlier in taken:
            own = subtract(own, earlier)
        taken.append(own)
        table[:, CAUSES.index(cause)] += overlap(own, starts, ends)
    # Without a record of the host it is not known that the rest is Python.
    rest = Cause.PYTHON if len(scope.host.of(Activity.OPERATOR, Activity.LAUNCH, Activity.FRAME)) else Cause.OTHER
    table[:, CAUSES.index(rest)] += (ends - starts) - table.sum(axis=1)
    return Budget(table, _measures(scope, asked, starts, ends), on_device)


def as_partition(budget: Budget) -> Partition | None:
    """The budget in the form that the verdict is made from; None without a step."""
    if not len(budget.causes):
        return None
    mean = budget.causes.mean(axis=0)
    ns = {cause: float(mean[place]) for place, cause in enumerate(CAUSES)}
    source: dict[Cause, Source] = dict.fromkeys(CAUSES, "traced")
    return Partition(Breakdown(sum(ns.values()), ns, source), budget.causes, np.zeros((0, 0)), None)


def _by_cause(scope: Scope, asked: Intervals, on_device: bool) -> list[tuple[Cause, Intervals]]:
    device, host = scope.device, scope.host
    operators = host.of(Activity.OPERATOR).covered()
    if not on_device:
        # On a CPU, operators outside a request for a batch are the model's.
        saving = host.of(Activity.CHECKPOINT).covered()
        return [
            (Cause.DEVICE_COMPUTE, subtract(operators, asked)),
            (Cause.INPUT_WAIT, asked),
            (Cause.CHECKPOINT, saving),
        ]
    calls = host.of(Activity.LAUNCH, Activity.ALLOCATOR).covered()
    return [
        # A copy within the device, or filling its memory, is the device's own work.
        (Cause.DEVICE_COMPUTE, device.of(Activity.KERNEL, Activity.COPY_OTHER, Activity.FILL).covered()),
        (Cause.H2D_COPY, device.of(*_COPIES).covered()),
        (Cause.INPUT_WAIT, asked),
        (Cause.COMMUNICATION, device.of(Activity.COLLECTIVE).covered()),
        (Cause.SYNCHRONIZATION, host.of(Activity.SYNCHRONIZE).covered()),
        (Cause.KERNEL_LAUNCH, _either(operators, calls)),
        (Cause.CHECKPOINT, host.of(Activity.CHECKPOINT).covered()),
    ]


def _measures(scope: Scope, asked: Intervals, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Measures:
    device, host = scope.device, scope.host
    compute = device.of(Activity.KERNEL).covered()
    collectives = device.of(Activity.COLLECTIVE).covered()
    busy = device.of(*_BUSY).covered()
    began = np.sort(device.of(Activity.KERNEL, Activity.COLLECTIVE).start_ns)

    def within(covered: Intervals) -> npt.NDArray[np.int64]:
        return overlap(covered, starts, ends)

    def exposed(activity: Activity, *behind: Intervals) -> npt.NDArray[np.int64]:
        left = device.of(activity).covered()
        for each in behind:
            left = subtract(left, each)
        return within(left)

    idle = subtract(union(starts, ends), busy) if len(starts) else union([], [])
    reasons: dict[str, npt.NDArray[np.int64]] = {}
    for reason, covered in (
        ("input", asked),
        ("synchronization", host.of(Activity.SYNCHRONIZE).covered()),
        ("allocator", host.of(Activity.ALLOCATOR).covered()),
        ("launch", host.of(Activity.LAUNCH, Activity.OPERATOR).covered()),
    ):
        hit = intersect(idle, covered)
        reasons[reason] = within(hit)
        idle = subtract(idle, hit)
    reasons["python"] = within(idle)
    return Measures(
        wall=ends - starts,
        compute=within(compute),
        busy=within(busy),
        communication_exposed=exposed(Activity.COLLECTIVE, compute),
        h2d_exposed=exposed(Activity.COPY_H2D, compute, collectives),
        d2h_exposed=exposed(Activity.COPY_D2H, compute, collectives),
        request=within(asked),
        request_idle=within(subtract(asked, busy)),
        synchronize_idle=within(subtract(host.of(Activity.SYNCHRONIZE).covered(), busy)),
        launch=within(host.of(Activity.LAUNCH).covered()),
        kernels=np.searchsorted(began, ends) - np.searchsorted(began, starts),
        idle=reasons,
    )


def _either(left: Intervals, right: Intervals) -> Intervals:
    return union(np.concatenate([left[:, 0], right[:, 0]]), np.concatenate([left[:, 1], right[:, 1]]))
