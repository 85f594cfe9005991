"""One process of a trace, analysed: all that is kept of it, small enough to be sent between processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dlprof.analysis import trace_facts
from dlprof.analysis.trace_budget import Budget, cut
from dlprof.analysis.trace_scope import Scope, scopes
from dlprof.analysis.trace_steps import CutBy, LeftOut, TraceStep, TraceSteps, find_steps
from dlprof.model.kinds import Cause
from dlprof.model.profile import Notice
from dlprof.model.report import Device, Totals
from dlprof.model.trace import Activity, Origin, Trace

FINE_WAIT = 0.05
"""Share of input wait up to which batches came from a full queue. Source: XProf's mark at 5 %."""
HIGH_WAIT = 0.20
_QUEUED = 2
"""Steps without a wait from which a queue that drains is told from chance."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """Collectives of a process, in the order of their start: columns of shape ``(n,)``.

    Attributes:
        step: Number of the step.
        name: What the kernel is called.
        duration_ns: From its start, when this rank has arrived, to its end.
    """

    step: npt.NDArray[np.int64]
    name: tuple[str, ...]
    duration_ns: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rank:
    """What one process of a trace shows.

    Attributes:
        origin: Where the trace is from.
        steps: All of its steps.
        table: Causes and measures of those that count, in the same order.
        everything: The same of all of them.
        device: The device during those that count, None without a record of one.
        totals: Activities, overlapped or not.
        collectives: Those of the steps that count.
        workers: 0 where batches are made in this process, -1 where the loader has workers, None where it is not seen.
        unrecorded: Why the device's idle time means nothing: ``kernels-missing``, ``thinned-out``,
            ``kernels-cut-off``, or empty.
        facts: What else was seen, as it goes into the report.
        began_ns: First event by the wall clock, as far as the trace has one,
        ended_ns: and the end of the last.
        notices: What a reader has to know.
    """

    origin: Origin
    steps: TraceSteps
    table: Budget
    everything: Budget
    device: Device | None
    totals: Totals
    collectives: Collectives
    workers: int | None
    unrecorded: str
    facts: dict[str, Any]
    began_ns: int
    ended_ns: int
    notices: tuple[Notice, ...] = field(default=())

    def share(self, cause: Cause) -> float:
        """The cause's part of the steps that count, 0 to 1."""
        wall = self.table.causes.sum()
        return float(self.table.causes[:, tuple(Cause).index(cause)].sum() / wall) if wall else 0.0


def analyse(trace: Trace, only: tuple[int, int] | None = None, top: int = 10) -> list[Rank]:
    """Analyse the processes of a trace.

    Args:
        trace: As it was read.
        only: First number of a step that counts and the one behind the last; None for all.
        top: Rows of each list of names.
    """
    truncated = any(notice.slug == "trace-truncated" for notice in trace.notices)
    found = scopes(trace)
    return [_analyse(trace, each, only, top, truncated=truncated, several=len(found) > 1) for each in found]


def _analyse(
    trace: Trace, scope: Scope, only: tuple[int, int] | None, top: int, *, truncated: bool, several: bool
) -> Rank:
    steps = find_steps(scope, truncated=truncated, only=only)
    used = steps.used
    everything = cut(scope, steps.all)
    table = everything.rows(np.array([step.left_out is None for step in steps.all], dtype=bool))
    if truncated and trace_facts.kernels_cut_off(scope, used, trace.origin.devices):
        unrecorded = "kernels-cut-off"
    elif trace_facts.device_not_recorded(scope, used):
        unrecorded = "kernels-missing"
    else:
        unrecorded = "thinned-out" if trace_facts.thinned_out(scope) else ""
    device = trace_facts.device(scope, used, table, top)
    rank = Rank(
        origin=trace.origin,
        steps=steps,
        table=table,
        everything=everything,
        device=device,
        totals=trace_facts.totals(scope, used, table),
        collectives=_collectives(scope, used),
        workers=trace_facts.workers_seen(scope),
        unrecorded=unrecorded,
        facts=_facts(trace, scope, used, table, top) | ({"process": str(scope.pid)} if several else {}),
        began_ns=trace.origin.base_ns + int(trace.events.start_ns.min()),
        ended_ns=trace.origin.base_ns + int(trace.events.end_ns.max()),
    )
    return replace(rank, notices=(*trace.notices, *_notices(rank, only)))


