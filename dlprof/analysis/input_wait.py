"""Why the main process waited: each request for a batch divided by what the awaited batch was doing.

At every instant of a request the first of these that holds: the main thread was unpickling, reading the pipe or
asking the sampler · the worker of the awaited batch was starting · was making a batch, this one or one queued before
it, charged as that batch is composed · was pickling · the batch was being pinned · otherwise it was on its way.

A timeline is not a cause: the verdict comes from removing components in the simulator, not from here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlprof.analysis.components import PARTS, Fetches
from dlprof.analysis.scope import process_spans
from dlprof.model.intervals import EMPTY, Intervals, clip, intersect, length, subtract, union
from dlprof.model.kinds import Component, Kind
from dlprof.model.profile import Profile, Spans
from dlprof.model.steps import Step

WAIT_COMPONENTS = (
    *PARTS,
    Component.CPU_CONTENTION,
    Component.SAMPLER,
    Component.WORKER_STARTUP,
    Component.PICKLE,
    Component.TRANSPORT,
    Component.UNPICKLE,
    Component.PIN_MEMORY,
)


@dataclass(frozen=True, slots=True)
class _Process:
    """The spans of one process that matter to a wait, each kind in the order of its start."""

    fetches: npt.NDArray[np.int64]
    starting: Intervals
    pickling: Intervals


def split_waits(profile: Profile, steps: tuple[Step, ...], fetches: Fetches) -> npt.NDArray[np.float64]:
    """Divide the wait of each step.

    Args:
        profile: The run.
        steps: The steps, ``n`` of them.
        fetches: Every batch made, divided into components.

    Returns:
        Nanoseconds, shape ``(n, len(WAIT_COMPONENTS))``; each row sums to the step's wait.
    """
    here = process_spans(profile)
    own = {
        Component.UNPICKLE: here.of(Kind.UNPICKLE).covered(),
        Component.SAMPLER: here.of(Kind.SAMPLER).covered(),
        Component.TRANSPORT: here.of(Kind.RECEIVE).covered(),
    }
    pinned = here.of(Kind.PIN_MEMORY).covered()
    composition = _composition(fetches)
    maker = {key: int(fetches.spans.track[row]) for key, row in fetches.index().items()}
    known: dict[int, _Process] = {}
    table = np.zeros((len(steps), len(WAIT_COMPONENTS)))
    for row, step in enumerate(steps):
        left = union([step.wait_start_ns], [step.wait_end_ns])
        for component, covered in own.items():
            hit = intersect(left, clip(covered, step.wait_start_ns, step.wait_end_ns))
            table[row, WAIT_COMPONENTS.index(component)] += length(hit)
            left = subtract(left, hit)
        track = maker.get((step.iterator, step.batch))
        if track is not None:
            pid = profile.tracks[track].pid
            if pid not in known:
                known[pid] = _process(profile, pid, track, fetches)
            left = _charge_maker(table[row], left, known[pid], fetches, composition)
        pinning = intersect(left, clip(pinned, step.wait_start_ns, step.wait_end_ns))
        table[row, WAIT_COMPONENTS.index(Component.PIN_MEMORY)] += length(pinning)
        left = subtract(left, pinning)
        table[row, WAIT_COMPONENTS.index(Component.TRANSPORT)] += length(left)
    return table


def _composition(fetches: Fetches) -> npt.NDArray[np.float64]:
    """Each fetch's share per component, waiting for a core apart; shape ``(n, len(PARTS) + 1)``."""
    contention = fetches.no_core_ns.sum(axis=1, keepdims=True)
    parts = np.concatenate([np.maximum(fetches.wall_ns - fetches.no_core_ns, 0), contention], axis=1)
    shares: npt.NDArray[np.float64] = parts / np.maximum(parts.sum(axis=1, keepdims=True), 1e-9)
    return shares


def _process(profile: Profile, pid: int, track: int, fetches: Fetches) -> _Process:
    tracks = [i for i, t in enumerate(profile.tracks) if t.pid == pid]
    mine: Spans = profile.spans.where(np.isin(profile.spans.track, tracks))
    starting = mine.of(Kind.WORKER_START)
    pickling = mine.of(Kind.PICKLE)
    return _Process(
        fetches=np.flatnonzero(fetches.spans.track == track),
        starting=union(np.zeros(len(starting), dtype=np.int64), starting.end_ns),
        pickling=pickling.covered(),
    )


def _charge_maker(
    row: npt.NDArray[np.float64],
    left: Intervals,
    maker: _Process,
    fetches: Fetches,
    composition: npt.NDArray[np.float64],
) -> Intervals:
    starting = intersect(left, maker.starting)
    row[WAIT_COMPONENTS.index(Component.WORKER_STARTUP)] += length(starting)
    left = subtract(left, starting)
    if not len(left):
        return EMPTY
    # One worker's fetches follow each other, so those that touch the wait are a run of them.
    starts, ends = fetches.spans.start_ns[maker.fetches], fetches.spans.end_ns[maker.fetches]
    first, last = np.searchsorted(ends, left[0, 0], side="right"), np.searchsorted(starts, left[-1, 1])
    for fetch in maker.fetches[first:last]:
        hit = clip(left, int(fetches.spans.start_ns[fetch]), int(fetches.spans.end_ns[fetch]))
        row[: len(PARTS) + 1] += composition[fetch] * length(hit)
        left = subtract(left, hit)
    pickling = intersect(left, maker.pickling)
    row[WAIT_COMPONENTS.index(Component.PICKLE)] += length(pickling)
    return subtract(left, pickling)
