"""``python -m dlprof``, also under torchrun and DeepSpeed: the same as the command ``dlprof``."""

from __future__ import annotations

import sys

from dlprof.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
