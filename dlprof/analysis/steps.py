"""Finds the training loop in a recording and cuts it into steps.

The rule is the one that the script was stopped by (``capture/loop.py``), applied with hindsight.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dlprof.analysis.scope import own_spans, process_spans, training_spans
from dlprof.model.intervals import overlap, union
from dlprof.model.kinds import Flag, Kind
from dlprof.model.profile import Profile, Spans
from dlprof.model.steps import Phase, Step, Steps

NO_LOADER = 0
"""The number of the "loader" of a script that steps an optimizer without a DataLoader."""

_DRIFT = 0.30
_LEAST_PER_THIRD = 5


def find_steps(profile: Profile) -> Steps:
    """Cut the training process's recording into steps.

    Args:
        profile: The run.

    Returns:
        Complete steps only: those that a further request by the same iteration has ended.
    """
    spans = process_spans(profile)
    requests = spans.of(Kind.NEXT)
    requests = requests.where((requests.flags & int(Flag.NESTED)) == 0)
    optimizer = spans.of(Kind.OPTIMIZER)
    taken = requests.where((requests.flags & int(Flag.ENDED)) == 0)
    loader_of = {i.number: i.loader for i in profile.iterations if i.pid == profile.main_pid}
    loaders = np.array([loader_of.get(int(number), -1) for number in taken.iterator], dtype=np.int64)
    training = _training_loaders(profile, taken, loaders, optimizer)
    if not training:
        return Steps((), None, False, 0)
    loader = training[0]
    if loader == NO_LOADER:
        steps = _optimizer_steps(profile, spans, optimizer)
        return Steps(tuple(steps), NO_LOADER, False, 0)
    taken = taken.where(np.isin(loaders, training))
    here = training_spans(profile)
    if np.isin(taken.track, here.track).mean() < 0.5:
        return _handed_over(profile, here, taken, training)
    bodies = spans.of(Kind.BODY)
    numbers = [each.number for each in profile.iterations if each.pid == profile.main_pid and each.loader in training]
    begins = bodies.start_ns[np.isin(bodies.iterator, numbers)]
    phases = _phases(profile, spans, requests, training, begins)
    steps = _loader_steps(profile, spans, taken, optimizer, training, phases)
    after = (taken.flags & int(Flag.CEILING)) != 0
    ceiling = tuple(step for step in steps if taken.flags[step.index] & int(Flag.SERVED))
    steps = [step for step in steps if not after[step.index]]
    incomplete = int((~after).sum()) - len(steps)
    return Steps(tuple(steps), loader, len(optimizer) == 0, incomplete, phases, ceiling=ceiling)


def _training_loaders(profile: Profile, taken: Spans, loaders: npt.NDArray[np.int64], optimizer: Spans) -> list[int]:
    """The training loop's loaders, that of the most optimizer steps first.

    They are those whose batch was the last before an optimizer step; more than one where the script makes a new
    DataLoader for each epoch, with the same settings.
    """
    if not len(taken):
        return [NO_LOADER] if len(optimizer) else []
    if not len(optimizer):
        return [int(Counter(loaders.tolist()).most_common(1)[0][0])]
    before = np.searchsorted(taken.end_ns, optimizer.start_ns, side="right") - 1
    before = before[before >= 0]
    if not len(before):
        return [NO_LOADER]
    ranked = [int(loader) for loader, _ in Counter(loaders[before].tolist()).most_common()]
    settings = {each.number: each.settings for each in profile.loaders if each.pid == profile.main_pid}
    return [loader for loader in ranked if settings.get(loader) == settings.get(ranked[0])]


def _phases(
    profile: Profile, spans: Spans, requests: Spans, training: list[int], steps_ns: npt.NDArray[np.int64]
) -> tuple[Phase, ...]:
    """Iterations over other loaders that lie within one step or between steps, which begin at ``steps_ns``.

    One that reaches over several steps (``zip`` of two loaders), or that comes with most steps (``next(iter(other))``),
    is part of the steps instead.
    """
    own = [iteration for iteration in profile.iterations if iteration.pid == profile.main_pid]
    begun = spans.of(Kind.ITER)
    begun_ns = dict(zip(begun.iterator.tolist(), begun.start_ns.tolist(), strict=True))
    over = spans.of(Kind.WORKERS_ENDED)
    over_ns = dict(
        zip(over.iterator.tolist(), zip(over.start_ns.tolist(), over.end_ns.tolist(), strict=True), strict=True)
    )
    order = np.argsort(requests.iterator, kind="stable")
    numbers = requests.iterator[order]
    found, late = [], []
    for iteration in own:
        first, last = np.searchsorted(numbers, [iteration.number, iteration.number + 1])
        if iteration.loader in training or first == last:
            continue
        asked = requests.where(order[first:last])
        start = begun_ns.get(iteration.number, int(asked.start_ns[0]))
        end = int(asked.end_ns.max())
        if not _count(steps_ns, start, end):
            given = int(((asked.flags & int(Flag.ENDED)) == 0).sum())
            ending, ended = over_ns.get(iteration.number, (end, end))
            if _count(steps_ns, end, ending):
                # Its iterator was kept, and dropped in a later step.
                late.append(Phase(iteration.loader, ending, ended, 0, 0))
            else:
                # Left with ``break``: its workers are ended when its iterator is dropped, after its last batch.
                end = max(end, ended)
            found.append(Phase(iteration.loader, start, end, given, int(asked.duration_ns().sum())))
    often = Counter(phase.loader for phase in found)
    phases = sorted([*found, *late], key=lambda phase: phase.start_ns)
    return tuple(phase for phase in phases if often[phase.loader] * 2 < len(steps_ns))


def _loader_steps(
    profile: Profile,
    spans: Spans,
    taken: Spans,
    optimizer: Spans,
    training: list[int],
    phases: tuple[Phase, ...],
) -> list[Step]:
    bodies = spans.of(Kind.BODY)
    body_of = {(int(i), int(b)): row for row, (i, b) in enumerate(zip(bodies.iterator, bodies.batch, strict=True))}
    numbers = [each.number for each in profile.iterations if each.pid == profile.main_pid and each.loader in training]
    iterations = spans.of(Kind.ITER)
    iterations = iterations.where(np.isin(iterations.iterator, numbers))
    # Where each iteration gives one batch, as in ``next(iter(loader))``, making it is part of every step.
    one_each = len(taken) < 2 * len(iterations)
    window = spans.of(Kind.TRACED)
    ready = _worker_ready(profile)
    apart = union([phase.start_ns for phase in phases], [phase.end_ns for phase in phases])
    steps: list[Step] = []
    for index in range(len(taken)):
        iterator, batch = int(taken.iterator[index]), int(taken.batch[index])
        row = body_of.get((iterator, batch))
        if row is None:
            continue
        start, end = int(bodies.start_ns[row]), int(bodies.end_ns[row])
        # A new iteration begun within the body means that the loop was left with ``break``.
        if _count(iterations.start_ns, start, end) and not one_each:
            continue
        request, arrival = int(taken.start_ns[index]), int(taken.end_ns[index])
        began = min(max(request, ready.get((iterator, batch), request)), arrival)
        if one_each:
            began = request
        steps.append(
            Step(
                index=index,
                iterator=iterator,
                batch=batch,
                wait_start_ns=began,
                wait_end_ns=arrival,
                body_start_ns=start,
                body_end_ns=end,
                startup_ns=began - request,
                optimizer_steps=_count(optimizer.start_ns, start, end),
                traced=_traced(window, request, end),
                measured=False,
                phases_ns=int(overlap(apart, [start], [end])[0]),
            )
        )
    return _mark_measured(profile, steps, window, _queued_batches(profile, training[0]))


def _count(moments: npt.NDArray[np.int64], start_ns: int, end_ns: int) -> int:
    """How many of the moments, in order, lie in ``[start_ns, end_ns)``."""
    return int(np.searchsorted(moments, end_ns) - np.searchsorted(moments, start_ns))


# ---- batches that another thread hands over ------------------------------------------------------------------------


def _handed_over(profile: Profile, here: Spans, taken: Spans, training: list[int]) -> Steps:
    """Steps of a thread that trains on what another one, ahead of it, has requested.

    Args:
        profile: The run.
        here: Spans of the threads that train.
        taken: Requests that gave a batch of the training loop.
        training: The training loop's loaders.
    """
    optimizer = here.of(Kind.OPTIMIZER)
    gets = _gets_of_batches(here.of(Kind.QUEUE_GET), optimizer)
    requests = here.of(Kind.NEXT)
    requests = requests.where((requests.flags & int(Flag.NESTED)) == 0)
    begins = gets.end_ns if len(gets) else optimizer.end_ns
    phases = _phases(profile, here, requests, training, begins)
    if len(gets):
        steps = _get_steps(profile, here, gets, taken, phases)
    else:
        # A batch is of the step at whose optimizer step it is the oldest.
        rows = _oldest_waiting(taken, optimizer.start_ns)[1:]
        steps = [
            replace(step, iterator=int(taken.iterator[row]), batch=int(taken.batch[row])) if row >= 0 else step
            for step, row in zip(_optimizer_steps(profile, here, optimizer, phases), rows, strict=True)
        ]
    incomplete = max(0, len(taken) - len(steps))
    return Steps(tuple(steps), training[0], False, incomplete, phases, True, not len(gets))


def _gets_of_batches(gets: Spans, optimizer: Spans) -> Spans:
    """Of what the training thread takes from queues, what comes from those it takes from last before it steps."""
    before = np.searchsorted(gets.end_ns, optimizer.start_ns, side="right") - 1
    return gets.where(np.isin(gets.value, gets.value[before[before >= 0]]))


def _oldest_waiting(taken: Spans, moments: npt.NDArray[np.int64], row: int = 0) -> list[int]:
    """For each moment, in order, the oldest batch from ``row`` on that had arrived and none before it took, else -1."""
    rows = []
    for moment in moments.tolist():
        there = row < len(taken) and int(taken.end_ns[row]) <= moment
        rows.append(row if there else -1)
        row += there
    return rows


def _get_steps(profile: Profile, here: Spans, gets: Spans, taken: Spans, phases: tuple[Phase, ...]) -> list[Step]:
    optimizer, window = here.of(Kind.OPTIMIZER), here.of(Kind.TRACED)
    apart = union([phase.start_ns for phase in phases], [phase.end_ns for phase in phases])
    # The queue is watched from the first optimizer step on.
    rows = _oldest_waiting(taken, gets.end_ns, _count(optimizer.end_ns, 0, int(gets.start_ns[0])))
    steps = []
    for index in range(len(gets) - 1):
        row, following = rows[index], rows[index + 1]
        if row < 0 or (following >= 0 and taken.iterator[following] != taken.iterator[row]):
            # What says that an epoch has ended is no batch, and a step does not reach into the next epoch.
            continue
        asked, came, end = int(gets.start_ns[index]), int(gets.end_ns[index]), int(gets.start_ns[index + 1])
        steps.append(
            Step(
                index=index,
                iterator=int(taken.iterator[row]),
                batch=int(taken.batch[row]),
                wait_start_ns=asked,
                wait_end_ns=came,
                body_start_ns=came,
                body_end_ns=end,
                startup_ns=0,
                optimizer_steps=_count(optimizer.start_ns, came, end),
                traced=_traced(window, asked, end),
                measured=False,
                phases_ns=int(overlap(apart, [came], [end])[0]),
            )
        )
    return _mark_measured(profile, steps, window, _filled_meanwhile(window, gets, rows, taken))


def _filled_meanwhile(window: Spans, gets: Spans, rows: list[int], taken: Spans) -> int:
    """How many batches lay ready when the training thread first took one after the profiler had been stopped."""
    first = int(np.searchsorted(gets.start_ns, window.end_ns[-1])) if len(window) else len(gets)
    if first == len(gets):
        return 0
    arrived = int(np.searchsorted(taken.end_ns, gets.start_ns[first], side="right"))
    return max(0, arrived - 1 - max(rows[:first], default=-1))


# ---- optimizer steps -------------------------------------------------------------------------------------------------


def _optimizer_steps(profile: Profile, spans: Spans, optimizer: Spans, phases: tuple[Phase, ...] = ()) -> list[Step]:
    window = spans.of(Kind.TRACED)
    own = spans.of(Kind.OWN)
    apart = union([phase.start_ns for phase in phases], [phase.end_ns for phase in phases])
    ends = optimizer.end_ns
    steps = []
    for index in range(len(ends) - 1):
        start, end = int(ends[index]), int(ends[index + 1])
        # The profiler is started and stopped right after an optimizer step: that is not the step's time.
        inside = own.where((own.start_ns >= start) & (own.end_ns <= end))
        start = min(end, max(start, int(inside.end_ns.max()))) if len(inside) else start
        traced = _traced(window, start, end)
        phases_ns = int(overlap(apart, [start], [end])[0])
        steps.append(Step(index, 0, index, start, start, start, end, 0, 1, traced, measured=False, phases_ns=phases_ns))
    return _mark_measured(profile, steps, window, 0)


def _traced(window: Spans, start_ns: int, end_ns: int) -> bool:
    return bool(np.any((window.start_ns <= start_ns) & (window.end_ns >= end_ns)))


def _mark_measured(profile: Profile, steps: list[Step], window: Spans, settle: int) -> list[Step]:
    # Stopping the profiler takes long enough for the queues to fill: the batches that lay ready then do not count.
    after = int(window.end_ns[-1]) if len(window) else None
    marked = []
    for step in steps:
        partly = len(window) > 0 and not step.traced and _touches(window, step)
        settled = True
        if after is not None and step.wait_start_ns >= after and settle:
            settle -= 1
            settled = False
        measured = step.index >= profile.run.warmup and not step.traced and settled and not partly
        marked.append(replace(step, measured=measured))
    return marked


def _touches(window: Spans, step: Step) -> bool:
    return bool(np.any((window.start_ns < step.body_end_ns) & (window.end_ns > step.wait_start_ns)))


def _queued_batches(profile: Profile, loader: int) -> int:
    """How many batches may lie ready in a loader's queues."""
    own = {each.number: each.settings for each in profile.loaders if each.pid == profile.main_pid}
    settings = own.get(loader, {})
    return int(settings.get("num_workers") or 0) * int(settings.get("prefetch_factor") or 0)


