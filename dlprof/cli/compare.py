"""``dlprof compare``: two saved runs side by side, without torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from dlprof.cli import terminal
from dlprof.cli.options import COMPARE_OPTIONS, DEFAULT_FORMATS, STDOUT, with_options
from dlprof.cli.report import WrittenReports, find_run, one_format
from dlprof.cli.run_folder import is_run, prepare_result
from dlprof.errors import EXIT_FAILED, DlprofError


@click.command(short_help="Compare two saved runs, or two traces.")
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@with_options(COMPARE_OPTIONS)
def compare(before: str, after: str, out: str | None, force: bool, formats: tuple[str, ...] | None) -> int:
    """Compare two saved runs, or two traces: the step, its causes, the loader's settings.

    BEFORE and AFTER are folders that 'dlprof run' wrote, the run.dlprof in one, or a report.json, which knows no
    intervals for causes; or traces of torch.profiler, or folders of them. What differs is told from chance, and
    printed; the whole is written to files. With '--out -' one document is printed instead.
    """
    sources = _find(before), _find(after)
    if out == STDOUT:
        from dlprof import api

        document: bytes = api.compare_document(*sources, one_format(formats))
        click.echo(document, nl=False)
        return 0
    folder = prepare_result(out, "compare", force=force)
    try:
        from dlprof import api

        found: tuple[Sequence[str], WrittenReports] = api.compare_to_files(
            *sources, folder=folder.path, formats=formats or DEFAULT_FORMATS
        )
    except DlprofError:
        folder.discard()
        raise
    lines, written = found
    for line in lines:
        click.echo(line)
    click.echo()
    for path in written.paths:
        click.echo(os.fspath(path))
    sys.stdout.flush()
    for failure in (*written.failures, *written.remarks):
        terminal.say(failure)
    return EXIT_FAILED if written.failures and (formats or not written.paths) else 0


def _find(name: str) -> Path:
    """What BEFORE or AFTER names.

    Raises:
        UnreadableInputError: There is no such file or folder.
    """
    path = Path(name)
    # What is no run may be a trace, or hold some.
    return path if path.exists() and not is_run(path) else find_run(name)
