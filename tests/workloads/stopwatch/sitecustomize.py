"""Times a plain run: when the main process asked for each batch. On ``PYTHONPATH`` for ``run.py --plain`` only.

``WORKLOAD_SERVED`` is ``FIRST:LAST``: these requests get batches that came before, so that they tell what a step takes
without any input. The workers have nothing to do meanwhile.
"""

import os
import time

_target = os.environ.pop("WORKLOAD_STOPWATCH", None)
_served = range(*map(int, os.environ.pop("WORKLOAD_SERVED", "0:0").split(":")))
# The variables are gone now, so that no process which the script starts is timed too.
if _target:
    import atexit
    import copy

    from torch.utils.data import dataloader

    _asked: list[float] = []
    _kept: list[object] = []
    _request = dataloader._BaseDataLoaderIter.__next__

    def _timed(self):
        number = len(_asked)
        _asked.append(time.perf_counter())
        if number in _served:
            return _kept[number % len(_kept)]
        batch = _request(self)
        if number < _served.start:
            _kept.append(copy.deepcopy(batch))
        return batch

    dataloader._BaseDataLoaderIter.__next__ = _timed

    @atexit.register
    def _write() -> None:
        with open(_target, "w") as file:
            file.write("\n".join(map(repr, _asked)))
