"""What is said of two runs: which differ how, and what the settings explain."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import ms
from traces import Mark, step, text, trace

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))

from compare_cases import recorded
from report_cases import gpu, tokenizer

from dlprof.compare import Subject, compare_runs
from dlprof.model.compare import Compare, Direction
from dlprof.model.report import Report
from dlprof.render import compare_lines, render_compare
from dlprof.trace_files import Options, analyze


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


def test_two_traces_say_what_is_not_known_of_them(tmp_path) -> None:
    found = compared_traces(tmp_path, [ms(20)] * 3, [ms(20)] * 4)
    assert "settings-unknown" in slugs(found)
    assert (found.settings, found.explained) == ([], None)
    # Of two hosts that are not known nobody knows whether they are one.
    assert "host" not in {fact.what for fact in found.facts}
    page = " ".join(line for line in compare_lines(found))
    assert "loader's settings are not known of both runs, since traces do not hold them" in page
    assert "No loader setting differs" not in text_of(found)


@pytest.mark.parametrize(
    ("after", "says"),
    [((20, 21, 20), "lie as far apart by chance"), ((10, 11, 70), "for 3 and 3 of them to tell")],
)
def test_few_steps_are_not_called_chance(tmp_path, after, says) -> None:
    found = compared_traces(tmp_path, [ms(20)] * 3, [ms(each) for each in after])
    assert found.step.direction is Direction.SAME
    assert says in found.conclusion
    assert found.step.difference_ms is not None
    assert found.step.difference_ms[0] > -100


def test_one_step_is_one_step(tmp_path) -> None:
    found = compared_traces(tmp_path, [ms(20)], [ms(20)])
    assert "The first run measured 1 step: too few to compare." in [each.text for each in found.cautions]


def test_a_list_of_causes_is_whole(tmp_path) -> None:
    parts = ("input", "h2d", "operator", "compute", "all_reduce", "synchronize", "save", "python")
    marks = step(**dict.fromkeys(parts, ms(5))) * 3
    assert "…" not in text_of(compare_runs(trace_subject(tmp_path, marks), trace_subject(tmp_path, marks), "now"))


def trace_subject(folder: Path, marks: list[Mark]) -> Subject:
    path = folder / "a.pt.trace.json"
    path.write_bytes(text(trace(marks)))
    (job,) = analyze(path, Options()).jobs
    return Subject.of("a", job)


def compared_traces(folder: Path, *lengths: list[int]) -> Compare:
    """Two traces of steps that compute for so long."""
    before, after = (trace_subject(folder, [mark for each in own for mark in step(compute=each)]) for own in lengths)
    return compare_runs(before, after, "2026-12-01T10:00:00+00:00")


def text_of(found: Compare) -> str:
    ((_, page),) = render_compare(found, ["txt"])
    assert isinstance(page, bytes)
    return " ".join(page.decode().split())


def test_a_run_that_ended_badly_or_drifted_is_said() -> None:
    from report_cases import CASES

    short = CASES["short"]()
    assert "ended-badly" in slugs(compared(tokenizer(), short))
