"""The steps of a trace: from its marks, else from its requests for batches, its optimizer, or what repeats in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dlprof.analysis.trace_scope import Scope
from dlprof.model.trace import ON_DEVICE, Activity, Events

_STUB = 0.1
"""Part of the median step below which a step is the rest of a profiler's window."""
_WARM_UP = 3.0
"""Times the median of the others from which a first step is warm-up."""
_AHEAD = 0.1
"""Of a first step, by how much the device falls further behind in it, from which the step is too short."""
_LEAST_REPEATS = 3
_NUMBER = re.compile(r"[# ](\d{1,9})$")
_STEADY = 0.05
"""Spread of the number of kernels between two of one name, over its mean, up to which that name marks steps."""


class CutBy(StrEnum):
    """What tells where a step begins."""

    MARKS = "marks"
    LOADER = "loader"
    OPTIMIZER = "optimizer"
    KERNELS = "kernels"
    NOTHING = "nothing"
    """The trace is taken for one step."""


class LeftOut(StrEnum):
    """Why a step does not count for the mean."""

    WARM_UP = "warm-up"
    STUB = "stub"
    CUT_OFF = "cut-off"
    AHEAD = "ahead"
    NOT_ASKED = "not-asked-for"


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step, ``[start_ns, end_ns)`` on the trace's clock.

    ``index`` is the script's own number where it gave one, else counted from 0; ``left_out`` says why it counts for no
    mean.
    """

    index: int
    start_ns: int
    end_ns: int
    left_out: LeftOut | None = None

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class TraceSteps:
    """All steps of one process, in order."""

    all: tuple[TraceStep, ...]
    cut_by: CutBy

    @property
    def used(self) -> tuple[TraceStep, ...]:
        """Those that count for the mean."""
        return tuple(step for step in self.all if step.left_out is None)


def find_steps(scope: Scope, *, truncated: bool = False, only: tuple[int, int] | None = None) -> TraceSteps:
    """The steps of a process.

    Args:
        scope: Its events.
        truncated: The trace ends early: steps that the device's record does not reach are cut off.
        only: First number that counts and the one behind the last; None for all.
    """
    steps, cut_by = _cut(scope)
    if only is not None:
        steps = [each if only[0] <= each.index < only[1] else _without(each, LeftOut.NOT_ASKED) for each in steps]
    else:
        steps = _steady(steps, scope)
    if truncated and len(scope.device):
        recorded = int(scope.device.end_ns.max())
        steps = [each if each.end_ns <= recorded else _without(each, LeftOut.CUT_OFF) for each in steps]
    if only is None and all(each.left_out for each in steps):
        # Better than none; and those that are cut off only where there are no others.
        whole = [each for each in steps if each.left_out is not LeftOut.CUT_OFF]
        steps = [replace(each, left_out=None) if each in (whole or steps) else each for each in steps]
    return TraceSteps(tuple(steps), cut_by)


def _without(step: TraceStep, why: LeftOut) -> TraceStep:
    return step if step.left_out else replace(step, left_out=why)


def requests(scope: Scope) -> Events:
    """The training loop's requests for batches, in order; a request within another is left out."""
    found = scope.main.of(Activity.NEXT)
    if not len(found):
        frames = scope.main.of(Activity.FRAME)
        if len(frames):
            wanted = [number for number, name in enumerate(scope.names) if _REQUEST_FRAME.search(name)]
            found = frames.where(np.isin(frames.name_id, wanted))
    return found.where(_outermost(found))


_REQUEST_FRAME = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __next__$")


def _outermost(events: Events) -> npt.NDArray[np.bool_]:
    reach = np.maximum.accumulate(events.end_ns) if len(events) else events.end_ns
    before = np.concatenate([[np.iinfo(np.int64).min], reach[:-1]]) if len(events) else reach
    return np.asarray(events.end_ns > before, dtype=bool)


# ---- where they begin ----------------------------------------------------------------------------------------------


def _cut(scope: Scope) -> tuple[list[TraceStep], CutBy]:
    marks = scope.main.of(Activity.STEP) if Activity.STEP in scope.main.activity else scope.host.of(Activity.STEP)
    if len(marks):
        return _marked(marks, scope), CutBy.MARKS
    asked = requests(scope)
    if len(asked) >= _LEAST_REPEATS:
        return _between(asked.start_ns), CutBy.LOADER
    stepped = scope.main.of(Activity.OPTIMIZER)
    stepped = stepped.where(_outermost(stepped))
    if len(stepped) >= _LEAST_REPEATS:
        return _between(stepped.end_ns), CutBy.OPTIMIZER
    repeated = _repeated(scope.device)
    if len(repeated) >= _LEAST_REPEATS:
        return _between(repeated), CutBy.KERNELS
    everything = [each for each in (scope.host, scope.device) if len(each)]
    begin = min(int(each.start_ns.min()) for each in everything)
    end = max(int(each.end_ns.max()) for each in everything)
    return [TraceStep(0, begin, end)], CutBy.NOTHING


