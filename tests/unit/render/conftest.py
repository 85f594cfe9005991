"""The hand-made reports stand with the golden tests."""

from __future__ import annotations

import sys
from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "golden"
if str(GOLDEN) not in sys.path:
    sys.path.insert(0, str(GOLDEN))
