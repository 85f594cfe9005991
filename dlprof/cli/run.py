"""``dlprof run``: check everything, start the command, report how it went."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

import click

from dlprof.capture.outcome import Outcome
from dlprof.capture.supervisor import supervise
from dlprof.cli import terminal
from dlprof.cli.argv import Form, RunRequest
from dlprof.cli.options import RUN_OPTIONS, with_options
from dlprof.cli.progress import Display, open_display
from dlprof.cli.run_folder import RunFolder, prepare
from dlprof.cli.summary import Summary, summary_lines
from dlprof.errors import DlprofError, UsageError
from dlprof.formats.settings_file import Override, Settings
from dlprof.model.bounds import Bound
from dlprof.words import tr

_MB = 1_000_000
_NARROWEST = 40


class FinishedRun(Protocol):
    """What ``api.finish_run`` makes of a recording."""

    @property
    def status(self) -> int:
        """Exit status of ``dlprof run``."""

    @property
    def summary(self) -> Summary | None:
        """What to show, None where there is nothing to show."""

    @property
    def failures(self) -> Sequence[str]:
        """What could not be done, one sentence each."""

    @property
    def remarks(self) -> Sequence[str]:
        """What became of ``--set`` and ``--fail-if``, a paragraph each."""


Finish = Callable[[Outcome], FinishedRun]
"""Analyses what was recorded, once the script has ended."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the script.

    Attributes:
        outcome: How the script ended.
        status: What ``dlprof run`` exits with.
        finished: What was made of the recording; None where that failed or was interrupted.
        interrupted: Whether the analysis was.
        lines: What to say where it failed or was interrupted.
    """

    outcome: Outcome
    status: int
    finished: FinishedRun | None
    interrupted: bool
    lines: tuple[str, ...]


class ScriptCommand(click.Command):
    """Says in its help what the splitter of ``argv`` accepts."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the three forms."""
        for index, form in enumerate(("SCRIPT [ARGS]...", "-m MODULE [ARGS]...", "-- COMMAND [ARGS]...")):
            formatter.write_usage(ctx.command_path, f"[OPTIONS] {form}", "Usage: " if not index else "       ")


@click.command(
    cls=ScriptCommand,
    short_help="Profile a training script, unedited.",
    epilog="--steps and --trace-steps may also stand directly after SCRIPT or MODULE. If the script has an "
    "option of that name, put -- between: dlprof run train.py -- --steps 1000",
)
@with_options(RUN_OPTIONS)
@click.pass_obj
def run(
    request: RunRequest,
    steps: int | None,
    warmup: int,
    trace_steps: int,
    out: str | None,
    force: bool,
    formats: tuple[str, ...],
    max_disk: int,
    sample_hz: int,
    span: tuple[str, ...],
    set: tuple[Override, ...],
    ceiling: bool,
    fail_if: tuple[Bound, ...],
) -> int:
    """Profile a training script, unedited, and write a report.

    The script runs as it would alone; after the steps it is stopped, unless they are 'all'. Its output, input
    and exit status are its own: dlprof writes to standard error and to the folder of the run.
    """
    check_target(request)
    check_overrides(set)
    if ceiling and steps is None:
        raise UsageError(
            "ceiling-without-end", tr("--ceiling comes after the measured steps, and '--steps all' has no end")
        )
    folder = prepare(out, target_name(request), force=force, environ=os.environ)
    settings = Settings(
        steps,
        warmup,
        trace_steps,
        max_disk * _MB,
        os.getpid(),
        sample_hz=sample_hz,
        spans=tuple(dict.fromkeys(span)),
        overrides=set,
        ceiling=ceiling,
    )
    # Where several processes of a launch run on one machine, the first one's display speaks for all.
    quiet = os.environ.get("LOCAL_RANK", "0") not in {"", "0"}
    display = open_display(request.target, settings, quiet=quiet)

    def started() -> None:
        if not quiet:
            say_whose_options(request)
        display.started()

    attempt = run_once(
        request.command,
        settings,
        folder,
        display,
        started=started,
        finish=lambda outcome: _analyse(request.command, outcome, folder, formats, fail_if),
        show=lambda finished: _show(finished, quiet),
    )
    if attempt.lines:
        terminal.say(*attempt.lines)
    return attempt.status


