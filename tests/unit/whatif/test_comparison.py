"""Who wins, where the runs are noise around steps that are known."""

from __future__ import annotations

import numpy as np
import pytest

from dlprof.model.tune import Candidate, Failure, Measured, Tried
from dlprof.whatif.comparison import judge_trials


def tried(number: int, *means: float, cost: int = 0, noise: float = 0.05, seed: int = 0) -> Tried:
    rng = np.random.default_rng([number, seed])
    runs = tuple(
        Measured(f"run-{number}-{index}", tuple(mean * np.exp(rng.normal(0, noise, 40))), 1.0)
        for index, mean in enumerate(means)
    )
    return Tried(number, Candidate({"num_workers": cost}, None, (cost, cost)), runs)


def test_a_setting_that_is_surely_faster_wins():
    judged, winner = judge_trials([tried(0, 100, 101), tried(1, 50, 51), tried(2, 80)])
    assert winner == 1
    low, middle, high = judged[1].speedup or (0, 0, 0)
    assert 1.7 < low < middle < high < 2.3
    assert middle == pytest.approx(2, rel=0.05)
    assert judged[0].speedup is None
    assert judged[0].step_ms is not None


def test_a_gain_within_the_spread_between_runs_is_none():
    assert judge_trials([tried(0, 100, 130), tried(1, 90, 125)])[1] is None
    assert judge_trials([tried(0, 100, 100), tried(1, 98, 98)])[1] is None


def test_less_than_three_percent_is_as_good():
    assert judge_trials([tried(0, *[100.0] * 8, noise=0.001), tried(1, *[98.0] * 8, noise=0.001)])[1] is None


def test_slower_never_wins():
    assert judge_trials([tried(0, 100, 100), tried(1, 120, 120)])[1] is None


def test_of_equals_the_cheaper_wins():
    assert judge_trials([tried(0, 100, 100), tried(1, 50, 50, cost=4), tried(2, 50.5, 50.5, cost=2)])[1] == 2
    assert judge_trials([tried(0, 100, 100), tried(1, 50, 50, cost=4), tried(2, 60, 60, cost=2)])[1] == 1


def test_what_was_repeated_stands_before_one_fast_run():
    assert judge_trials([tried(0, 100, 100), tried(1, 50, 50), tried(2, 40)])[1] == 1


def test_without_repeats_only_a_clear_gain_wins():
    assert judge_trials([tried(0, 100), tried(1, 70)])[1] == 1
    assert judge_trials([tried(0, 100), tried(1, 96)])[1] is None


def test_runs_that_failed_do_not_count():
    failed = Tried(1, Candidate({}, None), (Measured("trial-1", (1.0,) * 9, 1.0, Failure("exception", "")),))
    judged, winner = judge_trials([tried(0, 100), failed])
    assert winner is None
    assert (judged[1].step_ms, judged[1].speedup) == (None, None)


def test_the_interval_holds_the_true_speedup_about_as_often_as_it_says():
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        before = 100 * np.exp(rng.normal(0, 0.04, 2))
        after = 80 * np.exp(rng.normal(0, 0.04, 2))
        judged, _ = judge_trials([tried(0, *before, seed=seed), tried(1, *after, seed=seed)])
        low, _, high = judged[1].speedup or (0, 0, 0)
        held += low <= 1.25 <= high
    assert held >= 48


def test_noise_is_rarely_taken_for_a_gain():
    won = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        means = 100 * np.exp(rng.normal(0, 0.04, (3, 2)))
        won += judge_trials([tried(number, *row, seed=seed) for number, row in enumerate(means)])[1] is not None
    assert won <= 9
