"""The options of every command, in tables that the splitter of ``argv`` and click both read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import click

from dlprof.formats.settings_file import Override
from dlprof.model.bounds import NAMES, Bound, parse_bound
from dlprof.words import LANGUAGES, speak, tr

HELP_NAMES = ("-h", "--help")
FORMATS = ("html", "pdf", "json", "md", "txt")
STDOUT = "-"
ANALYZE_FORMATS = (*FORMATS, "csv")
DEFAULT_FORMATS = ("html", "pdf", "json", "md")

_Function = TypeVar("_Function", bound=Callable[..., Any])
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[0-9]{1,4}")
_WHOLE = re.compile(r"[0-9]{1,15}")
_DURATION = re.compile(r"([0-9]{1,6})([smh])")
_WITHOUT_UNIT = re.compile(r"[0-9]{1,6}")
_LAST_PORT = 65535
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_SWITCH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_START_METHODS = ("fork", "spawn", "forkserver")


class CountType(click.ParamType[int]):
    """A whole number with a smallest value.

    Args:
        minimum: Smallest value that is accepted.
    """

    name = "count"

    def __init__(self, minimum: int) -> None:
        self.minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return ``value`` as an int, or fail with a sentence that says what is accepted."""
        if isinstance(value, int):
            return value
        if not _INTEGER.fullmatch(str(value)) or int(value) < self.minimum:
            self.fail(
                tr("{value} is not a whole number of at least {minimum}", value=value, minimum=self.minimum), param, ctx
            )
        return int(value)


class PortType(CountType):
    """A port of TCP; 0 is any that is free."""

    name = "port"

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the port, or fail with a sentence that says what is accepted."""
        port = super().convert(value, param, ctx)
        if port > _LAST_PORT:
            self.fail(tr("{value} is not a port: they end at {last}", value=value, last=_LAST_PORT), param, ctx)
        return port


class StepsType(click.ParamType[int | None]):
    """A number of steps, or ``all``, which is None."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number of steps, None for all of them."""
        if isinstance(value, int):
            return value
        if value == "all":
            return None
        if not _INTEGER.fullmatch(str(value)) or int(value) < 1:
            self.fail(tr("{value} is neither a whole number of at least 1 nor 'all'", value=value), param, ctx)
        return int(value)


class DurationType(click.ParamType[int]):
    """A time with its unit: ``90s``, ``10m``, ``1h``; in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds, or fail with a sentence that says what is accepted."""
        if isinstance(value, int):
            return value
        if _WITHOUT_UNIT.fullmatch(str(value)):
            self.fail(
                tr("{value} has no unit: {value}s are seconds, {value}m minutes, {value}h hours", value=value),
                param,
                ctx,
            )
        found = _DURATION.fullmatch(str(value))
        if found is None or not int(found[1]):
            self.fail(tr("{value} is not a time such as 90s, 10m or 1h", value=value), param, ctx)
        return int(found[1]) * _SECONDS[found[2]]


class FormatsType(click.ParamType[tuple[str, ...]]):
    """Names of report formats, separated by commas.

    Args:
        known: Those that there are.
    """

    name = "formats"

    def __init__(self, known: tuple[str, ...] = FORMATS) -> None:
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the formats in the order given, each once."""
        if isinstance(value, tuple):
            return value
        names = [name.strip() for name in str(value).split(",")]
        for name in names:
            if name not in self.known:
                self.fail(
                    tr("there is no format {name}, only {names}", name=repr(name), names=", ".join(self.known)),
                    param,
                    ctx,
                )
        return tuple(dict.fromkeys(names))


class StepRangeType(click.ParamType[tuple[int, int] | None]):
    """Numbers of steps, ``A:B``: from A up to, and without, B."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int] | None:
        """Return the first number and the one behind the last."""
        if isinstance(value, tuple):
            return value
        first, colon, behind = str(value).partition(":")
        if not colon or not _WHOLE.fullmatch(first) or not _WHOLE.fullmatch(behind) or int(first) >= int(behind):
            self.fail(tr("{value} is not of the form A:B with A below B, as in 3:8", value=value), param, ctx)
        return int(first), int(behind)


class FolderType(click.ParamType[str]):
    """The name of a folder, or of standard output where a command can write there.

    Args:
        stdout: Whether ``-`` is accepted.
    """

    name = "folder"

    def __init__(self, stdout: bool = False) -> None:
        self.stdout = stdout

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name as it was given."""
        if not value:
            self.fail(tr("the name is empty"), param, ctx)
        if value == STDOUT and not self.stdout:
            self.fail(tr("a run writes a folder; only 'dlprof report' and 'compare' print with --out -"), param, ctx)
        return str(value)


class FunctionNameType(click.ParamType[str]):
    """A function by its module and its name in it: ``package.module:function`` or ``module:Class.method``."""

    name = "function"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name as it was given."""
        if not _FUNCTION.fullmatch(str(value)):
            self.fail(
                tr("{value} is not of the form module:function or module:Class.method", value=repr(value)), param, ctx
            )
        return str(value)


