"""What the supervisor asks of the profiled processes: ``settings.json`` in the recording folder.

Standard library only: the profiled script imports this module.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

NAME = "settings.json"
FOLDER_VARIABLE = "DLPROF_RECORDING"
"""Environment variable that names the recording folder to every process under the supervisor."""


@dataclass(frozen=True, slots=True)
class Override:
    """Another value for one argument of a DataLoader.

    Attributes:
        loader: Which loader: empty for all, ``train`` for those that shuffle or stream, or the dataset's number.
        name: The argument of ``torch.utils.data.DataLoader``.
        value: What it is to be.
    """

    loader: str
    name: str
    value: Any

    def __str__(self) -> str:
        """As it is typed after ``--set``."""
        return f"{self.loader}.{self.name}={self.value}".removeprefix(".")


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is recorded, and when the script is stopped.

    Attributes:
        steps: Measured steps, or None for all: then the script is never stopped.
        warmup: Steps before the measured ones.
        trace_steps: Steps under torch.profiler; 0 for none.
        max_disk_bytes: Recording stops when a process has written this much.
        supervisor_pid: The process that waits for the script.
        ends_script: Whether the script is ended after the steps; else only the recording is.
        sample_hz: How often a second threads are looked at; 0 for not at all.
        spans: Functions of the user's own to time, each as ``module:function``.
        overrides: Loader settings to change.
        ceiling: Whether some more steps are to be measured without an input pipeline.
    """

    steps: int | None
    warmup: int
    trace_steps: int
    max_disk_bytes: int
    supervisor_pid: int
    ends_script: bool = True
    sample_hz: int = 100
    spans: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()
    ceiling: bool = False

    def save(self, folder: Path) -> None:
        """Write into the recording folder ``folder``."""
        (folder / NAME).write_text(json.dumps(asdict(self)), encoding="utf-8")


def load_settings(folder: str) -> Settings:
    """Read the settings of a run.

    Args:
        folder: The recording folder.

    Raises:
        OSError, ValueError, TypeError: Not there, or not ours.
    """
    with open(f"{folder}/{NAME}", encoding="utf-8") as file:
        values = json.load(file)
    settings = Settings(**values)
    # JSON knows neither tuples nor classes.
    overrides = tuple(Override(**each) for each in values.get("overrides", ()))
    return replace(settings, spans=tuple(settings.spans), overrides=overrides)
