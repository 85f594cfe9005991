"""The numbers of a report, section by section."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from dlprof.analysis.components import PARTS, Fetches
from dlprof.analysis.curves import queue_depths
from dlprof.analysis.hot_lines import HotLines
from dlprof.analysis.input_wait import WAIT_COMPONENTS
from dlprof.analysis.machine import private_memory_mb
from dlprof.analysis.partition import Partition, device_compute_ns
from dlprof.analysis.scope import own_spans, process_spans, training_spans
from dlprof.model.intervals import clip, length, overlap
from dlprof.model.kinds import Cause, Component, Confidence, Kind, Role
from dlprof.model.pipeline import Pipeline
from dlprof.model.profile import Loader, Profile, Spans
from dlprof.model.report import (
    BudgetRow,
    Device,
    Forecast,
    Input,
    Kernel,
    Overhead,
    SlowSample,
    Spread,
    StepRow,
    StepTimes,
    Total,
    Totals,
    Worker,
)
from dlprof.model.steps import Step, Steps

_SLOWEST = 10
_KERNELS = 10
_MS = 1e6
_REPLICAS, _QUANTILES = 1000, (0.1, 0.5, 0.9)
_FEW_STEPS = 10
_CEILING = "ceiling (measured)"
_SHOWN_SETTINGS = (
    "num_workers",
    "batch_size",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "in_order",
    "index",
    "made_at",
    "drop_last",
    "timeout",
    "start_method",
    "dataset",
    "iterable",
    "sampler",
    "collate_fn",
    "length",
)


def step_times(profile: Profile, steps: Steps, parts: Partition | None) -> StepTimes:
    """Step time over the measured steps, throughput, and the time to the first batch."""
    first = _first_batch_s(profile)
    if parts is None:
        return StepTimes(None, None, None, None, None, first)
    durations = np.array([step.duration_ns for step in steps.measured], dtype=np.float64) / _MS
    mean = parts.mean.step_ns / _MS
    samples = _samples_per_batch(profile, steps)
    per_second = 1000 / mean if mean else None
    return StepTimes(
        mean_ms=mean,
        p50_ms=float(np.percentile(durations, 50)),
        p95_ms=float(np.percentile(durations, 95)),
        steps_per_s=per_second,
        samples_per_s=samples * per_second if samples and per_second else None,
        first_batch_s=first,
    )


def _first_batch_s(profile: Profile) -> float | None:
    began = next((p.began_ns for p in profile.processes if p.pid == profile.main_pid), None)
    arrivals = process_spans(profile).of(Kind.NEXT).end_ns
    if began is None or not len(arrivals):
        return None
    # A process's record begins with its first event; the command was started before that.
    return max(0.0, (int(arrivals.min()) - profile.run.monotonic_ns) / 1e9)


def _samples_per_batch(profile: Profile, steps: Steps) -> float | None:
    shape = next((each for each in profile.batches if each.loader == steps.loader), None)
    loader = next((each for each in profile.loaders if each.number == steps.loader), None)
    size = loader.settings.get("batch_size") if loader else None
    if isinstance(size, int):
        return float(size)
    return float(shape.samples) if shape and shape.samples else None


def budget(parts: Partition | None) -> list[BudgetRow]:
    """One row a cause, in order of precedence; they sum to the mean step."""
    if parts is None:
        return []
    return [
        BudgetRow(cause, parts.mean.ns[cause] / _MS, parts.mean.share(cause), parts.mean.source[cause])
        for cause in Cause
    ]


def step_rows(steps: Steps) -> list[StepRow]:
    """Measured and traced steps, in order."""
    return [
        StepRow(step.index, step.duration_ns / _MS, step.wait_ns / _MS, step.traced)
        for step in steps.all
        if step.measured or step.traced
    ]


def ceiling(steps: Steps) -> Forecast | None:
    """The step that ``--ceiling`` measured without an input pipeline; None where it did not.

    Args:
        steps: The run's steps. Without a measured one there is nothing to compare with.
    """
    if not steps.ceiling or not steps.measured:
        return None
    generator = np.random.default_rng(0)
    now, without = (
        generator.choice([step.duration_ns for step in group], (_REPLICAS, len(group))).mean(axis=1)
        for group in (steps.measured, steps.ceiling)
    )
    low, middle, high = (float(it) / _MS for it in np.quantile(without, _QUANTILES))
    least, expected, most = (float(it) for it in np.quantile(now / without, _QUANTILES))
    few = min(len(steps.ceiling), len(steps.measured)) < _FEW_STEPS
    confidence = Confidence.MEDIUM if few else Confidence.HIGH
    speedup = (least, expected, most)
    return Forecast(_CEILING, "the loader", "ready batches", (low, middle, high), speedup, confidence, None)


def totals(profile: Profile, steps: Steps, fetches: Fetches, parts: Partition | None) -> Totals:
    """Time in collate_fn, tokenizer, dataset, copies and on the device, whether it was overlapped or not."""
    rows = fetches.rows_of(steps.measured)
    # Without waiting for a core, as in ``per_batch_ms``: the work itself, whatever else the machine was doing.
    wall = np.maximum(fetches.wall_ns - fetches.no_core_ns, 0)[rows]
    calls = fetches.calls[rows]

    def of(component: Component) -> Total | None:
        place = PARTS.index(component)
        # Calls of a tokenizer of the user's own are not counted.
        if not len(rows) or not (calls[:, place].any() or (component is Component.TOKENIZER and wall[:, place].any())):
            return None
        return Total(float(wall[:, place].mean()) / _MS, int(calls[:, place].sum()))

    dataset = None
    if len(rows):
        apart = [PARTS.index(Component.COLLATE_FN), PARTS.index(Component.TOKENIZER)]
        whole = wall.sum(axis=1) - wall[:, apart].sum(axis=1)
        items = int(calls[:, PARTS.index(Component.DATASET_GETITEM)].sum()) or len(rows)
        dataset = Total(float(whole.mean()) / _MS, items)
    return Totals(
        collate_fn=of(Component.COLLATE_FN),
        tokenizer=of(Component.TOKENIZER),
        dataset=dataset,
        h2d=_copies(profile, steps),
        device_step=_device_step(profile, steps, parts),
    )


def _copies(profile: Profile, steps: Steps) -> Total | None:
    copies = _within(own_spans(profile).of(Kind.COPY_H2D), steps.traced)
    if not len(copies):
        return None
    return Total(float(copies.duration_ns().sum()) / _MS / len(steps.traced), len(copies))


def _device_step(profile: Profile, steps: Steps, parts: Partition | None) -> Total | None:
    if parts is None:
        return None
    if profile.device == "cpu":
        # Traced steps are slowed by the tracing; the exclusive budget is not, and on a CPU nothing overlaps it.
        compute = parts.mean.ns[Cause.DEVICE_COMPUTE]
        return Total(compute / _MS, len(parts.light)) if compute else None
    if not steps.traced:
        return None
    busy = [device_compute_ns(profile, step) for step in steps.traced]
    return Total(float(np.mean(busy)) / _MS, len(busy))


def device(profile: Profile, steps: Steps) -> Device | None:
    """The accelerator during the traced steps; None on a CPU or without a trace."""
    if profile.device == "cpu" or not steps.traced:
        return None
    kernels = _within(own_spans(profile).of(Kind.KERNEL, Kind.COLLECTIVE), steps.traced)
    copies = _within(own_spans(profile).of(Kind.COPY_H2D), steps.traced)
    count = len(steps.traced)
    busy = wall = 0
    busy_kinds = (Kind.KERNEL, Kind.COLLECTIVE, Kind.COPY_H2D, Kind.COPY_D2H, Kind.COPY_OTHER)
    covered = own_spans(profile).of(*busy_kinds).covered()
    for step in steps.traced:
        busy += length(clip(covered, step.wait_start_ns, step.body_end_ns))
        wall += step.body_end_ns - step.wait_start_ns
    size = float(np.maximum(copies.value, 0).sum())
    spent = float(copies.duration_ns().sum())
    names = [copies.names[int(name)] for name in copies.name_id]
    pageable = np.array(["Pageable" in name for name in names], dtype=bool)
    # AMD's names do not say where the memory was.
    told = any("Pageable" in name or "Pinned" in name for name in names)
    return Device(
        busy_ratio=busy / wall if wall else 0.0,
        idle_ms_per_step=(wall - busy) / count / _MS,
        h2d_bytes_per_step=size / count if len(copies) else None,
        h2d_gb_per_s=size / spent if spent and size else None,
        h2d_pageable_ratio=float(np.maximum(copies.value[pageable], 0).sum()) / size if size and told else None,
        top_kernels=_top(kernels, count),
    )


def _top(kernels: Spans, steps: int) -> list[Kernel]:
    found: dict[int, tuple[float, int]] = {}
    for name, spent in zip(kernels.name_id.tolist(), kernels.duration_ns().tolist(), strict=True):
        total, calls = found.get(name, (0.0, 0))
        found[name] = (total + spent, calls + 1)
    ranked = sorted(found.items(), key=lambda each: -each[1][0])[:_KERNELS]
    return [Kernel(kernels.names[name], total / steps / _MS, calls / steps) for name, (total, calls) in ranked]


def input_section(
    profile: Profile,
    steps: Steps,
    fetches: Fetches,
    loader: Loader | None,
    lines: HotLines,
) -> Input | None:
    """The training loop's loader: settings, components per batch, workers, slowest samples."""
    if loader is None:
        return None
    shown = {key: loader.settings[key] for key in _SHOWN_SETTINGS if key in loader.settings}
    return Input(
        loader=shown,
        per_batch_ms=_per_batch(profile, steps, fetches),
        worker_busy_ratio=_busy_ratio(steps, fetches, loader),
        queue_depth_mean=_queue_depth(profile, steps, loader),
        workers=_workers(profile, steps, fetches),
        pad_ratio=_pad_ratio(profile, loader),
        slowest_samples=_slowest(profile, steps, fetches),
        hot_lines=lines.all(),
    )


