"""The report on a trace in under ten lines, each of them whole: what finds no room is left out, not cut."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dlprof.model.kinds import Bottleneck, Cause
from dlprof.model.report import AdviceRow, Report
from dlprof.render.numbers import NOT_MEASURED, count, gain, milliseconds, number, percent, size_bytes, times, with_unit
from dlprof.render.plain import entry, name, tie
from dlprof.render.select import budget_rows
from dlprof.render.trace import UNSEEN, back_ms, trace_facts, unseen_in_trace
from dlprof.render.view import advice_note
from dlprof.render.wording import advice_title, cause_name, confidence_name, metric_name
from dlprof.render.wrapping import wrap
from dlprof.words import marked, tr, trn

BRIEF_WIDTH = 110
"""Columns of a line where no terminal says how wide it is."""
_NARROWEST = 80
"""Columns of a line for which lines are counted: on a narrower terminal the same is said on more of them."""
_MOST_LINES = 9
_WORTH_A_WORD, _SMALL_PART = 0.01, 0.025
"""Shares of the step below which a part is left to the whole report: where there is room, and where there is not."""
_COPIES_MATTER = 0.05
_REMOVABLE = 0.8
"""Nobody takes for possible what the step would be without a cause that is more of it than this."""
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|(?<=。)")

_SHORT = {
    "input": marked("input"),
    "synchronization": marked("synchronising"),
    "allocator": marked("allocating"),
    "launch": marked("launching"),
    "python": marked("Python"),
}
_BRIEFLY = marked("dlprof run --steps 50 train.py shows what a trace does not.")
_MAKES_INCONCLUSIVE = ("trace-kernels-missing", "trace-kernels-cut-off", "trace-thinned-out")
"""Notices that are the reason of such a verdict, which its headline gives."""
_BEARS_ON_RESULT = (
    "trace-truncated",
    "trace-queue-drained",
    "trace-ranks-missing",
    "trace-ranks-left-out",
    "trace-straggler",
    "trace-ranks-wait",
    *_MAKES_INCONCLUSIVE,
    "trace-step-ahead",
    UNSEEN,
    "trace-one-rank",
    "trace-cut-by-nothing",
    "trace-cut-by-kernels",
    "trace-cut-by-optimizer",
    "trace-cut-by-loader",
    "trace-step-warm-up",
    "trace-step-stub",
)
"""Notices in the order in which the few lines have room for them."""


def render_brief(report: Report, width: int = BRIEF_WIDTH) -> str:
    """The report on a trace in under ten lines.

    Args:
        report: Composed or loaded from its JSON.
        width: Columns of a line.
    """
    page = _Page(width)
    page.add(0, [name(report.verdict.headline, 600)], always=True)
    page.add(1, _step(report), always=True)
    page.add(2, _parts(report))
    advice = [_advice(row) for row in report.advice[:2]]
    page.add(5, advice[:1] or ([advice_note(report)] if unseen_in_trace(report) else []))
    notes = list(_notes(report))
    left = len(notes)
    # The note that bears most on the result comes before what else there is to say, the others behind it.
    for note in notes[:1]:
        left -= page.add(7, note)
    page.add(4, _ranks(report), spare=int(left > 0))
    device = _device(report)
    # What is copied is told where it matters, on a second line if need be.
    page.add(3, device[:1], spare=int(left > 0)) or page.add(3, device[1:], spare=int(left > 0))
    page.add(6, advice[1:], spare=int(left > 0))
    if not advice and not unseen_in_trace(report):
        page.add(5, [advice_note(report)], spare=int(left > 0))
    for note in notes[1:]:
        left -= page.add(7, note, spare=int(left > 1))
    if left:
        more = trn("{notes} more note", "{notes} more notes", left, notes=count(left))
        page.add(8, [tr("{more}: see the whole report (--format html)", more=more)])
    return page.text()


class _Page:
    """Lines in the order of their place, as many as there is room for."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._taken = 0
        self._said: list[tuple[int, str]] = []

    def add(self, place: int, forms: Sequence[str], *, spare: int = 0, always: bool = False) -> bool:
        """Add the first of several forms of the same that finds room, on one line if any of them does.

        Args:
            place: The lower, the further up.
            forms: The one that says most first; none where there is nothing to say.
            spare: Lines that must stay free.
            always: Whether room does not matter.

        Returns:
            Whether it is there.
        """
        found = [(len(_wrapped(form, max(self._width, _NARROWEST))), form) for form in forms]
        fitting = [it for it in found if always or it[0] <= _MOST_LINES - spare - self._taken]
        if not fitting:
            return False
        lines, form = next((it for it in fitting if it[0] == 1), fitting[0])
        self._taken += lines
        self._said.append((place, form))
        return True

    def text(self) -> str:
        """The page."""
        said = sorted(self._said, key=lambda each: each[0])
        return "".join(f"{line}\n" for _, form in said for line in _wrapped(form, self._width))


