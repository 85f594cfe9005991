"""What is particular to the report on somebody's trace: the section on what it shows, and the few lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dlprof.model.report import Report
from dlprof.render.blocks import Block, Fact, Facts, Prose, Section, Table
from dlprof.render.numbers import NOT_MEASURED, count, is_number, milliseconds, number, percent, size_bytes
from dlprof.render.plain import entry, name
from dlprof.render.select import budget_rows
from dlprof.render.wording import advice_title, cause_name, confidence_name
from dlprof.render.wrapping import wrap
from dlprof.words import marked, tr, trn

BRIEF_WIDTH = 110
_HEADLINE_LINES, _NOTICE_LINES, _MOST_LINES = 3, 2, 9
_ROWS = 20
_LONG_US = 1000

_REASONS = {
    "input": marked("the training loop waits for a batch"),
    "synchronization": marked("the host waits for the device"),
    "allocator": marked("memory is being allocated"),
    "launch": marked("operators run on the host, or launch"),
    "python": marked("Python of the training loop"),
}
_SHORT = {
    "input": marked("input"),
    "synchronization": marked("synchronising"),
    "allocator": marked("allocating"),
    "launch": marked("launching"),
    "python": marked("Python"),
}
_BEARS_ON_RESULT = (
    "trace-truncated",
    "trace-queue-drained",
    "trace-straggler",
    "trace-ranks-wait",
    "trace-kernels-missing",
    "trace-kernels-cut-off",
    "trace-thinned-out",
    "trace-step-ahead",
    "trace-without-workers",
    "trace-one-rank",
    "trace-cut-by-nothing",
    "trace-cut-by-kernels",
    "trace-cut-by-optimizer",
    "trace-cut-by-loader",
    "trace-step-warm-up",
    "trace-step-stub",
)
"""Notices in the order in which the few lines have room for them."""


def trace_facts(report: Report) -> Mapping[str, Any] | None:
    """What was seen in a trace beside the step; None in the report of a run."""
    found = report.environment.get("trace")
    return found if isinstance(found, dict) else None


# ---- the section ---------------------------------------------------------------------------------------------------


def trace_section(report: Report) -> Section | None:
    """What the trace shows; None in the report of a run."""
    facts = trace_facts(report)
    if facts is None:
        return None
    blocks: list[Block] = []
    if len(report.ranks) > 1:
        rank = name(facts.get("of_rank"), 40)
        blocks.append(Prose(tr("Of rank {rank}; how the ranks differ stands under “Ranks”.", rank=rank)))
    blocks.append(Facts(tr("The trace"), tuple(_file_facts(facts))))
    idle = facts.get("idle_ms_per_step") or {}
    if idle:
        rows = tuple((tr(_REASONS.get(key, key)), milliseconds(value)) for key, value in idle.items() if value > 0)
        blocks.append(_table(tr("Why the device is idle"), (tr("While"), tr("per step")), "tn", rows))
    overlapped = tuple(_overlap_facts(facts))
    if overlapped:
        blocks.append(Facts(tr("Launches, copies and collectives"), overlapped))
    blocks += _lists(facts)
    return Section("trace", tr("What the trace shows"), tuple(blocks))


def _file_facts(facts: Mapping[str, Any]) -> Iterator[Fact]:
    yield Fact(tr("File"), name(facts.get("file"), 120))
    if facts.get("files", 1) > 1:
        yield Fact(tr("Files"), count(facts["files"]))
    yield Fact(tr("Events"), count(facts.get("events")))
    yield Fact(tr("Text"), size_bytes(facts.get("json_bytes")))
    yield Fact(tr("Steps in it"), count(facts.get("steps_in_trace")))


def _overlap_facts(facts: Mapping[str, Any]) -> Iterator[Fact]:
    launches = facts.get("launches") or {}
    if launches:
        yield Fact(tr("Kernels per step"), count(launches.get("kernels_per_step")))
        yield Fact(tr("Median kernel"), _microseconds(launches.get("kernel_us_p50")))
        yield Fact(tr("From launch to start, median"), _microseconds(launches.get("delay_us_p50")))
    exposed, hidden = facts.get("exposed_ms_per_step") or {}, facts.get("hidden_ms_per_step") or {}
    labels = {
        "communication": tr("Collectives"),
        "h2d": tr("Copies to the device"),
        "d2h": tr("Copies from the device"),
    }
    for key, label in labels.items():
        if exposed.get(key) or hidden.get(key):
            alone = tr("{time} per step while nothing computes", time=milliseconds(exposed.get(key)))
            beside = tr("{alone}, {time} beside it", alone=alone, time=milliseconds(hidden.get(key)))
            yield Fact(label, beside if hidden.get(key) else alone)


def _lists(facts: Mapping[str, Any]) -> Iterator[Block]:
    waiting = facts.get("synchronizing_calls") or []
    if waiting:
        head: tuple[str, ...] = (tr("Call"), tr("From"), tr("per step"), tr("calls per step"))
        rows = tuple(
            (
                name(row["name"], 60),
                name(row["where"], 90) if row.get("where") else tr("not recorded"),
                milliseconds(row["ms_per_step"]),
                number(row["calls_per_step"]),
            )
            for row in waiting[:_ROWS]
        )
        yield _table(tr("Calls that wait for the device"), head, "ccnn", rows)
    operators = facts.get("operators") or []
    if operators:
        spent = tuple(
            (name(row["name"], 90), milliseconds(row["self_ms_per_step"]), number(row["calls_per_step"]))
            for row in operators[:_ROWS]
        )
        head = (tr("Operator"), tr("itself, per step"), tr("calls per step"))
        yield _table(tr("Operators that take the host's time"), head, "cnn", spent)
    named = facts.get("annotations") or []
    if named:
        rows = tuple(
            (
                name(row["name"], 90),
                milliseconds(row["ms_per_step"]),
                number(row["calls_per_step"]),
                percent(row["device_busy_ratio"]),
            )
            for row in named[:_ROWS]
        )
        yield Prose(
            tr(
                "What the script calls parts of its work. The device's record is what counts: a part that is called "
                "loading, and in which the device is busy, waits for the device."
            )
        )
        head = (tr("Name"), tr("per step"), tr("calls per step"), tr("device busy"))
        yield _table(tr("Named by the script"), head, "cnnn", rows)


def _table(caption: str, head: tuple[str, ...], columns: str, rows: tuple[tuple[str, ...], ...]) -> Table:
    kinds = {"t": "text", "n": "number", "c": "code"}
    return Table(caption, head, tuple(kinds[letter] for letter in columns), rows)  # type: ignore[misc]


def _microseconds(value: Any) -> str:
    if not is_number(value):
        return tr("not known")
    return f"{number(value)} µs" if value < _LONG_US else milliseconds(value / 1000)


# ---- the few lines -------------------------------------------------------------------------------------------------


def render_brief(report: Report) -> str:
    """The report on a trace in under ten lines.

    Args:
        report: Composed or loaded from its JSON.
    """
    verdict, step = report.verdict, report.step
    lines = _wrapped(name(verdict.headline, 600), _HEADLINE_LINES)
    steps = report.run.steps_measured
    times = tr(", ").join(
        f"{label} {milliseconds(value)}"
        for label, value in (
            (tr("mean"), step.mean_ms),
            (tr("median"), step.p50_ms),
            (tr("95th percentile"), step.p95_ms),
        )
        if value is not None
    )
    counted = trn("{steps} step", "{steps} steps", steps, steps=count(steps))
    confidence = confidence_name(verdict.confidence)
    confidence = confidence[:1].lower() + confidence[1:]
    said = tr("{times} ({steps}, {confidence})", times=times or tr(NOT_MEASURED), steps=counted, confidence=confidence)
    lines.append(entry(tr("Step"), said))
    parts = [f"{cause_name(row.cause)} {percent(row.share)}" for row in budget_rows(report) if row.share >= 0.005]
    if parts:
        lines += _wrapped(entry(tr("Goes to"), tr(", ").join(parts)), 2)
    lines += _device_line(report)
    lines += _ranks_line(report)
    if report.advice:
        best = report.advice[0]
        lines += _wrapped(entry(tr("Advice"), advice_title(best.id, best.from_, best.to)), 1)
    texts = {notice.slug: notice.text for notice in report.notices}
    for slug in _BEARS_ON_RESULT:
        if slug in texts and len(lines) < _MOST_LINES:
            lines += _wrapped(entry(tr("Note"), name(texts[slug], 400)), min(_NOTICE_LINES, _MOST_LINES - len(lines)))
    return "\n".join(lines[:_MOST_LINES]) + "\n"


def _device_line(report: Report) -> list[str]:
    device, facts = report.device, trace_facts(report) or {}
    if device is None:
        return []
    idle = facts.get("idle_ms_per_step") or {}
    reasons = [
        f"{tr(_SHORT.get(key, key))} {milliseconds(value)}"
        for key, value in sorted(idle.items(), key=lambda item: -item[1])
        if step_share(report, value) >= 0.01
    ]
    said = tr(
        "busy {share}, idle {time} per step",
        share=percent(device.busy_ratio),
        time=milliseconds(device.idle_ms_per_step),
    )
    if reasons:
        said = tr("{said} ({reasons})", said=said, reasons=tr(", ").join(reasons))
    if device.h2d_bytes_per_step and device.h2d_gb_per_s:
        copies = tr(
            "copies {size} per step at {speed} GB/s",
            size=size_bytes(device.h2d_bytes_per_step),
            speed=number(device.h2d_gb_per_s),
        )
        if device.h2d_pageable_ratio is not None:
            copies += tr(", ") + tr("{share} from pageable memory", share=percent(device.h2d_pageable_ratio))
        said = tr("; ").join((said, copies))
    return _wrapped(entry(tr("Device"), said), 2)


def _ranks_line(report: Report) -> list[str]:
    rows = report.ranks
    if len(rows) < 2:
        return []
    fast, slow = (choose(rows, key=lambda row: row["step_ms"]) for choose in (min, max))
    said = tr(
        "{ranks}; step {least} (rank {fast}) to {most} (rank {slow})",
        ranks=count(len(rows)),
        least=milliseconds(fast["step_ms"]),
        fast=fast["rank"],
        most=milliseconds(slow["step_ms"]),
        slow=slow["rank"],
    )
    return _wrapped(entry(tr("Ranks"), said), 1)


def step_share(report: Report, ms: float) -> float:
    """A time as a share of the mean step, 0 without one."""
    return ms / report.step.mean_ms if report.step.mean_ms else 0.0


def _wrapped(text: str, most: int) -> list[str]:
    return wrap(text, BRIEF_WIDTH, subsequent_indent="  ", max_lines=max(most, 1))