def _per_batch(profile: Profile, steps: Steps, fetches: Fetches) -> dict[Component, Spread]:
    return {key: _spread(spent) for key, spent in batch_times_ns(profile, steps, fetches).items()}


def batch_times_ns(profile: Profile, steps: Steps, fetches: Fetches) -> dict[Component, npt.NDArray[np.float64]]:
    """Per component the work on each batch of the measured steps, waited for or not, in nanoseconds.

    Args:
        profile: The run.
        steps: Its steps.
        fetches: Every batch made, divided into components.

    Returns:
        Columns of shape ``(batches,)``; components that took no time are missing.
    """
    rows = fetches.rows_of(steps.measured)
    found: dict[Component, npt.NDArray[np.float64]] = {}
    if len(rows):
        own = np.maximum(fetches.wall_ns - fetches.no_core_ns, 0)[rows]
        for place, component in enumerate(PARTS):
            if own[:, place].any():
                found[component] = own[:, place]
        no_core = fetches.no_core_ns[rows].sum(axis=1)
        if no_core.any():
            found[Component.CPU_CONTENTION] = no_core
    for component, kinds in (
        (Component.PICKLE, (Kind.PICKLE,)),
        (Component.TRANSPORT, (Kind.SEND, Kind.RECEIVE)),
        (Component.UNPICKLE, (Kind.UNPICKLE,)),
        (Component.PIN_MEMORY, (Kind.PIN_MEMORY,)),
    ):
        spent = _by_batch(own_spans(profile).of(*kinds), steps.measured)
        if spent is not None:
            found[component] = spent
    sampler = process_spans(profile).of(Kind.SAMPLER)
    if len(_within(sampler, steps.measured)):
        begins = [step.wait_start_ns for step in steps.measured]
        ends = [step.body_end_ns for step in steps.measured]
        found[Component.SAMPLER] = overlap(sampler.covered(), begins, ends).astype(np.float64)
    return found


