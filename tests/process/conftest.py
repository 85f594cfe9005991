from __future__ import annotations

from pathlib import Path

import pytest
from hooked_scripts import Scripts


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    """Scripts in a fresh folder."""
    return Scripts(tmp_path)
