"""A run as a list of runs shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dlprof.model.kinds import Bottleneck, Component


class State(StrEnum):
    """What is in a run's folder."""

    REPORTED = "reported"
    SAVED = "saved"
    """The saved run, without the ``report.json`` that says what came of it."""
    RECORDING = "recording"
    """Only what is recorded: the script still runs, or nobody analysed what it left."""
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run.

    Attributes:
        name: Its folder below the one that is looked at, with ``/`` between; ``.`` is that folder itself.
        state: What is there of it.
        created: When it was made, ISO 8601.
        bottleneck: The verdict; None where no report is there.
        component: Of the bottleneck, where it is known.
        step_ms: Mean time of a step.
        input_wait_ratio: The part of the step that waits for input, 0 to 1.
        trace: The file name of its newest trace; None where there is none.
    """

    name: str
    state: State
    created: str
    bottleneck: Bottleneck | None = None
    component: Component | None = None
    step_ms: float | None = None
    input_wait_ratio: float | None = None
    trace: str | None = None
