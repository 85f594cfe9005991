from __future__ import annotations

import os
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
