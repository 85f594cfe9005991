"""Profile to report: composes analysis, simulator, advice and wording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dlprof import __version__
from dlprof.advice.rules import advise
from dlprof.analysis import sections
from dlprof.analysis.components import PARTS, Fetches, find_fetches
from dlprof.analysis.device_clock import ahead_of_device
from dlprof.analysis.hot_lines import HotLines, find_hot_lines
from dlprof.analysis.input_facts import input_facts, made_anew
from dlprof.analysis.input_wait import split_waits
from dlprof.analysis.machine import load_during, load_facts, load_notices
from dlprof.analysis.own_functions import named_parts
from dlprof.analysis.partition import Partition, partition
from dlprof.analysis.pipeline import build_pipeline, training_loader
from dlprof.analysis.steps import NO_LOADER, drift, find_steps
from dlprof.analysis.verdict import (
    MANY_STEPS,
    candidates_outside_input,
    judge,
    restarts,
    shares_outside_input,
    startup_candidate,
)
from dlprof.model.advice import Advice, Findings, Refusal
from dlprof.model.diagnosis import Candidate, Judgement
from dlprof.model.kinds import Bottleneck, Cause, Component, Confidence, ExitReason
from dlprof.model.pipeline import BOTTLENECK_OF, Interval, Pipeline
from dlprof.model.profile import Loader, Notice, Profile, RunFacts
from dlprof.model.report import (
    SCHEMA,
    AdviceRow,
    Exit,
    Forecast,
    Input,
    NotAdvised,
    NoticeRow,
    Report,
    Run,
    StepTimes,
    Totals,
    Verdict,
)
from dlprof.model.steps import Steps
from dlprof.model.tune import Candidate as Settings
from dlprof.model.tune import Ending, Plan
from dlprof.render import wording
from dlprof.whatif.candidates import candidates, cost, less_sure
from dlprof.whatif.forecast import (
    Change,
    Forecasts,
    Removal,
    forecast_all,
    forecast_changes,
    forecast_persistent,
    knee,
    removal,
)
from dlprof.whatif.pipeline import DEFAULT_PREFETCH, Scenario, Simulator, in_force
from dlprof.words import marked

DOUBTS = ("drift", "script-ahead", "simulator-off", "cores-busy", "no-trace")
"""Notices that make a verdict less than certain, the weightiest first."""
_UNSURE = {"drift", "simulator-off", "cores-busy"}
"""Notices with which a forecast can be relied on less."""
_TRIED_ON_ADVICE = ("prefetch_factor", "pin_memory", "persistent_workers", "in_order", "multiprocessing_context")
"""Settings that are tried where an advice names them; numbers of workers are tried anyway."""
FORECAST_SETTINGS = ("num_workers", "prefetch_factor", "in_order")
"""Settings whose effect on the step the simulated loader knows."""
_LARGE_ERROR = 0.25
_BUSY_CORES = 0.15
"""Share of the step that a training thread without workers of its own waits for a core, from which it is said."""
_LEAST_FOR_FORECASTS = 5
_LEAST_OF_LINE = 0.15
"""Share of the time looked into from which a line is named beside its cause."""
_STATES_OF = {
    Component.STORAGE_IO: ("storage", "network"),
    Component.LOCK_WAIT: ("lock",),
    Component.SLEEP: ("sleep",),
}
"""States of the lines of components that are not on a core."""
_CONTENDED = 0.8
"""Wait for a core over time on one, from which the cores and not the work are the cause."""
_THROTTLED = 0.25
"""Of the time in which the run wanted a core, the part that a quota kept it off, from which the quota is the cause."""
_SERIAL = 0.2
"""Share of the making of batches that is spent waiting for a lock, from which more workers would only wait longer."""
_TRACE_NOTICES = {
    "trace-skipped-user-profiler",
    "trace-failed",
    "trace-unreadable",
    "trace-not-aligned",
}


@dataclass(frozen=True, slots=True)
class _Measured:
    """What the analysis found, before conclusions."""

    steps: Steps
    fetches: Fetches
    parts: Partition | None
    waits: npt.NDArray[np.float64]
    loader: Loader | None
    pipeline: Pipeline | None
    step: StepTimes
    totals: Totals
    input: Input | None
    lines: HotLines
    contended: bool
    lock_share: float
    own_cost_ns: float


def diagnose(profile: Profile) -> Report:
    """Everything that a report says of a run.

    Args:
        profile: The run.
    """
    measured = _measure(profile)
    removed = None
    simulator = Simulator(measured.pipeline) if measured.pipeline is not None else None
    if simulator is not None:
        removed = removal(simulator, shares_outside_input(measured.parts) if measured.parts else {})
    notices = _notices(profile, measured, removed)
    judgement = _judge(profile, measured, removed, notices)
    environment = _environment(profile, measured)
    findings = _findings(profile, measured, simulator, judgement, notices, environment)
    advice, refusals = advise(findings)
    ceiling = sections.ceiling(measured.steps)
    return Report(
        schema=SCHEMA,
        dlprof=__version__,
        created=profile.run.created,
        host=profile.run.host,
        run=_run(profile, measured.steps),
        verdict=_verdict(profile, measured, judgement),
        step=measured.step,
        budget=sections.budget(measured.parts),
        totals=measured.totals,
        device=findings.device,
        input=measured.input,
        forecast=[
            *findings.worker_forecasts,
            *findings.setting_forecasts,
            *findings.without.values(),
            *([findings.input_removed] if findings.input_removed else []),
            *([ceiling] if ceiling else []),
        ],
        advice=[_advice_row(each, findings, profile) for each in advice],
        not_advised=[_not_advised(each) for each in refusals],
        steps=sections.step_rows(measured.steps),
        ranks=[],
        environment=environment,
        notices=[NoticeRow(n.slug, n.count, wording.notice_text(n.slug, **n.values)) for n in notices],
        overhead=sections.overhead(profile, measured.own_cost_ns, measured.parts, measured.pipeline),
    )


def plan_trials(profile: Profile, report: Report) -> Plan:
    """The settings that ``dlprof tune`` could try after this run.

    Args:
        profile: The run.
        report: What `diagnose` said of it.
    """
    measured = _measure(profile)
    settings = measured.loader.settings if measured.loader else {}
    pipeline = measured.pipeline
    if pipeline is None or "made_by" in settings or len(measured.steps.measured) < _LEAST_FOR_FORECASTS:
        return Plan("", (), settings, ending=Ending.NO_FORECAST)
    facts = input_facts(profile, measured.steps, measured.fetches)
    epochs = {step.iterator for step in measured.steps.all}
    # A loader that is made anew for each epoch cannot keep them.
    keep_alive = len(epochs) > 1 and not settings.get("persistent_workers") and not facts.made_anew
    found = candidates(Simulator(pipeline), keep_alive=keep_alive)
    if {notice.slug for notice in report.notices} & _UNSURE:
        found = less_sure(found)
    if facts.shares_nothing_out:
        found = [it for it in found if it.settings.get("num_workers", 0) <= max(pipeline.workers, 1)]
    in_force = cost(pipeline.workers, pipeline.prefetch_factor)
    named = [
        Settings({row.setting: row.to}, None, in_force)
        for row in report.advice
        if row.setting in _TRIED_ON_ADVICE and row.to is not None
    ]
    number = settings.get("index")
    return Plan(
        loader="" if number is None else str(number),
        candidates=(*named, *found),
        in_force=settings,
        cost=in_force,
        made_anew=facts.made_anew,
        repeats=facts.shares_nothing_out,
    )


def forecast_settings(profile: Profile, report: Report, changes: Sequence[Mapping[str, Any]]) -> list[Forecast | None]:
    """The step that a run would have had with other loader settings.

    Args:
        profile: The run.
        report: What `diagnose` said of it.
        changes: Each some of `FORECAST_SETTINGS` with new values.

    Returns:
        One per change; None where it cannot be forecast, or changes nothing.
    """
    measured = _measure(profile)
    pipeline = measured.pipeline
    if pipeline is None or len(measured.steps.measured) < _LEAST_FOR_FORECASTS:
        return [None] * len(changes)
    scenarios = [_scenario(pipeline, change) for change in changes]
    if all(each == in_force(pipeline) for each in scenarios):
        return [None] * len(changes)
    found = forecast_changes(Simulator(pipeline), [Change("", None, None, each) for each in scenarios])
    if {notice.slug for notice in report.notices} & _UNSURE:
        found = [replace(each, confidence=Confidence.LOW) for each in found]
    return [
        None if scenario == in_force(pipeline) else forecast
        for scenario, forecast in zip(scenarios, found, strict=True)
    ]


def _scenario(pipeline: Pipeline, change: Mapping[str, Any]) -> Scenario:
    now = in_force(pipeline)
    workers = int(change.get("num_workers", now.workers))
    if not workers:
        # Without workers nothing is fetched ahead or out of order.
        return replace(now, workers=0)
    prefetch = int(change.get("prefetch_factor") or pipeline.prefetch_factor or DEFAULT_PREFETCH)
    return replace(
        now, workers=workers, prefetch_factor=prefetch, in_order=bool(change.get("in_order", pipeline.in_order))
    )


def _measure(profile: Profile) -> _Measured:
    steps = find_steps(profile)
    fetches = find_fetches(profile)
    parts = partition(profile, steps)
    waits = split_waits(profile, steps.measured, fetches)
    loader = training_loader(profile, steps)
    lines = find_hot_lines(profile, steps, fetches)
    made = fetches.rows_of(steps.measured)
    wall, cpu = float(fetches.wall_ns[made].sum()), float(fetches.cpu_ns[made].sum())
    locked = float(fetches.wall_ns[made, PARTS.index(Component.LOCK_WAIT)].sum())
    load = load_during(profile, steps.measured)
    throttled = load is not None and load.throttled_ratio >= _THROTTLED
    return _Measured(
        steps=steps,
        fetches=fetches,
        parts=parts,
        waits=waits,
        loader=loader,
        # The simulator knows no thread that fetches ahead of the one that trains.
        pipeline=None if steps.handed_over else build_pipeline(profile, steps, fetches),
        step=sections.step_times(profile, steps, parts),
        totals=sections.totals(profile, steps, fetches, parts),
        input=sections.input_section(profile, steps, fetches, loader, lines),
        lines=lines,
        contended=cpu > 0 and (throttled or float(fetches.no_core_ns[made].sum()) > _CONTENDED * cpu),
        lock_share=locked / wall if wall else 0.0,
        own_cost_ns=sections.own_cost_ns(profile, steps),
    )


# ---- verdict -------------------------------------------------------------------------------------------------------


def _judge(profile: Profile, measured: _Measured, removed: Removal | None, notices: Iterable[Notice]) -> Judgement:
    candidates: list[Candidate] = []
    if measured.parts is not None:
        candidates += candidates_outside_input(measured.parts, removed.outside if removed else {})
        candidates += _input_candidates(measured, removed)
        startup = startup_candidate(profile, measured.steps, measured.parts)
        candidates += [startup] if startup else []
    doubts = tuple(notice.slug for notice in notices if notice.slug in DOUBTS)
    all_input = removed.all_input if removed else None
    judgement = judge(measured.parts, candidates, all_input, doubts)
    if measured.steps.wait_unseen and measured.parts is not None:
        # Not even from the traced steps: while the profiler is started the other thread's queue fills.
        return replace(
            judgement,
            bottleneck=Bottleneck.INCONCLUSIVE,
            component=None,
            share=None,
            confidence=Confidence.LOW,
            reason="wait-unseen",
            reason_values={},
        )
    return judgement


def _input_candidates(measured: _Measured, removed: Removal | None) -> list[Candidate]:
    parts, pipeline = measured.parts, measured.pipeline
    if parts is None:
        return []
    if removed is None or pipeline is None:
        # Batches were waited for and what made them was not seen.
        share = parts.mean.share(Cause.INPUT_WAIT)
        if measured.loader is None:
            return []
        return [Candidate(Bottleneck.INPUT_PIPELINE, None, Interval(share, share, share))]
    found = []
    for bottleneck, saved in removed.bottlenecks.items():
        members = [each for each in removed.components if BOTTLENECK_OF[each] is bottleneck]
        worst = max(members, key=lambda each: removed.components[each].mid)
        part = pipeline.parts.get(worst)
        unseen = (
            worst is Component.DATASET_GETITEM
            and part is not None
            and float(part.blocked_ns.sum()) > float(part.cpu_ns.sum())
        )
        if unseen:
            # The dataset's own code mostly waits; for what, was not seen.
            found.append(Candidate(Bottleneck.INPUT_PIPELINE, None, saved))
        elif bottleneck is Bottleneck.CPU_PREPROCESSING and measured.lock_share >= _SERIAL:
            found.append(Candidate(bottleneck, Component.LOCK_WAIT, saved))
        elif bottleneck is Bottleneck.CPU_PREPROCESSING and measured.contended:
            found.append(Candidate(bottleneck, Component.CPU_CONTENTION, saved))
        else:
            found.append(Candidate(bottleneck, worst, saved))
    return found


def _verdict(profile: Profile, measured: _Measured, judgement: Judgement) -> Verdict:
    budget = sections.budget(measured.parts)
    reason = None
    if judgement.bottleneck is Bottleneck.INCONCLUSIVE:
        reason = wording.inconclusive_reason(judgement.reason, **judgement.reason_values)
    text = wording.headline(
        judgement.bottleneck,
        judgement.component,
        judgement.share,
        judgement.confidence,
        measured.step,
        budget,
        profile.device,
        reason=reason,
        line=_line_of(judgement.component, measured.lines),
    )
    return Verdict(judgement.bottleneck, judgement.component, judgement.share, judgement.confidence, text)


def _line_of(component: Component | None, lines: HotLines) -> str | None:
    """The line that a component's time is above all spent at, None where no line stands out."""
    if component in (Component.PYTHON, Component.CHECKPOINT):
        found = lines.loop
    elif component in (*PARTS, Component.CPU_CONTENTION):
        states = _STATES_OF.get(component, ("cpu",))
        found = [line for line in lines.data if line.state in states]
    else:
        found = []
    return found[0].where if found and found[0].share >= _LEAST_OF_LINE else None