def _marked(marks: Events, scope: Scope) -> list[TraceStep]:
    steps: list[TraceStep] = []
    reached = int(marks.start_ns[0])
    for order, (start, end, name) in enumerate(
        zip(marks.start_ns.tolist(), marks.end_ns.tolist(), marks.name_id.tolist(), strict=True)
    ):
        number = _NUMBER.search(scope.name(name))
        # The same step once more, or one that does not nest: no moment may count twice.
        if end > max(start, reached):
            steps.append(TraceStep(int(number[1]) if number else order, max(start, reached), end))
            reached = end
    return steps


def _between(borders: npt.NDArray[np.int64]) -> list[TraceStep]:
    """From each border to the next; what comes before the first and after the last is cut off by the window."""
    times = np.unique(borders).tolist()
    return [TraceStep(index, start, end) for index, (start, end) in enumerate(pairwise(times))]


def _repeated(device: Events) -> npt.NDArray[np.int64]:
    """Starts of what the device does once a step: the most seldom of what it does regularly."""
    kernels = device.of(*ON_DEVICE)
    best: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
    if not len(kernels):
        return best
    order = np.argsort(kernels.name_id, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(kernels.name_id[order])) + 1)
    for places in groups:
        gaps = np.diff(places)
        # Not the whole of a step may be in the window, so a part of one is left at its beginning and end.
        regular = len(gaps) >= _LEAST_REPEATS - 1 and gaps.std() <= _STEADY * gaps.mean()
        covers = regular and places[-1] - places[0] >= 0.5 * len(kernels)
        if covers and gaps.mean() > 1 and (not len(best) or len(places) < len(best)):
            best = kernels.start_ns[places]
    return best


# ---- which count ---------------------------------------------------------------------------------------------------


def _steady(steps: list[TraceStep], scope: Scope) -> list[TraceStep]:
    """Mark what does not belong to the steady state: stubs, a warm-up step, steps that run ahead of the device."""
    lengths = np.array([step.duration_ns for step in steps], dtype=np.float64)
    if len(steps) < 2:
        return steps
    middle = float(np.median(lengths))
    steps = [
        _without(step, LeftOut.STUB) if place in (0, len(steps) - 1) and length < _STUB * middle else step
        for place, (step, length) in enumerate(zip(steps, lengths, strict=True))
    ]
    kept = [place for place, step in enumerate(steps) if step.left_out is None]
    if len(kept) > _LEAST_REPEATS and lengths[kept[0]] > _WARM_UP * np.median(lengths[kept[1:]]):
        steps[kept[0]] = _without(steps[kept[0]], LeftOut.WARM_UP)
        kept = kept[1:]
    lag = _lag(scope)
    if lag is not None:
        for place in kept[:-2]:
            grown = _at(lag, steps[place].end_ns) - _at(lag, steps[place].start_ns)
            short = lengths[place] < (1 - _AHEAD) * np.median(lengths[place + 1 :])
            if not short or grown <= _AHEAD * lengths[place]:
                break
            steps[place] = _without(steps[place], LeftOut.AHEAD)
    return steps


def _lag(scope: Scope) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """When kernels were launched, and how long after that they started; None where launches are not tied to them."""
    calls = scope.host.of(Activity.LAUNCH)
    launch, kernel = matched(calls, scope.device)
    if not len(launch):
        return None
    return calls.start_ns[launch], np.maximum(scope.device.start_ns[kernel] - calls.start_ns[launch], 0)


def _at(lag: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], when_ns: int) -> int:
    """The longest delay of the few launches before a moment: work on another stream may start at once."""
    place = int(np.searchsorted(lag[0], when_ns))
    return int(lag[1][max(0, place - 20) : place].max(initial=0))


def matched(calls: Events, device: Events) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pairs of a call and what it launched, as places in the two, in the order of the calls.

    Args:
        calls: Of the host.
        device: What ran on the device. Of several that one call launched, a graph's, the first counts.
    """
    numbered = np.flatnonzero(device.correlation > 0)
    numbered = numbered[np.argsort(device.start_ns[numbered], kind="stable")]
    known, first = np.unique(device.correlation[numbered], return_index=True)
    if not len(known):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    place = np.minimum(np.searchsorted(known, calls.correlation), len(known) - 1)
    launch = np.flatnonzero((known[place] == calls.correlation) & (calls.correlation > 0))
    return launch, numbered[first[place[launch]]]
