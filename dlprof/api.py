"""dlprof as a library: a recording becomes a ``Profile``, a ``Profile`` a ``Report``, a ``Report`` files.

This is where analysis, simulator, advice and wording are put together; none of them knows the others.
"""

from __future__ import annotations

import glob
import platform
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from dlprof import __version__
from dlprof.analysis.moments import find_moments
from dlprof.analysis.pipeline import training_loader
from dlprof.analysis.steps import find_steps
from dlprof.analysis.verdict import restarts
from dlprof.capture.environment import environment
from dlprof.capture.handover_probe import probe
from dlprof.capture.machine import load_machine
from dlprof.capture.nvml import load_gpus
from dlprof.capture.outcome import ClockPair, Outcome, load_outcome
from dlprof.compare import Subject, compare_runs
from dlprof.diagnose import diagnose, plan_trials
from dlprof.errors import EXIT_BOUND_CROSSED, DlprofError, UnreadableInputError
from dlprof.formats import run_file
from dlprof.formats.chrome_trace import AlignedTrace
from dlprof.formats.compare_json import FILE as COMPARE_FILE
from dlprof.formats.compare_json import encode_compare
from dlprof.formats.places import made_at
from dlprof.formats.recording import (
    Recording,
    assemble,
    how_it_ended,
    read_recording,
    training_process,
)
from dlprof.formats.report_json import decode_report, encode_report, is_report
from dlprof.formats.settings_file import load_settings
from dlprof.formats.torch_trace import read_trace
from dlprof.formats.trace_writer import write_trace
from dlprof.formats.tune_json import FILE as TUNE_FILE
from dlprof.formats.tune_json import encode_tune
from dlprof.model.bounds import Bound
from dlprof.model.compare import Compare
from dlprof.model.moments import Moment
from dlprof.model.profile import Ending, Notice, Profile, RunFacts
from dlprof.model.report import Report
from dlprof.model.tune import SCHEMA as TUNE_SCHEMA
from dlprof.model.tune import Ending as TuneEnding
from dlprof.model.tune import Failure, Judged, Measured, Plan, RunRow, TrialRow, Tried, Tune
from dlprof.render import (
    BRIEF_WIDTH,
    Pdf,
    Summary,
    compare_lines,
    render_brief,
    render_compare,
    render_each,
    render_tune,
    summary,
    tune_lines,
)
from dlprof.render.text import SAID_APART
from dlprof.render.view import ended
from dlprof.render.wording import failure_text, notice_text, tune_conclusion, tune_how
from dlprof.trace_files import Analysis, Job
from dlprof.trace_files import Options as TraceOptions
from dlprof.trace_files import analyze as analyze
from dlprof.whatif.comparison import judge_trials
from dlprof.words import joined, tr
from dlprof.words import shown as in_force

JSON, TEXT, CSV = "json", "txt", "csv"
REPORT_JSON = "report.json"
RECORDING = "recording"
_NOT_PICKLED = re.compile(r"pickl|local object", re.IGNORECASE)
"""In the error of a process that could not be given what it is to work with."""
_WORKER_ENDED = re.compile(r"exited unexpectedly|died with status|bootstrapping phase")
"""In the error of a script whose worker ended by itself, not of a signal."""

