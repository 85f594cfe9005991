"""`Report` to `ReportView`: what stands on the first screen, and the order of the rest."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from math import isfinite

from dlprof.model.gains import SAME
from dlprof.model.kinds import Bottleneck, ExitReason
from dlprof.model.moments import Moment
from dlprof.model.report import UNKNOWN_HOST, AdviceRow, Report
from dlprof.render import sections
from dlprof.render.blocks import AdviceView, BudgetRowView, BudgetView, Code, Fact, Prose, ReportView
from dlprof.render.numbers import column, gain, milliseconds, number, percent, seconds, with_unit
from dlprof.render.plain import entry, name, text
from dlprof.render.select import budget_rows
from dlprof.render.trace import back_ms, unseen_in_trace
from dlprof.render.wording import (
    advice_title,
    bottleneck_name,
    cause_name,
    confidence_name,
    confidence_reason,
    device_word,
    metric_name,
)
from dlprof.words import joined, marked, said, shown, tr

ADVICE_ON_FIRST_SCREEN = 2
_NOT_REMOVABLE = (Bottleneck.DEVICE_COMPUTE, Bottleneck.BALANCED, Bottleneck.INCONCLUSIVE)
ADVICE_SHOWN = 5
"""Advice that is not folded."""

_ENDED = {
    ExitReason.STEPS_REACHED: marked("The script was stopped after the last step"),
    ExitReason.SCRIPT_ENDED: marked("The script ended"),
    ExitReason.EXCEPTION: marked("The script ended with an exception"),
    ExitReason.SIGNAL: marked("The script was ended by a signal"),
    ExitReason.WORKER_DIED: marked("A DataLoader worker died"),
    ExitReason.STALLED: marked("The script stood still and was ended"),
}


def view(report: Report, moments: Sequence[Moment] = ()) -> ReportView:
    """Everything that a report says, as strings, with single steps of the run where they are there."""
    verdict = report.verdict
    advice = tuple(advice_view(row, report) for row in report.advice)
    return ReportView(
        title=entry(script_name(report), bottleneck_name(verdict.bottleneck)),
        running=f"dlprof {name(report.dlprof, 40)} · {script_name(report)} · {moment(report.created)}",
        version=name(report.dlprof),
        headline=name(verdict.headline, 600),
        command=command_line(report),
        origin=origin(report),
        ended=shown(ended(report)),
        confidence=confidence_name(verdict.confidence),
        confidence_reason=_because(report),
        key_figures=key_figures(report),
        budget=budget_view(report),
        advice=advice[:ADVICE_ON_FIRST_SCREEN],
        advice_note=advice_note(report),
        sections=sections.build(report, advice[ADVICE_ON_FIRST_SCREEN:ADVICE_SHOWN], advice[ADVICE_SHOWN:], moments),
    )


def script_name(report: Report) -> str:
    """A short name of what was run: the script's file name, else the command's first word."""
    return script_of(report.run.command)


def script_of(command: Sequence[str]) -> str:
    """The script in a command, as `script_name`."""
    scripts = [word for word in command if word.endswith(".py")]
    return name((scripts or list(command) or [tr("a run")])[0].replace("\\", "/").rstrip("/").split("/")[-1], 60)


def command_line(report: Report) -> str:
    """The command as it could be typed again, shortened."""
    return name(shlex.join(report.run.command), 200) if report.run.command else ""


def origin(report: Report) -> tuple[str, ...]:
    """When, where and on what: short phrases."""
    run = report.run
    device = device_word(run.device)
    if run.device_name:
        device = f"{device} {name(run.device_name, 80)}"
    elif run.device not in ("cpu", device.lower()):
        device = f"{device} ({name(run.device, 40)})"
    # Alone, a host that is not known says nothing.
    host = [] if report.host == UNKNOWN_HOST else [name(report.host, 80)]
    parts = [moment(report.created), *host, device]
    if run.world_size > 1:
        parts.append(tr("{number} ranks", number=run.world_size))
    return tuple(parts)


def moment(created: str) -> str:
    """An ISO 8601 time as a person reads it, to the minute, with its zone."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return name(created, 40)
    zone = moment.strftime("%z")
    if zone:
        zone = " UTC" if zone in ("+0000", "-0000") else f" UTC{zone[:3]}:{zone[3:5]}"
    return f"{moment:%Y-%m-%d %H:%M}{zone}"


_TRACEBACK = "Traceback (most recent call last):"
_NAMES_ERROR = re.compile(r"[A-Za-z_][\w.]*(: |$)")
"""At the start of a line that is no part of a stack."""


def ended(report: Report) -> str:
    """How the script ended, where that was not as it should; else empty."""
    end = report.run.exit
    if end.reason in (ExitReason.STEPS_REACHED, ExitReason.SCRIPT_ENDED) and end.status == 0:
        return ""
    return _ended(end.reason, end.status, end.detail)


@said
def _ended(reason: ExitReason, status: int, detail: str | None) -> str:
    what = tr("{how} (exit status {status})", how=tr(_ENDED[reason]), status=status)
    return entry(what, name(_last_error(detail), 400)) if detail else what


def _last_error(detail: str) -> str:
    """Of an error that quotes a traceback, as one in a worker does, the line that names it; else all of it."""
    if _TRACEBACK not in detail:
        return detail
    lines = [line for line in detail.splitlines() if _NAMES_ERROR.match(line)]
    return lines[-1] if lines else detail


