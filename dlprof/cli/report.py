"""``dlprof report``: a saved run's report again, without torch."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import click

from dlprof.cli import terminal
from dlprof.cli.options import DEFAULT_FORMATS, FORMATS, REPORT_OPTIONS, STDOUT, with_options
from dlprof.cli.run_folder import RUNS, SAVED_RUN, is_run
from dlprof.errors import EXIT_FAILED, UnreadableInputError, UsageError
from dlprof.words import tr

_DEFAULT_ON_STDOUT = "md"


class WrittenReports(Protocol):
    """What ``api.report_again`` made."""

    @property
    def paths(self) -> Sequence[Path]:
        """The files that were written."""

    @property
    def failures(self) -> Sequence[str]:
        """What could not be done, one sentence each."""

    @property
    def remarks(self) -> Sequence[str]:
        """What to say of the files, one sentence each."""


@click.command(short_help="Make the report of a saved run again.")
@click.argument("run", metavar="RUN")
@with_options(REPORT_OPTIONS)
def report(run: str, out: str | None, force: bool, formats: tuple[str, ...] | None) -> int:
    """Make the report of a saved run again, without torch.

    RUN is the folder that 'dlprof run' wrote, or the run.dlprof in it. The paths of the reports are printed;
    with '--out -' one report itself.
    """
    source = find_run(run)
    if out == STDOUT:
        from dlprof import api

        document: bytes = api.report_document(source, one_format(formats))
        click.echo(document, nl=False)
        return 0
    folder = _out_folder(source, out, force)
    from dlprof import api
    from dlprof.tensorboard.events import write_run_events

    written: WrittenReports = api.report_again(source, folder=folder, formats=formats or DEFAULT_FORMATS)
    for path in written.paths:
        click.echo(os.fspath(path))
    # Beside the run only: TensorBoard would show it twice.
    failure = write_run_events(folder) if out is None else ""
    for line in (*written.failures, *written.remarks, *([failure] if failure else [])):
        terminal.say(line)
    # A format that was asked for by name and is missing is a failure; one of the usual ones is only said.
    return EXIT_FAILED if written.failures and (formats or not written.paths) else 0


def find_run(name: str) -> Path:
    """The saved run that RUN names.

    Args:
        name: A run's folder or the ``run.dlprof`` in it, as typed.

    Returns:
        The same as a path. A folder may lack ``run.dlprof`` where the analysis was interrupted.

    Raises:
        UnreadableInputError: There is no such file or folder, or it is not a run.
    """
    path = Path(name)
    if not os.path.exists(path):
        raise UnreadableInputError("no-such-run", tr("no such run: {name}", name=name), _latest())
    if path.is_dir() and not is_run(path):
        raise UnreadableInputError(
            "not-a-run", tr("{name} is not a run: there is no {file} in it", name=name, file=SAVED_RUN), _latest()
        )
    if not os.access(path, os.R_OK):
        raise UnreadableInputError("run-unreadable", tr("cannot read {name}: permission denied", name=name))
    return path


def _latest() -> str:
    """Where runs are, for a hint."""
    try:
        runs = [Path(entry) for entry in os.scandir(RUNS) if entry.is_dir() and is_run(Path(entry))]
        newest = max(runs, key=lambda folder: folder.stat().st_mtime)
    except (OSError, ValueError):
        return tr("RUN is the folder that 'dlprof run' wrote, or the run.dlprof in it")
    return tr("the latest run here: {run}", run=shlex.quote(str(newest)))


def one_format(formats: tuple[str, ...] | None) -> str:
    """The format that ``--out -`` prints.

    Args:
        formats: From ``--format``; None for the usual one.

    Raises:
        UsageError: There are several, or it is not for a terminal.
    """
    chosen = formats or (_DEFAULT_ON_STDOUT,)
    if len(chosen) > 1:
        raise UsageError(
            "one-format", tr("--out - prints one format"), tr("give --format one of {names}", names=",".join(FORMATS))
        )
    if chosen == ("pdf",) and sys.stdout.isatty():
        raise UsageError("pdf-on-terminal", tr("a PDF is not for a terminal"), tr("redirect it: --out - > report.pdf"))
    return chosen[0]


def _out_folder(source: Path, out: str | None, force: bool) -> Path:
    """The folder for the reports; one that is in use is refused, unless it is the run's own or ``force``."""
    own = source if source.is_dir() else source.parent
    if out is None:
        return own
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = os.listdir(folder)
        same = folder.samefile(own)
    except OSError as error:
        raise UsageError(
            "out-not-writable",
            tr("cannot write to {folder}: {reason}", folder=folder, reason=error.strerror),
            tr("name another folder with --out"),
        ) from error
    ours = any(f"report.{name}" in used for name in FORMATS)
    if used and not same and not (force and ours):
        hint = (
            tr("name another --out, or overwrite the reports in it with --force") if ours else tr("name another --out")
        )
        raise UsageError("out-exists", tr("{folder} exists and is not empty", folder=folder), hint)
    return folder
