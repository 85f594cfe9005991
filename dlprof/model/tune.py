"""What ``dlprof tune`` tries and finds: settings, real runs with them, and the result (schema ``dlprof.tune/1``).

Standard library only: the command that starts the script imports this module. Field names of what goes into
``tune.json`` are those of the JSON. Times carry their unit in the name; ``speedup`` is old step time over new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dlprof.model.kinds import Confidence

SCHEMA = "dlprof.tune/1"
BASELINE = 0
"""The number of the settings that the script has itself."""

Triple = tuple[float, float, float]


class Ending(StrEnum):
    """Why no more was tried."""

    COMPLETE = "complete"
    """All that was planned was tried."""
    NOTHING_TO_GAIN = "nothing-to-gain"
    """By forecast no setting gains enough."""
    NO_FORECAST = "no-forecast"
    """There is no loader whose settings could be forecast."""
    BUDGET = "budget-spent"
    TRIALS_FAIL = "trials-fail"
    """The first trials failed in the same way."""
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Promise:
    """The forecast step in ms and speedup, each 10th, 50th and 90th percentile."""

    step_ms: Triple
    speedup: Triple
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings to try, and what they promise.

    Attributes:
        settings: Arguments of ``DataLoader`` that differ from those in force.
        promise: The forecast; None where there is none for these settings.
        cost: Orders settings that are as fast as each other, cheaper first: processes, then batches held.
        doubt: How much longer than its forecast the step may well be, as a factor.
    """

    settings: dict[str, Any]
    promise: Promise | None
    cost: tuple[int, int] = (0, 0)
    doubt: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to try, as it follows from the first run.

    Attributes:
        loader: The training loop's loader as ``--set`` names it; empty for all loaders.
        candidates: Most promising first.
        in_force: The loader's settings in force; empty where there is no loader.
        cost: Of the settings in force, as in `Candidate`.
        ending: Why nothing is to be tried; None where there are candidates.
        made_anew: The script makes a new loader for each epoch.
        repeats: Each worker would give all samples again, so that no number of workers above 1 is among them.
    """

    loader: str
    candidates: tuple[Candidate, ...]
    in_force: dict[str, Any] = field(default_factory=dict)
    cost: tuple[int, int] = (0, 0)
    ending: Ending | None = None
    made_anew: bool = False
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run does not count; ``text`` is for people."""

    slug: str
    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the script.

    Attributes:
        folder: Its folder, within that of all.
        steps_ms: The measured steps that were not traced, in order; each with its part of what starting workers anew
            at every epoch takes.
        elapsed_s: From its start until it was analysed.
        failure: Why it does not count, None where it does.
    """

    folder: str
    steps_ms: tuple[float, ...]
    elapsed_s: float
    failure: Failure | None = None

    @property
    def mean_ms(self) -> float | None:
        """The mean step, None where the run does not count."""
        return None if self.failure or not self.steps_ms else sum(self.steps_ms) / len(self.steps_ms)


@dataclass(frozen=True, slots=True)
class Tried:
    """Settings and the runs that were made with them, the first one and its repeats."""

    number: int
    candidate: Candidate
    runs: tuple[Measured, ...]

    @property
    def counting(self) -> tuple[Measured, ...]:
        """The runs that count."""
        return tuple(run for run in self.runs if run.mean_ms is not None)

    @property
    def mean_ms(self) -> float | None:
        """The mean over the runs that count of their mean steps."""
        means = [run.mean_ms for run in self.counting if run.mean_ms is not None]
        return sum(means) / len(means) if means else None


@dataclass(frozen=True, slots=True)
class Judged:
    """What the runs say of some settings: step in ms and speedup with a 90 % interval; None where no run counts."""

    step_ms: Triple | None
    speedup: Triple | None


# ---- tune.json ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run; its own report is in ``folder``."""

    folder: str
    step_ms: float | None
    steps: int
    elapsed_s: float
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class TrialRow:
    """Settings, what was forecast, and what was measured: step in ms and speedup as 5th, 50th and 95th percentile."""

    number: int
    settings: dict[str, Any]
    forecast: Promise | None
    step_ms: Triple | None
    speedup: Triple | None
    runs: list[RunRow]


@dataclass(frozen=True, slots=True)
class Tune:
    """The whole of ``tune.json``. ``winner`` is the number of a trial; None where none is surely faster.

    ``how`` holds the lines to paste for the winner, and is empty without one.
    """

    schema: str
    dlprof: str
    created: str
    host: str
    command: list[str]
    loader: dict[str, Any]
    baseline: TrialRow
    trials: list[TrialRow]
    winner: int | None
    ending: Ending
    elapsed_s: float
    conclusion: str
    how: str
