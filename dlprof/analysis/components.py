"""What making one batch consisted of: self time per component, on the thread that made it.

Nested spans keep self time: a tokenizer called in ``collate_fn`` counts once, as tokenizer. What no span inside a
fetch explains is the dataset's own code. A tokenizer of the user's own, in Python, has no span: looks at the thread
say what part of its surroundings it takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlprof.analysis.scope import own_spans
from dlprof.analysis.timelines import COLUMNS, FEWEST_LOOKS, IN_KERNEL, ON_CPU, Timeline, timelines
from dlprof.analysis.tokenizers import in_tokenizer, time_in_python
from dlprof.model.kinds import Component, Doing, Kind
from dlprof.model.profile import Frame, Profile, Spans
from dlprof.model.steps import Step

COMPONENT_OF = {
    Kind.COLLATE: Component.COLLATE_FN,
    Kind.TOKENIZER: Component.TOKENIZER,
    Kind.DECODE: Component.DECODE,
    Kind.TRANSFORM: Component.TRANSFORM,
    Kind.GETITEM: Component.DATASET_GETITEM,
}
MAKING = (
    Component.DATASET_GETITEM,
    Component.DECODE,
    Component.TRANSFORM,
    Component.TOKENIZER,
    Component.COLLATE_FN,
)
"""What code a thread is in while it makes a batch."""
WAITING = {
    Component.STORAGE_IO: (Doing.DISK, Doing.SOCKET, Doing.PAGE_FAULT),
    Component.LOCK_WAIT: (Doing.LOCK,),
    Component.SLEEP: (Doing.SLEEP,),
}
"""What it is blocked on meanwhile, where that was seen."""
PARTS = (*MAKING, *WAITING)
"""The components that a fetch is divided into, in the order of ``Fetches``' columns."""
_FEWEST_LOOKS = 3
"""Looks that found a component blocked, from which they tell what on."""

Table = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fetches:
    """Every batch that was made, in the order in which the makings began.

    Attributes:
        spans: The fetches, ``n`` of them.
        wall_ns: Self time per component, shape ``(n, len(PARTS))``; the rows sum to the fetches' durations.
        cpu_ns: On-CPU part of it, same shape.
        no_core_ns: Waiting for a core, same shape; shared out over what is not on-CPU.
        helper_ns: CPU time of the process's other threads meanwhile, shape ``(n,)``.
        calls: Calls per component, shape as ``wall_ns``, those that were not timed included.
        seen: What each thread spent its time on, by track.
    """

    spans: Spans
    wall_ns: Table
    cpu_ns: Table
    no_core_ns: Table
    helper_ns: npt.NDArray[np.float64]
    calls: Table
    seen: dict[int, Timeline]

    def blocked_ns(self) -> Table:
        """Self time that is neither on a core nor waiting for one, same shape."""
        return np.maximum(self.wall_ns - self.cpu_ns - self.no_core_ns, 0)

    def index(self) -> dict[tuple[int, int], int]:
        """Row of each (iterator, batch)."""
        keys = zip(self.spans.iterator.tolist(), self.spans.batch.tolist(), strict=True)
        return {key: row for row, key in enumerate(keys)}

    def rows_of(self, steps: Iterable[Step]) -> npt.NDArray[np.int64]:
        """Rows of the batches that these steps took, as far as their making was seen."""
        index = self.index()
        rows = [index[step.iterator, step.batch] for step in steps if (step.iterator, step.batch) in index]
        return np.array(rows, dtype=np.int64)


def find_fetches(profile: Profile) -> Fetches:
    """Divide every fetch of the run into components.

    Args:
        profile: The run; the fetches of processes that are neither the training process nor its workers are left out.
    """
    seen = timelines(profile)
    mine = own_spans(profile)
    fetches = _outermost(mine.of(Kind.FETCH))
    shape = (len(fetches), len(PARTS))
    wall, cpu, calls = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    inner = mine.of(*COMPONENT_OF)
    for track in np.unique(fetches.track):
        rows = np.flatnonzero(fetches.track == track)
        nested = inner.where(inner.track == track)
        _self_times(fetches.where(rows), rows, nested, (wall, cpu, calls))
    duration = fetches.duration_ns().astype(np.float64)
    on_cpu = np.clip(fetches.on_cpu_ns.astype(np.float64), 0, duration)
    _give_rest_to_dataset(wall, duration)
    cpu = np.minimum(cpu, wall)
    _give_rest_to_dataset(cpu, on_cpu)
    cpu = np.minimum(cpu, wall)
    idle = wall - cpu
    no_core = np.clip(fetches.runnable_ns, 0, idle.sum(axis=1))
    share = idle / np.maximum(idle.sum(axis=1, keepdims=True), 1)
    no_core = share * no_core[:, None]
    helpers = np.maximum(np.maximum(fetches.process_cpu_ns, 0) - on_cpu, 0.0)
    waited = _waited_for(profile, fetches, inner, seen)
    _set_apart(wall, cpu, np.maximum(wall - cpu - no_core, 0), helpers, waited)
    _set_tokenizing_apart(wall, cpu, no_core, waited.tokenizing)
    return Fetches(fetches, wall, cpu, no_core, helpers, calls, seen)


