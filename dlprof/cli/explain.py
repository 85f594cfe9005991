"""``dlprof explain``: what an id in a report or an error means, and what to do about it."""

from __future__ import annotations

import click

from dlprof.cli.options import EXPLAIN_OPTIONS, with_options
from dlprof.errors import UsageError
from dlprof.words import tr

_SHOWN = 80


@click.command(short_help="Say what an id in a report means.")
@click.argument("words", metavar="ID", nargs=-1)
@with_options(EXPLAIN_OPTIONS)
def explain(words: tuple[str, ...]) -> int:
    """Say what an advice, a notice, an error, a component or a verdict means, when it is said, and what to do.

    ID is its name in a report, in report.json or in an error, as raise-num-workers, storage_io or 'waiting for input'.
    Without it all ids are listed.
    """
    from dlprof.render import explanations

    id_ = " ".join(words)
    if not words:
        click.echo("\n".join(explanations.overview()))
        return 0
    found = explanations.explain(id_)
    if not found:
        near = explanations.nearest(id_)
        raise UsageError(
            "no-such-explanation",
            tr("there is no explanation of {id}", id=repr(id_[:_SHOWN])),
            tr("did you mean {names}?", names=tr(", ").join(near)) if near else tr("'dlprof explain' lists all ids"),
        )
    click.echo("\n\n".join("\n".join(explanations.explanation_lines(each)) for each in found))
    return 0
