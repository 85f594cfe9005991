"""What is said of two runs: which differ how, and what the settings explain."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))

from compare_cases import recorded
from report_cases import gpu, tokenizer

from dlprof.compare import Subject, compare_runs
from dlprof.model.compare import Compare, Direction
from dlprof.model.report import Report


def compared(before: Report | Subject, after: Report | Subject) -> Compare:
    first, second = (it if isinstance(it, Subject) else Subject.of("x", it) for it in (before, after))
    return compare_runs(first, second, "2026-12-01T09:00:00+00:00")


def slugs(found: Compare) -> set[str]:
    return {caution.slug for caution in found.cautions}


def with_load(subject: Subject, others: float, own: float = 1.0) -> Subject:
    load = {"cores_used_by_others": others, "cores_used": own}
    report = replace(subject.report, environment=subject.report.environment | {"during_the_steps": load, "cores": 2})
    return replace(subject, report=report)


def with_loader(report: Report, **settings: Any) -> Report:
    assert report.input is not None
    return replace(report, input=replace(report.input, loader=report.input.loader | settings))


def test_causes_and_components_sum_and_stand_in_the_order_of_their_change() -> None:
    found = compared(recorded("text-0-workers"), recorded("text-2-workers"))
    for side in ("before_ms", "after_ms"):
        assert sum(getattr(row, side) for row in found.causes) == pytest.approx(getattr(found.step, side))
    changes = [abs((row.after_ms or 0) - (row.before_ms or 0)) for row in found.causes]
    assert changes == sorted(changes, reverse=True)
    assert all(row.direction is not Direction.UNKNOWN for row in (*found.causes, *found.components))
    for row in (*found.causes, *found.components):
        assert row.difference_ms is not None
        assert row.difference_ms[1] == pytest.approx((row.after_ms or 0) - (row.before_ms or 0), abs=1e-6)


def test_settings_that_differ_are_shown_with_what_each_would_change() -> None:
    found = compared(recorded("text-0-workers"), recorded("text-2-workers"))
    rows = {row.setting: row for row in found.settings}
    assert set(rows) == {"num_workers", "prefetch_factor", "start_method"}
    assert (rows["num_workers"].before, rows["num_workers"].after) == (0, 2)
    forecast = rows["num_workers"].forecast_ms
    assert forecast is not None
    assert forecast[0] < forecast[1] < forecast[2] < 0
    assert rows["start_method"].forecast_ms is None
    assert found.explained is not None
    assert found.explained.forecast_ms == pytest.approx(forecast)
    assert found.explained.forecast_ms[1] + found.explained.left_ms == pytest.approx(
        (found.step.after_ms or 0) - (found.step.before_ms or 0)
    )


def test_of_a_report_alone_a_single_setting_is_explained_by_its_forecast() -> None:
    after = with_loader(tokenizer(), num_workers=2)
    found = compared(tokenizer(), after)
    assert found.explained is not None
    assert found.explained.settings == ["num_workers"]
    # The step has not changed, the forecast was that it would.
    assert not found.explained.agrees
    assert compared(tokenizer(), with_loader(tokenizer(), num_workers=2, in_order=False)).explained is None


def test_other_batches_are_compared_per_sample() -> None:
    after = with_loader(tokenizer(), batch_size=32)
    found = compared(tokenizer(), after)
    assert found.per == "sample"
    assert found.step.before_ms == pytest.approx(61.9 / 16)
    assert found.step.after_ms == pytest.approx(61.9 / 32)
    assert found.step.speedup is not None
    assert found.step.speedup[1] == pytest.approx(2, rel=1e-3)
    assert "other-batch" in slugs(found)


def test_batches_of_unknown_size_are_compared_per_step() -> None:
    unknown = replace(tokenizer(), input=None, step=replace(tokenizer().step, samples_per_s=None))
    found = compared(tokenizer(), unknown)
    assert found.per == "step"
    assert "batch-unknown" in slugs(found)


def test_other_scripts_machines_and_devices_are_said() -> None:
    found = compared(tokenizer(), replace(gpu(), host="node-7"))
    assert {"other-script", "other-machine"} <= slugs(found)
    assert {"script", "host", "device"} <= {fact.what for fact in found.facts}


@pytest.mark.parametrize(
    ("loads", "slug"),
    [((0.0, 0.1), None), ((0.0, 0.4), "other-load"), ((1.0, 0.0), "loaded"), ((0.9, 0.9), "loaded")],
)
def test_a_busy_machine_is_said(loads: tuple[float, float], slug: str | None) -> None:
    run = recorded("text-0-workers")
    found = slugs(compared(with_load(run, loads[0]), with_load(run, loads[1])))
    assert found & {"other-load", "loaded", "load-unknown"} == ({slug} if slug else set())


def test_what_a_busy_machine_can_have_cost_is_not_called_a_gain() -> None:
    before, after = recorded("text-0-workers"), recorded("text-2-workers")
    assert compared(with_load(before, 0.0), after).step.direction is Direction.SHORTER
    found = compared(with_load(before, 1.0), after)
    assert found.step.direction is Direction.SAME
    assert "other programs' use of the cores can explain that" in found.conclusion


def test_the_same_run_twice() -> None:
    run = recorded("text-2-workers")
    found = compared(run, run)
    assert found.step.direction is Direction.SAME
    assert all(row.direction is Direction.SAME for row in (*found.causes, *found.components))
    assert slugs(found) == {"same-run"}
    assert (found.settings, found.facts, found.explained) == ([], [], None)


def test_a_run_that_ended_badly_or_drifted_is_said() -> None:
    from report_cases import CASES

    short = CASES["short"]()
    assert "ended-badly" in slugs(compared(tokenizer(), short))
