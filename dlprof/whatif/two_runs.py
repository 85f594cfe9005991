"""Two runs: whether a step, its causes and the work on a batch differ by more than chance.

Three things make two runs of the same program differ. Steps differ from one another, and slow ones come together
where queues empty: they are resampled in blocks. A whole run is faster or slower than another, by the machine's
clock, caches and neighbours: nothing within a run shows it, so it is taken from repeated runs. Other programs may
have used more of the cores in one of the runs: how much they can have cost at most is known from their load.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from dlprof.model.compare import Column, Direction, Sample, Triple
from dlprof.model.kinds import Cause, Component
from dlprof.whatif.engine import Floats, Ints

REPLICAS = 4000
LEVEL = 0.95
"""What the intervals hold: that of the step by itself, those of causes and components all at once."""
STEP_SPREAD = 0.06
"""Relative standard deviation of the mean step of repeated runs.

*Measured:* of 134 pairs of runs of the same script (text and images, 0 and 2 workers, 50 steps, two cores of a shared
machine whose speed swayed by a fifth) 5 had a significant difference with it, 10 with 5 % and 15 with 4 %.
"""
PART_SPREAD = 0.08
"""The same of a cause or component, of itself,"""
PART_SPREAD_OF_STEP = 0.01
"""and of the step: what is left of the step when a queue is nearly empty depends on all the rest."""
LEAST_STEPS = 3
_LEAST_MEAN = 0.5
"""Of its shortest step: no run of the same script is taken to have a lower mean."""
_MOST_OF_CORES = 0.9
"""More than so much of the cores other programs are never taken to have had."""
_NORMAL = 1.959964
"""Where the 97.5th percentile of a normal distribution lies."""
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The same of Student's t with 1 to 10 degrees of freedom."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Compared:
    """What two samples say.

    Attributes:
        step_ms: After minus before; None where there are too few steps.
        speedup: Before over after; None likewise.
        step: Which way the step went.
        causes_ms: Per cause after minus before; a cause that was not resampled in both runs is missing.
        components_ms: Per component likewise.
    """

    step_ms: Triple | None
    speedup: Triple | None
    step: Direction
    causes_ms: dict[Cause, Triple]
    components_ms: dict[Component, Triple]


def compare_samples(
    before: Sample, after: Sample, taken: tuple[float, float] = (0.0, 0.0), cores: float = 1
) -> Compared:
    """Compare two runs. With before and after exchanged the result is mirrored.

    Args:
        before: What was measured of the first run.
        after: And of the second, in the same unit.
        taken: Cores that other programs can have taken from each of them.
        cores: Cores that there are.
    """
    if min(before.step_ms.size, after.step_ms.size) < LEAST_STEPS:
        return Compared(None, None, Direction.UNKNOWN, {}, {})
    first, second = _Drawn(before), _Drawn(after)
    longer = (_slowed(taken[0], cores), _slowed(taken[1], cores))
    logs = np.log(first.noisy_step / second.noisy_step)
    middle = math.log(first.mean_ms / second.mean_ms)
    low, high = (float(it) for it in np.quantile(logs, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)))
    # Other programs can only have made a run longer.
    low, high = min(low, middle) - math.log(longer[0]), max(high, middle) + math.log(longer[1])
    speedup = (math.exp(low), math.exp(middle), math.exp(high))
    # The difference in time, at the ends of that interval, about the geometric mean of both steps.
    scale = math.sqrt(first.mean_ms * second.mean_ms)
    step_ms = tuple(-2 * scale * math.sinh(it / 2) for it in (high, middle, low))
    return Compared(
        step_ms=(step_ms[0], step_ms[1], step_ms[2]),
        speedup=speedup,
        step=direction(step_ms[0], step_ms[2]),
        causes_ms=_together(first.causes, second.causes, longer),
        components_ms=_together(first.components, second.components, longer),
    )


def direction(low: float, high: float) -> Direction:
    """Which way a time went, by the interval of after minus before."""
    return Direction.LONGER if low > 0 else Direction.SHORTER if high < 0 else Direction.SAME


def far_apart(before_ms: float, after_ms: float) -> bool:
    """Whether two mean steps lie further apart than those of repeated runs of many steps do by chance."""
    return abs(math.log(before_ms / after_ms)) > _NORMAL * math.sqrt(2) * STEP_SPREAD


def _slowed(taken: float, cores: float) -> float:
    """By which factor a run can be longer at most since other programs have taken cores from it."""
    return 1 / (1 - min(taken / cores, _MOST_OF_CORES))


class _Drawn:
    """One run as it could have been: means of resampled steps, times what repeated runs differ by.

    Attributes:
        mean_ms: The measured mean step.
        noisy_step: Mean steps, shape ``(REPLICAS,)``.
        causes: Per cause its mean and its means as drawn.
        components: Per component likewise.
    """

    def __init__(self, sample: Sample) -> None:
        # The seed comes from the data, so that it does not matter which run is the first, and no two runs draw alike.
        self._rng = np.random.default_rng(zlib.crc32(np.ascontiguousarray(sample.step_ms).tobytes()))
        self.mean_ms = float(sample.step_ms.mean())
        rows = _blocks(sample.step_ms.size, self._rng)
        means = self._stretched(sample.step_ms, rows)
        # Few steps of very different length are stretched to less than a step can take.
        means = np.maximum(means, _LEAST_MEAN * float(sample.step_ms.min()))
        self.noisy_step = np.maximum(means, 1e-9) * np.exp(self._rng.normal(0, STEP_SPREAD, REPLICAS))
        self.causes = {key: self._noisy(*drawn) for key, drawn in self._divided(sample, rows).items()}
        self.components = {
            key: self._noisy(float(column.mean()), self._stretched(column, _blocks(column.size, self._rng)))
            for key, column in sample.batches_ms.items()
            if column.size >= LEAST_STEPS
        }

    def _divided(self, sample: Sample, rows: Ints) -> dict[Cause, tuple[float, Floats]]:
        """Per cause its mean and its drawn means, what light spans leave open divided as in the traced steps."""
        found = {
            cause: (float(column.mean()), self._stretched(column, rows)) for cause, column in sample.causes_ms.items()
        }
        traced = next(iter(sample.shares.values()), np.empty(0)).size
        if traced < LEAST_STEPS or Cause.OTHER not in found:
            return found
        rest_ms, rest = found.pop(Cause.OTHER)
        blocks = _blocks(traced, self._rng)
        for cause, column in sample.shares.items():
            mean_ms, drawn = found.get(cause, (0.0, np.zeros(REPLICAS)))
            share = self._stretched(column, blocks)
            found[cause] = (mean_ms + rest_ms * float(column.mean()), drawn + rest * share)
        return found

    def _stretched(self, column: Column, rows: Ints) -> Floats:
        """Means of resampled entries, their spread made that of as few blocks as there are."""
        mean = float(column.mean())
        stretched: Floats = mean + (column[rows].mean(axis=1) - mean) * _few(column.size)
        return stretched

    def _noisy(self, mean_ms: float, drawn: Floats) -> tuple[float, Floats]:
        """A part's mean, and what was drawn of it with what repeated runs differ by."""
        spread_ms = math.hypot(PART_SPREAD * mean_ms, PART_SPREAD_OF_STEP * self.mean_ms)
        return mean_ms, drawn + self._rng.normal(0, spread_ms, REPLICAS)


