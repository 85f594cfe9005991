"""Times a plain run: when the main process asked for each batch. On ``PYTHONPATH`` for ``run.py --plain`` only.

``WORKLOAD_WITHOUT`` says what has no cost in the requests ``WORKLOAD_REQUESTS`` (``FIRST:LAST``): ``input``, the main
process gets batches that came before and the workers have nothing to do; ``data-work``, whoever makes batches hands
over copies of one that was made before.
"""

import os
import time

_target = os.environ.pop("WORKLOAD_STOPWATCH", None)
_without = os.environ.pop("WORKLOAD_WITHOUT", None)
_requests = range(*map(int, os.environ.pop("WORKLOAD_REQUESTS", "0:0").split(":")))
# The variables are gone now, so that no process which the script starts is timed too.
if _target:
    import atexit
    import copy

    from torch.utils.data import _utils, dataloader, get_worker_info

    _asked: list[float] = []
    _kept: list[object] = []
    _pid = os.getpid()
    _request = dataloader._BaseDataLoaderIter.__next__

    def _timed(self):
        number = len(_asked)
        _asked.append(time.perf_counter())
        if _without == "input" and number in _requests:
            return _kept[number % len(_kept)]
        batch = _request(self)
        if _without == "input" and number < _requests.start:
            _kept.append(copy.deepcopy(batch))
        return batch

    dataloader._BaseDataLoaderIter.__next__ = _timed

    def _sparing(fetch):
        made = []
        asked = 0

        def spared(self, index):
            nonlocal asked
            # Workers are forked, and each counts its own.
            worker = get_worker_info()
            number, asked = asked * (worker.num_workers if worker else 1), asked + 1
            if made and number in _requests:
                return copy.deepcopy(made[0])
            batch = fetch(self, index)
            made[:] = [copy.deepcopy(batch)]
            return batch

        return spared

    if _without == "data-work":
        for _fetcher in (_utils.fetch._MapDatasetFetcher, _utils.fetch._IterableDatasetFetcher):
            _fetcher.fetch = _sparing(_fetcher.fetch)

    @atexit.register
    def _write() -> None:
        if os.getpid() == _pid:
            with open(_target, "w") as file:
                file.write("\n".join(map(repr, _asked)))
