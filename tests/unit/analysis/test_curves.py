"""Numbers of single steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlprof.analysis.curves import curves
from dlprof.diagnose import diagnose
from dlprof.formats import run_file

RECORDED = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("run", ["text-2-workers", "text-0-workers", "storage", "images"])
def test_causes_sum_to_the_step_and_means_are_the_reports(run: str) -> None:
    profile = run_file.load(RECORDED / run / run_file.NAME)
    report = diagnose(profile)
    found = curves(profile)
    measured = [row for row in report.steps if not row.traced]
    assert found.steps == tuple(row.index for row in measured)
    assert found.series["step_ms"] == pytest.approx([row.ms for row in measured])
    causes = {name: values for name, values in found.series.items() if name not in ("step_ms", "queue_depth")}
    for place, whole in enumerate(found.series["step_ms"]):
        assert sum(values[place] for values in causes.values()) == pytest.approx(whole)
    budget = {f"{row.cause.value}_ms": row.ms_per_step for row in report.budget if row.ms_per_step > 0}
    assert causes.keys() == budget.keys()
    for name, values in causes.items():
        assert sum(values) / len(values) == pytest.approx(budget[name])
    assert list(found.ended_s) == sorted(found.ended_s)
    assert found.ended_s[0] > profile.run.wall_ns / 1e9


def test_the_queue_is_known_where_there_are_workers() -> None:
    def depth_of(run: str) -> tuple[float | None, ...] | None:
        return curves(run_file.load(RECORDED / run / run_file.NAME)).series.get("queue_depth")

    depths = depth_of("text-2-workers")
    report = diagnose(run_file.load(RECORDED / "text-2-workers" / run_file.NAME))
    assert sum(depths) / len(depths) == pytest.approx(report.input.queue_depth_mean)
    assert depth_of("text-0-workers") is None


def test_a_run_without_a_step_has_no_curves() -> None:
    from dataclasses import replace

    profile = run_file.load(RECORDED / "text-0-workers" / run_file.NAME)
    assert curves(replace(profile, run=replace(profile.run, warmup=10_000))) is None
