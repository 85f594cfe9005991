"""Tests run two at a time (pytest-xdist), by file; one marked ``quiet`` has the machine to itself."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from pathlib import Path

import pytest

ROOM = Path(__file__).parent
DOOR = Path(__file__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the other test process where one of the two must be alone; the fixtures count as their test."""
    alone = item.get_closest_marker("quiet") is not None
    door, room = (os.open(path, os.O_RDONLY) for path in (DOOR, ROOM))
    try:
        # Who waits to be alone keeps the door shut, or the other would go on entering for as long as it has tests.
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)
    finally:
        for file in (door, room):
            # A process that a test has forked may still hold it open: closing alone would not unlock it.
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)
