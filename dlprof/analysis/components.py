"""What making one batch consisted of: self time per component, on the thread that made it.

Nested spans keep self time: a tokenizer called in ``collate_fn`` counts once, as tokenizer. What no span inside a
fetch explains is the dataset's own code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlprof.analysis.scope import own_spans
from dlprof.model.kinds import Component, Kind
from dlprof.model.profile import Profile, Spans

COMPONENT_OF = {
    Kind.COLLATE: Component.COLLATE_FN,
    Kind.TOKENIZER: Component.TOKENIZER,
    Kind.DECODE: Component.DECODE,
    Kind.TRANSFORM: Component.TRANSFORM,
    Kind.USER_DATA: Component.DATASET_GETITEM,
    Kind.GETITEM: Component.DATASET_GETITEM,
}
PARTS = (
    Component.DATASET_GETITEM,
    Component.DECODE,
    Component.TRANSFORM,
    Component.TOKENIZER,
    Component.COLLATE_FN,
)
"""The components that a fetch is divided into, in the order of ``Fetches``' columns."""

Table = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fetches:
    """Every batch that was made, in the order in which the makings began.

    Attributes:
        spans: The fetches, ``n`` of them.
        wall_ns: Self time per component, shape ``(n, len(PARTS))``; the rows sum to the fetches' durations.
        cpu_ns: On-CPU part of it, same shape.
        no_core_ns: Waiting for a core, same shape; shared out over what is not on-CPU.
        calls: Calls per component, same shape, those that were not timed included.
    """

    spans: Spans
    wall_ns: Table
    cpu_ns: Table
    no_core_ns: Table
    calls: Table

    def blocked_ns(self) -> Table:
        """Self time that is neither on a core nor waiting for one, same shape."""
        return np.maximum(self.wall_ns - self.cpu_ns - self.no_core_ns, 0)

    def index(self) -> dict[tuple[int, int], int]:
        """Row of each (iterator, batch)."""
        keys = zip(self.spans.iterator.tolist(), self.spans.batch.tolist(), strict=True)
        return {key: row for row, key in enumerate(keys)}


def find_fetches(profile: Profile) -> Fetches:
    """Divide every fetch of the run into components.

    Args:
        profile: The run; the fetches of processes that are neither the training process nor its workers are left out.
    """
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
    return Fetches(fetches, wall, cpu, share * no_core[:, None], calls)


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
