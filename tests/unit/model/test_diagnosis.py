from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlprof.model.diagnosis import Breakdown
from dlprof.model.kinds import Cause


def breakdown(step_ns: float, **ns: float) -> Breakdown:
    found = {Cause(cause): value for cause, value in ns.items()}
    return Breakdown(step_ns, found, dict.fromkeys(found, "light"))


def test_causes_that_sum_to_the_step_are_accepted():
    assert breakdown(100, input_wait=60, device_compute=40).share(Cause.INPUT_WAIT) == 0.6


@pytest.mark.parametrize("sum_of_parts", [99.9, 100.1, 200.0, 0.0])
def test_causes_that_do_not_sum_to_the_step_are_refused(sum_of_parts):
    with pytest.raises(ValueError, match="causes sum to"):
        breakdown(100, input_wait=sum_of_parts)


def test_a_negative_cause_is_refused_though_the_sum_is_right():
    with pytest.raises(ValueError, match="negative"):
        breakdown(100, input_wait=110, other=-10)


def test_a_cause_that_is_not_there_has_no_share_and_neither_has_any_in_an_empty_step():
    assert breakdown(100, other=100).share(Cause.CHECKPOINT) == 0
    assert breakdown(0, other=0).share(Cause.OTHER) == 0


@given(st.lists(st.floats(0, 1e12), min_size=9, max_size=9))
def test_the_shares_of_all_causes_sum_to_one_however_the_floats_round(values):
    step = sum(values)
    found = Breakdown(step, dict(zip(Cause, values, strict=True)), dict.fromkeys(Cause, "light"))
    assert sum(found.share(cause) for cause in Cause) == pytest.approx(1 if step else 0)