__all__ = [
    "Analysis",
    "FinishedRun",
    "Job",
    "TraceOptions",
    "WrittenReports",
    "analyze",
    "compare_document",
    "compare_to_files",
    "conclude",
    "diagnose",
    "finish_run",
    "load",
    "measured_run",
    "read_trace",
    "report_again",
    "report_document",
    "trace_document",
    "trial_plan",
    "write_trace_reports",
]


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What became of a run.

    Attributes:
        status: What ``dlprof run`` exits with.
        summary: What to say on the terminal.
        failures: What could not be made, a sentence each.
        remarks: What became of ``--set`` and ``--fail-if``, and what a PDF lacks, to be shown whole, a paragraph each.
    """

    status: int
    summary: Summary | None
    failures: list[str]
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WrittenReports:
    """Which files were written, what could not be made, and what to say of those that were, a sentence each."""

    paths: list[Path]
    failures: list[str]
    remarks: list[str] = field(default_factory=list)


def finish_run(
    folder: Path,
    *,
    command: list[str],
    outcome: Outcome,
    formats: tuple[str, ...],
    bounds: tuple[Bound, ...] = (),
) -> FinishedRun:
    """Analyse what a run has recorded and write its reports.

    Args:
        folder: The run's folder, with the recording in it.
        command: What was started.
        outcome: How it ended.
        formats: Which reports to write.
        bounds: From ``--fail-if``.

    Raises:
        OSError: The folder cannot be written.
    """
    profile = _put_together(folder, command, outcome)
    report = diagnose(profile)
    written = _write(report, folder, formats, find_moments(profile))
    best = next((path for path in written.paths if path.suffix == ".html"), None)
    shown = best or next(iter(written.paths), folder)
    status = report.run.exit.status
    if not status and any(bound.crossed(report) for bound in bounds):
        status = EXIT_BOUND_CROSSED
    remarks = [in_force(each.text) for each in report.notices if each.slug in SAID_APART]
    remarks += [*(_checked(each, report) for each in bounds), *written.remarks]
    return FinishedRun(status, summary(report, str(shown)), written.failures, remarks)


def _checked(bound: Bound, report: Report) -> str:
    """What became of a bound: a machine's log has to tell a bound that held from one that was not looked at."""
    value = bound.found(report)
    if value is None:
        return tr("--fail-if {bound} does not hold: it was not measured", bound=bound.text)
    if bound.crossed(report):
        return tr("--fail-if {bound} holds: it is {value}", bound=bound.text, value=value)
    return tr("--fail-if {bound} does not hold: it is {value}", bound=bound.text, value=value)


def load(source: Path) -> Profile:
    """The profile of a run.

    Args:
        source: A run's folder or its ``run.dlprof``. A folder whose analysis was interrupted is analysed now.

    Raises:
        UnreadableInputError: It is no run, or is damaged.
    """
    folder = source if source.is_dir() else source.parent
    saved = folder / run_file.NAME if source.is_dir() else source
    if saved.exists():
        return run_file.load(saved)
    try:
        outcome, command = load_outcome(folder / RECORDING)
    except (OSError, ValueError, TypeError, KeyError):
        # The supervisor was killed: its children's recordings are there all the same.
        outcome, command = _unknown_outcome(), []
    try:
        return _put_together(folder, command, outcome)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UnreadableInputError(
            "recording-unreadable",
            tr("{file} cannot be read: {error}", file=folder / RECORDING, error=error),
            tr("Run the script again."),
        ) from error


def report_again(source: Path, *, folder: Path, formats: tuple[str, ...]) -> WrittenReports:
    """Write a saved run's reports again.

    Args:
        source: A run's folder or its ``run.dlprof``.
        folder: Where to.
        formats: Which reports.

    Raises:
        UnreadableInputError: ``source`` is no run, or is damaged.
    """
    profile = load(source)
    return _write(diagnose(profile), folder, formats, find_moments(profile))


def report_document(source: Path, format_: str) -> bytes:
    """One report of a saved run.

    Args:
        source: A run's folder or its ``run.dlprof``.
        format_: Which report.

    Raises:
        DlprofError: ``source`` is no run, or this report cannot be made here.
    """
    profile = load(source)
    for _, document in _documents(diagnose(profile), (format_,), find_moments(profile)):
        if isinstance(document, DlprofError):
            raise document
        return document
    raise ValueError(f"no format {format_!r}")


def _write(report: Report, folder: Path, formats: Sequence[str], moments: Sequence[Moment]) -> WrittenReports:
    return _write_all(folder, _documents(report, formats, moments))