def _wrapped(text: str, width: int) -> list[str]:
    lines = wrap(tie(text), width, subsequent_indent="  ", whole_words=True)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _step(report: Report) -> list[str]:
    """The step's times, and without the 95th percentile."""
    step, steps = report.step, report.run.steps_measured
    known = [(tr("mean"), step.mean_ms), (tr("median"), step.p50_ms), (tr("95th percentile"), step.p95_ms)]
    said = [f"{label} {milliseconds(value)}" for label, value in known if value is not None] or [tr(NOT_MEASURED)]
    counted = trn("{steps} step", "{steps} steps", steps, steps=count(steps))
    confidence = confidence_name(report.verdict.confidence)
    confidence = confidence[:1].lower() + confidence[1:]
    return [
        entry(
            tr("Step"),
            tr("{times} ({steps}, {confidence})", times=tr(", ").join(some), steps=counted, confidence=confidence),
        )
        for some in (said, said[:2])
    ]


def _parts(report: Report) -> list[str]:
    """Where the step goes: all parts, and without the small ones."""
    rows = budget_rows(report)
    forms = []
    for least in (_WORTH_A_WORD / 2, _SMALL_PART, 2 * _SMALL_PART):
        parts = [f"{cause_name(row.cause)} {percent(row.share)}" for row in rows if row.share >= least]
        if parts:
            forms.append(entry(tr("Goes to"), tr(", ").join(parts)))
    return forms


def _advice(row: AdviceRow) -> str:
    """A piece of advice with what it gains, at most, or else with the first of the numbers behind it."""
    title = advice_title(row.id, row.from_, row.to)
    shares = {each.metric: each.value for each in row.evidence if each.metric in set(Cause)}
    share = max(shares.values(), default=0.0)
    if row.speedup is not None:
        worth = tr("{gain} faster", gain=gain(row.speedup))
    elif 0 < share <= _REMOVABLE:
        worth = tr("at most {times} faster", times=times(1 / (1 - share)))
    elif row.evidence:
        worth = f"{metric_name(row.evidence[0].metric)} {with_unit(row.evidence[0].value, row.evidence[0].unit)}"
    else:
        return entry(tr("Advice"), title)
    return entry(tr("Advice"), tr("{what} ({worth})", what=title, worth=worth))


def _notes(report: Report) -> Iterator[list[str]]:
    """Notices that bear on the result, each whole, and as its first sentence."""
    texts = {notice.slug: name(notice.text, 600) for notice in report.notices}
    told = {UNSEEN} if not report.advice else set()
    if report.verdict.bottleneck is Bottleneck.INCONCLUSIVE and report.run.steps_measured:
        told |= set(_MAKES_INCONCLUSIVE)
    slugs = [slug for slug in _BEARS_ON_RESULT if slug in texts and slug not in told]
    if report.verdict.bottleneck is Bottleneck.INPUT_PIPELINE:
        slugs.sort(key=lambda slug: slug != UNSEEN)
    for slug in slugs:
        sentences = _END_OF_SENTENCE.split(texts[slug])
        forms = dict.fromkeys((texts[slug], tr(_BRIEFLY) if slug == UNSEEN else sentences[0]))
        yield [entry(tr("Note"), form) for form in forms]


def _device(report: Report) -> list[str]:
    """The device: with its copies where they matter, why it is idle, and neither."""
    device, facts = report.device, trace_facts(report) or {}
    if device is None:
        return []
    said = tr(
        "busy {share}, idle {time} per step",
        share=percent(device.busy_ratio),
        time=milliseconds(device.idle_ms_per_step),
    )
    forms = [said]
    idle = facts.get("idle_ms_per_step") or {}
    reasons = [
        f"{tr(_SHORT.get(key, key))} {milliseconds(value)}"
        for key, value in sorted(idle.items(), key=lambda item: -item[1])
        if _step_share(report, value) >= _WORTH_A_WORD
    ]
    if reasons:
        said = tr("{said} ({reasons})", said=said, reasons=tr(", ").join(reasons))
        forms.insert(0, said)
    copied = next((row.share for row in report.budget if row.cause is Cause.H2D_COPY), 0.0)
    if copied >= _COPIES_MATTER and device.h2d_bytes_per_step and device.h2d_gb_per_s:
        copies = tr(
            "copies to it {size} per step at {speed} GB/s",
            size=size_bytes(device.h2d_bytes_per_step),
            speed=number(device.h2d_gb_per_s),
        )
        if device.h2d_pageable_ratio is not None:
            copies += tr(", ") + tr("{share} from pageable memory", share=percent(device.h2d_pageable_ratio))
        if back := back_ms(report):
            copies += tr(", ") + tr("from it {time} per step", time=milliseconds(back))
        forms.insert(0, tr("; ").join((said, copies)))
    return [entry(tr("Device"), form) for form in forms]


def _ranks(report: Report) -> list[str]:
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
    trace = report.environment.get("trace")
    of_rank = trace.get("of_rank") if isinstance(trace, dict) else None
    if of_rank is not None:
        said = tr("{said}; all above is of rank {rank}", said=said, rank=of_rank)
    return [entry(tr("Ranks"), said)]


def _step_share(report: Report, ms: float) -> float:
    """A time as a share of the mean step, 0 without one."""
    return ms / report.step.mean_ms if report.step.mean_ms else 0.0
