from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

# check.py and states.py, and the helpers of the unit tests.
for folder in (Path(__file__).parent, Path(__file__).parents[1] / "unit" / "capture"):
    sys.path.insert(0, str(folder))


@pytest.fixture
def device() -> torch.device:
    """The accelerator; the test is skipped where there is none."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        pytest.skip("torch finds no GPU here")
    return found