@dataclass(frozen=True, slots=True)
class _Waited:
    """What looking at the threads told of the making components, over the whole run.

    The looks at one batch are few, while how long each batch was blocked is known exactly.

    Attributes:
        blocked: What part of a component's blocked time is spent on what, shape ``(len(MAKING), len(WAITING))``.
        reading: What part of its time on a core is spent in the kernel at lines that also wait for storage: it goes
            away with the waiting. Shape ``(len(MAKING),)``.
        tokenizing: What part of its time on a core is spent in a tokenizer written in Python. Same shape.
    """

    blocked: Table
    reading: npt.NDArray[np.float64]
    tokenizing: npt.NDArray[np.float64]


def _set_apart(wall: Table, cpu: Table, blocked: Table, helpers: npt.NDArray[np.float64], waited: _Waited) -> None:
    """Move what a component waited for from its column to that of what it waited for."""
    making = len(MAKING)
    apart = np.einsum("nm,mw->nmw", blocked[:, :making], waited.blocked)
    lock = list(WAITING).index(Component.LOCK_WAIT)
    # A thread that waits for helper threads which compute for it (OpenMP, rayon) waits for no lock.
    computing = np.minimum(helpers[:, None] / np.maximum(apart[:, :, lock].sum(axis=1, keepdims=True), 1), 1.0)
    apart[:, :, lock] *= 1 - computing
    wall[:, :making] -= apart.sum(axis=2)
    wall[:, making:] += apart.sum(axis=1)
    storage = PARTS.index(Component.STORAGE_IO)
    for table, reading in ((wall, cpu[:, :making] * waited.reading), (cpu, cpu[:, :making] * waited.reading)):
        table[:, :making] -= reading
        table[:, storage] += reading.sum(axis=1)


def _set_tokenizing_apart(wall: Table, cpu: Table, no_core: Table, part: npt.NDArray[np.float64]) -> None:
    """Move to the tokenizer's column what other components spend in one that has no span."""
    making, tokenizer = len(MAKING), PARTS.index(Component.TOKENIZER)
    computing, waiting = cpu[:, :making] * part, no_core[:, :making] * part
    for table, moved in ((cpu, computing), (no_core, waiting), (wall, computing + waiting)):
        table[:, :making] -= moved
        table[:, tokenizer] += moved.sum(axis=1)


def _waited_for(profile: Profile, fetches: Spans, inner: Spans, seen: dict[int, Timeline]) -> _Waited:
    spent = np.zeros((len(MAKING), COLUMNS))
    # On a core, in looks that found lines: what share of it they are says nothing of the others.
    placed = np.zeros(len(MAKING))
    blocked_looks = np.zeros(len(MAKING))
    lines: dict[tuple[int, Frame], npt.NDArray[np.float64]] = {}
    named: list[list[tuple[Frame, float]]] = [[] for _ in MAKING]
    for track, timeline in seen.items():
        own = fetches.where(fetches.track == track)
        looks, amounts = timeline.looks_within(own.start_ns, own.end_ns)
        column = _component_at(timeline.at_ns[looks], inner.where(inner.track == track))
        np.add.at(spent, column, amounts)
        np.add.at(blocked_looks, column, timeline.doing[looks] != Doing.RUNNING)
        for component, stack, amount in zip(column.tolist(), timeline.stack[looks].tolist(), amounts, strict=True):
            where = profile.samples.stacks[stack]
            for frame in where.frames[:1]:
                placed[component] += amount[ON_CPU]
                lines[component, frame] = lines.get((component, frame), np.zeros(COLUMNS)) + amount
                if where.in_fetch and in_tokenizer(where):
                    named[component].append((frame, float(amount[ON_CPU])))
    known = spent[:, [int(doing) for doing in Doing if doing is not Doing.RUNNING]].sum(axis=1, keepdims=True)
    kinds = np.stack([spent[:, list(columns)].sum(axis=1) for columns in WAITING.values()], axis=1)
    enough = (blocked_looks >= _FEWEST_LOOKS)[:, None] & (known > 0)
    reading = np.zeros(len(MAKING))
    for (component, _), amount in lines.items():
        if amount[list(WAITING[Component.STORAGE_IO])].any():
            reading[component] += min(amount[IN_KERNEL], amount[ON_CPU])
    reading = np.where(enough[:, 0], reading / np.maximum(placed, 1), 0.0)
    tokenizing = np.array([time_in_python(looks) if len(looks) >= FEWEST_LOOKS else 0.0 for looks in named])
    tokenizing[MAKING.index(Component.TOKENIZER)] = 0.0
    return _Waited(
        np.where(enough, kinds / np.maximum(known, 1), 0.0),
        np.minimum(reading, 1.0),
        np.minimum(tokenizing / np.maximum(placed, 1), 1.0),
    )