# ---- advice --------------------------------------------------------------------------------------------------------


def _findings(
    profile: Profile,
    measured: _Measured,
    simulator: Simulator | None,
    judgement: Judgement,
    notices: list[Notice],
    environment: dict[str, Any],
) -> Findings:
    slugs = {notice.slug for notice in notices}
    # From fewer batches an interval would say nothing.
    enough = len(measured.steps.measured) >= _LEAST_FOR_FORECASTS
    forecasts = _forecasts(profile, measured, simulator) if simulator is not None and enough else Forecasts()
    if slugs & _UNSURE:
        forecasts = forecasts.doubted()
    facts = input_facts(profile, measured.steps, measured.fetches)
    workers = forecasts.workers
    if facts.shares_nothing_out:
        # Steps with more workers may well be shorter, but of the same samples again.
        workers = [it for it in workers if it.to <= max(it.from_, 1)]
    return Findings(
        judgement=judgement,
        reproduced="simulator-off" not in slugs and not measured.steps.handed_over,
        mean=measured.parts.mean if measured.parts and not measured.steps.wait_unseen else None,
        totals=measured.totals,
        loader=measured.loader.settings if measured.loader else None,
        cores=float(profile.environment.get("cores") or 1),
        accelerator=profile.device != "cpu",
        worker_busy_ratio=measured.input.worker_busy_ratio if measured.input else None,
        worker_forecasts=tuple(workers),
        suggested_workers=knee(workers) if workers else None,
        workers_if_shared=knee(forecasts.workers) if facts.shares_nothing_out and workers else None,
        workers_if_shm=_with_more_shm(forecasts) if not facts.shares_nothing_out else None,
        setting_forecasts=tuple(forecasts.settings),
        without=forecasts.without,
        input_removed=forecasts.input_removed,
        waits_ms=sections.wait_shares(measured.waits),
        taking_turns=measured.lock_share >= _SERIAL,
        lines=tuple(measured.lines.data),
        facts=facts,
        per_batch_ms={key: each.mean for key, each in measured.input.per_batch_ms.items()} if measured.input else {},
        pad_ratio=measured.input.pad_ratio if measured.input else None,
        environment=environment,
        notices={notice.slug: notice.values for notice in notices},
        failure=profile.run.ending.detail or "" if profile.run.ending.status else "",
        device=sections.device(profile, measured.steps),
    )