def _write_all(folder: Path, documents: Iterator[tuple[str, bytes | DlprofError]]) -> WrittenReports:
    written = WrittenReports([], [])
    for name, document in documents:
        if isinstance(document, DlprofError):
            why = joined(document.message, document.hint)
            written.failures.append(tr("{file} was not written: {why}", file=name, why=why))
        else:
            (folder / name).write_bytes(document)
            written.paths.append(folder / name)
            if isinstance(document, Pdf) and document.remark:
                written.remarks.append(f"{name}: {document.remark}")
    return written


def _documents(
    report: Report, formats: Sequence[str], moments: Sequence[Moment] = ()
) -> Iterator[tuple[str, bytes | DlprofError]]:
    if JSON in formats:
        yield REPORT_JSON, encode_report(report)
    yield from render_each(report, [name for name in formats if name != JSON], moments)


# ---- traces of others ----------------------------------------------------------------------------------------------


def trace_document(job: Job, format_: str, width: int = BRIEF_WIDTH) -> bytes:
    """One report on a trace.

    Args:
        job: As ``analyze`` found it.
        format_: Which report; as text the few lines.
        width: Columns of these.

    Raises:
        DlprofError: This report cannot be made here.
    """
    if format_ == TEXT:
        return render_brief(job.report, width).encode()
    if format_ == CSV:
        from dlprof.formats.tables import csv_table

        return csv_table(job.rows)
    for _, document in _documents(job.report, (format_,)):
        if isinstance(document, DlprofError):
            raise document
        return document
    raise ValueError(f"no format {format_!r}")


def write_trace_reports(job: Job, folder: Path, formats: Sequence[str]) -> WrittenReports:
    """Write the reports on a trace.

    Args:
        job: As ``analyze`` found it.
        folder: Where to.
        formats: Which reports.

    Raises:
        OSError: The folder cannot be written.
    """
    # What is printed for a trace is what stands in its text.
    own = [(f"report.{name}", trace_document(job, name)) for name in formats if name in (TEXT, CSV)]
    return _write_all(folder, chain(own, _documents(job.report, [name for name in formats if name not in (TEXT, CSV)])))


# ---- tune -----------------------------------------------------------------------------------------------------------


def trial_plan(folder: Path) -> Plan:
    """What to try after a first run.

    Args:
        folder: The run's, with its ``report.json``.
    """
    return plan_trials(load(folder), _report_in(folder))


def measured_run(folder: Path, name: str, elapsed_s: float, *, interrupted: bool = False) -> Measured:
    """What a finished run counts for.

    Args:
        folder: The run's, with its ``report.json``.
        name: What it is called in the result.
        elapsed_s: What it took.
        interrupted: Whether it was, whatever the script made of that.
    """
    report = _report_in(folder)
    profile = load(folder)
    restarts_ms = _restarts_ms(profile)
    steps = tuple(row.ms + restarts_ms for row in report.steps if not row.traced and row.ms > 0)
    failure = Failure("interrupted", failure_text("failed-run")) if interrupted else _failure(report, profile, steps)
    return Measured(name, steps, elapsed_s, failure)


def _restarts_ms(profile: Profile) -> float:
    """What starting workers anew at each epoch adds to a step: settings with fewer or lasting workers do without."""
    again = restarts(profile, find_steps(profile))
    return float(again.mean()) / 1e6 if again.size else 0.0


def _report_in(folder: Path) -> Report:
    return decode_report((folder / REPORT_JSON).read_bytes())


def _failure(report: Report, profile: Profile, steps: tuple[float, ...]) -> Failure | None:
    """Why a run does not say what its settings are worth."""
    if bad_end := ended(report):
        return Failure(report.run.exit.reason.value, bad_end)
    for notice in profile.notices:
        if notice.slug in SAID_APART:
            return Failure(notice.slug, notice_text(notice.slug, **notice.values))
    return None if steps else Failure("no-steps", notice_text("no-steps"))


