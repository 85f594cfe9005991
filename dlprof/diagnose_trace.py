"""Somebody's trace to a report: budget, verdict by exclusive shares, evidence, and what such a trace cannot show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from dlprof import __version__
from dlprof.advice.common import Answer
from dlprof.advice.loader import start_workers
from dlprof.advice.rules import advise
from dlprof.analysis import sections
from dlprof.analysis.partition import CAUSES, Partition, Table
from dlprof.analysis.steps import drift
from dlprof.analysis.trace_budget import as_partition
from dlprof.analysis.trace_rank import Rank
from dlprof.analysis.trace_ranks import Waits, straggler, waits
from dlprof.analysis.verdict import MANY_STEPS, around, candidates_outside_input, judge
from dlprof.model.advice import Advice, Findings, Refusal
from dlprof.model.diagnosis import Candidate, Judgement
from dlprof.model.kinds import Bottleneck, Cause, Confidence, ExitReason
from dlprof.model.pipeline import Interval
from dlprof.model.profile import Notice
from dlprof.model.report import (
    SCHEMA,
    UNKNOWN_HOST,
    AdviceRow,
    Device,
    Exit,
    NotAdvised,
    NoticeRow,
    Overhead,
    Report,
    Run,
    StepTimes,
    Totals,
    Verdict,
)
from dlprof.model.steps import Step, Steps
from dlprof.render import wording

_MS = 1e6
_REPLICAS, _SEED = 400, 0
_DOUBTS = ("drift", "trace-truncated", "trace-cut-by-kernels", "trace-cut-by-nothing")
"""Notices that make a verdict less than certain."""
_LOSSES = ("trace-entries-lost", "trace-events-without-time")
_SOME_LOST, _MANY_LOST = 0.01, 0.05
"""Parts of a trace without which its verdict is less than certain, and without which there is none: what is left out
looks like idle time, and the smallest cause that is named takes a fifth of the step."""
_HOST_AND_PROCESS = re.compile(r"(.+)_\d+$")
_HOST = (Cause.PYTHON, Cause.KERNEL_LAUNCH, Cause.SYNCHRONIZATION, Cause.CHECKPOINT)


def diagnose_trace(ranks: Sequence[Rank], command: Sequence[str]) -> Report:
    """Everything that a report says of a trace, or of those of the ranks of one job.

    Args:
        ranks: At least one; several are ranks, or spans of time, of one job.
        command: What is named as what was analysed: the file or folder.
    """
    given = ranks
    # A rank of which the device's record is missing tells nothing beside the others.
    ranks = [rank for rank in given if not rank.unrecorded] or list(given)
    found = _waits(ranks)
    late = straggler(found, _mean_step_ns(ranks)) if found is not None else None
    # A job is as fast as the rank that the others wait for: what holds that one up is what bounds the job, and not
    # the others' waiting.
    subject = list(ranks) if late is None else [ranks[late]]
    table, steps = _pooled(subject)
    parts = _partition(subject, table)
    model_steps = _steps(table, steps)
    judgement, notices = _judge(ranks, parts, model_steps)
    device = _device([rank.device for rank in subject if rank.device is not None])
    budget = sections.budget(parts)
    step = _step_times(table, parts)
    name = _device_name(ranks)
    notices += _rank_notices(ranks, found, late) + _absent_ranks(given, ranks)
    advice, refusals = _advise(subject, parts, judgement, device, notices)
    return Report(
        schema=SCHEMA,
        dlprof=__version__,
        created=datetime.now(tz=UTC).astimezone().isoformat(timespec="seconds"),
        host=_host(ranks[0]),
        run=Run(
            command=list(command),
            steps_measured=len(model_steps.measured),
            steps_traced=len(model_steps.measured),
            batches_per_optimizer_step=None,
            device=name,
            device_name=ranks[0].origin.devices[0] if ranks[0].origin.devices and device else None,
            world_size=max(len({rank.origin.rank for rank in given}), *(rank.origin.world_size for rank in given)),
            exit=Exit(0, ExitReason.SCRIPT_ENDED),
        ),
        verdict=_verdict(judgement, step, parts, name),
        step=step,
        budget=budget,
        totals=subject[0].totals if len(subject) == 1 else Totals(),
        device=device,
        input=None,
        forecast=[],
        advice=[_advice_row(each, name) for each in advice],
        not_advised=[NotAdvised(each.id, wording.why_not(each.id, each.reason, **each.values)) for each in refusals],
        steps=sections.step_rows(model_steps),
        ranks=_rank_rows(ranks, found),
        environment={"trace": _facts(ranks, subject[0], found)},
        notices=[NoticeRow(each.slug, each.count, wording.notice_text(each.slug, **each.values)) for each in notices],
        overhead=Overhead(None, None, 0),
    )


# ---- steps ---------------------------------------------------------------------------------------------------------


def _pooled(ranks: Sequence[Rank]) -> tuple[Table, list[int]]:
    """Causes of each step and its number: the mean over ranks that ran the same steps, else one after the other."""
    numbers = [tuple(step.index for step in rank.steps.used) for rank in ranks]
    if len(ranks) > 1 and len(set(numbers)) == 1 and _distinct(ranks):
        return np.mean([rank.table.causes for rank in ranks], axis=0), list(numbers[0])
    return np.concatenate([rank.table.causes for rank in ranks]), [each for own in numbers for each in own]


def _partition(ranks: Sequence[Rank], table: Table) -> Partition | None:
    return as_partition(replace(ranks[0].table, causes=table))


def _steps(table: Table, numbers: Sequence[int]) -> Steps:
    """The steps in the form that a run's have, one after the other."""
    found = []
    clock = 0
    for number, row in zip(numbers, table, strict=True):
        wait, whole = round(row[CAUSES.index(Cause.INPUT_WAIT)]), round(row.sum())
        found.append(
            Step(
                index=number,
                iterator=0,
                batch=number,
                wait_start_ns=clock,
                wait_end_ns=clock + wait,
                body_start_ns=clock + wait,
                body_end_ns=clock + whole,
                startup_ns=0,
                optimizer_steps=0,
                traced=False,
                measured=True,
            )
        )
        clock += whole
    return Steps(tuple(found), None, inference=False, incomplete=0)