def _because(report: Report) -> str:
    verdict = report.verdict
    slugs = [notice.slug for notice in report.notices]
    reason = confidence_reason(verdict.confidence, report.run.steps_measured, slugs)
    saving = ""
    step_ms = report.step.mean_ms
    if verdict.bottleneck not in _NOT_REMOVABLE and verdict.share is not None and step_ms is not None:
        left = milliseconds((1 - verdict.share) * step_ms)
        saving = tr("Without this bottleneck a step would take about {time}.", time=left)
        if verdict.bottleneck is Bottleneck.H2D_COPY and (back := back_ms(report)):
            # Copies both ways are one cause, and may run side by side; who speeds up those of the batches still has
            # the others.
            alone = milliseconds(min((1 - verdict.share) * step_ms + back, step_ms))
            saving = tr(
                "Without the copies to the device a step would take about {time}, {back} of it for those from it.",
                time=alone,
                back=milliseconds(back),
            )
    return joined(tr("{clause}.", clause=reason), saving)


def key_figures(report: Report) -> tuple[Fact, ...]:
    """The step's times that were measured; those that were not are left out, unless it is the step itself."""
    step = report.step
    shown = [
        (tr("mean step"), milliseconds(step.mean_ms), True),
        (tr("median"), milliseconds(step.p50_ms), step.p50_ms is not None),
        (tr("95th percentile"), milliseconds(step.p95_ms), step.p95_ms is not None),
        (tr("steps per second"), number(step.steps_per_s), step.steps_per_s is not None),
        (tr("samples per second"), number(step.samples_per_s), step.samples_per_s is not None),
        (tr("first batch after"), seconds(step.first_batch_s), step.first_batch_s is not None),
    ]
    return tuple(Fact(label, value) for label, value, wanted in shown if wanted)


def budget_view(report: Report) -> BudgetView | None:
    """The budget, or None where there is none."""
    rows = budget_rows(report)
    if not rows:
        return None
    spoken = tr(", ").join(f"{cause_name(row.cause)} {percent(row.share)}" for row in rows)
    return BudgetView(
        title=tr("Where the mean step of {time} goes", time=milliseconds(report.step.mean_ms)),
        description=tr("Parts of the mean step: {parts}.", parts=spoken),
        rows=tuple(
            BudgetRowView(row.cause.value, cause_name(row.cause), milliseconds(row.ms_per_step), percent(row.share))
            for row in rows
        ),
    )


def advice_view(row: AdviceRow, report: Report) -> AdviceView:
    """A piece of advice with its gain and the step it forecasts."""
    worth = gain(row.speedup) if row.speedup is not None else ""
    return AdviceView(
        id=name(row.id, 60),
        title=name(advice_title(row.id, row.from_, row.to), 120),
        gain=worth,
        gain_word=tr("faster") if row.speedup and row.speedup[1] >= SAME and all(map(isfinite, row.speedup)) else "",
        gain_note=_gain_note(row, report),
        how=paragraphs(row.how),
        evidence=tuple(
            Fact(name(metric_name(item.metric), 80), with_unit(item.value, name(item.unit, 20)))
            for item in row.evidence
        ),
    )


def _gain_note(row: AdviceRow, report: Report) -> str:
    if row.speedup is None:
        return "" if row.id == "stop-tuning-input" else tr("gain not forecast")
    middle = row.speedup[1]
    if report.step.mean_ms is None or not middle > 0:
        return tr("forecast")
    # The same number as in the table of forecasts, where it is one of those.
    forecast = next((it.step_ms[1] for it in report.forecast if it.speedup == row.speedup), None)
    before, after = column([report.step.mean_ms, report.step.mean_ms / middle if forecast is None else forecast])
    return tr("forecast: {before} → {after} ms per step", before=before, after=after)


def paragraphs(how: str) -> tuple[Prose | Code, ...]:
    """Cut an advice text into paragraphs and blocks of lines to paste (those indented by four spaces)."""
    blocks: list[Prose | Code] = []
    lines: list[str] = []
    pasting = False
    for line in [*text(how).split("\n"), ""]:
        indented = line.startswith("    ")
        if not line.strip():
            if pasting:
                lines.append("")
            else:
                _close(blocks, lines, pasting)
        else:
            if indented != pasting:
                _close(blocks, lines, pasting)
                pasting = indented
            lines.append(line[4:] if indented else line.strip())
    _close(blocks, lines, pasting)
    return tuple(blocks)


def _close(blocks: list[Prose | Code], lines: list[str], pasting: bool) -> None:
    content = "\n".join(lines).strip("\n") if pasting else " ".join(lines)
    if content:
        blocks.append(Code(content) if pasting else Prose(content))
    lines.clear()


def advice_note(report: Report) -> str:
    """Why there is no advice, and what a trace cannot show of the input."""
    return joined("" if report.advice else _no_advice(report), unseen_in_trace(report))


def _no_advice(report: Report) -> str:
    if report.verdict.bottleneck is Bottleneck.INCONCLUSIVE:
        return tr("No advice: the recording does not support any. Measure more steps, or see the notices.")
    if not report.forecast:
        if unseen_in_trace(report) and report.verdict.bottleneck is Bottleneck.INPUT_PIPELINE:
            return tr(
                "Give the loader more workers (num_workers) while cores are idle, and see whether steps get shorter."
            )
        return tr("No advice: none of the usual changes fits what was measured.")
    found = tr("No advice: no setting that was tried in the forecast makes the step shorter.")
    if report.verdict.bottleneck in _NOT_REMOVABLE:
        return found
    return joined(found, tr("Less of the work that the headline names would."))