def _whole(text: str, minimum: int) -> int:
    if not _INTEGER.fullmatch(text) or int(text) < minimum:
        raise ValueError(tr("{text} is not a whole number of at least {minimum}", text=text, minimum=minimum))
    return int(text)


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ValueError(tr("{text} is neither true nor false", text=text))
    return _SWITCH[text.lower()]


def _start_method(text: str) -> str:
    if text not in _START_METHODS:
        raise ValueError(tr("{text} is not one of {names}", text=text, names=", ".join(_START_METHODS)))
    return text


class OverrideType(click.ParamType[Override]):
    """A DataLoader argument to change: ``num_workers=4``, ``train.num_workers=4`` or ``0.num_workers=4``."""

    name = "override"
    settings: ClassVar[dict[str, Callable[[str], Any]]] = {
        "num_workers": lambda text: _whole(text, 0),
        "prefetch_factor": lambda text: _whole(text, 1),
        "batch_size": lambda text: _whole(text, 1),
        "pin_memory": _switch,
        "persistent_workers": _switch,
        "in_order": _switch,
        "multiprocessing_context": _start_method,
    }

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Override:
        """Return what is to be changed, or fail with a sentence that says what is accepted."""
        if isinstance(value, Override):
            return value
        left, equals, text = str(value).partition("=")
        loader, _, name = left.strip().rpartition(".")
        if not equals:
            self.fail(tr("{value} is not of the form NAME=VALUE, as in num_workers=4", value=repr(value)), param, ctx)
        if name not in self.settings:
            self.fail(
                tr(
                    "there is no setting {name} to change, only {names}",
                    name=repr(name),
                    names=", ".join(self.settings),
                ),
                param,
                ctx,
            )
        if loader not in ("", "train") and not _NUMBER.fullmatch(loader):
            self.fail(
                tr("{loader} names no loader; 'train' does, or its number from 0", loader=repr(loader)), param, ctx
            )
        try:
            return Override(loader, name, self.settings[name](text.strip()))
        except ValueError as error:
            self.fail(f"{name}: {error}", param, ctx)