def _step_times(table: Table, parts: Partition | None) -> StepTimes:
    if parts is None:
        return StepTimes(None, None, None, None, None, None)
    lengths = table.sum(axis=1) / _MS
    mean = parts.mean.step_ns / _MS
    middle, high = (float(each) for each in np.percentile(lengths, [50, 95]))
    return StepTimes(mean, middle, high, 1000 / mean if mean else None, None, None)


# ---- verdict -------------------------------------------------------------------------------------------------------


def _judge(ranks: Sequence[Rank], parts: Partition | None, steps: Steps) -> tuple[Judgement, list[Notice]]:
    notices = _merged(ranks)
    moved = drift(steps)
    if moved is not None:
        notices.append(Notice("drift", 1, {"first_ms": moved[0] / _MS, "last_ms": moved[1] / _MS}))
    if 0 < len(steps.measured) < MANY_STEPS:
        notices.append(Notice("short-run", 1, {"steps": len(steps.measured)}))
    notices.append(Notice("trace-under-profiler"))
    lost = max((each.values.get("share", 0.0) for each in notices if each.slug in _LOSSES), default=0.0)
    doubtful = (*_DOUBTS, *_LOSSES) if lost > _SOME_LOST else _DOUBTS
    doubts = tuple(each.slug for each in notices if each.slug in doubtful)
    candidates: list[Candidate] = []
    waited = None
    if parts is not None:
        waited = _input(parts)
        candidates = [
            *candidates_outside_input(parts, {}),
            Candidate(Bottleneck.INPUT_PIPELINE, None, waited),
        ]
    judgement = judge(parts, candidates, waited, doubts)
    unrecorded = next((rank.unrecorded for rank in ranks if rank.unrecorded), "")
    if lost > _MANY_LOST:
        unrecorded = unrecorded or "events-lost"
    if unrecorded and parts is not None:
        judgement = replace(
            judgement,
            bottleneck=Bottleneck.INCONCLUSIVE,
            component=None,
            share=None,
            confidence=Confidence.LOW,
            reason=f"trace-{unrecorded}",
            reason_values={},
        )
    return judgement, notices


def _input(parts: Partition) -> Interval:
    """What removing all waiting for input would save: its exclusive share."""
    replicas = parts.bootstrap(_REPLICAS, _SEED)
    total = np.sum(list(replicas.values()), axis=0)
    return around(parts.mean.share(Cause.INPUT_WAIT), replicas[Cause.INPUT_WAIT] / np.maximum(total, 1))


