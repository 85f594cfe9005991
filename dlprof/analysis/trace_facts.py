"""What else a trace tells of its steps: the device's work, what launching costs, and who waits for the device where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlprof.analysis.trace_budget import Budget
from dlprof.analysis.trace_scope import Scope
from dlprof.analysis.trace_steps import TraceStep, matched
from dlprof.model.intervals import overlap
from dlprof.model.report import Device, Kernel, Total, Totals
from dlprof.model.trace import Activity, Events

_MS = 1e6
_US = 1e3
_SPARSE = 100
"""Nine tenths of the gaps between numbers of consecutive calls, from which most calls were left out of the trace.

Numbers are counted up by every call of the runtime, recorded or not. *Seen:* 2 to 34 in whole traces, 280 in one that
was thinned out.
"""
_LEAST_CALLS = 100
_WITHOUT_KERNELS = 0.02
"""Kernels per launch, below which the device was not recorded: where launches and kernels have no numbers."""
_WITH_KERNELS = 0.9
"""Part of the numbered launches whose kernels are there, below which what the device did is not known. *Measured:* 1 in
real traces of all generations; launches at the end of the recording may lack theirs."""
_LAUNCHES = re.compile(r"Launch\w*Kernel|GraphLaunch")


@dataclass(frozen=True, slots=True)
class Launches:
    """How the host keeps the device fed.

    Attributes:
        kernels_per_step: Kernels and collectives that a step begins.
        kernel_us_p50: Length of the median kernel in µs.
        delay_us_p50: From the launch of a kernel to its start, median, in µs; None where launches are not tied to them.
    """

    kernels_per_step: float
    kernel_us_p50: float | None
    delay_us_p50: float | None


def device(scope: Scope, steps: tuple[TraceStep, ...], budget: Budget, top: int) -> Device | None:
    """The device during the steps; None where the trace has no record of one.

    Args:
        scope: The process's events.
        steps: Those that count.
        budget: Theirs.
        top: Kernels that are named at most.
    """
    wall = int(budget.measures.wall.sum())
    if not budget.on_device or not wall:
        return None
    events = within(scope.device, steps)
    copies = events.of(Activity.COPY_H2D)
    size = float(np.maximum(copies.size_bytes, 0).sum())
    spent = float(copies.duration_ns().sum())
    names = [scope.name(int(each)) for each in copies.name_id]
    pageable = np.array(["Pageable" in name for name in names], dtype=bool)
    # AMD's names do not say where the memory was.
    told = any("Pageable" in name or "Pinned" in name for name in names)
    busy = int(budget.measures.busy.sum())
    return Device(
        busy_ratio=busy / wall,
        idle_ms_per_step=(wall - busy) / len(steps) / _MS,
        h2d_bytes_per_step=size / len(steps) if size else None,
        h2d_gb_per_s=size / spent if spent and size else None,
        h2d_pageable_ratio=float(np.maximum(copies.size_bytes[pageable], 0).sum()) / size if size and told else None,
        top_kernels=[
            Kernel(name, ms, calls)
            for name, ms, calls in _ranked(scope, events.of(Activity.KERNEL, Activity.COLLECTIVE), len(steps), top)
        ],
    )


def totals(scope: Scope, steps: tuple[TraceStep, ...], budget: Budget) -> Totals:
    """Copies to the device and its own work, overlapped or not."""
    if not steps or not budget.on_device:
        return Totals()
    copies = within(scope.device, steps).of(Activity.COPY_H2D)
    compute = Total(float(budget.measures.compute.mean()) / _MS, int(budget.measures.kernels.sum()))
    spent = float(copies.duration_ns().sum()) / _MS / len(steps)
    return Totals(h2d=Total(spent, len(copies)) if len(copies) else None, device_step=compute)


def launches(scope: Scope, steps: tuple[TraceStep, ...]) -> Launches | None:
    """What launching kernels looks like; None where no kernel was recorded."""
    kernels = within(scope.device, steps).of(Activity.KERNEL, Activity.COLLECTIVE)
    if not len(kernels):
        return None
    calls = within(scope.host, steps).of(Activity.LAUNCH)
    launch, kernel = matched(calls, kernels)
    delay = kernels.start_ns[kernel] - calls.start_ns[launch]
    return Launches(
        kernels_per_step=len(kernels) / len(steps),
        kernel_us_p50=float(np.median(kernels.duration_ns())) / _US,
        delay_us_p50=float(np.median(delay)) / _US if len(delay) else None,
    )


def operators(scope: Scope, steps: tuple[TraceStep, ...], top: int) -> list[dict[str, Any]]:
    """Operators by the time of the host that they take themselves, without those that they call."""
    found = within(scope.host, steps).of(Activity.OPERATOR)
    own = found.duration_ns().astype(np.float64)
    outer = enclosing(found)
    np.subtract.at(own, outer[outer >= 0], found.duration_ns()[outer >= 0])
    return [
        {"name": name, "self_ms_per_step": ms, "calls_per_step": calls}
        for name, ms, calls in _ranked(scope, found, len(steps), top, np.maximum(own, 0))
    ]


def synchronizing(scope: Scope, steps: tuple[TraceStep, ...], top: int) -> list[dict[str, Any]]:
    """Calls that wait for the device, with the line of Python that makes them where the trace has it."""
    calls = within(scope.host, steps).of(Activity.SYNCHRONIZE)
    where = _python_lines(scope, calls)
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for name, line, spent in zip(calls.name_id.tolist(), where, calls.duration_ns().tolist(), strict=True):
        total, number = found.get((scope.name(name), line), (0, 0))
        found[scope.name(name), line] = (total + spent, number + 1)
    ranked = sorted(found.items(), key=lambda each: -each[1][0])[:top]
    return [
        {
            "name": name,
            "where": line or None,
            "ms_per_step": total / len(steps) / _MS,
            "calls_per_step": number / len(steps),
        }
        for (name, line), (total, number) in ranked
    ]


def annotated(scope: Scope, steps: tuple[TraceStep, ...], top: int) -> list[dict[str, Any]]:
    """What the script calls parts of its own work, and how much of that the device was busy.

    A part that the script calls loading may be a wait for the device: the device's record says which.
    """
    found = within(scope.main, steps).of(Activity.ANNOTATION)
    busy = overlap(scope.device.covered(), found.start_ns, found.end_ns)
    rows = []
    for name, ms, calls in _ranked(scope, found, len(steps), top):
        own = np.array([scope.name(int(each)) == name for each in found.name_id], dtype=bool)
        spent = int(found.duration_ns()[own].sum())
        rows.append(
            {
                "name": name,
                "ms_per_step": ms,
                "calls_per_step": calls,
                "device_busy_ratio": float(busy[own].sum()) / spent if spent else 0.0,
            }
        )
    return rows


def workers_seen(scope: Scope) -> int | None:
    """0 where batches are made in the training process, -1 where the loader has workers, None where it is not seen."""
    names = {scope.name(int(each)) for each in np.unique(scope.main.of(Activity.NEXT).name_id)}
    if any("_MultiProcessingDataLoaderIter" in name for name in names):
        return -1
    return 0 if any("_SingleProcessDataLoaderIter" in name for name in names) else None


def device_not_recorded(scope: Scope, steps: tuple[TraceStep, ...]) -> bool:
    """Whether kernels were launched in these steps, and nothing says what became of many of them."""
    calls = within(scope.host.of(Activity.LAUNCH), steps)
    launching = np.array([_LAUNCHES.search(name) is not None for name in scope.names], dtype=bool)
    calls = calls.where(launching[calls.name_id])
    if not len(calls):
        return False
    numbers = calls.correlation[calls.correlation > 0]
    if len(numbers) > len(calls) / 2:
        return float(np.isin(numbers, scope.device.correlation).mean()) < _WITH_KERNELS
    return len(scope.device) < _WITHOUT_KERNELS * len(calls)


def kernels_cut_off(scope: Scope, steps: tuple[TraceStep, ...], devices: tuple[str, ...] | None) -> bool:
    """Whether the record of the device ends before the last of these steps does; for a trace that ends early.

    Args:
        scope: What was read.
        steps: Those that count.
        devices: Those that the process could use, None where that is not known.
    """
    if not len(scope.device):
        # Kernels are listed behind what the host did.
        return devices != ()
    return bool(steps) and steps[-1].end_ns > int(scope.device.end_ns.max())


def thinned_out(scope: Scope) -> bool:
    """Whether most events were left out of the trace, so that gaps in it mean nothing."""
    numbers = scope.host.of(Activity.LAUNCH, Activity.SYNCHRONIZE, Activity.ALLOCATOR).correlation
    numbers = np.sort(numbers[numbers > 0])
    # Sorting is quicker here than numpy's search for what is unique.
    numbers = numbers[np.diff(numbers, prepend=0) > 0]
    return len(numbers) >= _LEAST_CALLS and float(np.percentile(np.diff(numbers), 90)) > _SPARSE


def covered_ms(events: Events, steps: tuple[TraceStep, ...]) -> float:
    """How long any of the events lasts in the mean step, in milliseconds."""
    starts, ends = [step.start_ns for step in steps], [step.end_ns for step in steps]
    return float(overlap(events.covered(), starts, ends).mean()) / _MS if steps else 0.0


def within(events: Events, steps: tuple[TraceStep, ...]) -> Events:
    """The events that begin within one of the steps, which are in order and do not overlap."""
    if not steps:
        return events.where(np.zeros(len(events), dtype=bool))
    begins = np.array([step.start_ns for step in steps])
    ends = np.array([step.end_ns for step in steps])
    place = np.searchsorted(begins, events.start_ns, side="right") - 1
    return events.where((place >= 0) & (events.start_ns < ends[np.maximum(place, 0)]))


def _ranked(
    scope: Scope, events: Events, steps: int, top: int, spent_ns: npt.NDArray[np.float64] | None = None
) -> list[tuple[str, float, float]]:
    """Name, milliseconds per step and calls per step, most time first."""
    if not len(events):
        return []
    spent = events.duration_ns() if spent_ns is None else spent_ns
    total = np.bincount(events.name_id, weights=spent)
    calls = np.bincount(events.name_id)
    order = np.argsort(-total, kind="stable")[:top]
    return [
        (scope.name(int(each)), float(total[each]) / steps / _MS, float(calls[each]) / steps)
        for each in order
        if calls[each]
    ]


def enclosing(events: Events) -> npt.NDArray[np.int64]:
    """For each event the shortest one of its lane that it lies in, as a place; -1 without.

    Slices that cross each other lie beside each other.

    Args:
        events: In any order.
    """
    outer = np.full(len(events), -1, dtype=np.int64)
    if not len(events):
        return outer
    # One axis for all lanes, one behind the other.
    apart = events.lane.astype(np.int64) * (int(events.end_ns.max()) - int(events.start_ns.min()) + 2)
    starts, ends = events.start_ns - events.start_ns.min() + apart, events.end_ns - events.start_ns.min() + apart
    left = np.lexsort((-ends, starts))
    while len(left):
        # Those that lie in none of the others that are left, then the others by which of these they lie in.
        reach = np.maximum.accumulate(ends[left])
        top = np.concatenate([[True], ends[left][1:] > reach[:-1]])
        over, left = left[top], left[~top]
        outer[left] = over[np.searchsorted(starts[over], starts[left], side="right") - 1]
    return outer


def _python_lines(scope: Scope, calls: Events) -> list[str]:
    """The innermost line of the user's that each call is made from, empty where none was recorded."""
    frames = scope.host.of(Activity.FRAME)
    if not len(frames) or not len(calls):
        return [""] * len(calls)
    outer = enclosing(_joined(frames, calls)).tolist()
    lines: dict[int, str] = {-1: ""}

    def line(place: int) -> str:
        passed = []
        while place not in lines:
            if place < len(frames) and _is_users(name := scope.name(int(frames.name_id[place]))):
                lines[place] = name
                break
            passed.append(place)
            place = outer[place]
        lines.update(dict.fromkeys(passed, lines[place]))
        return lines[place]

    return [line(outer[len(frames) + number]) for number in range(len(calls))]


def _joined(first: Events, second: Events) -> Events:
    return Events(*(np.concatenate([getattr(first, name), getattr(second, name)]) for name in Events.COLUMNS))


def _is_users(frame: str) -> bool:
    """Whether a frame is neither of Python's and torch's own nor without a line."""
    file = frame.partition("(")[0]
    return file.endswith(".py") and not file.startswith(("torch/", "<")) and "site-packages" not in file