def _forecasts(profile: Profile, measured: _Measured, simulator: Simulator) -> Forecasts:
    pipeline = simulator.pipeline
    settings = measured.loader.settings if measured.loader is not None else {}
    # Batches from ``dlprof.iterate`` have no loader whose settings could be others.
    tunable = {} if "made_by" in settings else settings
    forecasts = forecast_all(simulator, [it for it in PARTS if it in pipeline.parts], tunable)
    lasting = forecast_persistent(pipeline.step_ns, restarts(profile, measured.steps))
    if lasting is None or not tunable or made_anew(profile, measured.steps):
        return forecasts
    return replace(forecasts, settings=[*forecasts.settings, lasting])


def _with_more_shm(forecasts: Forecasts) -> Forecast | None:
    """The number of workers to suggest if /dev/shm held the batches of any; None where it does."""
    every = sorted([*forecasts.workers, *forecasts.beyond_shm], key=lambda it: int(it.to))
    return knee(every) if forecasts.beyond_shm else None


def _advice_row(advice: Advice, findings: Findings, profile: Profile) -> AdviceRow:
    how = wording.advice_text(
        advice.id,
        advice.setting,
        advice.from_,
        advice.to,
        advice.speedup,
        advice.evidence,
        {**(findings.loader or {}), "made_anew": findings.facts.made_anew},
        profile.device,
        profile.run.command,
    )
    return AdviceRow(advice.id, advice.setting, advice.from_, advice.to, advice.speedup, list(advice.evidence), how)