def run_once(
    command: list[str],
    settings: Settings,
    folder: RunFolder,
    display: Display,
    *,
    started: Callable[[], None],
    finish: Finish,
    show: Callable[[FinishedRun], None],
) -> Attempt:
    """Run the command once, to its end, and analyse what it left; nothing that goes wrong then changes its status.

    Args:
        command: What to start.
        settings: What to record.
        folder: From `prepare`; emptied again where the command cannot be started.
        display: Shows how far it is.
        started: Called directly before the start.
        finish: Analyses the recording.
        show: Shows what `finish` returned.

    Raises:
        UsageError: The folder cannot be written or the command cannot be started.
    """
    try:
        _save(settings, folder)
        started()
        outcome = supervise(command, settings, folder.recording, display.update)
    except UsageError:
        folder.discard()
        raise
    return _finish(command, outcome, folder, display, finish, show)


def check_target(request: RunRequest) -> None:
    """Find out before anything is made whether there is something to start.

    Args:
        request: From `argv.split`.

    Raises:
        UsageError: There is no such script or command, or it cannot be read or executed. A module, and
            what is in a script, is Python's to look at.
    """
    if request.form is Form.SCRIPT:
        _check_script(request.target, request.verb)
    elif request.form is Form.COMMAND and shutil.which(request.target) is None:
        if os.path.isfile(request.target):
            raise UsageError(
                "no-such-command",
                tr("{target} is not a command that can be executed", target=request.target),
                tr("for a Python script: {command}", command=f"dlprof {request.verb} {shlex.quote(request.target)}"),
            )
        raise UsageError("no-such-command", tr("no such command: {target}", target=request.target))


def check_overrides(overrides: Sequence[Override]) -> None:
    """Find out before anything is started whether settings to change exclude each other.

    Args:
        overrides: From ``--set``.

    Raises:
        UsageError: They do, whatever the script has.
    """
    for loader in dict.fromkeys(each.loader for each in overrides):
        wanted = {each.name: each for each in overrides if each.loader == loader}
        workers = wanted.get("num_workers")
        if workers is None or workers.value:
            continue
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
            if name in wanted and wanted[name].value:
                raise UsageError(
                    "set-contradicts",
                    tr(
                        "--set {setting} needs workers, and --set {other} has none", setting=wanted[name], other=workers
                    ),
                )


def target_name(request: RunRequest) -> str:
    """What is run, in a word that can name a folder."""
    if request.form is Form.MODULE:
        return request.target
    path = Path(request.target)
    if request.form is Form.COMMAND:
        return path.name
    return path.stem or path.resolve().stem


def _check_script(script: str, verb: str) -> None:
    try:
        if script == "-":
            raise FileNotFoundError
        mode = os.stat(script).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            "no-such-script", tr("no such script: {script}", script=script), _instead_of(script, verb)
        ) from None
    except OSError as error:
        raise UsageError(
            "script-unreadable", tr("cannot read {script}: {reason}", script=script, reason=error.strerror)
        ) from error
    if stat.S_ISDIR(mode) and not os.path.isfile(os.path.join(script, "__main__.py")):
        raise UsageError(
            "script-is-a-folder",
            tr("{script} is a folder without a __main__.py", script=script),
            tr("name the script that is in it"),
        )
    if not os.access(script, os.R_OK):
        raise UsageError("script-unreadable", tr("cannot read {script}: permission denied", script=script))