class BoundType(click.ParamType[Bound]):
    """A bound on what the report says: ``input_wait>20%``."""

    name = "bound"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Bound:
        """Return the bound, or fail with a sentence that says what is accepted."""
        if isinstance(value, Bound):
            return value
        try:
            return parse_bound(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command.

    Attributes:
        name: With its dashes.
        help: For ``--help``, a line or two.
        type: Checks and converts the value; None for a flag, which takes no value.
        metavar: The value's name in ``--help``.
        default: Used where the option is not given, as it would be typed.
        after_script: Whether it is also taken directly after SCRIPT or MODULE.
        repeatable: Whether it may be given several times; its parameter is then a tuple.
        apply: Called with the value before other options are looked at, for one that the command itself need not know.
    """

    name: str
    help: str
    type: click.ParamType[Any] | None = None
    metavar: str | None = None
    default: str | None = None
    after_script: bool = False
    repeatable: bool = False
    apply: Callable[[Any], None] | None = None


def _speak(language: str | None) -> None:
    if language is not None:
        speak(language)


LANG = Option(
    "--lang",
    "Language of reports and messages.  [default: by the locale]",
    click.Choice(LANGUAGES),
    "|".join(LANGUAGES),
    apply=_speak,
)

RUN_OPTIONS = (
    Option(
        "--steps",
        "Steps to measure, then stop the script; 'all' never stops it.",
        StepsType(),
        "N|all",
        "50",
        True,
    ),
    Option("--warmup", "Steps before the measured ones.", CountType(0), "N", "5"),
    Option("--trace-steps", "Steps under torch.profiler; 0 for none.", CountType(0), "N", "10", True),
    Option("--sample-hz", "Looks a second at what threads do; 0 for none.", CountType(0), "N", "100"),
    Option(
        "--span",
        "Time this function too; may be given several times.",
        FunctionNameType(),
        "MODULE:FUNCTION",
        repeatable=True,
    ),
    Option(
        "--set",
        f"Give DataLoaders this setting, as num_workers=4; of {', '.join(OverrideType.settings)}. train.NAME is for "
        "those that shuffle or stream, 0.NAME for one by its number, which the report shows. May be repeated.",
        OverrideType(),
        "NAME=VALUE",
        repeatable=True,
    ),
    Option("--ceiling", "Then some steps on copied batches: the step without an input pipeline."),
    Option(
        "--fail-if",
        f"Exit with 3 if this holds, as input_wait>20%, step_ms>80 or verdict==balanced; of {', '.join(NAMES)}. "
        "A number is ms per step, with % the share of it. May be repeated.",
        BoundType(),
        "EXPR",
        repeatable=True,
    ),
    Option("--out", "Folder of the run.  [default: dlprof-runs/NAME-TIME]", FolderType(), "DIR"),
    Option("--force", "Replace the dlprof run that is in DIR."),
    Option(
        "--format",
        f"Reports to write, of {','.join(FORMATS)}.",
        FormatsType(),
        "LIST",
        ",".join(DEFAULT_FORMATS),
    ),
    LANG,
    Option("--max-disk", "Recording ends when a process has written this much.", CountType(1), "MB", "500"),
)

_OF_RUN = {option.name: option for option in RUN_OPTIONS}

TUNE_OPTIONS = (
    Option("--trials", "Settings to try at most.", CountType(1), "N", "6"),
    Option("--budget", "Start no run that would not end within this time, as 90s, 10m or 1h.", DurationType(), "TIME"),
    replace(_OF_RUN["--steps"], help="Steps to measure in each run; 'all' never stops the script."),
    _OF_RUN["--warmup"],
    replace(_OF_RUN["--trace-steps"], help="Steps under torch.profiler, in the first run only; 0 for none."),
    _OF_RUN["--sample-hz"],
    replace(_OF_RUN["--out"], help="Folder of the report and of all runs.  [default: dlprof-runs/NAME-TIME]"),
    replace(_OF_RUN["--force"], help="Replace what dlprof tune left in DIR."),
    replace(_OF_RUN["--format"], help=f"Reports to write, of {','.join(FORMATS)}; tune.json is always written."),
    LANG,
    _OF_RUN["--max-disk"],
)

REPORT_OPTIONS = (
    Option(
        "--out",
        "Folder for the reports; - prints one.  [default: the run's]",
        FolderType(stdout=True),
        "DIR|-",
    ),
    Option("--force", "Overwrite the reports that are in DIR."),
    Option(
        "--format",
        f"Of {','.join(FORMATS)}.  [default: html,pdf,json,md; with --out -: md]",
        FormatsType(),
        "LIST",
    ),
    LANG,
)

COMPARE_OPTIONS = (
    replace(
        REPORT_OPTIONS[0],
        help="Folder for the result; - prints one document.  [default: dlprof-runs/compare-TIME]",
    ),
    Option("--force", "Overwrite the comparison that is in DIR."),
    *REPORT_OPTIONS[2:],
)

EXPLAIN_OPTIONS = (LANG,)

VIEW_OPTIONS = (
    Option("--port", "Port on this machine; 0 for any that is free.", PortType(), "N", "0"),
    Option("--no-browser", "Print the address only."),
    LANG,
)


ANALYZE_OPTIONS = (
    Option(
        "--only-steps",
        "Steps that count, by their numbers: from A up to, and without, B.",
        StepRangeType(),
        "A:B",
    ),
    Option("--top", "Kernels, operators and calls that are named.", CountType(1), "N", "10"),
    Option("--max-size", "JSON that a trace may hold, once decompressed.", CountType(1), "MB", "8000"),
    Option(
        "--out",
        "Folder for the reports; - prints one.  [default: dlprof-runs/NAME-TIME]",
        FolderType(stdout=True),
        "DIR|-",
    ),
    Option("--force", "Overwrite the reports that are in DIR."),
    Option(
        "--format",
        f"Of {','.join(ANALYZE_FORMATS)}; txt alone is printed.  [default: html,pdf,json,md; with --out -: txt]",
        FormatsType(ANALYZE_FORMATS),
        "LIST",
    ),
    LANG,
)


def with_options(options: Iterable[Option]) -> Callable[[_Function], _Function]:
    """Give a click command the options of a table.

    Args:
        options: The table.

    Returns:
        A decorator. Parameters are the options' names without dashes; ``format`` is ``formats``.
    """

    def decorate(function: _Function) -> _Function:
        for option in reversed(tuple(options)):
            parameter = option.name.lstrip("-").replace("-", "_")
            function = click.option(
                option.name,
                "formats" if parameter == "format" else parameter,
                is_flag=option.type is None,
                type=option.type,
                metavar=option.metavar,
                default=False if option.type is None else option.default,
                show_default=option.default is not None,
                help=option.help,
                multiple=option.repeatable,
                is_eager=option.apply is not None,
                expose_value=option.apply is None,
                callback=_applied(option.apply),
            )(function)
        return function

    return decorate


def _applied(apply: Callable[[Any], None] | None) -> Callable[[click.Context, click.Parameter, Any], Any] | None:
    return None if apply is None else lambda _context, _parameter, value: apply(value)