def _not_advised(refusal: Refusal) -> NotAdvised:
    return NotAdvised(refusal.id, wording.why_not(refusal.id, refusal.reason, **refusal.values))


# ---- run and notices -----------------------------------------------------------------------------------------------


def _environment(profile: Profile, measured: _Measured) -> dict[str, Any]:
    """Facts about the machine, its load meanwhile, and what the user has named: that has no other place in the JSON."""
    named = named_parts(profile, measured.steps, measured.fetches)
    load = load_facts(profile, measured.steps)
    steps = len(measured.steps.measured)
    cost = {"own_cost_ms_per_step": round(measured.own_cost_ns / 1e6 / steps, 4)} if steps else {}
    return profile.environment | load | cost | ({"spans": named} if named else {})


def _run(profile: Profile, steps: Steps) -> Run:
    complete = [step for step in steps.all if step.measured or step.traced]
    # Several optimizers that step on the same batch, as in a GAN, count once.
    optimizer_steps = sum(step.optimizer_steps > 0 for step in complete)
    ending = profile.run.ending
    return Run(
        command=list(profile.run.command),
        steps_measured=len(steps.measured),
        steps_traced=len(steps.traced),
        batches_per_optimizer_step=round(len(complete) / optimizer_steps, 3) if optimizer_steps else None,
        device=profile.device,
        device_name=profile.device_name,
        world_size=1,
        exit=Exit(ending.status, ending.reason, ending.detail),
    )


