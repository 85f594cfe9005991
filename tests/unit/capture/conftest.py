from __future__ import annotations

import sys
from pathlib import Path

# tests/builders.py, however pytest is started.
sys.path.insert(0, str(Path(__file__).parents[2]))
