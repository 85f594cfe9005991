"""Whether a script ran ahead of its device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import Span, ms, profile, recorded, step, validation

from dlprof.analysis.device_clock import ahead_of_device
from dlprof.analysis.steps import find_steps
from dlprof.diagnose import diagnose
from dlprof.model.kinds import Confidence, Kind
from dlprof.model.profile import Profile

PLAIN = step(input_wait=ms(2), python=ms(8))


def with_device_steps(found: Profile, device_ms: float, count: int) -> Profile:
    requests = found.spans.of(Kind.NEXT)
    rows = [
        Span(Kind.DEVICE_STEP, at, at, batch=batch, iterator=number, value=ms(device_ms))
        for at, batch, number in list(zip(requests.start_ns, requests.batch, requests.iterator, strict=True))[:count]
    ]
    more = recorded(rows).spans
    columns = {name: np.concatenate([getattr(found.spans, name), getattr(more, name)]) for name in type(more).COLUMNS}
    return replace(found, spans=type(more)(**columns, names=found.spans.names))


def ahead(found: Profile) -> tuple[float, float] | None:
    return ahead_of_device(found, find_steps(found))


@pytest.mark.parametrize(
    ("device_ms", "count", "expected"),
    [
        (50, 30, (ms(10), ms(50))),
        (12.1, 30, (ms(10), ms(12.1))),
        (11.9, 30, None),
        (10, 30, None),
        (2, 30, None),
        (50, 4, None),
        (50, 0, None),
    ],
)
def test_the_script_is_ahead_where_the_devices_steps_are_clearly_longer(device_ms, count, expected):
    found = with_device_steps(profile(PLAIN * 30, device="cuda:0"), device_ms, count)
    assert ahead(found) == (expected if expected is None else pytest.approx(expected))


def test_another_loaders_phase_within_a_step_is_not_taken_for_the_device():
    plan = (PLAIN * 9 + validation(PLAIN * 20)) * 3
    found = profile(plan, device="cuda:0")
    spans = with_device_steps(found, 10, 0).spans
    assert ahead(replace(found, spans=spans)) is None


def test_the_report_says_so_and_is_less_sure():
    found = profile(PLAIN * 40, device="cuda:0")
    sure, unsure = diagnose(found), diagnose(with_device_steps(found, 50, 40))
    (said,) = [notice.text for notice in unsure.notices if notice.slug == "script-ahead"]
    assert "50" in said
    assert "10" in said
    assert "script-ahead" not in {notice.slug for notice in sure.notices}
    assert unsure.verdict.confidence is Confidence.LOW
