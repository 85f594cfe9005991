from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hooked_scripts import Scripts


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    """Scripts in a fresh folder."""
    return Scripts(tmp_path)


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    """Each test starts Pythons; where told to keep nothing, each would compile all of dlprof anew."""
    kept = os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    yield
    if kept is not None:
        os.environ["PYTHONDONTWRITEBYTECODE"] = kept


@pytest.fixture(scope="session", autouse=True)
def _signals_as_in_a_terminal() -> Iterator[None]:
    """What is started in the background, or by nohup, ignores signals that tests send, and so do its children."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
