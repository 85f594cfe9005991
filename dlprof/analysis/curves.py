"""What each measured step of a run took, and what for."""

from __future__ import annotations

import numpy as np

from dlprof.analysis.partition import CAUSES, OPEN_CAUSES, partition
from dlprof.analysis.scope import process_spans
from dlprof.analysis.steps import find_steps
from dlprof.model.curves import Curves
from dlprof.model.kinds import Cause, Kind
from dlprof.model.profile import Profile

_MS = 1e6


def curves(profile: Profile) -> Curves | None:
    """The measured steps, as curves.

    Args:
        profile: The run.

    Returns:
        None where no step was measured. What a step's light spans leave open is divided as in the mean step: in the
        proportions of the traced steps.
    """
    steps = find_steps(profile)
    parts = partition(profile, steps)
    if parts is None:
        return None
    table = parts.light.copy()
    if len(parts.open_shares):
        rest = table[:, CAUSES.index(Cause.OTHER)].copy()
        table[:, CAUSES.index(Cause.OTHER)] = 0
        for cause, share in zip(OPEN_CAUSES, parts.open_shares.mean(axis=0), strict=True):
            table[:, CAUSES.index(cause)] += rest * share
    measured = steps.measured
    series: dict[str, tuple[float | None, ...]] = {"step_ms": tuple(float(value) for value in table.sum(axis=1) / _MS)}
    for place, cause in enumerate(CAUSES):
        if np.any(table[:, place]):
            series[f"{cause.value}_ms"] = tuple(float(value) for value in table[:, place] / _MS)
    depths = queue_depths(profile)
    ready = tuple(depths.get((step.iterator, step.batch)) for step in measured)
    if any(depth is not None for depth in ready):
        series["queue_depth"] = ready
    ahead = profile.run.wall_ns - profile.run.monotonic_ns
    return Curves(
        tuple(step.index for step in measured), tuple((step.body_end_ns + ahead) / 1e9 for step in measured), series
    )


def queue_depths(profile: Profile) -> dict[tuple[int, int], float]:
    """Batches that lay ready when one was asked for, by iteration and number; without those of which it is unknown."""
    requests = process_spans(profile).of(Kind.NEXT)
    keys = zip(requests.iterator.tolist(), requests.batch.tolist(), requests.value.tolist(), strict=True)
    return {(iterator, batch): float(depth) for iterator, batch, depth in keys if depth >= 0}
