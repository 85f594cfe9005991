"""What is particular to the report on somebody's trace: the section on what it shows, and what it cannot show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dlprof.model.report import Report
from dlprof.render.blocks import Block, Fact, Facts, Prose, Section, Table
from dlprof.render.numbers import count, is_number, milliseconds, number, percent, size_bytes
from dlprof.render.plain import name
from dlprof.words import marked, tr

_ROWS = 20
_LONG_US = 1000
_WORTH_A_WORD = 0.01
"""Share of the step from which copies from the device are told apart from those to it."""
UNSEEN = "trace-without-workers"
"""The notice on what a trace cannot show of the input, where that matters."""

_REASONS = {
    "input": marked("the training loop waits for a batch"),
    "synchronization": marked("the host waits for the device"),
    "allocator": marked("memory is being allocated"),
    "launch": marked("operators run on the host, or launch"),
    "python": marked("Python of the training loop"),
}


def trace_facts(report: Report) -> Mapping[str, Any] | None:
    """What was seen in a trace beside the step; None in the report of a run."""
    found = report.environment.get("trace")
    return found if isinstance(found, dict) else None


def unseen_in_trace(report: Report) -> str:
    """What a trace cannot show of the input, and what would show it; empty where that does not matter."""
    return next((name(each.text, 600) for each in report.notices if each.slug == UNSEEN), "")


def back_ms(report: Report) -> float:
    """How long a step copies from the device while nothing computes, as a trace shows it; 0 where it hardly does."""
    exposed: Mapping[str, float] = (trace_facts(report) or {}).get("exposed_ms_per_step") or {}
    found = exposed.get("d2h", 0.0)
    return found if found >= _WORTH_A_WORD * (report.step.mean_ms or 0.0) else 0.0


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