def _spread(values_ns: npt.NDArray[Any]) -> Spread:
    values = np.asarray(values_ns, dtype=np.float64) / _MS
    return Spread(float(values.mean()), float(np.percentile(values, 50)), float(np.percentile(values, 95)))


def _by_batch(spans: Spans, steps: Iterable[Step]) -> npt.NDArray[np.float64] | None:
    spent: dict[tuple[int, int], float] = {}
    keys = zip(spans.iterator.tolist(), spans.batch.tolist(), spans.duration_ns().tolist(), strict=True)
    for iterator, batch, duration in keys:
        spent[iterator, batch] = spent.get((iterator, batch), 0.0) + duration
    values = [spent[step.iterator, step.batch] for step in steps if (step.iterator, step.batch) in spent]
    return np.array(values) if values else None


def _busy_ratio(steps: Steps, fetches: Fetches, loader: Loader) -> float | None:
    workers = int(loader.settings.get("num_workers") or 0)
    measured = steps.measured
    if not workers or not measured:
        return None
    rows = fetches.rows_of(measured)
    wall = sum(step.duration_ns for step in measured)
    return min(1.0, float(fetches.wall_ns[rows].sum()) / (wall * workers)) if wall else None


def _queue_depth(profile: Profile, steps: Steps, loader: Loader) -> float | None:
    if not loader.settings.get("num_workers"):
        return None
    ready = queue_depths(profile)
    depths = [ready[step.iterator, step.batch] for step in steps.measured if (step.iterator, step.batch) in ready]
    return float(np.mean(depths)) if depths else None