def _worker_ready(profile: Profile) -> dict[tuple[int, int], int]:
    """When the worker that made an iteration's batch began to work, for workers started for that iteration."""
    spans = own_spans(profile)
    starts = spans.of(Kind.WORKER_START)
    ready_of_pid = {
        profile.tracks[int(track)].pid: int(end) for track, end in zip(starts.track, starts.end_ns, strict=True)
    }
    fetches = spans.of(Kind.FETCH)
    return {
        (int(iterator), int(batch)): ready_of_pid[profile.tracks[int(track)].pid]
        for iterator, batch, track in zip(fetches.iterator, fetches.batch, fetches.track, strict=True)
        if profile.tracks[int(track)].pid in ready_of_pid
    }


def drift(steps: Steps) -> tuple[float, float] | None:
    """Whether the step time moved during the measurement.

    Args:
        steps: The run's steps.

    Returns:
        Median step of the first and of the last third in nanoseconds, where they differ by more than 30 % and by
        more than the spread within a third; else None.
    """
    durations = np.array([step.duration_ns for step in steps.measured], dtype=np.float64)
    third = len(durations) // 3
    if third < _LEAST_PER_THIRD:
        return None
    first, last = durations[:third], durations[-third:]
    before, after = float(np.median(first)), float(np.median(last))
    spread = max(float(np.subtract(*np.percentile(part, [75, 25]))) for part in (first, last))
    moved = abs(after - before)
    return (before, after) if moved > _DRIFT * min(before, after) and moved > spread else None
