"""The command ``dlprof``: its overview, and the one place where errors become lines and exit statuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from dlprof import __version__
from dlprof.cli import argv as run_argv
from dlprof.cli import terminal
from dlprof.cli.analyze import analyze
from dlprof.cli.compare import compare
from dlprof.cli.explain import explain
from dlprof.cli.options import HELP_NAMES
from dlprof.cli.report import report
from dlprof.cli.run import run
from dlprof.cli.tune import tune
from dlprof.cli.view import view
from dlprof.errors import EXIT_FAILED, DlprofError
from dlprof.words import of_locale, speaking, tr

_INTERRUPTED = 130
_OVERVIEW = """Say what bounds a PyTorch training step, and what a setting would gain.

\b
  dlprof run train.py --steps 50       profile an unedited script
  dlprof run -- torchrun train.py      or whatever starts it
  dlprof report dlprof-runs/train-...  make its report again
  dlprof compare BEFORE AFTER          did a change help, or was it chance
  dlprof analyze x.pt.trace.json.gz    anybody's torch.profiler trace, or a folder of them
  dlprof tune train.py                 try loader settings for real, keep what is measured
  dlprof view dlprof-runs/train-...    its report and timeline in the browser
  dlprof explain ID                    what an advice, a notice or an error means

A run ends with a report: where a step's time goes, which part of the input pipeline the training
waits for, and what to change. Reports are files; nothing is sent anywhere.
"""


@click.group(
    help=_OVERVIEW,
    invoke_without_command=True,
    context_settings={"help_option_names": list(HELP_NAMES), "max_content_width": 100},
    epilog="'dlprof COMMAND --help' says more.",
)
@click.version_option(__version__, prog_name="dlprof", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> int:
    """All commands."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


cli.add_command(run)
cli.add_command(report)
cli.add_command(compare)
cli.add_command(explain)
cli.add_command(tune)
cli.add_command(analyze)
cli.add_command(view)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None for those of this process.

    Returns:
        The exit status.
    """
    # A command's --lang changes the language until the command has ended.
    with speaking(of_locale(os.environ)):
        return _run(sys.argv[1:] if arguments is None else list(arguments))


def _run(arguments: list[str]) -> int:
    """Run the command line; every error becomes lines and a status."""
    try:
        return _dispatch(arguments)
    except DlprofError as error:
        terminal.say(error.message, *([error.hint] if error.hint else []))
        return error.status
    except click.ClickException as error:
        terminal.say(*_click_lines(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        terminal.say(tr("interrupted"))
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read what is printed has gone, and nobody is left to be told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        terminal.traceback_for_developers()
        place = error.filename if isinstance(error.filename, str) else tr("the output")
        terminal.say(
            tr("cannot read or write {path}: {reason}", path=place, reason=error.strerror or error),
            tr("make room there, or give another place with --out"),
        )
        return EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - a bug is to be one line, too
        terminal.traceback_for_developers()
        what = str(error).partition("\n")[0]
        terminal.say(
            f"{type(error).__name__}: {what}",
            tr("this is a bug in dlprof; run with {variable}=1 for the traceback", variable=terminal.DEBUG),
        )
        return EXIT_FAILED


def _dispatch(arguments: list[str]) -> int:
    local_rank, arguments = run_argv.take_local_rank(arguments)
    request = None
    if arguments and arguments[0] in run_argv.COMMANDS:
        verb = arguments[0]
        request = run_argv.split(arguments[1:], local_rank, verb)
        arguments = [verb, *request.options]
    status = cli.main(arguments, prog_name="dlprof", standalone_mode=False, obj=request)
    return int(status or 0)


def _click_lines(error: click.ClickException) -> list[str]:
    message = error.format_message().partition("\n")[0].rstrip(".")
    if isinstance(error, click.BadParameter) and error.message and isinstance(error.param, click.Option):
        message = f"{error.param.opts[0]}: {error.message}"
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "dlprof"
    hint = tr("see '{command} --help'", command=command)
    if isinstance(error, click.exceptions.NoSuchCommand) and os.path.exists(error.command_name):
        hint = tr("to profile it: dlprof run {script}", script=error.command_name)
    return [message, hint]
