"""Times a plain run: when the main process asked for each batch. On ``PYTHONPATH`` for ``run.py --plain`` only."""

import os
import time

_target = os.environ.pop("WORKLOAD_STOPWATCH", None)
# The variable is gone now, so that no process which the script starts is timed too.
if _target:
    import atexit

    from torch.utils.data import dataloader

    _asked: list[float] = []
    _request = dataloader._BaseDataLoaderIter.__next__

    def _timed(self):
        _asked.append(time.perf_counter())
        return _request(self)

    dataloader._BaseDataLoaderIter.__next__ = _timed

    @atexit.register
    def _write() -> None:
        with open(_target, "w") as file:
            file.write("\n".join(map(repr, _asked)))