def _component_at(times: npt.NDArray[np.int64], inner: Spans) -> npt.NDArray[np.int64]:
    """The column of the innermost span of one thread around each time; the dataset's where there is none."""
    column = np.full(len(times), MAKING.index(Component.DATASET_GETITEM), dtype=np.int64)
    # Outer spans first, so that what is inside of them has the last word; of two that are equal the later is outside.
    for row in np.lexsort((-np.arange(len(inner)), -inner.duration_ns())):
        first, last = np.searchsorted(times, [inner.start_ns[row], inner.end_ns[row]])
        if last > first:
            column[first:last] = MAKING.index(COMPONENT_OF[Kind(int(inner.kind[row]))])
    return column


def _outermost(fetches: Spans) -> Spans:
    """Without those that another fetch of the same thread made: a loader inside a dataset is the dataset's own."""
    outer = np.ones(len(fetches), dtype=bool)
    for track in np.unique(fetches.track):
        rows = np.flatnonzero(fetches.track == track)
        rows = rows[np.lexsort((-fetches.end_ns[rows], fetches.start_ns[rows]))]
        reach = np.maximum.accumulate(fetches.end_ns[rows])
        outer[rows[1:]] = (fetches.end_ns[rows[1:]] > reach[:-1]) | (fetches.start_ns[rows[1:]] >= reach[:-1])
    return fetches.where(outer)


def _self_times(fetches: Spans, rows: npt.NDArray[np.int64], inner: Spans, tables: tuple[Table, Table, Table]) -> None:
    wall, cpu, calls = tables
    place = np.searchsorted(fetches.start_ns, inner.start_ns, side="right") - 1
    inside = (place >= 0) & (inner.end_ns <= fetches.end_ns[np.maximum(place, 0)])
    inner, place = inner.where(inside), place[inside]
    self_wall, self_cpu = self_time(inner)
    column = np.array([PARTS.index(COMPONENT_OF[Kind(int(kind))]) for kind in inner.kind], dtype=np.int64)
    # Items are divided by what is left over, so that untimed ones count too; only their number is taken from spans.
    timed = inner.kind != int(Kind.GETITEM)
    at = (rows[place[timed]], column[timed])
    np.add.at(wall, at, self_wall[timed])
    np.add.at(cpu, at, self_cpu[timed])
    np.add.at(calls, (rows[place], column), inner.weight)


def _give_rest_to_dataset(table: Table, total: npt.NDArray[np.float64]) -> None:
    # Estimates from one call in sixteen may exceed the whole: then all parts shrink alike.
    known = table.sum(axis=1)
    scale = np.where(known > total, total / np.maximum(known, 1), 1.0)
    table *= scale[:, None]
    table[:, PARTS.index(Component.DATASET_GETITEM)] += np.maximum(total - table.sum(axis=1), 0)


def self_time(spans: Spans) -> tuple[Table, Table]:
    """Self time of properly nested spans of one thread.

    Args:
        spans: In the order in which they were written, which is that of their ends: of two that are equal the later
            is the outer one.

    Returns:
        Wall and on-CPU self time, each of shape ``(n,)``, times the span's weight. A child's weight counts against
        its parent; no self time is negative.
    """
    order = np.lexsort((-np.arange(len(spans)), -spans.end_ns, spans.start_ns))
    ends = spans.end_ns.tolist()
    starts = spans.start_ns.tolist()
    weight = spans.weight.astype(np.float64)
    wall = spans.duration_ns().astype(np.float64)
    cpu = np.maximum(spans.on_cpu_ns, 0).astype(np.float64)
    inner_wall, inner_cpu = np.zeros(len(spans)), np.zeros(len(spans))
    open_spans: list[int] = []
    for row in order.tolist():
        while open_spans and ends[open_spans[-1]] <= starts[row]:
            open_spans.pop()
        if open_spans and ends[row] <= ends[open_spans[-1]]:
            # Of an outer call that stands for sixteen, one call holds a sixteenth of what the inner one stands for.
            share = max(weight[row] / weight[open_spans[-1]], 1.0)
            inner_wall[open_spans[-1]] += wall[row] * share
            inner_cpu[open_spans[-1]] += cpu[row] * share
        open_spans.append(row)
    return np.maximum(wall - inner_wall, 0) * weight, np.maximum(cpu - inner_cpu, 0) * weight