def _collectives(scope: Scope, steps: tuple[TraceStep, ...]) -> Collectives:
    found = trace_facts.within(scope.device, steps).of(Activity.COLLECTIVE)
    begins = np.array([step.start_ns for step in steps], dtype=np.int64)
    numbers = np.array([step.index for step in steps], dtype=np.int64)
    place = np.searchsorted(begins, found.start_ns, side="right") - 1
    names = tuple(scope.name(int(each)) for each in found.name_id)
    return Collectives(numbers[place] if len(steps) else place, names, found.duration_ns())


def _facts(trace: Trace, scope: Scope, steps: tuple[TraceStep, ...], table: Budget, top: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"events": trace.seen, "json_bytes": trace.json_bytes}
    if not steps:
        return facts
    if table.on_device:
        facts["idle_ms_per_step"] = {reason: float(spent.mean()) / 1e6 for reason, spent in table.measures.idle.items()}
        measures = table.measures
        facts["exposed_ms_per_step"] = {
            "communication": float(measures.communication_exposed.mean()) / 1e6,
            "h2d": float(measures.h2d_exposed.mean()) / 1e6,
            "d2h": float(measures.d2h_exposed.mean()) / 1e6,
        }
        collectives = scope.device.of(Activity.COLLECTIVE)
        whole = trace_facts.covered_ms(collectives, steps)
        facts["hidden_ms_per_step"] = {"communication": max(0.0, whole - facts["exposed_ms_per_step"]["communication"])}
    launches = trace_facts.launches(scope, steps)
    if launches is not None:
        facts["launches"] = {
            "kernels_per_step": launches.kernels_per_step,
            "kernel_us_p50": launches.kernel_us_p50,
            "delay_us_p50": launches.delay_us_p50,
        }
    facts["synchronizing_calls"] = trace_facts.synchronizing(scope, steps, top)
    facts["operators"] = trace_facts.operators(scope, steps, top)
    facts["annotations"] = trace_facts.annotated(scope, steps, top)
    return facts


def _notices(rank: Rank, only: tuple[int, int] | None) -> list[Notice]:
    steps = rank.steps
    notices = []
    if steps.cut_by is not CutBy.MARKS:
        notices.append(Notice(f"trace-cut-by-{steps.cut_by}", 1, {"steps": len(steps.all)}))
    for why in (LeftOut.WARM_UP, LeftOut.STUB, LeftOut.CUT_OFF, LeftOut.AHEAD):
        left = [step for step in steps.all if step.left_out is why]
        if left:
            numbers = ", ".join(str(step.index) for step in left)
            mean = sum(step.duration_ns for step in left) / len(left) / 1e6
            notices.append(Notice(f"trace-step-{why}", len(left), {"numbers": numbers, "step_ms": mean}))
    if only is not None:
        notices.append(Notice("trace-only-steps", 1, {"first": only[0], "behind": only[1]}))
    drained = _drained(rank)
    if drained:
        notices.append(drained)
    if rank.unrecorded:
        notices.append(Notice(f"trace-{rank.unrecorded}"))
    if not rank.table.on_device and not rank.unrecorded:
        notices.append(Notice("trace-of-cpu"))
    if rank.share(Cause.INPUT_WAIT) >= FINE_WAIT:
        notices.append(Notice("trace-without-workers", 1, {"workers": rank.workers != 0}))
    return notices


def _drained(rank: Rank) -> Notice | None:
    """Whether the first steps were fed from a queue that was full, and later ones have to wait."""
    wait = rank.table.causes[:, tuple(Cause).index(Cause.INPUT_WAIT)]
    wall = rank.table.causes.sum(axis=1)
    waited = np.flatnonzero(wait > HIGH_WAIT * wall)
    if not len(waited) or waited[0] < _QUEUED:
        return None
    queued = int(waited[0])
    before, after = wait[:queued], wait[queued:]
    if before.sum() > FINE_WAIT * wall[:queued].sum() or after.sum() < HIGH_WAIT * wall[queued:].sum():
        return None
    values = {
        "steps": queued,
        "first_ms": float(wall[:queued].mean()) / 1e6,
        "later_ms": float(wall[queued:].mean()) / 1e6,
    }
    return Notice("trace-queue-drained", 1, values)
