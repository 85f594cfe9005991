"""Two runs to what differs between them: composes analysis, statistics and wording."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dlprof import __version__
from dlprof.analysis.machine import FULL
from dlprof.analysis.partition import CAUSES
from dlprof.analysis.sample import sample_of, sample_of_report
from dlprof.diagnose import FORECAST_SETTINGS, diagnose, forecast_settings
from dlprof.model.compare import (
    SCHEMA,
    CauseChange,
    Caution,
    Compare,
    ComponentChange,
    Direction,
    Explained,
    Fact,
    Sample,
    SettingChange,
    Side,
    StepChange,
    Triple,
)
from dlprof.model.kinds import Cause
from dlprof.model.profile import Profile
from dlprof.model.report import UNKNOWN_HOST, Forecast, Report
from dlprof.render.view import ended
from dlprof.render.wording import caution_text, compare_conclusion
from dlprof.trace_files import Job
from dlprof.whatif.pipeline import DEFAULT_PREFETCH
from dlprof.whatif.two_runs import LEAST_STEPS, compare_samples, direction, far_apart

_NOT_SETTINGS = {"index", "made_by"}
_ENVIRONMENT = ("machine", "cpu_count", "cores", "cpu_quota", "platform", "torch_version", "torch_threads")
_MACHINE = {"host", "machine", "cpu_count", "cores", "cpu_quota", "device_name", "device"}
"""Facts that make it another machine where they differ."""
_LEAST_TAKEN, _LEAST_LOAD = 0.1, 0.25
"""Cores that other programs can have taken, and difference of their load, from which it is said."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One of the runs to compare, or of the traces.

    Attributes:
        name: As it was named.
        report: What is said of it.
        profile: The run itself; None where only its report is there, and of a trace.
        sample: What was measured step by step.
        script: What was run, without its arguments; empty where that is not known.
        arguments: What it was given.
    """

    name: str
    report: Report
    profile: Profile | None
    sample: Sample
    script: str = ""
    arguments: str = ""

    @classmethod
    def of(cls, name: str, found: Profile | Report | Job) -> Subject:
        """A run, from what was saved of it, or a job's traces."""
        if isinstance(found, Job):
            return cls(name, found.report, None, sample_of_job(found))
        if isinstance(found, Report):
            return cls(name, found, None, sample_of_report(found), *_started(found.run.command))
        return cls(name, diagnose(found), found, sample_of(found), *_started(found.run.command))

    @property
    def samples_per_step(self) -> float | None:
        """Samples in a batch, None where that is not known."""
        size, step = self.loader.get("batch_size"), self.report.step
        if isinstance(size, int) and size > 0:
            return float(size)
        return round(step.samples_per_s / step.steps_per_s, 3) if step.samples_per_s and step.steps_per_s else None

    @property
    def load(self) -> float | None:
        """Cores that other programs kept busy during the measured steps."""
        return self._cores("cores_used_by_others")

    @property
    def taken(self) -> float:
        """Cores of these that they can have taken from the run: none while enough were idle."""
        others, own = self.load or 0.0, self._cores("cores_used") or 0.0
        return others if others + own >= FULL * self.cores else 0.0

    @property
    def cores(self) -> float:
        """Cores that the run could use."""
        return float(self.report.environment.get("cores") or 1)

    def _cores(self, key: str) -> float | None:
        found = self.report.environment.get("during_the_steps")
        value = found.get(key) if isinstance(found, dict) else None
        return float(value) if isinstance(value, int | float) else None

    @property
    def loader(self) -> dict[str, Any]:
        """The training loop's loader's settings in force."""
        return self.report.input.loader if self.report.input else {}


def _started(command: Sequence[str]) -> tuple[str, str]:
    for place, word in enumerate(command):
        if word == "-m" and place + 1 < len(command):
            return command[place + 1], " ".join(command[place + 2 :])
        if word.endswith(".py"):
            return os.path.basename(word), " ".join(command[place + 1 :])
    return (os.path.basename(command[0]), " ".join(command[1:])) if command else ("", "")


def sample_of_job(job: Job) -> Sample:
    """The steps of a trace that count, cause by cause; of several ranks only their lengths."""
    rows = [row for row in job.rows if row["left_out"] is None]
    if len(job.report.steps) != len(rows):
        return sample_of_report(job.report)
    columns = {cause: np.array([row[f"{cause.value}_ms"] for row in rows], dtype=np.float64) for cause in CAUSES}
    return Sample(np.array([row["ms"] for row in rows], dtype=np.float64), columns)