def _workers(profile: Profile, steps: Steps, fetches: Fetches) -> list[Worker]:
    rows = fetches.rows_of(steps.measured)
    memory = private_memory_mb(profile)
    found = []
    for track in np.unique(fetches.spans.track[rows]):
        place = profile.tracks[int(track)]
        if place.role is not Role.WORKER:
            continue
        mine = rows[fetches.spans.track[rows] == track]
        cpu, no_core, blocked = (
            float(table[mine].sum()) / 1e9 for table in (fetches.cpu_ns, fetches.no_core_ns, fetches.blocked_ns())
        )
        found.append(Worker(place.pid, len(mine), cpu, no_core, blocked, *memory.get(place.pid, (None, None))))
    return found


def _pad_ratio(profile: Profile, loader: Loader) -> float | None:
    counted = [each for each in profile.padding if each.loader == loader.number]
    tokens = sum(each.tokens for each in counted)
    return sum(each.pad_tokens for each in counted) / tokens if tokens else None


def _slowest(profile: Profile, steps: Steps, fetches: Fetches) -> list[SlowSample]:
    rows = fetches.rows_of(steps.measured)
    spans = fetches.spans
    items = own_spans(profile).of(Kind.GETITEM)
    slow: list[SlowSample] = []
    for track in np.unique(spans.track[rows]):
        mine = rows[spans.track[rows] == track]
        own = items.where((items.track == track) & (items.value >= 0))
        inside = np.searchsorted(spans.start_ns[mine], own.start_ns, side="right") - 1
        within = (inside >= 0) & (own.end_ns <= spans.end_ns[mine[np.maximum(inside, 0)]])
        own = own.where(within)
        order = np.argsort(-own.duration_ns(), kind="stable")[:_SLOWEST]
        slow += [SlowSample(int(own.value[i]), float(own.duration_ns()[i]) / _MS) for i in order]
    return sorted(slow, key=lambda each: -each.ms)[:_SLOWEST]


def no_core_share(profile: Profile, steps: Steps) -> float:
    """Part of the measured steps in which the training thread waited for a core, 0 to 1."""
    spans = training_spans(profile).of(Kind.NEXT, Kind.BODY)
    wanted = {(step.iterator, step.batch) for step in steps.measured}
    keys = zip(spans.iterator.tolist(), spans.batch.tolist(), spans.runnable_ns.tolist(), strict=True)
    waited = sum(max(runnable, 0) for iterator, batch, runnable in keys if (iterator, batch) in wanted)
    total = sum(step.duration_ns for step in steps.measured)
    return waited / total if total else 0.0


def wait_shares(waits: npt.NDArray[np.float64]) -> dict[Component, float]:
    """Mean milliseconds of a step's wait per component, without those that are nothing."""
    if not len(waits):
        return {}
    mean = waits.mean(axis=0) / _MS
    return {component: float(mean[place]) for place, component in enumerate(WAIT_COMPONENTS) if mean[place] > 0}


def overhead(profile: Profile, own_ns: float, parts: Partition | None, pipeline: Pipeline | None) -> Overhead:
    """What looking cost (``own_ns``, of `own_cost_ns`), over the CPU time looked at."""
    spent = 0.0
    if pipeline is not None:
        spent = float(pipeline.main_cpu_ns.sum()) + sum(float(part.cpu_ns.sum()) for part in pipeline.parts.values())
    elif parts is not None:
        spent = parts.mean.step_ns * len(parts.light)
    return Overhead(own_ns / spent if spent else None, parts.traced_ratio if parts else None, profile.lost_spans)


def own_cost_ns(profile: Profile, steps: Steps) -> float:
    """CPU time of spans, by their calibrated cost, and of looks at threads, over the measured steps; nanoseconds."""
    spans = own_spans(profile)
    costs = [process.span_cost_ns for process in profile.processes]
    begins = np.sort(spans.where(spans.kind < int(Kind.OPERATOR)).start_ns)
    recorded = sum(
        int(np.diff(np.searchsorted(begins, [step.wait_start_ns, step.body_end_ns]))[0]) for step in steps.measured
    )
    own = recorded * float(np.mean(costs)) if costs else 0.0
    looks = len(profile.samples)
    if looks and steps.measured:
        first, last = steps.measured[0].wait_start_ns, steps.measured[-1].body_end_ns
        within = np.count_nonzero((profile.samples.at_ns >= first) & (profile.samples.at_ns < last))
        own += profile.looking_cpu_ns * int(within) / looks
    return own


def _within(spans: Spans, steps: tuple[Step, ...]) -> Spans:
    if not steps:
        return spans.where(np.zeros(len(spans), dtype=bool))
    begins = np.array([step.wait_start_ns for step in steps])
    ends = np.array([step.body_end_ns for step in steps])
    place = np.searchsorted(begins, spans.start_ns, side="right") - 1
    return spans.where((place >= 0) & (spans.start_ns < ends[np.maximum(place, 0)]))