def _block_length(count: int) -> int:
    return max(1, round(math.sqrt(count)))


def _blocks(count: int, rng: np.random.Generator) -> Ints:
    """Rows of circular block bootstrap samples, shape ``(REPLICAS, count)``."""
    block = _block_length(count)
    starts = rng.integers(0, count, (REPLICAS, -(-count // block)))
    rows: Ints = (starts[..., None] + np.arange(block)).reshape(REPLICAS, -1)[:, :count] % count
    return rows


def _few(count: int) -> float:
    """By how much few blocks understate the spread of a mean: Bessel's correction, and Student's quantile."""
    blocks = count / _block_length(count)
    freedom = max(1, round(blocks) - 1)
    student = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL
    return math.sqrt(blocks / (blocks - 1)) * student / _NORMAL


def _together(
    before: Mapping[Key, tuple[float, Floats]], after: Mapping[Key, tuple[float, Floats]], longer: tuple[float, float]
) -> dict[Key, Triple]:
    """Intervals of after minus before that hold for all keys at once."""
    if not before or not after:
        return {}
    nothing = (0.0, np.zeros(REPLICAS))
    pairs = {key: (before.get(key, nothing), after.get(key, nothing)) for key in {**before, **after}}
    pairs = {key: pair for key, pair in pairs.items() if pair[0][0] or pair[1][0]}
    if not pairs:
        return {}
    middles = np.array([new[0] - old[0] for old, new in pairs.values()])
    drawn = np.stack([new[1] - old[1] for old, new in pairs.values()])
    off = drawn - middles[:, None]
    spreads = np.maximum(np.sqrt((off**2).mean(axis=1)), 1e-12)
    widest = float(np.quantile(np.abs(off / spreads[:, None]).max(axis=0), LEVEL))
    found = {}
    for key, middle, spread in zip(pairs, middles.tolist(), spreads.tolist(), strict=True):
        # What other programs can have added to this part of either run.
        added = [pair[0] * (1 - 1 / factor) for pair, factor in zip(pairs[key], longer, strict=True)]
        found[key] = (middle - widest * spread - added[1], middle, middle + widest * spread + added[0])
    return found