def _notices(profile: Profile, measured: _Measured, removed: Removal | None) -> list[Notice]:
    notices = [*_repeats(profile, measured), *profile.notices]
    steps, run = measured.steps, profile.run
    if steps.loader is None:
        return [*notices, Notice("no-steps")]
    if steps.loader == NO_LOADER:
        notices.append(Notice("no-loader"))
    if steps.handed_over:
        notices.append(Notice("wait-unseen" if steps.wait_unseen else "fed-by-thread"))
    count = len(steps.measured)
    if run.steps is not None and count + len(steps.traced) < run.steps:
        notices.append(Notice("fewer-steps", 1, {"wanted": run.steps, "measured": count}))
    if steps.traced and measured.parts is not None and not len(measured.parts.open_shares):
        notices.append(Notice("trace-without-kernels"))
    if not steps.traced and not _TRACE_NOTICES & {notice.slug for notice in notices}:
        reason = _why_untraced(run)
        notices.append(Notice("no-trace", 1, {"reason": reason}))
    if 0 < count < MANY_STEPS:
        notices.append(Notice("short-run", 1, {"steps": count}))
    if measured.lines.few:
        notices.append(Notice("few-looks", measured.lines.looks))
    ends = drift(steps)
    if ends is not None:
        notices.append(Notice("drift", 1, {"first_ms": ends[0] / 1e6, "last_ms": ends[1] / 1e6}))
    ceiling = sections.ceiling(steps)
    if ceiling is not None:
        values = {"steps": len(steps.ceiling), "step_ms": ceiling.step_ms[1], "now_ms": measured.step.mean_ms}
        notices.append(Notice("ceiling", 1, values))
    ahead = ahead_of_device(profile, steps)
    if ahead is not None:
        notices.append(Notice("script-ahead", 1, {"script_ms": ahead[0] / 1e6, "device_ms": ahead[1] / 1e6}))
    notices += _phase_notices(profile, steps)
    notices += _made_anew_notices(profile, measured)
    notices += load_notices(profile, steps)
    busy = sections.no_core_share(profile, steps)
    if measured.loader is not None and not measured.loader.settings.get("num_workers") and busy > _BUSY_CORES:
        notices.append(Notice("cores-busy", 1, {"share": busy}))
    if removed is not None and abs(removed.calibration_error) > _LARGE_ERROR:
        notices.append(Notice("simulator-off", 1, {"share": abs(removed.calibration_error)}))
    return notices