def _instead_of(script: str, verb: str) -> str:
    if os.sep not in script and shutil.which(script) is not None:
        return tr("for a command: {command}", command=f"dlprof {verb} -- {script} ...")
    folder, name = os.path.split(script)
    try:
        there = [entry for entry in os.listdir(folder or ".") if entry.endswith(".py")]
    except OSError:
        return tr("there is no folder {folder}", folder=folder)
    close = get_close_matches(name, there, n=1, cutoff=0.8)
    return tr("did you mean {names}?", names=os.path.join(folder, close[0])) if close else ""


def _save(settings: Settings, folder: RunFolder) -> None:
    try:
        settings.save(folder.recording)
    except OSError as error:
        raise UsageError(
            "out-not-writable", tr("cannot write to {path}: {reason}", path=folder.path, reason=error.strerror)
        ) from error


def say_whose_options(request: RunRequest) -> None:
    """Say in a line each which options after the script dlprof took, and which one it left to the script."""
    if request.taken:
        terminal.say(what_was_taken(request))
    if request.left:
        before = f"dlprof {request.verb} {request.left} ... {_typed_target(request)}"
        terminal.say(
            tr(
                "{option} after the script is the script's; for dlprof it goes before: {command}",
                option=request.left,
                command=before,
            )
        )


def _typed_target(request: RunRequest) -> str:
    return shlex.join(["-m", request.target] if request.form is Form.MODULE else [request.target])


def what_was_taken(request: RunRequest) -> str:
    """Which of dlprof's options stood after the script, and how the script would get them."""
    taken = shlex.join(request.taken)
    again = f"dlprof {request.verb} {_typed_target(request)} -- {taken}"
    return tr("took '{options}' for itself; to give it to the script: {command}", options=taken, command=again)


def _finish(
    command: list[str],
    outcome: Outcome,
    folder: RunFolder,
    display: Display,
    finish: Finish,
    show: Callable[[FinishedRun], None],
) -> Attempt:
    status = 0 if outcome.stop_requested else outcome.status
    again = f"dlprof report {shlex.quote(str(folder.path))}"
    finished: FinishedRun | None = None
    interrupted = False
    lines: list[str] = []
    try:
        display.analysing()
        with suppress(OSError):
            outcome.save(folder.recording, command)
        finished = finish(outcome)
        status = finished.status
        display.close()
        show(finished)
    except KeyboardInterrupt:
        interrupted = True
        lines = [
            tr("the analysis was interrupted; nothing recorded is lost"),
            tr("to make the report: {command}", command=again),
        ]
    except DlprofError as error:
        lines = [error.message, error.hint or tr("to try again: {command}", command=again)]
    except Exception as error:  # noqa: BLE001 - the script was good, whatever fails now
        terminal.traceback_for_developers()
        what = str(error).partition("\n")[0]
        lines = [
            tr("the report could not be made ({error})", error=f"{type(error).__name__}: {what}"),
            tr("to try again: {command}", command=again),
        ]
    display.close()
    return Attempt(outcome, status, finished, interrupted, tuple(lines))


def _analyse(
    command: list[str], outcome: Outcome, folder: RunFolder, formats: tuple[str, ...], bounds: tuple[Bound, ...]
) -> FinishedRun:
    # Not before the script has ended: what the analysis loads takes seconds and memory.
    from dlprof import api
    from dlprof.tensorboard.events import write_run_events

    finished: FinishedRun = api.finish_run(
        folder.path, command=command, outcome=outcome, formats=formats, bounds=bounds
    )
    if failure := write_run_events(folder.path):
        terminal.say(failure)
    return finished


def _show(finished: FinishedRun, quiet: bool) -> None:
    # Loaded by the analysis anyway.
    from dlprof.render.wrapping import wrap

    for remark in finished.remarks:
        terminal.say(*wrap(remark, max(_NARROWEST, terminal.console().width - 1 - len("dlprof: "))))
    if finished.summary is None or quiet:
        for failure in finished.failures:
            terminal.say(failure)
    else:
        console = terminal.console()
        terminal.show(summary_lines(finished.summary, finished.failures, console), console)
