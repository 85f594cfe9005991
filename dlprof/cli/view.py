"""``dlprof view``: a run's report and timeline in the browser."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Mapping

import click

from dlprof.cli import terminal
from dlprof.cli.options import VIEW_OPTIONS, with_options
from dlprof.cli.report import find_run
from dlprof.words import tr

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


@click.command(short_help="Show a run's report and timeline in the browser.")
@click.argument("run", metavar="RUN")
@with_options(VIEW_OPTIONS)
def view(run: str, port: int, no_browser: bool) -> int:
    """Show a saved run's report and its timeline in the browser, without a network.

    RUN is the folder that 'dlprof run' wrote, or the run.dlprof in it. Both are served to this machine only, until
    Ctrl-C. The address is printed, and opened where there is a browser to open it. The timeline is the Perfetto UI:
    pip install 'dlprof[viewer]'.
    """
    source = find_run(run)
    from dlprof.tensorboard.application import Application
    from dlprof.tensorboard.runs import Runs
    from dlprof.tensorboard.server import Server

    application = Application(Runs(source if source.is_dir() else source.parent), all_runs=False)
    with Server(application, port) as server:
        click.echo(server.address)
        terminal.say(tr("Ctrl-C ends it"))
        if not no_browser:
            _open(server.address, os.environ)
        server.serve()
    return 0


def _open(address: str, environ: Mapping[str, str]) -> None:
    """Open the address in a browser. A terminal's would fight for it, so one is tried only where it has a window."""
    if any(environ.get(name) for name in _DISPLAYS):
        webbrowser.open(address)
