"""Which settings are tried, how many, and which again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.model.kinds import Confidence
from dlprof.model.tune import Candidate, Failure, Measured, Promise, Tried
from dlprof.whatif.trials import REPEATS, affordable, choose, fail_alike, finalists, fits

LOW, MEDIUM = Confidence.LOW, Confidence.MEDIUM


def workers(number: int, speedup: float, *, spread: float = 0.02, confidence: Confidence = MEDIUM) -> Candidate:
    """A number of workers that promises a speedup of a step of 100 ms."""
    triple = (speedup - spread, speedup, speedup + spread)
    steps = tuple(100 / value for value in reversed(triple))
    return Candidate({"num_workers": number}, Promise(steps, triple, confidence), (number, 2 * number))  # type: ignore[arg-type]


def numbers(candidates: list[Candidate]) -> list[int]:
    return [it.settings["num_workers"] for it in candidates]


def tried(number: int, *means: float, cost: int = 0) -> Tried:
    runs = tuple(Measured(f"run-{number}", (mean,) * 5, 1.0) for mean in means)
    return Tried(number, Candidate({"num_workers": cost}, None, (cost, cost)), runs)


# choose


def test_the_most_promising_come_first_and_no_more_than_asked_for():
    assert numbers(choose([workers(1, 1.5), workers(2, 2.0), workers(3, 2.5)], 2)) == [3, 2]


def test_of_forecasts_as_good_as_each_other_the_cheaper_comes_first():
    assert numbers(choose([workers(8, 2.01), workers(4, 2.0), workers(1, 1.5)], 3)) == [4, 8, 1]


def test_numbers_of_workers_come_before_longer_queues():
    longer = workers(2, 2.4)
    longer.settings["prefetch_factor"] = 8
    assert numbers(choose([longer, workers(1, 1.5), workers(2, 2.0)], 2)) == [2, 1]
    assert choose([longer, workers(1, 1.5), workers(2, 2.0)], 3)[2] is longer


def test_a_doubtful_forecast_has_to_promise_more():
    assert numbers(choose([replace(workers(4, 2.2), doubt=1.3), workers(2, 2.0)], 2)) == [2, 4]
    assert numbers(choose([replace(workers(4, 2.8), doubt=1.3), workers(2, 2.0)], 2)) == [4, 2]


def test_what_cannot_gain_is_not_tried():
    assert numbers(choose([workers(1, 1.5), workers(2, 1.0), workers(3, 0.7, confidence=LOW)], 6)) == [1]


def test_nothing_is_tried_where_nothing_can_gain():
    assert choose([workers(1, 1.02), workers(2, 1.0)], 6) == []
    assert choose([], 6) == []


def test_at_the_boundary_of_five_percent():
    assert choose([workers(1, 1.05, spread=0)], 6)
    assert not choose([workers(1, 1.0499, spread=0)], 6)


def test_where_only_uncertain_forecasts_gain_nothing_the_best_of_them_is_tried():
    assert numbers(choose([workers(1, 1.0), workers(3, 0.9, confidence=LOW), workers(4, 0.95, confidence=LOW)], 6)) == [
        4
    ]


def test_advice_without_a_forecast_is_tried_first():
    advised = Candidate({"pin_memory": True}, None)
    assert choose([workers(1, 3.0), advised], 1) == [advised]


@given(st.lists(st.tuples(st.floats(0.3, 5), st.sampled_from(Confidence)), max_size=12), st.integers(1, 8))
def test_what_is_chosen_is_among_the_candidates_and_never_too_much(given_, most):
    found = [workers(index, speedup, confidence=confidence) for index, (speedup, confidence) in enumerate(given_)]
    chosen = choose(found, most)
    assert len(chosen) <= most
    assert len(numbers(chosen)) == len(set(numbers(chosen)))
    assert all(it in found for it in chosen)
    if any(it.promise is not None and it.promise.speedup[2] >= 1.05 for it in found):
        assert chosen
        assert all(it.promise is not None and it.promise.speedup[2] >= 1.05 for it in chosen)


# affordable, fits


@pytest.mark.parametrize(
    ("budget_s", "elapsed_s", "expected"),
    [
        (None, 10_000, 6),
        (1000, 100, 6),
        (100, 20, 5),  # eight runs of 10 s: five trials and three repeats
        (65, 20, 1),  # four runs
        (35, 20, 1),  # one run, no repeats
        (29, 20, 0),
        (10, 20, 0),
    ],
)
def test_trials_leave_time_for_the_repeats(budget_s, elapsed_s, expected):
    assert affordable(budget_s, elapsed_s, 10, 6) == expected


@given(st.floats(1, 1e5), st.floats(0, 1e5), st.floats(0.1, 1e4), st.integers(1, 20))
def test_the_trials_that_are_started_fit_the_budget(budget_s, elapsed_s, run_s, most):
    count = affordable(budget_s, elapsed_s, run_s, most)
    assert 0 <= count <= most
    if count:
        assert elapsed_s + run_s <= budget_s * (1 + 1e-9)
    if count > 1:
        assert elapsed_s + (count + REPEATS) * run_s <= budget_s * (1 + 1e-9)


def test_a_run_is_started_if_it_is_expected_to_end_in_time():
    assert fits(None, 1e9, 10)
    assert fits(30, 20, 10)
    assert not fits(30, 21, 10)


# finalists


def test_the_two_fastest_are_repeated():
    assert [it.number for it in finalists([tried(0, 100), tried(1, 60), tried(2, 50), tried(3, 55)])] == [2, 3]


def test_what_was_slower_than_the_script_is_not_repeated():
    assert [it.number for it in finalists([tried(0, 100), tried(1, 101), tried(2, 90)])] == [2]
    assert finalists([tried(0, 100), tried(1, 101)]) == []


def test_a_run_that_failed_is_not_repeated():
    failed = Tried(1, Candidate({}, None), (Measured("trial-1", (5.0,), 1.0, Failure("exception", "")),))
    assert finalists([tried(0, 100), failed]) == []
    assert finalists([Tried(0, Candidate({}, None), ()), tried(1, 50)]) == []


# fail_alike


def failed(number: int, *texts: str) -> Tried:
    runs = tuple(Measured(f"run-{number}", (), 1.0, Failure("exception", text)) for text in texts)
    return Tried(number, Candidate({"num_workers": number}, None), runs)


BEFORE = tried(0, 10.0)


@pytest.mark.parametrize(
    ("trials", "alike"),
    [
        ([], False),
        ([failed(1, "ValueError: no workers")], False),
        ([failed(1, "ValueError: no workers"), failed(2, "ValueError: no workers")], True),
        ([failed(1, "worker 1 (pid 7) died"), failed(2, "worker 0 (pid 991) died")], True),
        ([failed(1, "ValueError: a"), failed(2, "ValueError: b")], False),
        ([failed(1, "ValueError: a"), tried(2, 9.0)], False),
        ([tried(1, 9.0), tried(2, 9.0)], False),
    ],
)
def test_the_first_trials_that_fail_alike_are_enough(trials: list[Tried], alike: bool):
    assert fail_alike([BEFORE, *trials]) is alike