def _verdict(judgement: Judgement, step: StepTimes, parts: Partition | None, device: str) -> Verdict:
    reason = None
    if judgement.bottleneck is Bottleneck.INCONCLUSIVE:
        reason = wording.inconclusive_reason(judgement.reason, **judgement.reason_values)
    text = wording.headline(
        judgement.bottleneck,
        judgement.component,
        judgement.share,
        judgement.confidence,
        step,
        sections.budget(parts),
        device,
        reason=reason,
    )
    return Verdict(judgement.bottleneck, judgement.component, judgement.share, judgement.confidence, text)


def _merged(ranks: Sequence[Rank]) -> list[Notice]:
    """The notices of all ranks, those of one kind once."""
    found: dict[str, Notice] = {}
    for rank in ranks:
        for notice in rank.notices:
            known = found.get(notice.slug)
            found[notice.slug] = notice if known is None else replace(known, count=known.count + notice.count)
    return list(found.values())


# ---- advice --------------------------------------------------------------------------------------------------------


def _advise(
    ranks: Sequence[Rank],
    parts: Partition | None,
    judgement: Judgement,
    device: Device | None,
    notices: Sequence[Notice],
) -> tuple[list[Advice], list[Refusal]]:
    if parts is None or any(rank.unrecorded for rank in ranks):
        return [], []
    # Of a loader with workers it is not known how many; rules that ask for its settings then say nothing.
    alone = all(rank.workers == 0 for rank in ranks)
    findings = Findings(
        judgement=judgement,
        reproduced=False,
        mean=parts.mean,
        totals=Totals(),
        loader={"num_workers": 0} if alone else None,
        cores=1.0,
        accelerator=device is not None,
        worker_busy_ratio=None,
        worker_forecasts=(),
        suggested_workers=None,
        without={},
        waits_ms={},
        notices={notice.slug: notice.values for notice in notices},
        device=device,
    )
    advice, refusals = advise(findings)
    asked = float(np.mean([rank.table.measures.request.mean() for rank in ranks])) if alone else 0.0
    more: Answer = start_workers(findings, asked)
    if not isinstance(more, Advice):
        return advice, refusals
    # Where something else holds the step up, that comes first.
    first = judgement.bottleneck in (Bottleneck.INPUT_PIPELINE, Bottleneck.INCONCLUSIVE)
    return ([more, *advice] if first else [*advice, more]), refusals


def _advice_row(advice: Advice, device: str) -> AdviceRow:
    how = wording.advice_text(
        advice.id, advice.setting, advice.from_, advice.to, advice.speedup, advice.evidence, {}, device
    )
    return AdviceRow(advice.id, advice.setting, advice.from_, advice.to, advice.speedup, list(advice.evidence), how)


# ---- what else there is --------------------------------------------------------------------------------------------


def _device_name(ranks: Sequence[Rank]) -> str:
    return "cuda:0" if any(rank.device is not None or rank.unrecorded for rank in ranks) else "cpu"


def _device(found: Sequence[Device]) -> Device | None:
    """The mean over the ranks; kernels are those of the first."""
    if len(found) <= 1:
        return found[0] if found else None

    def mean(name: str) -> float | None:
        values = [getattr(each, name) for each in found if getattr(each, name) is not None]
        return float(np.mean(values)) if values else None

    return Device(
        busy_ratio=mean("busy_ratio") or 0.0,
        idle_ms_per_step=mean("idle_ms_per_step") or 0.0,
        h2d_bytes_per_step=mean("h2d_bytes_per_step"),
        h2d_gb_per_s=mean("h2d_gb_per_s"),
        h2d_pageable_ratio=mean("h2d_pageable_ratio"),
        top_kernels=found[0].top_kernels,
    )


def _facts(ranks: Sequence[Rank], of: Rank, found: Waits | None) -> dict[str, Any]:
    """Of a job those of one rank, which say more than a mean of lists would."""
    facts: dict[str, Any] = {"file": of.origin.file, "files": len({rank.origin.file for rank in ranks})}
    facts |= {"steps_from": str(of.steps.cut_by), "steps_in_trace": len(of.steps.all)}
    if len(ranks) > 1:
        facts["of_rank"] = _label(of)
    if found is not None:
        facts["waits_between_ranks_ms"] = (found.matrix_ns / _MS).round(3).tolist()
    return facts | of.facts


def _waits(ranks: Sequence[Rank]) -> Waits | None:
    """Who waits for whom; None where there is nothing to compare."""
    # Several spans of time of one rank have nothing to wait for in each other.
    if len(ranks) < 2 or not _distinct(ranks):
        return None
    found = waits(ranks)
    return found if found.matched else None


