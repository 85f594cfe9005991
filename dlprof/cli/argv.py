"""Splits what follows ``dlprof run`` or ``dlprof tune`` into dlprof's options and the command to start.

This comes before click, which drops ``--`` and would look for options among the script's arguments.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from dlprof.cli.options import HELP_NAMES, RUN_OPTIONS, TUNE_OPTIONS, Option
from dlprof.errors import UsageError
from dlprof.words import tr

_LOCAL_RANK = re.compile(r"--local[_-]rank=\d+")
_TABLES = {
    "run": {option.name: option for option in RUN_OPTIONS},
    "tune": {option.name: option for option in TUNE_OPTIONS},
}
COMMANDS = tuple(_TABLES)
"""The commands that start a script."""


class Form(Enum):
    """The ways to name what is profiled."""

    SCRIPT = "script"
    MODULE = "module"
    COMMAND = "command"
    HELP = "help"
    """Nothing: ``--help`` was among dlprof's options."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The command line of ``dlprof run`` or ``dlprof tune``, taken apart.

    Attributes:
        options: dlprof's own options for click, a value always as ``--name=value``.
        form: What ``target`` is.
        target: The script, module or command; empty with ``Form.HELP``.
        arguments: The target's own arguments.
        taken: Those of dlprof's options that stood after the target, as they were typed.
        left: The option directly after the target that is the script's, though dlprof has one of that name; else
            empty.
        verb: dlprof's command, for what is said of it.
    """

    options: tuple[str, ...]
    form: Form
    target: str = ""
    arguments: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    verb: str = "run"
    left: str = ""

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


def split(argv: Sequence[str], local_rank: str | None = None, verb: str = "run") -> RunRequest:
    """Split the arguments of a command that starts a script.

    Args:
        argv: What follows ``verb``.
        local_rank: From ``take_local_rank``; becomes the script's first argument.
        verb: One of `COMMANDS`.

    Returns:
        The parts. ``arguments`` is an unbroken tail of ``argv``, behind ``local_rank`` if there is one.

    Raises:
        UsageError: An option that ``verb`` does not have or that lacks its value, or nothing to run.
    """
    return _Splitter(verb, local_rank).split(argv)


class _Splitter:
    """One command line on its way into parts."""

    def __init__(self, verb: str, local_rank: str | None) -> None:
        self._verb = verb
        self._local_rank = local_rank
        self._table = _TABLES[verb]
        self._see_help = tr("see '{command} --help'", command=f"dlprof {verb}")
        self._own: list[str] = []
        self._given: set[str] = set()

    def split(self, argv: Sequence[str]) -> RunRequest:
        rest = list(argv)
        while rest:
            word = rest[0]
            if word in HELP_NAMES:
                return RunRequest((*self._own, "--help"), Form.HELP, verb=self._verb)
            if word == "--":
                return self._command_form(rest[1:])
            if word == "-m":
                if len(rest) < 2 or not rest[1]:
                    raise UsageError("no-target", tr("-m needs the name of a module"), self._see_help)
                return self._with_options_after(Form.MODULE, rest[1], rest[2:])
            if not word.startswith("-") or word == "-":
                return self._with_options_after(Form.SCRIPT, word, rest[1:])
            del rest[: self._take(rest)]
        raise UsageError("no-target", tr("nothing to run: SCRIPT, -m MODULE or -- COMMAND is missing"), self._see_help)

    def _take(self, rest: Sequence[str]) -> int:
        """Take the option at the start of ``rest`` as click gets it; returns how many words it is."""
        name, equals, _ = rest[0].partition("=")
        option = self._table.get(name)
        if option is None:
            raise UsageError(
                "unknown-option",
                tr("dlprof {verb} has no option {name}", verb=self._verb, name=name),
                _instead_of(name, self._table),
            )
        normal, used = self._normal(option, rest, bool(equals))
        self._own.append(normal)
        self._given.add(name)
        return used

    def _normal(self, option: Option, rest: Sequence[str], equals: bool) -> tuple[str, int]:
        name = option.name
        if option.type is None:
            if equals:
                raise UsageError("option-value", tr("{name} takes no value", name=name), self._see_help)
            return name, 1
        if equals:
            return rest[0], 1
        if len(rest) < 2:
            raise UsageError(
                "option-value",
                tr("{name} needs a value: {name} {metavar}", name=name, metavar=option.metavar),
                self._see_help,
            )
        return f"{name}={rest[1]}", 2

    def _command_form(self, rest: list[str]) -> RunRequest:
        if not rest or not rest[0]:
            raise UsageError("no-target", tr("nothing to run: COMMAND is missing after --"), self._see_help)
        if self._local_rank is not None:
            raise UsageError(
                "local-rank-command",
                tr("{option} before 'run' is for a script, and COMMAND is not one", option=self._local_rank),
                tr("use 'dlprof run SCRIPT' or 'dlprof run -m MODULE' under this launcher"),
            )
        return RunRequest(tuple(self._own), Form.COMMAND, rest[0], tuple(rest[1:]), verb=self._verb)

    def _with_options_after(self, form: Form, target: str, rest: list[str]) -> RunRequest:
        taken: list[str] = []
        while rest:
            name, equals, _ = rest[0].partition("=")
            option = self._table.get(name)
            if option is None or not option.after_script or name in self._given or not (equals or len(rest) > 1):
                break
            used = self._take(rest)
            taken += rest[:used]
            rest = rest[used:]
        left = rest[0].partition("=")[0] if rest and rest[0].partition("=")[0] in self._table else ""
        if rest and rest[0] == "--":
            rest = rest[1:]
        first = () if self._local_rank is None else (self._local_rank,)
        return RunRequest(tuple(self._own), form, target, (*first, *rest), tuple(taken), self._verb, left)


def _instead_of(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, [*known, "--help"], n=1, cutoff=0.7)
    if close:
        return tr("did you mean {names}?", names=close[0])
    return tr("the script's own options go after SCRIPT; dlprof's: {names}", names=", ".join(known))