def compare_runs(before: Subject, after: Subject, created: str) -> Compare:
    """What differs between two runs, and whether by more than chance.

    Args:
        before: The first.
        after: The second.
        created: When this is done, ISO 8601.
    """
    sizes = (before.samples_per_step, after.samples_per_step)
    per_sample = None not in sizes and sizes[0] != sizes[1]
    factors = tuple(1 / size if per_sample and size else 1.0 for size in sizes)
    samples = before.sample.times(factors[0]), after.sample.times(factors[1])
    found = compare_samples(*samples, (before.taken, after.taken), min(before.cores, after.cores))
    old, new = (
        None if each.report.step.mean_ms is None else each.report.step.mean_ms * factor
        for each, factor in zip((before, after), factors, strict=True)
    )
    step = StepChange(old, new, found.step_ms, found.step, found.speedup)
    causes = list(_causes(before, after, factors, found.causes_ms))
    components = list(_components(before, after, factors, found.components_ms))
    settings, forecast = _settings(before, after, factors[0])
    facts = list(_facts(before, after))
    result = Compare(
        schema=SCHEMA,
        dlprof=__version__,
        created=created,
        per="sample" if per_sample else "step",
        before=_side(before),
        after=_side(after),
        step=step,
        causes=causes,
        components=components,
        settings=settings,
        explained=_explained(settings, forecast, step, factors[0]),
        facts=facts,
        cautions=list(_cautions(before, after, sizes, facts)),
        conclusion="",
    )
    return _with_conclusion(result)


def _with_conclusion(result: Compare) -> Compare:
    old, new = result.step.before_ms, result.step.after_ms
    few = bool(old and new and far_apart(old, new))
    return replace(result, conclusion=compare_conclusion(result, few=few))


def _side(subject: Subject) -> Side:
    report = subject.report
    return Side(
        source=subject.name,
        created=report.created,
        host=report.host,
        command=report.run.command,
        steps=report.run.steps_measured,
        bottleneck=report.verdict.bottleneck,
        component=report.verdict.component,
        headline=report.verdict.headline,
        samples_per_step=subject.samples_per_step,
        load=subject.load,
    )


def _way(interval: Triple | None) -> Direction:
    return Direction.UNKNOWN if interval is None else direction(interval[0], interval[2])


def _causes(
    before: Subject, after: Subject, factors: Sequence[float], found: Mapping[Cause, Triple]
) -> Iterator[CauseChange]:
    """Every cause that takes time in one of the runs, the one that changed most first."""
    sides = [
        {row.cause: row.ms_per_step * factor for row in each.report.budget}
        for each, factor in zip((before, after), factors, strict=True)
    ]
    keys = [cause for cause in Cause if any(side.get(cause) for side in sides)]
    for cause in sorted(keys, key=lambda it: -abs(sides[1].get(it, 0.0) - sides[0].get(it, 0.0))):
        old, new = (side.get(cause, 0.0) if side else None for side in sides)
        yield CauseChange(old, new, found.get(cause), _way(found.get(cause)), cause)


def _components(
    before: Subject, after: Subject, factors: Sequence[float], found: Mapping[Any, Triple]
) -> Iterator[ComponentChange]:
    sides = [
        {key: spread.mean * factor for key, spread in each.report.input.per_batch_ms.items()}
        if each.report.input
        else {}
        for each, factor in zip((before, after), factors, strict=True)
    ]
    keys = dict.fromkeys(key for side in sides for key in side)
    for key in sorted(keys, key=lambda it: -abs(sides[1].get(it, 0.0) - sides[0].get(it, 0.0))):
        yield ComponentChange(sides[0].get(key), sides[1].get(key), found.get(key), _way(found.get(key)), key)


# ---- settings and what they explain ---------------------------------------------------------------------------------


def _settings(before: Subject, after: Subject, factor: float) -> tuple[list[SettingChange], Forecast | None]:
    """Loader settings that differ, each with its forecast, and the forecast of all of them together."""
    old, new = before.loader, after.loader
    if not old or not new:
        # What is not known does not differ.
        return [], None
    names = [name for name in {**old, **new} if name not in _NOT_SETTINGS and old.get(name) != new.get(name)]
    usable = {name: new[name] for name in FORECAST_SETTINGS if name in names and new.get(name) is not None}
    if not old.get("num_workers") and usable.get("prefetch_factor") == DEFAULT_PREFETCH:
        # It comes with the first worker, and so does its effect.
        del usable["prefetch_factor"]
    *alone, together = _forecasts(before, [*({name: value} for name, value in usable.items()), usable])
    own = dict(zip(usable, alone, strict=True))
    rows = [
        SettingChange(name, old.get(name), new.get(name), _change_ms(before, own.get(name), factor)) for name in names
    ]
    return rows, together


