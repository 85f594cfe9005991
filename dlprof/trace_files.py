"""A trace or a folder of traces to reports: one for each job, files read side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dlprof.analysis.partition import CAUSES
from dlprof.analysis.trace_jobs import group, job_name
from dlprof.analysis.trace_rank import Rank, analyse
from dlprof.diagnose_trace import diagnose_trace
from dlprof.errors import DlprofError, UnreadableInputError
from dlprof.formats.json_events import MAX_JSON_MB
from dlprof.formats.torch_trace import read_trace
from dlprof.model.report import Report
from dlprof.words import tr

_NAMED_AS_TRACES = (".trace.json", ".trace.json.gz")
_MAY_BE_TRACES = (".json", ".json.gz")
_REPORTS = ("report.json", "tune.json")
"""What dlprof itself leaves in folders that are analysed."""
_SIDE_BY_SIDE_BYTES = 20_000_000
"""Files smaller than that together are read sooner than processes are started."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How traces are read.

    Attributes:
        only_steps: First number of a step that counts and the one behind the last; None for all.
        top: Rows of each list of names.
        max_json_mb: MB of JSON that a file may hold.
    """

    only_steps: tuple[int, int] | None = None
    top: int = 10
    max_json_mb: int = MAX_JSON_MB


@dataclass(frozen=True, slots=True)
class Job:
    """One job's traces, analysed.

    Attributes:
        name: From the names of its files.
        report: What is said of it.
        rows: One for each step of each rank, whether it counts or not; times in milliseconds.
    """

    name: str
    report: Report
    rows: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Analysis:
    """What became of a file or folder: its jobs, and what could not be read, an error each."""

    jobs: list[Job]
    failures: list[DlprofError]


def analyze(source: Path, options: Options, progress: Progress | None = None) -> Analysis:
    """Analyse a trace, or the traces in a folder.

    Args:
        source: The file or folder.
        options: How they are read.
        progress: Called with a file's name, bytes of it that have been read, and its size.

    Raises:
        UnreadableInputError: There is no trace.
    """
    files = trace_files(source)
    ranks: list[Rank] = []
    failures: list[DlprofError] = []
    for found in _read_all(files, options, progress):
        if isinstance(found, DlprofError):
            failures.append(found)
        else:
            ranks += found
    jobs = [Job(job_name(job), diagnose_trace(job, [_command(job, source)]), list(_rows(job))) for job in group(ranks)]
    return Analysis(jobs, failures)


def trace_files(source: Path) -> list[Path]:
    """The traces that a file or folder names, in the order of their names.

    Args:
        source: As typed.

    Raises:
        UnreadableInputError: There is none.
    """
    if not source.exists():
        hint = tr("traces are read from files: save it to one first") if str(source) == "-" else ""
        raise UnreadableInputError("no-such-trace", tr("no such file or folder: {source}", source=source), hint)
    if not source.is_dir():
        return [source]
    inside = sorted(path for path in source.rglob("*") if path.is_file())
    for endings in (_NAMED_AS_TRACES, _MAY_BE_TRACES):
        found = [path for path in inside if path.name.endswith(endings) and path.name not in _REPORTS]
        if found:
            return found
    raise UnreadableInputError(
        "no-traces",
        tr("there is no trace in {source}", source=source),
        tr("traces are files that torch.profiler exported, named *.json or *.json.gz"),
    )


def _read_all(files: Sequence[Path], options: Options, progress: Progress | None) -> Iterator[list[Rank] | DlprofError]:
    size = sum(path.stat().st_size for path in files)
    workers = min(len(files), len(os.sched_getaffinity(0)))
    if workers < 2 or size < _SIDE_BY_SIDE_BYTES:
        for path in files:
            told = partial(progress, path.name) if progress is not None else None
            try:
                yield _read(path, options, told)
            except DlprofError as error:
                yield error
        return
    # Each starts anew: what is loaded here may have threads, which do not survive a fork.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        coming = [pool.submit(_read_there, path, options) for path in files]
        for number, (path, each) in enumerate(zip(files, coming, strict=True)):
            try:
                found = each.result()
            except BrokenProcessPool:
                yield UnreadableInputError(
                    "trace-reader-died",
                    tr("the process that read {path} died", path=path),
                    tr("it may have run out of memory"),
                )
                continue
            if progress is not None:
                progress(f"{len(files)} traces", number + 1, len(files))
            yield DlprofError(*found) if isinstance(found, tuple) else found


def _read(path: Path, options: Options, progress: Callable[[int, int], None] | None = None) -> list[Rank]:
    ranks = analyse(read_trace(path, options.max_json_mb, progress), options.only_steps, options.top)
    if options.only_steps is not None and not any(rank.steps.used for rank in ranks):
        numbers = [step.index for rank in ranks for step in rank.steps.all]
        raise UnreadableInputError(
            "no-such-steps",
            tr("{path} has no steps {steps}", path=path, steps=":".join(map(str, options.only_steps))),
            tr("its steps are numbered {first} to {last}", first=min(numbers), last=max(numbers)),
        )
    return ranks


def _read_there(path: Path, options: Options) -> list[Rank] | tuple[str, str, str, int]:
    try:
        return _read(path, options)
    except DlprofError as error:
        return error.slug, error.message, error.hint, error.status


def _command(job: Sequence[Rank], source: Path) -> str:
    files = {rank.origin.file for rank in job}
    return files.pop() if len(files) == 1 else source.name or str(source)


def _rows(job: Sequence[Rank]) -> Iterator[dict[str, Any]]:
    for rank in job:
        table = rank.everything
        for place, step in enumerate(rank.steps.all):
            measures = table.measures
            yield {
                "file": rank.origin.file,
                "rank": rank.origin.rank,
                "step": step.index,
                "left_out": step.left_out.value if step.left_out else None,
                "ms": step.duration_ns / 1e6,
                **{f"{cause.value}_ms": table.causes[place, number] / 1e6 for number, cause in enumerate(CAUSES)},
                "device_busy_ms": int(measures.busy[place]) / 1e6,
                "kernels": int(measures.kernels[place]),
                "communication_exposed_ms": int(measures.communication_exposed[place]) / 1e6,
                "h2d_exposed_ms": int(measures.h2d_exposed[place]) / 1e6,
                "d2h_exposed_ms": int(measures.d2h_exposed[place]) / 1e6,
                "request_ms": int(measures.request[place]) / 1e6,
                "request_device_idle_ms": int(measures.request_idle[place]) / 1e6,
            }
