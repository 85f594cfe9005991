"""Cuts steps into causes: every nanosecond gets one, the first that matches, in the order of ``Cause``.

Step time and input wait come from untraced steps. What those steps leave open (compute, copies, launches, Python) is
divided in the proportions of the traced steps, since looking closer slows the steps that are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlprof.analysis.scope import own_spans, process_spans, training_spans
from dlprof.model.diagnosis import Breakdown
from dlprof.model.intervals import EMPTY, Intervals, clip, intersect, length, subtract, union
from dlprof.model.kinds import Cause, Kind, Role
from dlprof.model.profile import Profile, Spans
from dlprof.model.report import Source
from dlprof.model.steps import Step, Steps

CAUSES = tuple(Cause)
OPEN_CAUSES = (
    Cause.DEVICE_COMPUTE,
    Cause.H2D_COPY,
    Cause.COMMUNICATION,
    Cause.SYNCHRONIZATION,
    Cause.KERNEL_LAUNCH,
    Cause.PYTHON,
    Cause.OTHER,
)
"""Causes that only torch.profiler can tell apart, and what it leaves."""

Table = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Partition:
    """Where the steps' time went.

    Attributes:
        mean: The mean measured step.
        light: Nanoseconds of each measured step that light spans explain, shape ``(n, len(CAUSES))``; the rest of
            each step stands under ``OTHER``.
        open_shares: How that rest divides, per traced step, shape ``(m, len(OPEN_CAUSES))``, rows sum to 1;
            ``(0, …)`` without a trace.
        traced_ratio: Mean traced over mean measured step, without the input wait; None without a trace.
    """

    mean: Breakdown
    light: Table
    open_shares: Table
    traced_ratio: float | None

    def bootstrap(self, replicas: int, seed: int) -> dict[Cause, Table]:
        """Mean nanoseconds per cause over resampled measured and traced steps, each of shape ``(replicas,)``."""
        generator = np.random.default_rng(seed)
        light = np.stack([_resampled_mean(self.light, generator) for _ in range(replicas)])
        rest = light[:, CAUSES.index(Cause.OTHER)].copy()
        if len(self.open_shares):
            shares = np.stack([_resampled_mean(self.open_shares, generator) for _ in range(replicas)])
            light[:, CAUSES.index(Cause.OTHER)] = 0
            for place, cause in enumerate(OPEN_CAUSES):
                light[:, CAUSES.index(cause)] += rest * shares[:, place]
        return {cause: light[:, place] for place, cause in enumerate(CAUSES)}


def _resampled_mean(table: Table, generator: np.random.Generator) -> Table:
    count = len(table)
    drawn = np.bincount(generator.integers(0, count, count), minlength=count)
    mean: Table = drawn @ table / count
    return mean


def partition(profile: Profile, steps: Steps) -> Partition | None:
    """Cut the measured steps into causes.

    Args:
        profile: The run.
        steps: Its steps.

    Returns:
        None where no step was measured.
    """
    measured = steps.measured
    if not measured:
        return None
    here = process_spans(profile, *Role)
    device = here.of(Kind.USER_DEVICE).covered()
    checkpoint = here.of(Kind.CHECKPOINT).covered()
    requests = training_spans(profile).of(Kind.NEXT, Kind.ITER).covered()
    starved = starvation(profile)
    apart = _apart(steps)
    light = np.array(
        [_light(subtract(_parts_of(step), apart), step, device, requests, starved, checkpoint) for step in measured]
    )
    open_shares, traced_rest = _open_shares(profile, steps, apart)
    mean = light.mean(axis=0)
    rest = float(mean[CAUSES.index(Cause.OTHER)])
    ns = {cause: float(mean[place]) for place, cause in enumerate(CAUSES)}
    source: dict[Cause, Source] = dict.fromkeys(CAUSES, "light")
    if starved is not None:
        source[Cause.INPUT_WAIT] = source[Cause.DEVICE_COMPUTE] = "events"
    if len(open_shares):
        ns[Cause.OTHER] = 0.0
        for cause, share in zip(OPEN_CAUSES, open_shares.mean(axis=0), strict=True):
            if share and not ns[cause]:
                source[cause] = "traced"
            ns[cause] += rest * float(share)
    breakdown = Breakdown(sum(ns.values()), ns, source)
    ratio = traced_rest / rest if traced_rest is not None and rest > 0 else None
    return Partition(breakdown, light, open_shares, ratio)


def starvation(profile: Profile) -> Intervals | None:
    """When the device had nothing to do while a batch was waited for; None where its events were not recorded."""
    found = process_spans(profile).of(Kind.STARVED)
    return found.covered() if len(found) and profile.device != "cpu" else None


def _apart(steps: Steps) -> Intervals:
    """Other loaders' phases: their time is in no step."""
    return union([phase.start_ns for phase in steps.phases], [phase.end_ns for phase in steps.phases])


