"""Results of ``dlprof tune`` made by hand, for the tests of `dlprof.render`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from report_cases import CONTROL, MARKUP

from dlprof import __version__
from dlprof.model.kinds import Confidence
from dlprof.model.tune import SCHEMA, Ending, Failure, Promise, RunRow, TrialRow, Triple, Tune
from dlprof.render.wording import failure_text, tune_conclusion, tune_how


def row(number: int, settings: dict[str, Any], promised: float | None, *means: float, failed: str = "") -> TrialRow:
    """Settings that were measured with a spread of 4 %, beside a step of 61.9 ms."""
    name = f"trial-{number}" if number else "baseline"
    runs = [
        RunRow(name + ("-again" if index else ""), mean, 50, 21.4 - index, None) for index, mean in enumerate(means)
    ]
    if failed:
        runs.append(RunRow(name, None, 3, 9.1, Failure("worker-died", failed)))
    promise = None
    if promised is not None:
        promise = Promise(around(promised), around(61.9 / promised), Confidence.MEDIUM)
    mean = sum(means) / len(means) if means else None
    speedup = around(61.9 / mean) if mean is not None and number else None
    return TrialRow(number, settings, promise, None if mean is None else around(mean), speedup, runs)


def around(middle: float) -> Triple:
    return round(middle * 0.96, 3), round(middle, 3), round(middle * 1.04, 3)


def tune(rows: list[TrialRow], winner: int | None, ending: Ending) -> Tune:
    loader = {"dataset": "train_text.Documents", "batch_size": 16, "num_workers": 0, "prefetch_factor": None}
    won = next((it for it in rows if it.number == winner), None)
    return Tune(
        schema=SCHEMA,
        dlprof=__version__,
        created="2026-11-30T14:02:11+00:00",
        host="bench-2",
        command=["python", "train_text.py", "--epochs", "3"],
        loader=loader | {"persistent_workers": False, "pin_memory": False, "in_order": True},
        baseline=rows[0],
        trials=rows[1:],
        winner=winner,
        ending=ending,
        elapsed_s=154.2,
        conclusion=tune_conclusion(rows, winner, ending),
        how=tune_how(won.settings, loader) if won else "",
    )


def won() -> Tune:
    """Two workers win; with eight one was killed."""
    rows = [
        row(0, {}, None, 62.4, 61.4),
        row(1, {"num_workers": 2}, 26.8, 29.0, 29.4),
        row(2, {"num_workers": 1}, 38.9, 40.2, 39.8),
        row(3, {"num_workers": 2, "prefetch_factor": 4}, 25.9, 31.1),
        row(4, {"num_workers": 8}, 33.0, failed="A DataLoader worker died (exit status 1): killed by signal 9"),
    ]
    return tune(rows, 1, Ending.COMPLETE)


def not_better() -> Tune:
    """The runs lie further apart than what was gained."""
    return tune([row(0, {}, None, 62.4, 71.9), row(1, {"num_workers": 1}, 52.0, 60.1, 66.0)], None, Ending.BUDGET)


def nothing_to_gain() -> Tune:
    return tune([row(0, {}, None, 62.4)], None, Ending.NOTHING_TO_GAIN)


def interrupted() -> Tune:
    """By Ctrl-C during the first trial."""
    rows = [row(0, {}, None, 62.4), row(1, {"num_workers": 2}, 26.8, failed=failure_text("failed-run"))]
    return tune(rows, None, Ending.INTERRUPTED)


def hostile() -> Tune:
    """Markup and control characters in every string that a script can choose."""
    made = won()
    failed = replace(made.trials[3], settings={MARKUP: CONTROL})
    failed.runs[0] = replace(failed.runs[0], folder=MARKUP, failure=Failure(MARKUP, CONTROL + MARKUP))
    return replace(
        made,
        host=MARKUP,
        created=MARKUP,
        command=["python", MARKUP + ".py", CONTROL],
        loader={"dataset": MARKUP, "num_workers": CONTROL},
        trials=[*made.trials[:3], failed],
        conclusion=MARKUP + CONTROL,
        how=f"{CONTROL}\n\n    {MARKUP}",
    )


CASES: dict[str, Callable[[], Tune]] = {
    "won": won,
    "not-better": not_better,
    "nothing-to-gain": nothing_to_gain,
    "interrupted": interrupted,
    "hostile": hostile,
}
