"""How the command ended: what ``supervise`` returns, and ``outcome.json`` in the recording folder."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

OUTCOME_NAME = "outcome.json"


@dataclass(frozen=True, slots=True)
class ClockPair:
    """One moment on two clocks.

    Attributes:
        monotonic_ns: ``CLOCK_MONOTONIC``, the clock of all recorded times.
        wall_ns: Nanoseconds since the epoch.
    """

    monotonic_ns: int
    wall_ns: int

    @classmethod
    def now(cls) -> ClockPair:
        """Read both clocks, one directly after the other."""
        return cls(time.monotonic_ns(), time.time_ns())


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the command ended.

    Attributes:
        pid: Its process.
        raw_status: As ``os.waitpid`` gave it.
        signal: The signal that ended it, or None.
        started: Directly before it was started.
        ended: Directly after its end was seen.
        stop_requested: Whether all steps were recorded in some process and it was asked to stop.
        stops: Names of the signals that were needed because a request to stop was not followed.
        forwarded: Names of the signals that were passed on, in order.
        notices: Slug and details of what was odd.
        received: Names of the signals that came to dlprof meanwhile, also where the command had them already.
    """

    pid: int
    raw_status: int
    signal: int | None
    started: ClockPair
    ended: ClockPair
    stop_requested: bool
    stops: tuple[str, ...]
    forwarded: tuple[str, ...]
    notices: list[tuple[str, dict[str, Any]]]
    received: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """The command's exit status, 128+n where signal n ended it."""
        code = os.waitstatus_to_exitcode(self.raw_status)
        return code if code >= 0 else 128 - code

    def save(self, recording: Path, command: list[str]) -> None:
        """Write into the recording folder, so that a report can be made later.

        Args:
            recording: The recording folder.
            command: What was started.

        Raises:
            OSError: It cannot be written.
        """
        record = {"command": command, **asdict(self)}
        (recording / OUTCOME_NAME).write_text(json.dumps(record), encoding="utf-8")


def load_outcome(recording: Path) -> tuple[Outcome, list[str]]:
    """Read what ``Outcome.save`` wrote.

    Args:
        recording: The recording folder.

    Returns:
        The outcome and the command.

    Raises:
        OSError, ValueError, TypeError, KeyError: Not there, or not ours.
    """
    record = json.loads((recording / OUTCOME_NAME).read_text(encoding="utf-8"))
    command = [str(part) for part in record.pop("command")]
    for name in ("started", "ended"):
        record[name] = ClockPair(**record[name])
    for name in ("stops", "forwarded", "received"):
        record[name] = tuple(record.get(name, ()))
    record["notices"] = [(slug, details) for slug, details in record["notices"]]
    return Outcome(**record), command
