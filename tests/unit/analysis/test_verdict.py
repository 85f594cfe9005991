"""The contract's verdict rule, branch by branch and at its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from builders import ms, profile, step
from hypothesis import given
from hypothesis import strategies as st

from dlprof.analysis.partition import CAUSES, Partition, partition
from dlprof.analysis.steps import find_steps
from dlprof.analysis.verdict import candidates_outside_input, judge
from dlprof.model.diagnosis import Breakdown, Candidate, Judgement
from dlprof.model.kinds import Bottleneck, Cause, Component, Confidence
from dlprof.model.pipeline import Interval

STORAGE = (Bottleneck.STORAGE_IO, Component.STORAGE_IO)
PREPROCESSING = (Bottleneck.CPU_PREPROCESSING, Component.TOKENIZER)
OVERHEAD = (Bottleneck.LOADER_OVERHEAD, Component.UNPICKLE)
HOST = (Bottleneck.HOST_OVERHEAD, Component.PYTHON)
COPIES = (Bottleneck.H2D_COPY, None)


def saves(what: tuple[Bottleneck, Component | None], mid: float, spread: float = 0.01) -> Candidate:
    return Candidate(*what, Interval(mid - spread, mid, mid + spread))


def about(mid: float, spread: float = 0.01) -> Interval:
    return Interval(mid - spread, mid, mid + spread)


def parts(steps: int = 40, *, traced: bool = True, **shares: float) -> Partition:
    """A step of 100 ns; what the shares leave is Python, or other where nothing was traced."""
    rest = Cause.PYTHON if traced else Cause.OTHER
    ns = dict.fromkeys(CAUSES, 0.0) | {Cause(cause): 100 * share for cause, share in shares.items()}
    ns[rest] += 100 - sum(ns.values())
    light = np.tile([ns[cause] for cause in CAUSES], (steps, 1))
    open_shares = np.ones((5, 6)) / 6 if traced else np.zeros((0, 6))
    return Partition(Breakdown(100, ns, dict.fromkeys(CAUSES, "light")), light, open_shares, None)


def named(found: Judgement) -> tuple[Bottleneck, Component | None]:
    return found.bottleneck, found.component


# ---- one cause stands out --------------------------------------------------------------------------------------------


def test_the_cause_whose_removal_saves_most_bounds_the_step():
    found = judge(parts(input_wait=0.6), [saves(HOST, 0.1), saves(PREPROCESSING, 0.55)], about(0.6), ())
    assert named(found) == PREPROCESSING
    assert (found.share, found.confidence, found.reason) == (0.55, Confidence.HIGH, "")
    assert [each.bottleneck for each in found.candidates] == [PREPROCESSING[0], HOST[0]]


@pytest.mark.parametrize("candidate", [STORAGE, PREPROCESSING, OVERHEAD, HOST, COPIES])
def test_any_bottleneck_can_be_the_one(candidate):
    assert named(judge(parts(), [saves(candidate, 0.5), saves((Bottleneck.COMMUNICATION, None), 0.1)], None, ())) == (
        candidate
    )


def test_a_share_of_exactly_twenty_percent_is_enough():
    assert named(judge(parts(), [saves(HOST, 0.20, spread=0)], None, ())) == HOST


def test_a_share_just_below_twenty_percent_is_not():
    found = judge(parts(device_compute=0.7), [saves(HOST, 0.19, spread=0.005)], None, ())
    assert named(found) == (Bottleneck.DEVICE_COMPUTE, Component.COMPUTE)


# ---- none alone, but all input together ------------------------------------------------------------------------------


def test_input_causes_that_matter_only_together_name_the_largest_with_low_confidence():
    candidates = [saves(HOST, 0.18), saves(STORAGE, 0.15), saves(PREPROCESSING, 0.12)]
    found = judge(parts(input_wait=0.3), candidates, about(0.28), ())
    assert (named(found), found.share, found.confidence) == (STORAGE, 0.15, Confidence.LOW)


def test_all_input_together_below_twenty_percent_is_no_bottleneck():
    found = judge(parts(input_wait=0.3), [saves(STORAGE, 0.15)], about(0.19), ())
    assert found.bottleneck is Bottleneck.BALANCED


def test_input_that_matters_without_a_candidate_of_the_input_does_not_break_the_report():
    judge(parts(input_wait=0.3), [saves(HOST, 0.1)], about(0.28), ())


# ---- the device, or balance ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy", "bottleneck", "share"),
    [
        (0.60, Bottleneck.DEVICE_COMPUTE, 0.60),
        (0.95, Bottleneck.DEVICE_COMPUTE, 0.95),
        (0.599, Bottleneck.BALANCED, None),
        (0.0, Bottleneck.BALANCED, None),
    ],
)
def test_without_a_larger_cause_sixty_percent_of_compute_bound_the_step(busy, bottleneck, share):
    found = judge(parts(device_compute=busy), [saves(HOST, 0.1)], about(0.05), ())
    assert (found.bottleneck, found.share) == (bottleneck, pytest.approx(share) if share else None)


def test_a_balanced_step_has_no_component():
    assert judge(parts(device_compute=0.5), [saves(HOST, 0.1)], None, ()).component is None


# ---- inconclusive ----------------------------------------------------------------------------------------------------


def test_without_a_measured_step_nothing_can_be_said():
    found = judge(None, [], None, ())
    assert (found.bottleneck, found.confidence, found.reason) == (
        Bottleneck.INCONCLUSIVE,
        Confidence.LOW,
        "no-steps",
    )


@pytest.mark.parametrize(
    ("interval", "decided"),
    [
        (Interval(0.15, 0.25, 0.35), False),
        (Interval(0.05, 0.18, 0.21), False),
        (Interval(0.19, 0.195, 0.20), False),
        (Interval(0.21, 0.25, 0.30), True),
        (Interval(0.10, 0.15, 0.19), True),
    ],
)
def test_an_interval_that_contains_twenty_percent_decides_nothing(interval, decided):
    found = judge(parts(), [Candidate(*HOST, interval)], None, ())
    assert (found.bottleneck is not Bottleneck.INCONCLUSIVE) == decided
    if not decided:
        assert found.reason == "threshold"
        assert found.reason_values == {"first": HOST[0], "low": interval.low, "high": interval.high}
        assert found.share is None


def test_two_causes_that_cannot_be_told_apart_decide_nothing():
    found = judge(parts(input_wait=0.5), [saves(HOST, 0.32, 0.05), saves(STORAGE, 0.40, 0.05)], about(0.5), ())
    assert (found.bottleneck, found.component, found.share) == (Bottleneck.INCONCLUSIVE, None, None)
    assert (found.reason, found.reason_values) == ("overlap", {"first": STORAGE[0], "second": HOST[0]})


def test_two_causes_that_can_be_told_apart_name_the_larger():
    found = judge(parts(input_wait=0.5), [saves(HOST, 0.30), saves(STORAGE, 0.40)], about(0.5), ())
    assert named(found) == STORAGE


def test_a_second_cause_below_twenty_percent_does_not_make_it_a_draw():
    found = judge(parts(input_wait=0.5), [saves(HOST, 0.19, 0.12), saves(STORAGE, 0.26, 0.05)], about(0.5), ())
    assert named(found) == STORAGE


def test_a_long_wait_whose_batches_were_not_seen_decides_nothing():
    found = judge(parts(input_wait=0.5), [saves(HOST, 0.1)], None, ())
    assert (found.bottleneck, found.reason) == (Bottleneck.INCONCLUSIVE, "not-recorded")


def test_a_short_wait_whose_batches_were_not_seen_does_not_matter():
    found = judge(parts(input_wait=0.19, device_compute=0.7), [saves(HOST, 0.1)], None, ())
    assert found.bottleneck is Bottleneck.DEVICE_COMPUTE


def test_a_step_that_was_not_traced_and_does_not_wait_decides_nothing():
    found = judge(parts(traced=False, input_wait=0.1), [saves(HOST, 0.0)], about(0.1), ("no-trace",))
    assert (found.bottleneck, found.reason) == (Bottleneck.INCONCLUSIVE, "not-recorded")


def test_a_step_that_was_not_traced_may_be_bound_by_input_all_the_same():
    found = judge(parts(traced=False, input_wait=0.7), [saves(PREPROCESSING, 0.65)], about(0.7), ("no-trace",))
    assert (named(found), found.confidence) == (PREPROCESSING, Confidence.LOW)


# ---- confidence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "second", "doubts", "confidence"),
    [
        (30, 0.1, (), Confidence.HIGH),
        (29, 0.1, (), Confidence.MEDIUM),
        (10, 0.1, (), Confidence.MEDIUM),
        (9, 0.1, (), Confidence.LOW),
        (100, 0.1, ("drift",), Confidence.LOW),
        (100, 0.1, ("no-trace",), Confidence.LOW),
        (100, 0.17, (), Confidence.MEDIUM),
    ],
)
def test_confidence(steps, second, doubts, confidence):
    candidates = [Candidate(*PREPROCESSING, Interval(0.21, 0.25, 0.3)), saves(HOST, second, 0.05)]
    assert judge(parts(steps), candidates, None, doubts).confidence is confidence


# ---- whatever the numbers --------------------------------------------------------------------------------------------

shares = st.floats(0, 0.9)
intervals = st.tuples(shares, shares, shares).map(sorted).map(lambda ends: Interval(*ends))


@given(
    st.lists(st.builds(Candidate, st.sampled_from(list(Bottleneck)[:4]), st.none(), intervals), min_size=1, max_size=6),
    st.integers(1, 60),
    st.none() | intervals,
    st.floats(0, 1),
)
def test_a_named_cause_saves_twenty_percent_or_its_input_does_together(candidates, steps, all_input, busy):
    found = judge(parts(steps, device_compute=busy), candidates, all_input, ())
    if found.bottleneck in (Bottleneck.BALANCED, Bottleneck.INCONCLUSIVE):
        assert found.share is None
        assert found.component is None
    elif found.bottleneck is not Bottleneck.DEVICE_COMPUTE:
        assert found.share >= 0.2 or (all_input.mid >= 0.2 and found.confidence is Confidence.LOW)
    assert (found.bottleneck is Bottleneck.INCONCLUSIVE) == bool(found.reason)
    assert len(found.candidates) == len(candidates)


# ---- candidates outside the input ------------------------------------------------------------------------------------


def outside(plan, **more) -> dict[Bottleneck, Candidate]:
    found = profile(plan, **more)
    return {each.bottleneck: each for each in candidates_outside_input(partition(found, find_steps(found)), {})}


def test_host_work_is_one_candidate_named_after_its_largest_part():
    light = step(input_wait=ms(5), kernel=ms(50), synchronize=ms(6), launch=ms(10), python=ms(25), checkpoint=ms(4))
    traced = step(**{**light[0].__dict__, "traced": True})
    found = outside(light * 30 + traced * 5, device="cuda:0")[Bottleneck.HOST_OVERHEAD]
    assert found.component is Component.PYTHON
    assert found.saved.mid == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("part", "component"),
    [
        ("python", Component.PYTHON),
        ("launch", Component.KERNEL_LAUNCH),
        ("synchronize", Component.SYNCHRONIZATION),
        ("checkpoint", Component.CHECKPOINT),
    ],
)
def test_each_kind_of_host_work_can_be_the_largest(part, component):
    light = {"input_wait": ms(5), "kernel": ms(50), part: ms(45)}
    found = outside(step(**light) * 30 + step(**light, traced=True) * 5, device="cuda:0")
    assert found[Bottleneck.HOST_OVERHEAD].component is component
    assert found[Bottleneck.HOST_OVERHEAD].saved.mid == pytest.approx(0.45)


def test_copies_and_communication_are_candidates_of_their_own():
    light = {"input_wait": ms(5), "kernel": ms(55), "copy": ms(30), "collective": ms(10)}
    found = outside(step(**light) * 30 + step(**light, traced=True) * 5, device="cuda:0")
    assert found[Bottleneck.H2D_COPY].saved.mid == pytest.approx(0.30)
    assert found[Bottleneck.COMMUNICATION].saved.mid == pytest.approx(0.10)
    assert found[Bottleneck.COMMUNICATION].component is Component.COLLECTIVE


def test_the_interval_is_as_wide_as_the_steps_vary():
    steady = [each for _ in range(30) for each in step(input_wait=ms(60), checkpoint=ms(40))]
    wild = [each for k in range(30) for each in step(input_wait=ms(60), checkpoint=ms(80 * (k % 2)))]
    narrow = outside(steady)[Bottleneck.HOST_OVERHEAD].saved
    wide = outside(wild)[Bottleneck.HOST_OVERHEAD].saved
    assert narrow.high - narrow.low == pytest.approx(0, abs=1e-9)
    assert wide.low < 0.36 < 0.4 < wide.high