def _forecasts(before: Subject, changes: Sequence[Mapping[str, Any]]) -> list[Forecast | None]:
    """The first run's step with other settings, None where it cannot be forecast."""
    if before.profile is not None:
        return forecast_settings(before.profile, before.report, changes)
    return [
        next((row for row in before.report.forecast if {row.setting: row.to} == change), None) for change in changes
    ]


def _change_ms(before: Subject, forecast: Forecast | None, factor: float) -> Triple | None:
    """By how much a forecast step differs from the measured one."""
    now = before.report.step.mean_ms
    if forecast is None or now is None:
        return None
    low, middle, high = ((it - now) * factor for it in forecast.step_ms)
    return low, middle, high


def _explained(
    settings: Sequence[SettingChange], forecast: Forecast | None, step: StepChange, factor: float
) -> Explained | None:
    if forecast is None or step.before_ms is None or step.after_ms is None:
        return None
    low, middle, high = (it * factor - step.before_ms for it in forecast.step_ms)
    measured = step.difference_ms or (step.after_ms - step.before_ms,) * 3
    return Explained(
        settings=[row.setting for row in settings if row.forecast_ms is not None],
        forecast_ms=(low, middle, high),
        left_ms=step.after_ms - step.before_ms - middle,
        agrees=low <= measured[2] and measured[0] <= high,
        confidence=forecast.confidence,
    )


# ---- what else differs ----------------------------------------------------------------------------------------------


def _facts(before: Subject, after: Subject) -> Iterator[Fact]:
    known = before.report.environment.keys() & after.report.environment.keys()
    shown: list[tuple[str, Callable[[Subject], Any]]] = [
        ("script", lambda it: it.script),
        ("arguments", lambda it: it.arguments),
        ("samples_per_step", lambda it: it.samples_per_step),
        ("batches_per_optimizer_step", lambda it: it.report.run.batches_per_optimizer_step),
        ("world_size", lambda it: it.report.run.world_size),
        ("device", lambda it: it.report.run.device),
        ("device_name", lambda it: it.report.run.device_name),
        ("host", lambda it: it.report.host),
        *((key, lambda it, key=key: it.report.environment[key]) for key in _ENVIRONMENT if key in known),
        ("dlprof", lambda it: it.report.dlprof),
    ]
    for what, read in shown:
        old, new = read(before), read(after)
        if old != new and UNKNOWN_HOST not in (old, new):
            yield Fact(what, old, new)


def _cautions(
    before: Subject, after: Subject, sizes: tuple[float | None, float | None], facts: Sequence[Fact]
) -> Iterator[Caution]:
    differ = {fact.what for fact in facts}
    reports = before.report, after.report

    def caution(slug: str, **values: Any) -> Caution:
        return Caution(slug, caution_text(slug, **values))

    if reports[0].created == reports[1].created and reports[0].steps == reports[1].steps:
        yield caution("same-run")
    for which, report in zip(("first", "second"), reports, strict=True):
        if bad_end := ended(report):
            yield caution("ended-badly", which=which, how=bad_end)
        if report.run.steps_measured < LEAST_STEPS:
            yield caution("too-few-steps", which=which, steps=report.run.steps_measured)
        if any(notice.slug == "drift" for notice in report.notices):
            yield caution("drifted", which=which)
    if "script" in differ:
        yield caution("other-script", before=before.script, after=after.script)
    if None in sizes:
        yield caution("batch-unknown")
    elif sizes[0] != sizes[1]:
        yield caution("other-batch", before=sizes[0], after=sizes[1])
    if unknown := [which for which, it in zip(("first", "second"), (before, after), strict=True) if not it.loader]:
        traces = all(isinstance(it.environment.get("trace"), dict) for it in reports)
        yield caution("settings-unknown", which=unknown[0] if len(unknown) == 1 else "both", traces=traces)
    if machine := [fact.what for fact in facts if fact.what in _MACHINE]:
        yield caution("other-machine", what=machine)
    yield from _load_caution(before, after, caution)
    if any(not side.sample.causes_ms for side in (before, after)):
        yield caution("report-only")


def _load_caution(before: Subject, after: Subject, caution: Callable[..., Caution]) -> Iterator[Caution]:
    if before.load is None or after.load is None:
        yield caution("load-unknown")
    elif max(before.taken, after.taken) >= _LEAST_TAKEN:
        yield caution("loaded", before=before.load, after=after.load, cores=before.cores)
    elif abs(before.load - after.load) >= _LEAST_LOAD:
        yield caution("other-load", before=before.load, after=after.load, cores=before.cores)
