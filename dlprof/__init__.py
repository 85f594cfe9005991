"""dlprof says what bounds a PyTorch training step.

This module is imported inside the profiled script and in its workers, so it loads nothing by itself.
"""

__version__ = "0.1.0"