def _light(
    left: Intervals,
    step: Step,
    device: Intervals,
    requests: Intervals,
    starved: Intervals | None,
    checkpoint: Intervals,
) -> Table:
    """Causes of one untraced step as far as light spans tell; shape ``(len(CAUSES),)``, sums to ``left``."""
    row = np.zeros(len(CAUSES))
    within = intersect(left, requests)
    # The step's own request is in it already, unless another thread makes it.
    wait = union(np.append(within[:, 0], step.wait_start_ns), np.append(within[:, 1], step.wait_end_ns))
    if starved is not None:
        # The device's own events: while it still worked off what had been launched, the wait cost nothing.
        device = union(np.append(device[:, 0], wait[:, 0]), np.append(device[:, 1], wait[:, 1]))
        wait = intersect(wait, starved)
        device = subtract(device, wait)
    for cause, covered in (
        (Cause.DEVICE_COMPUTE, device),
        (Cause.INPUT_WAIT, wait),
        (Cause.CHECKPOINT, checkpoint),
    ):
        hit = intersect(left, covered)
        row[CAUSES.index(cause)] = length(hit)
        left = subtract(left, hit)
    row[CAUSES.index(Cause.OTHER)] = length(left)
    return row


def _open_shares(profile: Profile, steps: Steps, apart: Intervals) -> tuple[Table, float | None]:
    rows = []
    traced = steps.traced
    # Between two operators the training thread runs Python or waits for its batch: which, is not known then.
    rest = Cause.OTHER if steps.wait_unseen else Cause.PYTHON
    training = training_spans(profile)
    requests = training.of(Kind.NEXT, Kind.ITER).covered()
    threads = np.unique(training.track)
    own = own_spans(profile) if traced else profile.spans
    if profile.device != "cpu" and not len(own.of(Kind.KERNEL, Kind.COLLECTIVE)):
        # The profiler was not allowed to see the device: what it did is not to be taken for the host's work.
        return np.zeros((0, len(OPEN_CAUSES))), None
    for step in traced:
        spans = _near(own, step)
        trains = spans.where(np.isin(spans.track, threads))
        left = subtract(subtract(_parts_of(step), apart), union([step.wait_start_ns], [step.wait_end_ns]))
        left = subtract(left, requests)
        left = subtract(left, spans.of(Kind.USER_DEVICE, Kind.CHECKPOINT).covered())
        rows.append([length(part) for part in _open_parts(profile.device != "cpu", spans, trains, left, rest)])
    if not rows or not np.any(rows):
        return np.zeros((0, len(OPEN_CAUSES))), None
    table = np.array(rows, dtype=np.float64)
    total = table.sum(axis=1)
    return table[total > 0] / total[total > 0][:, None], float(total.mean())


def _open_parts(accelerator: bool, spans: Spans, trains: Spans, left: Intervals, rest: Cause) -> list[Intervals]:
    """``left`` divided by ``OPEN_CAUSES``, disjoint, in that order; they cover all of it.

    Args:
        accelerator: Whether the model runs on one.
        spans: Those near the step.
        trains: Those of them that are the training threads'.
        left: What is to be divided.
        rest: What time counts as that nothing explains.
    """
    operators = spans.of(Kind.OPERATOR).covered()
    by_cause = {
        # A copy within the device is the device's own work.
        Cause.DEVICE_COMPUTE: spans.of(Kind.KERNEL, Kind.COPY_OTHER).covered() if accelerator else operators,
        Cause.H2D_COPY: spans.of(Kind.COPY_H2D, Kind.COPY_D2H).covered(),
        Cause.COMMUNICATION: spans.of(Kind.COLLECTIVE).covered(),
        Cause.SYNCHRONIZATION: trains.of(Kind.SYNCHRONIZE).covered(),
        Cause.KERNEL_LAUNCH: union(
            np.concatenate([operators[:, 0], trains.of(Kind.LAUNCH, Kind.ALLOCATOR).start_ns]),
            np.concatenate([operators[:, 1], trains.of(Kind.LAUNCH, Kind.ALLOCATOR).end_ns]),
        ),
    }
    parts = []
    for cause in OPEN_CAUSES:
        hit = left if cause is rest else intersect(left, by_cause.get(cause, EMPTY))
        parts.append(hit)
        left = subtract(left, hit)
    return parts


def _parts_of(step: Step) -> Intervals:
    return union([step.wait_start_ns, step.body_start_ns], [step.wait_end_ns, step.body_end_ns])


def _near(spans: Spans, step: Step) -> Spans:
    return spans.where((spans.start_ns < step.body_end_ns) & (spans.end_ns > step.wait_start_ns))


def device_compute_ns(profile: Profile, step: Step) -> int:
    """How long the device computed within a traced step, hidden or not."""
    spans = _near(own_spans(profile), step)
    kinds = (Kind.KERNEL, Kind.USER_DEVICE) if profile.device != "cpu" else (Kind.OPERATOR, Kind.USER_DEVICE)
    body = union([step.body_start_ns], [step.body_end_ns])
    within = body if profile.device == "cpu" else clip(spans.covered(), step.wait_start_ns, step.body_end_ns)
    return length(intersect(within, spans.of(*kinds).covered()))