def _trial_row(tried: Tried, judged: Judged) -> TrialRow:
    runs = [RunRow(it.folder, it.mean_ms, len(it.steps_ms), round(it.elapsed_s, 1), it.failure) for it in tried.runs]
    candidate = tried.candidate
    return TrialRow(tried.number, candidate.settings, candidate.promise, judged.step_ms, judged.speedup, runs)


def conclude(
    tried: Sequence[Tried],
    plan: Plan,
    ending: TuneEnding,
    *,
    command: Sequence[str],
    elapsed_s: float,
    folder: Path,
    formats: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Decide who wins, and write ``tune.json`` and the reports.

    Args:
        tried: The script's own settings first, then the trials, each with its runs.
        plan: What was to be tried.
        ending: Why no more was.
        command: What was started.
        elapsed_s: What all runs took.
        folder: Where to.
        formats: Which reports; JSON is always written.

    Returns:
        What to say of it, line by line, and what could not be written, a sentence each.

    Raises:
        OSError: The folder cannot be written.
    """
    judged, winner = judge_trials(tried)
    rows = [_trial_row(each, judged[each.number]) for each in tried]
    found = Tune(
        schema=TUNE_SCHEMA,
        dlprof=__version__,
        created=datetime.now(tz=UTC).astimezone().isoformat(timespec="seconds"),
        host=platform.node(),
        command=list(map(run_file.printable, command)),
        loader=dict(plan.in_force),
        baseline=rows[0],
        trials=rows[1:],
        winner=winner,
        ending=ending,
        elapsed_s=round(elapsed_s, 1),
        conclusion=tune_conclusion(rows, winner, ending, repeats=plan.repeats),
        how=tune_how(tried[winner].candidate.settings, {**plan.in_force, "made_anew": plan.made_anew})
        if winner is not None
        else "",
    )
    (folder / TUNE_FILE).write_bytes(encode_tune(found))
    written = _write_all(folder, render_tune(found, [name for name in formats if name != JSON]))
    best = next((path for path in written.paths if path.suffix == ".html"), None)
    shown = best or next(iter(written.paths), folder / TUNE_FILE)
    return [*tune_lines(found), str(shown)], [*written.failures, *written.remarks]


# ---- compare --------------------------------------------------------------------------------------------------------


def compare_to_files(
    before: Path, after: Path, *, folder: Path, formats: Sequence[str]
) -> tuple[list[str], WrittenReports]:
    """Compare two runs and write the result.

    Args:
        before: The first: a run's folder, its ``run.dlprof``, a ``report.json``, a trace, or a folder of one job's.
        after: The second, likewise.
        folder: Where to; it is there.
        formats: Which; JSON is ``compare.json``.

    Returns:
        What to say of it, line by line, and what was written.

    Raises:
        UnreadableInputError: One of them is no run, or is damaged.
        OSError: The folder cannot be written.
    """
    found = _compared(before, after)
    return compare_lines(found), _write_all(folder, _compare_documents(found, formats))


def compare_document(before: Path, after: Path, format_: str) -> bytes:
    """One document of two runs compared.

    Args:
        before: As in `compare_to_files`.
        after: Likewise.
        format_: Which.

    Raises:
        DlprofError: One of them is no run, or this document cannot be made here.
    """
    for _, document in _compare_documents(_compared(before, after), (format_,)):
        if isinstance(document, DlprofError):
            raise document
        return document
    raise ValueError(f"no format {format_!r}")


def _compared(before: Path, after: Path) -> Compare:
    first, second = (Subject.of(run_file.printable(str(path)), _saved(path)) for path in (before, after))
    return compare_runs(first, second, datetime.now(tz=UTC).astimezone().isoformat(timespec="seconds"))


def _saved(source: Path) -> Profile | Report | Job:
    """A run; where only its ``report.json`` is left, that; else a trace, or the traces of one job."""
    inside = any((source / name).exists() for name in (run_file.NAME, RECORDING))
    if inside or source.suffix == Path(run_file.NAME).suffix:
        return load(source)
    file = source / REPORT_JSON if source.is_dir() else source
    try:
        if not file.exists() or not (file.name == REPORT_JSON or is_report(file)):
            return _one_job(source)
        return decode_report(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UnreadableInputError(
            "report-unreadable",
            tr("{file} cannot be read as a dlprof report: {error}", file=file, error=error),
            tr("Give a run's folder, its run.dlprof, or its report.json."),
        ) from error


def _one_job(source: Path) -> Job:
    try:
        found = analyze(source, TraceOptions())
    except UnreadableInputError as error:
        raise UnreadableInputError(
            "not-a-run",
            tr("{source} is not a run, and there is no trace in it", source=source),
            tr("name a run's folder or a trace"),
        ) from error
    if len(found.jobs) > 1:
        raise UnreadableInputError(
            "several-jobs",
            tr("there are traces of {jobs} jobs in {source}", jobs=len(found.jobs), source=source),
            tr("name one trace, or the folder of one job"),
        )
    if not found.jobs:
        raise found.failures[0]
    return found.jobs[0]


def _compare_documents(found: Compare, formats: Sequence[str]) -> Iterator[tuple[str, bytes | DlprofError]]:
    if JSON in formats:
        yield COMPARE_FILE, encode_compare(found)
    yield from render_compare(found, [name for name in formats if name != JSON])


# ---- from files to a profile ---------------------------------------------------------------------------------------


def _put_together(folder: Path, command: list[str], outcome: Outcome) -> Profile:
    recording = read_recording(folder / RECORDING)
    main_pid = training_process(recording)
    facts = _run_facts(recording, main_pid, command, outcome)
    gpus = load_gpus(recording.folder)
    profile, aligned = assemble(recording, facts, environment() | ({"gpus": gpus} if gpus else {}))
    profile = replace(profile, machine=load_machine(recording.folder))
    profile = replace(profile, notices=(*profile.notices, *_outcome_notices(recording, outcome, facts.ending)))
    profile = _with_probed_handover(profile)
    profile = _with_trace(profile, folder, aligned)
    run_file.save(profile, folder / run_file.NAME)
    shutil.rmtree(folder / RECORDING, ignore_errors=True)
    return profile


def _run_facts(recording: Recording, main_pid: int | None, command: list[str], outcome: Outcome) -> RunFacts:
    settings = load_settings(str(recording.folder))
    started = datetime.fromtimestamp(outcome.started.wall_ns / 1e9, tz=UTC).astimezone()
    return RunFacts(
        command=tuple(map(run_file.printable, command)),
        created=started.isoformat(timespec="seconds"),
        host=platform.node(),
        steps=settings.steps,
        warmup=settings.warmup,
        trace_steps=settings.trace_steps,
        ending=how_it_ended(recording, outcome.status, main_pid or outcome.pid),
        monotonic_ns=outcome.started.monotonic_ns,
        wall_ns=outcome.started.wall_ns,
    )


def _unknown_outcome() -> Outcome:
    now = ClockPair.now()
    return Outcome(0, 0, None, now, now, False, (), (), [("supervisor-died", {})])


def _outcome_notices(recording: Recording, outcome: Outcome, ending: Ending) -> list[Notice]:
    notices = [Notice(slug, 1, values) for slug, values in outcome.notices]
    notices += _span_notices(recording)
    notices += _set_notices(recording)
    notices += _start_method_notices(recording, ending)
    if not recording.events:
        notices.append(Notice("child-without-dlprof"))
    return notices


def _span_notices(recording: Recording) -> Iterator[Notice]:
    """Functions named with ``--span`` that no process of the run could time."""
    found: dict[str, str | None] = {}
    for events in recording.events.values():
        for event in events:
            if event["event"] == "span":
                found[str(event["target"])] = event.get("reason")
    asked = load_settings(str(recording.folder)).spans
    missing = [target for target in asked if target not in found]
    if missing:
        yield Notice("span-not-found", len(missing), {"functions": ", ".join(missing)})
    refused = [f"{target}: {reason}" for target, reason in found.items() if reason]
    if refused:
        yield Notice("span-not-timed", len(refused), {"functions": "; ".join(refused)})


def _set_notices(recording: Recording) -> Iterator[Notice]:
    """What became of the settings that ``--set`` asked for."""
    wanted = load_settings(str(recording.folder)).overrides
    if not wanted:
        return
    found = [event for events in recording.events.values() for event in events if event["event"] == "set"]
    meant = [event for event in found if "asked" in event]
    changed = [
        f"{name} {old} → {new} ({_which(event)})" for event in meant for name, (old, new) in event["changed"].items()
    ]
    if changed:
        yield Notice("set-applied", len(changed), {"changes": "; ".join(dict.fromkeys(changed))})
    refused = [f"{name} ({_which(event)}): {reason}" for event in meant for name, reason in event["refused"].items()]
    if refused:
        yield Notice("set-refused", len(refused), {"reasons": "; ".join(dict.fromkeys(refused))})
    asked = {setting for event in meant for setting in event["asked"]}
    unused = [str(each) for each in wanted if str(each) not in asked]
    if unused:
        there = dict.fromkeys(f"{event['index']} {_which(event)}" for event in found)
        yield Notice("set-unused", len(unused), {"settings": ", ".join(unused), "loaders": "; ".join(there)})


def _start_method_notices(recording: Recording, ending: Ending) -> Iterator[Notice]:
    """What a script lacks for workers that are not forked, where it failed with such ones by ``--set``."""
    methods = [
        event["changed"]["multiprocessing_context"][1]
        for events in recording.events.values()
        for event in events
        if event["event"] == "set" and "multiprocessing_context" in event.get("changed", {})
    ]
    if not ending.status or not methods or methods[0] == "fork":
        return
    detail = ending.detail or ""
    if _NOT_PICKLED.search(detail):
        yield Notice("set-not-pickled", 1, {"method": methods[0]})
    elif _WORKER_ENDED.search(detail):
        yield Notice("set-imported-anew", 1, {"method": methods[0]})


def _which(event: dict[str, Any]) -> str:
    """A loader by the class of its dataset and where it is made: ``Numbers, train.py:40``."""
    dataset = str(event["dataset"]).rpartition(".")[2]
    return f"{dataset}, {made_at(event['made_at'])}" if event["made_at"] else dataset


def _with_probed_handover(profile: Profile) -> Profile:
    """Try what handing a batch over costs, where there were no workers that would have shown it."""
    loader = training_loader(profile, find_steps(profile))
    process = next((each for each in profile.processes if each.pid == profile.main_pid), None)
    if loader is None or process is None or loader.settings.get("num_workers"):
        return profile
    shape = next((each for each in profile.batches if each.loader == loader.number), None)
    handover = probe(shape, process.executable) if shape is not None else None
    if handover is None:
        return replace(profile, notices=(*profile.notices, Notice("handover-not-probed")))
    return replace(profile, handover=handover)


def _with_trace(profile: Profile, folder: Path, aligned: AlignedTrace | None) -> Profile:
    """Write the trace; what became of it, where that has to be known, is a notice of the profile."""
    if profile.main_pid is None:
        return profile
    stem = f"{profile.run.host}_{profile.main_pid}"
    for former in folder.glob(f"{glob.escape(stem)}.*.pt.trace.json.gz"):
        former.unlink()
    try:
        written = write_trace(
            profile, folder / f"{stem}.{time.time_ns()}.pt.trace.json.gz", aligned, find_steps(profile)
        )
    except (OSError, ValueError) as error:
        return replace(profile, notices=(*profile.notices, Notice("trace-not-written", 1, {"error": str(error)})))
    if not written.cut:
        return profile
    lost = {"items": written.items, "spans": written.spans, "torch_events": written.torch_events}
    return replace(profile, notices=(*profile.notices, Notice("trace-cut", 1, lost)))
