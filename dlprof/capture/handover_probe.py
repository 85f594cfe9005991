"""What it would cost to hand a batch from a worker to the main process: tried after a run without workers.

A small process of its own loads batches of the run's shape through one real worker, with the same hooks as the run.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from dlprof.capture.supervisor import child_environment
from dlprof.formats.recording import read_recording
from dlprof.formats.settings_file import Settings
from dlprof.model.kinds import Kind
from dlprof.model.profile import BatchShape, Handover

_BATCHES = 24
_SKIPPED = 4
"""The first batches pay for connections and caches that later ones find ready."""
_TIMEOUT_S = 60
_DISK_BYTES = 10_000_000


def probe(shape: BatchShape, executable: str) -> Handover | None:
    """Hand copies of a batch over and measure.

    Args:
        shape: What a batch consists of.
        executable: The Python that the script ran under.

    Returns:
        Medians over the batches; None where it could not be tried.
    """
    script = Path(__file__).with_name("handover_script.py")
    asked = {"tensors": shape.tensors, "others": shape.others, "batches": _BATCHES}
    with tempfile.TemporaryDirectory(prefix="dlprof-probe-") as folder:
        Settings(None, 0, 0, _DISK_BYTES, 0, sample_hz=0).save(Path(folder))
        try:
            subprocess.run(
                [executable, str(script), json.dumps(asked)],
                env=child_environment(Path(folder)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return _measured(Path(folder))


def _measured(folder: Path) -> Handover | None:
    files = read_recording(folder).files

    def durations(kind: Kind, column: str = "") -> list[int]:
        found = []
        for file in files:
            rows = file.records[file.records["kind"] == kind]
            values = rows[column] if column else rows["end_ns"] - rows["start_ns"]
            found += [int(value) for value in values[_SKIPPED:]]
        return found

    worker = (durations(Kind.PICKLE, "on_cpu_ns"), durations(Kind.SEND))
    main = (durations(Kind.RECEIVE, "on_cpu_ns"), durations(Kind.UNPICKLE, "on_cpu_ns"))
    if not all((*worker, *main)):
        return None
    medians = [sum(int(np.median(values)) for values in side) for side in (worker, main)]
    return Handover(*medians)
