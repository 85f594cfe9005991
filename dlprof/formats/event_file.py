"""The event file: one a process, JSON lines for what happens rarely: names, loaders, notices, how the process ended.

Standard library only: the profiled script imports this module. Every line is written with one ``write`` to a file
opened for appending, so a line is there whole or not at all.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

SUFFIX = ".events"


class EventWriter:
    """Appends this process's events.

    Args:
        folder: The recording folder.

    Raises:
        OSError: The file cannot be made; from ``write`` also when it cannot be written.
    """

    def __init__(self, folder: str) -> None:
        path = f"{folder}/{os.getpid()}{SUFFIX}"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event; values that JSON does not know are written as their ``str``."""
        line = json.dumps({"event": event, **fields}, default=str, separators=(",", ":"))
        os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read one process's events, in the order in which they were written.

    Args:
        path: A file made by ``EventWriter``.

    Returns:
        One dict an event, each with a key ``event``; lines that are cut off or damaged are passed over.

    Raises:
        OSError: The file cannot be read.
    """
    found = []
    for line in path.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            found.append(event)
    return found
