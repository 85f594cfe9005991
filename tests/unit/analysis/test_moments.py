"""Which steps are looked at, and what each thread is seen to do meanwhile."""

from __future__ import annotations

from itertools import pairwise

import pytest
from builders import ms, profile, step, validation

from dlprof.analysis.moments import find_moments
from dlprof.model.moments import Lane, Moment, Part


def lanes(moment: Moment) -> dict[str, Lane]:
    return {lane.name: lane for lane in moment.lanes}


def stretches(lane: Lane, part: Part) -> list[tuple[float, float]]:
    return [(round(it.start_ms, 6), round(it.end_ms, 6)) for it in lane.slices if it.part is part]


def test_the_most_usual_step_and_the_slowest_are_chosen() -> None:
    plan = step(input_wait=ms(20), python=ms(5)) * 3 + step(input_wait=ms(90), python=ms(5)) * 1
    typical, slowest = find_moments(profile(plan + step(input_wait=ms(19), python=ms(5))))
    assert (typical.key, typical.ms, typical.wait_ms) == ("typical", pytest.approx(25), pytest.approx(20))
    assert (slowest.key, slowest.ms, slowest.index) == ("slowest", pytest.approx(95), 3)


def test_without_workers_the_training_process_makes_the_batch_while_it_waits() -> None:
    moment = find_moments(profile(step(input_wait=ms(20), python=ms(5)) * 4))[0]
    assert set(lanes(moment)) == {"training loop", "making batches"}
    assert moment.made_by == "making batches"
    assert moment.made_ms == pytest.approx(20, rel=0.01)
    assert moment.from_ms == 0
    assert stretches(lanes(moment)["training loop"], Part.WAIT) == [(0, 20)]
    assert stretches(lanes(moment)["training loop"], Part.STEP) == [(20, 25)]


def test_with_workers_each_has_a_lane_and_the_batch_is_followed_to_the_one_that_made_it() -> None:
    plan = step(getitem=ms(60), pickle=ms(1), send=ms(1), receive=ms(1), unpickle=ms(2), python=ms(10)) * 20
    moment = find_moments(profile(plan, workers=2, warmup=4))[0]
    found = lanes(moment)
    assert list(found)[:3] == ["training loop", "worker 0", "worker 1"]
    own = found[moment.made_by]
    ((start, end),) = stretches(own, Part.AWAITED)
    assert moment.made_from_ms == pytest.approx(start)
    assert moment.made_ms == pytest.approx(end - start, rel=0.01)
    assert stretches(own, Part.HAND_OVER)
    assert stretches(found["training loop"], Part.UNPICKLE)
    other = next(lane for name, lane in found.items() if name.startswith("worker") and name != moment.made_by)
    assert not stretches(other, Part.AWAITED)
    assert stretches(other, Part.OTHERS)
    # What is waited for is ready before the wait is over.
    assert end <= moment.wait_ms


def test_nothing_lies_outside_the_window_and_a_workers_batches_do_not_overlap() -> None:
    plan = step(getitem=ms(60), unpickle=ms(2), python=ms(10)) * 20
    for moment in find_moments(profile(plan, workers=3)):
        assert -2 * moment.ms - 1e-6 <= moment.from_ms <= 0
        for lane in moment.lanes:
            assert all(moment.from_ms <= it.start_ms < it.end_ms <= moment.to_ms + 1e-6 for it in lane.slices)
            making = sorted(stretches(lane, Part.OTHERS) + stretches(lane, Part.AWAITED))
            assert all(before[1] <= after[0] for before, after in pairwise(making))


def test_a_stand_in_for_an_accelerator_has_a_lane() -> None:
    moment = find_moments(profile(step(input_wait=ms(5), device=ms(20)) * 4))[0]
    assert stretches(lanes(moment)["device"], Part.DEVICE) == [(5, 25)]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_steps_show_nothing(count: int) -> None:
    assert find_moments(profile(step(input_wait=ms(20)) * count)) == ()


def test_many_workers_do_not_make_the_chart_endless() -> None:
    plan = step(getitem=ms(60), python=ms(1)) * 90
    assert len(find_moments(profile(plan, workers=40))[0].lanes) <= 18


def test_the_lanes_go_on_to_the_end_of_a_step_that_a_validation_interrupts() -> None:
    plan = step(input_wait=ms(20), python=ms(5)) * 3 + step(input_wait=ms(90), python=ms(5)) * 1
    plan += validation(step(input_wait=ms(3)) * 2) + step(input_wait=ms(20), python=ms(5)) * 2
    slowest = find_moments(profile(plan))[-1]
    assert slowest.ms == pytest.approx(95)
    assert slowest.to_ms > slowest.ms + 5
    assert max(it.end_ms for it in lanes(slowest)["training loop"].slices) == pytest.approx(slowest.to_ms)
