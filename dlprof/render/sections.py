"""The parts of a report below the first screen, each one function: `Report` to `Section`, or None without data."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from dlprof.model.kinds import Component, Confidence
from dlprof.model.moments import Moment
from dlprof.model.report import Device, Forecast, Input, Report, StepRow, Total
from dlprof.render.background import background
from dlprof.render.blocks import AdviceView, Block, Fact, Facts, Figure, Listing, Prose, Section, Table
from dlprof.render.moments import moments_section
from dlprof.render.numbers import NOT_MEASURED, TO, column, count, gain, milliseconds, number, percent, size_bytes
from dlprof.render.plain import name, setting, source_line
from dlprof.render.select import (
    budget_rows,
    component_rows,
    measured_workers,
    shown_steps,
    slowest_steps,
    steps_per_bar,
    worker_forecasts,
)
from dlprof.render.trace import trace_section
from dlprof.render.wording import cause_name, component_name, device_word
from dlprof.words import joined, marked, tr, trn

SLOWEST_STEPS = SLOWEST_SAMPLES = 5
ROWS_AT_MOST = 20
"""Rows of one table; what is left out is said."""

_CONFIDENCE = {
    Confidence.HIGH: marked("high"),
    Confidence.MEDIUM: marked("medium"),
    Confidence.LOW: marked("low"),
}

_LIMITS = {
    "device_step": marked("device step"),
    "main_process": marked("main process"),
    "cores": marked("cores"),
    "shm": marked("shm"),
    "untested_concurrency": marked("untested concurrency"),
}

_SOURCES = {
    "light": marked("every measured step"),
    "traced": marked("traced steps"),
    "events": marked("device events"),
}

_STATES = {
    "cpu": marked("on the CPU"),
    "storage": marked("waiting for storage"),
    "network": marked("waiting for the network"),
    "lock": marked("waiting for a lock"),
    "sleep": marked("sleeping"),
}


def build(
    report: Report,
    more_advice: Sequence[AdviceView],
    rest_of_advice: Sequence[AdviceView] = (),
    moments: Sequence[Moment] = (),
) -> tuple[Section, ...]:
    """All sections that have something to say, in their order on the page.

    Args:
        report: What is shown.
        more_advice: Advice that found no room on the first screen.
        rest_of_advice: Advice that few will need.
        moments: Single steps to look at.
    """
    found = [
        _more_advice(more_advice, "more-advice", tr("More to change")),
        _more_advice(rest_of_advice, "rest-of-advice", tr("The rest of the advice"), folded=tr("Show it")),
        _parts(report),
        _steps(report),
        moments_section(moments),
        _loader(report),
        _forecast(report),
        _device(report),
        trace_section(report),
        *background(report),
    ]
    return tuple(section for section in found if section is not None)


_NAMED_WHERE = {
    "data": marked("making batches"),
    "host": marked("the training loop"),
    "device": marked("the device"),
}


def table(
    caption: str, head: tuple[str, ...], columns: str, rows: Sequence[tuple[str, ...]], limit: int = ROWS_AT_MOST
) -> Table:
    """A table of at most ``limit`` rows.

    Args:
        caption: What the rows are.
        head: Names of the columns.
        columns: One letter a column: t(ext), n(umber), c(ode).
        rows: The cells.
        limit: Rows at most.
    """
    if len(rows) > limit:
        caption = tr("{caption} ({shown} of {all})", caption=caption, shown=limit, all=count(len(rows)))
    kinds = {"t": "text", "n": "number", "c": "code"}
    return Table(caption, head, tuple(kinds[letter] for letter in columns), tuple(rows[:limit]))  # type: ignore[misc]


def _more_advice(advice: Sequence[AdviceView], id_: str, title: str, *, folded: str = "") -> Section | None:
    if not advice:
        return None
    blocks: list[Block] = []
    for item in advice:
        note = tr(", ").join(part for part in (f"{item.gain} {item.gain_word}".strip(), item.gain_note) if part)
        blocks += [Listing((Fact(item.title, note),)), *item.how]
    return Section(id_, title, tuple(blocks), folded)


def _parts(report: Report) -> Section | None:
    blocks = (*_budget(report), *_totals(report), *_named(report))
    return Section("parts", tr("Parts of the step"), blocks) if blocks else None


def _budget(report: Report) -> list[Block]:
    rows = budget_rows(report)
    if not rows:
        return []
    times = column(row.ms_per_step for row in rows)
    cells = [
        (cause_name(row.cause), ms, percent(row.share), tr(_SOURCES[row.source]))
        for row, ms in zip(rows, times, strict=True)
    ]
    text = tr(
        "Each moment of the step counts once; the parts add up to its mean, {time}.",
        time=milliseconds(report.step.mean_ms),
    )
    head = (tr("Part"), tr("ms per step"), tr("share"), tr("known from"))
    return [Prose(text), table(tr("The mean step"), head, "tnnt", cells)]


def _steps(report: Report) -> Section | None:
    steps = shown_steps(report)
    if not steps:
        return None
    plain = [row for row in steps if not row.traced]
    traced = [row for row in steps if row.traced]
    blocks: list[Block] = [Figure("steps", tr("Time of each step, ms"), _steps_sentence(plain, traced))]
    slow = slowest_steps(report, SLOWEST_STEPS)
    if len(plain) > SLOWEST_STEPS:
        cells = zip(column(row.ms for row in slow), column(row.input_wait_ms for row in slow), strict=True)
        rows = [(str(row.index), ms, wait) for row, (ms, wait) in zip(slow, cells, strict=True)]
        head = (tr("Step"), "ms", tr("of it waiting for input, ms"))
        blocks.append(table(tr("The slowest measured steps"), head, "tnn", rows))
    return Section("steps", tr("Steps over time"), tuple(blocks))


def _steps_sentence(plain: Sequence[StepRow], traced: Sequence[StepRow]) -> str:
    mean = milliseconds(fmean(row.ms for row in plain or traced))
    if not plain:
        return tr("Every step was traced; they took {mean} on average.", mean=mean)
    wait = milliseconds(fmean(row.input_wait_ms for row in plain))
    if len(plain) == 1:
        sentence = tr(
            "One measured step took {mean}, of which the training loop waited {wait} for input.", mean=mean, wait=wait
        )
    else:
        times = [row.ms for row in plain]
        sentence = tr(
            "{steps} measured steps took {least} to {most}, {mean} on average, of which the training loop waited "
            "{wait} for input.",
            steps=count(len(plain)),
            least=milliseconds(min(times)),
            most=milliseconds(max(times)),
            mean=mean,
            wait=wait,
        )
    more = []
    if traced:
        more.append(
            tr(
                "{steps} more ran under torch.profiler and took {time}; averages leave them out.",
                steps=count(len(traced)),
                time=milliseconds(fmean(row.ms for row in traced)),
            )
        )
    if warmup := min(row.index for row in (*plain, *traced)):
        more.append(
            trn(
                "The one before them warmed up and is left out.",
                "The {steps} before them warmed up and are left out.",
                warmup,
                steps=count(warmup),
            )
        )
    grouped = steps_per_bar(len(plain) + len(traced))
    if grouped > 1:
        more.append(tr("Each bar of the chart is the mean of {steps} steps.", steps=count(grouped)))
    return joined(sentence, *more)


def _loader(report: Report) -> Section | None:
    data = report.input
    if data is None:
        return None
    blocks: list[Block] = []
    facts = _loader_facts(data)
    if facts:
        blocks.append(Facts(tr("The loader at work"), facts))
    blocks += _components(report)
    blocks += _hot_lines(data)
    blocks += _workers(data)
    blocks += _slowest_samples(data)
    return Section("loader", tr("Inside the loader"), tuple(blocks)) if blocks else None


def _loader_facts(data: Input) -> tuple[Fact, ...]:
    made_at = data.loader.get("made_at")
    shown: list[tuple[str, str, object]] = [
        (tr("Made at"), name(made_at), made_at),
        (tr("Workers busy"), percent(data.worker_busy_ratio), data.worker_busy_ratio),
        (tr("Batches ready in the queue, mean"), number(data.queue_depth_mean), data.queue_depth_mean),
        (tr("Padding in the batches"), percent(data.pad_ratio), data.pad_ratio),
    ]
    return tuple(Fact(label, value) for label, value, known in shown if known is not None)


def _components(report: Report) -> list[Block]:
    found = component_rows(report)
    if not found:
        return []
    most, spread = found[0]
    workers = measured_workers(report)
    place = ""
    if workers is not None:
        place = tr("in the training process") if workers == 0 else tr("from its worker to the training loop")
    spent = milliseconds(sum(item.mean for _, item in found))
    sentence = joined(
        tr("One batch takes {time} of work, {where}.", time=spent, where=place)
        if place
        else tr("One batch takes {time} of work.", time=spent),
        tr("The largest part: {part}, {time}.", part=component_name(most), time=milliseconds(spread.mean)),
    )
    means, middles, highs = (column(getattr(item, field) for _, item in found) for field in ("mean", "p50", "p95"))
    names = [component_name(component) for component, _ in found]
    rows = list(zip(names, means, middles, highs, strict=True))
    head = (tr("Part of the work"), tr("mean, ms"), tr("median, ms"), tr("95th percentile, ms"))
    return [
        Figure("components", tr("Work on one batch"), sentence),
        table(tr("Work on one batch, by part"), head, "tnnn", rows),
    ]


def _hot_lines(data: Input) -> list[Block]:
    if not data.hot_lines:
        return []
    rows = [
        (
            name(line.where, 70),
            name(line.function, 50),
            source_line(line.source, 90),
            percent(line.share),
            tr(_STATES[line.state]),
        )
        for line in sorted(data.hot_lines, key=lambda line: -line.share)
    ]
    head = (tr("Where"), tr("Function"), tr("Line"), tr("Share"), tr("State"))
    about = tr(
        "Lines of your code in data work and in the training loop's own Python, with their share of the time in both."
    )
    return [Prose(about), table(tr("Lines that take the time"), head, "cccnt", rows, 10)]


def _workers(data: Input) -> list[Block]:
    if not data.workers:
        return []
    workers = data.workers
    columns = [
        [str(worker.pid) for worker in workers],
        [count(worker.batches) for worker in workers],
        column(worker.cpu_s for worker in workers),
        column(worker.no_core_s for worker in workers),
        column(worker.blocked_s for worker in workers),
    ]
    head = [tr("Process"), tr("Batches"), tr("on a core, s"), tr("waiting for a core, s"), tr("blocked, s")]
    if any(worker.private_mb_end is not None for worker in workers):
        columns += [
            column((worker.private_mb_start for worker in workers), TO),
            column((worker.private_mb_end for worker in workers), TO),
        ]
        head += [tr("memory first, MB"), tr("memory last, MB")]
    rows = list(zip(*columns, strict=True))
    return [table(tr("Worker processes"), tuple(head), "t" + "n" * (len(head) - 1), rows, 32)]


def _slowest_samples(data: Input) -> list[Block]:
    samples = sorted(data.slowest_samples, key=lambda sample: -sample.ms)[:SLOWEST_SAMPLES]
    if not samples:
        return []
    unit, scale = ("ms", 1) if samples[0].ms >= 1 else ("µs", 1000)
    times = column(sample.ms * scale for sample in samples)
    rows = [(str(sample.index), time) for sample, time in zip(samples, times, strict=True)]
    return [table(tr("The slowest samples"), (tr("Dataset index"), unit), "tn", rows)]


def _totals(report: Report) -> list[Block]:
    totals = report.totals
    named = [
        ("collate_fn", totals.collate_fn),
        (tr("tokenizer"), totals.tokenizer),
        (tr("dataset (__getitem__ or __iter__)"), totals.dataset),
        (tr("host-to-device copy"), totals.h2d),
        (tr("step on the {device}", device=device_word(report.run.device)), totals.device_step),
    ]
    seen: list[tuple[str, Total]] = [(label, total) for label, total in named if total is not None]
    if not seen:
        return []
    times = column(total.ms_per_batch for _, total in seen)
    rows = [
        (label, ms, count(total.calls) if total.calls else TO) for (label, total), ms in zip(seen, times, strict=True)
    ]
    text = tr(
        "How long each activity takes, also while something else runs at the same time, in a worker or on the device. "
        "These do not add up to the step."
    )
    missing = [label for label, total in named if total is None]
    if missing:
        text = joined(text, tr("Not seen: {activities}.", activities=tr(", ").join(missing)))
    head = (tr("Activity"), tr("ms per batch"), tr("calls"))
    return [Prose(text), table(tr("Activities, overlapped or not"), head, "tnn", rows)]


def _named(report: Report) -> list[Block]:
    """Functions and parts that the user has named."""
    rows = report.environment.get("spans")
    if not isinstance(rows, list) or not rows:
        return []
    times, alone = (column(row[key] for row in rows) for key in ("ms_per_batch", "self_ms_per_batch"))
    cells = [
        (name(row["name"], 70), tr(_NAMED_WHERE.get(row["where"], "")), ms, own, count(row["calls"]))
        for row, ms, own in zip(rows, times, alone, strict=True)
    ]
    head = (tr("Name"), tr("Called in"), tr("ms per batch"), tr("of it itself, ms"), tr("calls"))
    return [table(tr("Named by you (--span, dlprof.span)"), head, "ctnnn", cells, 20)]


def _forecast(report: Report) -> Section | None:
    if not report.forecast:
        return None
    blocks: list[Block] = []
    curve = worker_forecasts(report)
    if curve and report.step.mean_ms is not None:
        measured = _with_workers(
            tr("{time} per step", time=milliseconds(report.step.mean_ms)), measured_workers(report)
        )
        best = _fewest_workers(curve)
        if best is None:
            found = tr("No other number of workers is clearly faster in the forecast.")
        else:
            found = tr("Best in the forecast: {time}.", time=_with_workers(milliseconds(best.step_ms[1]), int(best.to)))
        sentence = joined(tr("Measured: {time}.", time=measured), found)
        blocks.append(Figure("forecast", tr("Step time by num_workers, ms"), sentence))
    rows = list(report.forecast)
    low, middle, high = (column(row.step_ms[index] for row in rows) for index in range(3))
    cells: list[tuple[str, ...]] = [
        (
            _change(row),
            middle[index],
            f"{low[index]}{TO}{high[index]}",
            gain(row.speedup),
            tr(_CONFIDENCE[row.confidence]),
            name(tr(_LIMITS.get(row.limited_by, row.limited_by.replace("_", " "))), 80) if row.limited_by else "",
        )
        for index, row in enumerate(rows)
    ]
    head: tuple[str, ...] = (
        tr("Setting"),
        tr("step, ms"),
        tr("80 % interval, ms"),
        tr("gain"),
        tr("confidence"),
        tr("limited by"),
    )
    columns = "tnnntt"
    if not any(row.limited_by for row in rows):
        head, columns, cells = head[:-1], columns[:-1], [cell[:-1] for cell in cells]
    blocks.append(table(tr("Step time that another setting would give"), head, columns, cells))
    return Section("forecast", tr("What other settings would give"), tuple(blocks))


def _change(row: Forecast) -> str:
    """What a forecast supposes: another value, the one in force, or a part of the data work that is gone."""
    removed = row.setting.removesuffix(" removed")
    if removed == "input":
        return tr("without any data work")
    if removed in set(Component):
        return tr("without {part}", part=component_name(Component(removed)))
    if row.from_ == row.to:
        return tr("{setting} {value}, as it is", setting=name(row.setting, 40), value=setting(row.to, 30))
    return f"{name(row.setting, 40)} {setting(row.from_, 30)} → {setting(row.to, 30)}"


def _fewest_workers(curve: Sequence[Forecast]) -> Forecast | None:
    """The fewest workers within 2 % of the shortest step, if that is surely faster than what was measured."""
    shortest = min(row.step_ms[1] for row in curve)
    near = [row for row in curve if row.step_ms[1] <= 1.02 * shortest]
    best = min(near, key=lambda row: int(row.to))
    return best if best.speedup[0] > 1 else None


def _with_workers(time: str, workers: int | None) -> str:
    if workers is None:
        return time
    return trn("{time} with {workers} worker", "{time} with {workers} workers", workers, time=time, workers=workers)


def _device(report: Report) -> Section | None:
    device = report.device
    if device is None:
        return None
    blocks: list[Block] = [Facts(tr("The device during the traced steps"), _device_facts(device))]
    if device.top_kernels:
        times = column(kernel.ms_per_step for kernel in device.top_kernels)
        rows = [
            (name(kernel.name, 110), ms, count(kernel.calls_per_step))
            for kernel, ms in zip(device.top_kernels, times, strict=True)
        ]
        head = (tr("Operation"), tr("ms per step"), tr("calls per step"))
        blocks.append(table(tr("What keeps the device busy"), head, "cnn", rows, 10))
    return Section("device", tr("On the device"), tuple(blocks))


def _device_facts(device: Device) -> tuple[Fact, ...]:
    speed = device.h2d_gb_per_s
    shown = [
        (tr("Busy"), percent(device.busy_ratio)),
        (tr("Idle per step"), milliseconds(device.idle_ms_per_step)),
        (tr("Copied to the device per step"), size_bytes(device.h2d_bytes_per_step)),
        (tr("Copy speed"), tr(NOT_MEASURED) if speed is None else f"{number(speed)} GB/s"),
        (tr("Copied from pageable memory"), percent(device.h2d_pageable_ratio)),
    ]
    return tuple(Fact(label, value) for label, value in shown)
