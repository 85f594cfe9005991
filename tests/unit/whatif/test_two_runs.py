"""Chance is not taken for a difference, a difference is found, and which run comes first does not matter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.model.compare import Direction, Sample
from dlprof.model.kinds import Cause, Component
from dlprof.whatif.two_runs import STEP_SPREAD, Compared, compare_samples, direction

Series = Callable[[np.random.Generator], np.ndarray]


def waves(rng: np.random.Generator) -> np.ndarray:
    """Queues that empty every eight steps: one long wait, then none."""
    phase = rng.integers(8)
    return np.where((np.arange(50) + phase) % 8 == 0, 180.0, 20.0) * np.exp(rng.normal(0, 0.05, 50))


def disturbed(rng: np.random.Generator) -> np.ndarray:
    """Now and then something slows some steps in a row."""
    slow = np.zeros(50)
    level = rng.normal()
    for index in range(50):
        level = 0.7 * level + rng.normal() * np.sqrt(1 - 0.7**2)
        slow[index] = level
    return 60 * np.exp(0.1 * slow)


def independent(rng: np.random.Generator) -> np.ndarray:
    return 60 * np.exp(rng.normal(0, 0.1, 50))


def heavy_tailed(rng: np.random.Generator) -> np.ndarray:
    """One sample in ten takes far longer."""
    return 30 * np.exp(rng.normal(0, 0.03, 50)) + np.where(rng.random(50) < 0.1, rng.exponential(60, 50), 0)


def few(rng: np.random.Generator) -> np.ndarray:
    return 60 * np.exp(rng.normal(0, 0.1, 6))


def run(series: Series, rng: np.random.Generator, spread: float = STEP_SPREAD) -> Sample:
    """A run of a program: its steps, times what runs of it differ by."""
    step = series(rng) * np.exp(rng.normal(0, spread))
    wait = step * rng.uniform(0.3, 0.4, step.size)
    share = rng.uniform(0.8, 0.9, 10)
    return Sample(
        step,
        {Cause.INPUT_WAIT: wait, Cause.OTHER: step - wait},
        {Cause.DEVICE_COMPUTE: share, Cause.PYTHON: 1 - share},
        {Component.TOKENIZER: wait * 1.1, Component.COLLATE_FN: wait * 0.01},
    )


def rows(found: Compared) -> list[tuple[float, float, float]]:
    return [*found.causes_ms.values(), *found.components_ms.values()]


@pytest.mark.parametrize("series", [waves, disturbed, independent, heavy_tailed, few])
def test_chance_is_significant_in_few_pairs(series: Series) -> None:
    rng = np.random.default_rng(1)
    pairs = 120
    steps = anything = 0
    for _ in range(pairs):
        found = compare_samples(run(series, rng), run(series, rng))
        told = [direction(low, high) is not Direction.SAME for low, _, high in rows(found)]
        steps += found.step is not Direction.SAME
        anything += found.step is not Direction.SAME or any(told)
    assert steps <= 0.08 * pairs
    assert anything <= 0.12 * pairs


@pytest.mark.parametrize("series", [waves, disturbed, independent])
def test_half_the_time_is_found_to_be_less(series: Series) -> None:
    rng = np.random.default_rng(2)
    found = [compare_samples(run(series, rng), run(series, rng).times(0.5)) for _ in range(40)]
    assert sum(it.step is Direction.SHORTER for it in found) >= 38
    assert (
        sum(
            direction(low, high) is Direction.SHORTER
            for it in found
            for low, _, high in [it.causes_ms[Cause.INPUT_WAIT]]
        )
        >= 36
    )


columns = st.lists(st.floats(0.1, 1e5), min_size=3, max_size=40).map(np.array)
samples = st.builds(
    lambda step, wait, share, batch: Sample(
        step,
        {Cause.INPUT_WAIT: step * wait, Cause.OTHER: step * (1 - wait)},
        {Cause.DEVICE_COMPUTE: share, Cause.PYTHON: 1 - share},
        {Component.DECODE: batch},
    ),
    columns,
    st.floats(0, 1),
    st.lists(st.floats(0, 1), min_size=3, max_size=10).map(np.array),
    columns,
)


@settings(max_examples=40, deadline=None)
@given(before=samples, after=samples, taken=st.tuples(st.floats(0, 2), st.floats(0, 2)))
def test_exchanged_runs_give_the_mirrored_result(before: Sample, after: Sample, taken: tuple[float, float]) -> None:
    there = compare_samples(before, after, taken, 2)
    back = compare_samples(after, before, taken[::-1], 2)
    assert there.speedup is not None
    assert back.speedup is not None
    assert there.step_ms is not None
    np.testing.assert_allclose(there.speedup, 1 / np.array(back.speedup[::-1]), rtol=1e-9)
    np.testing.assert_allclose(there.step_ms, -np.array(back.step_ms)[::-1], rtol=1e-9, atol=1e-9)
    for one, other in ((there.causes_ms, back.causes_ms), (there.components_ms, back.components_ms)):
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_allclose(one[key], -np.array(other[key])[::-1], rtol=1e-9, atol=1e-6)
    ways = {Direction.SHORTER: Direction.LONGER, Direction.LONGER: Direction.SHORTER}
    assert back.step is ways.get(there.step, there.step)


@settings(max_examples=40, deadline=None)
@given(sample=samples)
def test_a_run_does_not_differ_from_itself(sample: Sample) -> None:
    found = compare_samples(sample, sample)
    assert found.step is Direction.SAME
    assert all(direction(low, high) is Direction.SAME for low, _, high in rows(found))


@settings(max_examples=40, deadline=None)
@given(before=samples, after=samples)
def test_the_middle_is_what_was_measured_and_within_its_interval(before: Sample, after: Sample) -> None:
    found = compare_samples(before, after)
    means = before.step_ms.mean(), after.step_ms.mean()
    assert found.step_ms is not None
    assert found.step_ms[1] == pytest.approx(means[1] - means[0], rel=1e-6, abs=1e-6)
    assert sum(row[1] for row in found.causes_ms.values()) == pytest.approx(found.step_ms[1], rel=1e-6, abs=1e-6)
    for low, middle, high in (found.step_ms, *rows(found)):
        assert low <= middle <= high


def test_what_others_can_have_taken_makes_a_difference_uncertain() -> None:
    rng = np.random.default_rng(3)
    slow, fast = run(independent, rng, 0), run(independent, rng, 0).times(0.7)
    assert compare_samples(slow, fast, (0, 0), 2).step is Direction.SHORTER
    assert compare_samples(slow, fast, (1, 0), 2).step is Direction.SAME
    # Others can only have made the second run longer, so that it was shorter is sure.
    assert compare_samples(slow, fast, (0, 1), 2).step is Direction.SHORTER


def test_what_only_one_run_has_counts_as_nothing_in_the_other() -> None:
    rng = np.random.default_rng(4)
    before, after = run(independent, rng, 0), run(independent, rng, 0)
    after = Sample(
        after.step_ms, after.causes_ms, after.shares, {Component.COLLATE_FN: after.batches_ms[Component.COLLATE_FN]}
    )
    low, middle, high = compare_samples(before, after).components_ms[Component.TOKENIZER]
    assert low < middle < high < 0
    assert middle == pytest.approx(-before.batches_ms[Component.TOKENIZER].mean())


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_steps_tell_nothing(count: int) -> None:
    found = compare_samples(Sample(np.full(count, 9.0)), Sample(np.full(50, 7.0)))
    assert found == Compared(None, None, Direction.UNKNOWN, {}, {})
