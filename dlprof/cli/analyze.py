"""``dlprof analyze``: anybody's torch.profiler trace, or a folder of them, without torch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import click

from dlprof.cli import terminal
from dlprof.cli.options import ANALYZE_FORMATS, ANALYZE_OPTIONS, DEFAULT_FORMATS, with_options
from dlprof.cli.run_folder import free_report_folder
from dlprof.errors import EXIT_FAILED, UsageError
from dlprof.words import tr

_STDOUT = "-"
_TEXT = "txt"


@click.command(short_help="Say what bounds the steps of a torch.profiler trace.")
@click.argument("trace", metavar="TRACE_OR_FOLDER")
@with_options(ANALYZE_OPTIONS)
def analyze(
    trace: str,
    only_steps: tuple[int, int] | None,
    top: int,
    max_size: int,
    out: str | None,
    force: bool,
    formats: tuple[str, ...] | None,
) -> int:
    """Say what bounds the steps of anybody's torch.profiler trace, without torch.

    TRACE_OR_FOLDER is a *.pt.trace.json, compressed or not, or a folder of them: the ranks of one job make one
    report, other jobs theirs. With '--format txt' the few lines are printed and nothing is written.
    """
    if out == _STDOUT and len(formats or ()) > 1:
        raise UsageError(
            "one-format",
            tr("--out - prints one format"),
            tr("give --format one of {names}", names=",".join(ANALYZE_FORMATS)),
        )
    source = Path(trace)
    printed = out == _STDOUT or (out is None and formats == (_TEXT,))
    folder = None if printed else free_report_folder(out, source.name or "traces", force=force)
    from dlprof import api

    progress = _Progress()
    found = api.analyze(
        source, api.TraceOptions(only_steps, top, max_size), progress if terminal.is_terminal() else None
    )
    progress.end()
    for failure in found.failures:
        terminal.say(failure.message, *([failure.hint] if failure.hint else []))
    if printed:
        _print(api, found.jobs, (formats or (_TEXT,))[0])
    elif folder is not None and found.jobs:
        _write(api, found.jobs, folder, formats or DEFAULT_FORMATS)
    return EXIT_FAILED if found.failures or not found.jobs else 0


def _print(api: Any, jobs: Any, format_: str) -> None:
    if len(jobs) > 1 and format_ != _TEXT:
        raise UsageError(
            "several-jobs",
            tr("there are traces of {jobs} jobs, and --out - prints one report", jobs=len(jobs)),
            tr("name one trace, or a folder with --out"),
        )
    for number, job in enumerate(jobs):
        if len(jobs) > 1:
            click.echo(("\n" if number else "") + f"{job.name}:")
        click.echo(api.trace_document(job, format_, _width(api.BRIEF_WIDTH)), nl=False)


def _write(api: Any, jobs: Any, folder: Path, formats: tuple[str, ...]) -> None:
    from dlprof.tensorboard.events import write_trace_events

    for job, place in zip(jobs, _places(folder, [job.name for job in jobs]), strict=True):
        place.mkdir(parents=True, exist_ok=True)
        written = api.write_trace_reports(job, place, formats)
        click.echo(api.trace_document(job, _TEXT, _width(api.BRIEF_WIDTH)), nl=False)
        for path in written.paths:
            click.echo(os.fspath(path))
        unwritten = write_trace_events(job.report, job.rows, place)
        for failure in (*written.failures, *written.remarks, *([unwritten] if unwritten else [])):
            terminal.say(failure)


def _width(otherwise: int) -> int:
    """Columns of the terminal, or as many as COLUMNS says."""
    return shutil.get_terminal_size((otherwise, 0)).columns


def _places(folder: Path, names: list[str]) -> list[Path]:
    """One job's reports go into the folder itself, those of several into one folder each."""
    if len(names) == 1:
        return [folder]
    used: dict[str, int] = {}
    places = []
    for name in names:
        used[name] = used.get(name, 0) + 1
        places.append(folder / (name if used[name] == 1 else f"{name}-{used[name]}"))
    return places


class _Progress:
    """One line on a terminal that says how far the reading has come."""

    def __init__(self) -> None:
        self._shown = ""

    def __call__(self, name: str, done: int, size: int) -> None:
        line = tr("reading {file}: {share} %", file=terminal.plain(name)[:50], share=100 * done // max(size, 1))
        if line != self._shown:
            self._shown = line
            terminal.write(f"\r{line:<70}")

    def end(self) -> None:
        if self._shown:
            terminal.write(f"\r{'':<70}\r")