def _mean_step_ns(ranks: Sequence[Rank]) -> float:
    return float(np.mean([rank.table.causes.sum(axis=1).mean() for rank in ranks if len(rank.table.causes)]))


def _rank_rows(ranks: Sequence[Rank], found: Waits | None) -> list[dict[str, Any]]:
    """One row a rank; none for a single one."""
    rows = []
    for place, rank in enumerate(ranks if len(ranks) > 1 else ()):
        mean = rank.table.causes.mean(axis=0) / _MS if len(rank.table.causes) else np.zeros(len(CAUSES))
        row: dict[str, Any] = {
            "rank": _label(rank),
            "file": rank.origin.file,
            "steps": len(rank.steps.used),
            "step_ms": float(mean.sum()),
            "compute_ms": float(mean[CAUSES.index(Cause.DEVICE_COMPUTE)]),
            "communication_ms": float(mean[CAUSES.index(Cause.COMMUNICATION)]),
            "input_wait_ms": float(mean[CAUSES.index(Cause.INPUT_WAIT)]),
            "host_ms": float(sum(mean[CAUSES.index(cause)] for cause in _HOST)),
        }
        if found is not None:
            row["waited_for_others_ms"] = float(found.waited_ns[place]) / _MS
            most = int(np.argmax(found.matrix_ns[place]))
            row["waited_most_for"] = str(_label(ranks[most])) if found.matrix_ns[place, most] > 0 else "none"
            row["others_waited_for_it_ms"] = float(found.caused_ns[place]) / _MS
        rows.append(row)
    return rows


def _rank_notices(ranks: Sequence[Rank], found: Waits | None, late: int | None) -> list[Notice]:
    """What stands out when ranks are compared, or that there is only one of several."""
    first = ranks[0].origin
    if len(ranks) == 1 and first.world_size > 1:
        values: dict[str, Any] = {"ranks": first.world_size}
        return [Notice("trace-one-rank", 1, values if first.rank is None else values | {"rank": first.rank})]
    if found is None:
        return []
    communication = np.mean([rank.share(Cause.COMMUNICATION) for rank in ranks]) * _mean_step_ns(ranks)
    values = {
        "waited_ms": float(found.waited_ns.mean()) / _MS,
        "communication_ms": float(communication) / _MS,
        "collectives": found.matched,
    }
    notices = [Notice("trace-ranks-wait", 1, values)]
    if late is not None:
        named = {"rank": _label(ranks[late]), "waited_ms": float(found.caused_ns[late]) / _MS}
        notices.append(Notice("trace-straggler", 1, named))
    return notices


def _absent_ranks(given: Sequence[Rank], compared: Sequence[Rank]) -> list[Notice]:
    """Of which ranks there is no trace, or none that can be compared with the others'; a single trace is no job."""
    notices = []
    numbers = {rank.origin.rank for rank in given if rank.origin.rank is not None}
    missing = sorted(set(range(max(rank.origin.world_size for rank in given))) - numbers)
    if len(numbers) > 1 and missing:
        values = {"found": len(numbers), "ranks": len(numbers) + len(missing), "missing": _ranges(missing)}
        notices.append(Notice("trace-ranks-missing", len(missing), values))
    left_out = [rank for rank in given if rank not in compared]
    if left_out:
        named = ", ".join(str(_label(rank)) for rank in left_out)
        notices.append(Notice("trace-ranks-left-out", len(left_out), {"ranks": named}))
        shown = {notice.slug for rank in compared for notice in rank.notices}
        notices += [notice for notice in _merged(left_out) if notice.slug not in shown]
    return notices


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, those in a row by the first and the last of them."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(str(row[0]) if len(row) == 1 else f"{row[0]}\N{EN DASH}{row[-1]}" for row in rows)


def _label(rank: Rank) -> int | str:
    return rank.origin.rank if rank.origin.rank is not None else str(rank.facts.get("process", rank.origin.worker))


def _distinct(ranks: Sequence[Rank]) -> bool:
    """Whether these are ranks, and not several spans of time of one."""
    return len({_label(rank) for rank in ranks}) == len(ranks)


def _host(rank: Rank) -> str:
    """The machine's name, where the file's has it as torch's handler writes it: ``host_pid.time.pt.trace.json``."""
    found = _HOST_AND_PROCESS.match(rank.origin.worker)
    return found[1] if found else UNKNOWN_HOST
