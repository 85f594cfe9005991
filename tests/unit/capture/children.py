"""Processes to look at. A child says over a pipe what it is about to do, and does it until it is ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[3]
_GIVE_UP_S = 60
_Found = TypeVar("_Found")

_TELL = """
import json, sys

def tell(*said):
    print(json.dumps(said), flush=True)
    return 0
"""


class Child:
    """A child process.

    Args:
        process: It.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def told(self) -> list[Any]:
        """What it told next; it is waited for."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the child has ended"
        found: list[Any] = json.loads(line)
        return found

    def end(self) -> None:
        """Kill it, and wait for its end."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def child(
    folder: Path, source: str, *arguments: str, python: str = sys.executable, name: str = "c.py"
) -> Iterator[Child]:
    """Run a script that may call ``tell``; its standard input is a pipe into which nothing is written.

    Args:
        folder: Where the script is written.
        source: The script.
        arguments: Its arguments.
        python: The interpreter.
        name: The script's file name.
    """
    script = folder / name
    script.write_text(_TELL + source, encoding="utf-8")
    process = subprocess.Popen(
        [python, str(script), *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    started = Child(process)
    try:
        yield started
    finally:
        started.end()


def eventually(look: Callable[[], _Found], is_it: Callable[[_Found], bool]) -> _Found:
    """Look again and again until what is seen is what was waited for; gives what was seen last."""
    give_up = time.monotonic() + _GIVE_UP_S
    while not is_it(found := look()) and time.monotonic() < give_up:
        pass
    return found
