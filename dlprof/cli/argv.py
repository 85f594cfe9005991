"""Splits what follows ``dlprof run`` into dlprof's options and the command to start.

This comes before click, which drops ``--`` and would look for options among the script's arguments.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from dlprof.cli.options import HELP_NAMES, RUN_OPTIONS, Option
from dlprof.errors import UsageError

_LOCAL_RANK = re.compile(r"--local[_-]rank=\d+")
_TABLE = {option.name: option for option in RUN_OPTIONS}


class Form(Enum):
    """The ways to name what is profiled."""

    SCRIPT = "script"
    MODULE = "module"
    COMMAND = "command"
    HELP = "help"
    """Nothing: ``--help`` was among dlprof's options."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The command line of ``dlprof run``, taken apart.

    Attributes:
        options: dlprof's own options for click, a value always as ``--name=value``.
        form: What ``target`` is.
        target: The script, module or command; empty with ``Form.HELP``.
        arguments: The target's own arguments.
        taken: Those of dlprof's options that stood after the target, as they were typed.
    """

    options: tuple[str, ...]
    form: Form
    target: str = ""
    arguments: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """What to start. A script and a module run under the Python that runs dlprof."""
        if self.form is Form.SCRIPT:
            return [sys.executable, self.target, *self.arguments]
        if self.form is Form.MODULE:
            return [sys.executable, "-m", self.target, *self.arguments]
        return [self.target, *self.arguments]


def take_local_rank(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take off the ``--local_rank=N`` that launchers put before everything else.

    DeepSpeed and ``torch.distributed.launch`` (which writes ``--local-rank=N``) give it to the module they
    start, which here is dlprof, and mean it for the script.

    Args:
        argv: Arguments of the program.

    Returns:
        The argument or None, and the others. It is only taken before ``run``.
    """
    if len(argv) > 1 and argv[1] == "run" and _LOCAL_RANK.fullmatch(argv[0]):
        return argv[0], list(argv[1:])
    return None, list(argv)


def split(argv: Sequence[str], local_rank: str | None = None) -> RunRequest:
    """Split the arguments of ``dlprof run``.

    Args:
        argv: What follows ``run``.
        local_rank: From ``take_local_rank``; becomes the script's first argument.

    Returns:
        The parts. ``arguments`` is an unbroken tail of ``argv``, behind ``local_rank`` if there is one.

    Raises:
        UsageError: An option that ``run`` does not have or that lacks its value, or nothing to run.
    """
    own: list[str] = []
    given: set[str] = set()
    rest = list(argv)
    while rest:
        word = rest[0]
        if word in HELP_NAMES:
            return RunRequest((*own, "--help"), Form.HELP)
        if word == "--":
            return _command_form(own, rest[1:], local_rank)
        if word == "-m":
            if len(rest) < 2 or not rest[1]:
                raise UsageError("no-target", "-m needs the name of a module", _SEE_HELP)
            return _with_options_after(own, given, Form.MODULE, rest[1], rest[2:], local_rank)
        if not word.startswith("-") or word == "-":
            return _with_options_after(own, given, Form.SCRIPT, word, rest[1:], local_rank)
        option, normal, used = _own_option(rest)
        own.append(normal)
        given.add(option.name)
        del rest[:used]
    raise UsageError("no-target", "nothing to run: SCRIPT, -m MODULE or -- COMMAND is missing", _SEE_HELP)


_SEE_HELP = "see 'dlprof run --help'"


def _own_option(rest: Sequence[str]) -> tuple[Option, str, int]:
    """The option at the start of ``rest``: its row, how click gets it, and how many words it takes."""
    name, equals, _ = rest[0].partition("=")
    option = _TABLE.get(name)
    if option is None:
        raise UsageError("unknown-option", f"dlprof run has no option {name}", _instead_of(name, _TABLE))
    if option.type is None:
        if equals:
            raise UsageError("option-value", f"{name} takes no value", _SEE_HELP)
        return option, name, 1
    if equals:
        return option, rest[0], 1
    if len(rest) < 2:
        raise UsageError("option-value", f"{name} needs a value: {name} {option.metavar}", _SEE_HELP)
    return option, f"{name}={rest[1]}", 2


def _instead_of(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, [*known, "--help"], n=1, cutoff=0.7)
    if close:
        return f"did you mean {close[0]}?"
    return f"the script's own options go after SCRIPT; dlprof's: {', '.join(known)}"


def _command_form(own: list[str], rest: list[str], local_rank: str | None) -> RunRequest:
    if not rest or not rest[0]:
        raise UsageError("no-target", "nothing to run: COMMAND is missing after --", _SEE_HELP)
    if local_rank is not None:
        raise UsageError(
            "local-rank-command",
            f"{local_rank} before 'run' is for a script, and COMMAND is not one",
            "use 'dlprof run SCRIPT' or 'dlprof run -m MODULE' under this launcher",
        )
    return RunRequest(tuple(own), Form.COMMAND, rest[0], tuple(rest[1:]))


def _with_options_after(
    own: list[str], given: set[str], form: Form, target: str, rest: list[str], local_rank: str | None
) -> RunRequest:
    taken: list[str] = []
    given = set(given)
    while rest:
        name, equals, _ = rest[0].partition("=")
        option = _TABLE.get(name)
        if option is None or not option.after_script or name in given or not (equals or len(rest) > 1):
            break
        _, normal, used = _own_option(rest)
        own = [*own, normal]
        given.add(name)
        taken += rest[:used]
        rest = rest[used:]
    if rest and rest[0] == "--":
        rest = rest[1:]
    first = () if local_rank is None else (local_rank,)
    return RunRequest(tuple(own), form, target, (*first, *rest), tuple(taken))