def _repeats(profile: Profile, measured: _Measured) -> Iterator[Notice]:
    """That every sample comes as often as there are workers."""
    workers = int(measured.loader.settings.get("num_workers") or 0) if measured.loader else 0
    if workers > 1 and input_facts(profile, measured.steps, measured.fetches).shares_nothing_out:
        yield Notice("samples-repeated", 1, {"workers": workers})


def _made_anew_notices(profile: Profile, measured: _Measured) -> Iterator[Notice]:
    """That a loader is made for each epoch, and what its workers cost beside the steps, which forecasts are about."""
    if measured.loader is None or not made_anew(profile, measured.steps):
        return
    again = restarts(profile, measured.steps)
    length = measured.loader.settings.get("length")
    known = {"epoch_ms": float(again.mean()) * length / 1e6} if again.size and length else {}
    yield Notice("loader-made-anew", 1, known)


def _why_untraced(run: RunFacts) -> str:
    if not run.trace_steps:
        return "--trace-steps 0"
    if run.ending.reason is ExitReason.STEPS_REACHED:
        return marked("workers were started anew where it would have run, and it must be off then")
    return marked("the training loop ended before the traced steps")


def _phase_notices(profile: Profile, steps: Steps) -> list[Notice]:
    """Other loaders' time, one notice a loader."""
    notices = []
    names = {each.number: _which(each) for each in profile.loaders if each.pid == profile.main_pid}
    for loader in sorted({phase.loader for phase in steps.phases}):
        own = [phase for phase in steps.phases if phase.loader == loader]
        values = {
            "dataset": names.get(loader),
            "batches": sum(phase.batches for phase in own),
            "seconds": round(sum(phase.end_ns - phase.start_ns for phase in own) / 1e9, 3),
            "wait_seconds": round(sum(phase.wait_ns for phase in own) / 1e9, 3),
        }
        notices.append(Notice("other-loader", len(own), values))
    return notices


def _which(loader: Loader) -> str | None:
    """A loader by its dataset's class and where it is made."""
    named = (loader.settings.get(key) for key in ("dataset", "made_at"))
    return ", ".join(map(str, filter(None, named))) or None
