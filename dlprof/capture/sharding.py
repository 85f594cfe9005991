"""Whether an iterable dataset asks which worker it runs in, as one has to that gives each worker its own share.

Of a dataset that does not ask, each worker gives all samples. Asked is ``torch.utils.data.get_worker_info``, which says
None in the training process: one that could share its data out can be told from others there too.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

from dlprof.capture.recorder import Recorder

EVENT = "asked-worker"
_NOT_THE_DATASET = ("torch.", "dlprof.")
"""Modules that ask for reasons of their own: torch's collate function does for every tensor."""


class ShardWatch:
    """Records, once for each dataset and process, that code asked which worker it runs in.

    Args:
        recorder: Is told.

    Attributes:
        watches: Whether it would be seen; False where torch's function was given out before.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._thread = threading.local()
        self._said: set[tuple[int, int | None]] = set()
        self.watches = False

    def hook(self, module: Any) -> Any:
        """Torch's ``get_worker_info``, watched; None where it is too late or ``module`` has none.

        Args:
            module: ``torch.utils.data._utils.worker``, which has just been imported.
        """
        original = getattr(module, "get_worker_info", None)
        if original is None or "get_worker_info" in vars(sys.modules.get("torch.utils.data", module.__class__)):
            return None
        self.watches = True

        @functools.wraps(original)
        def get_worker_info() -> Any:
            self._asked(sys._getframe(1).f_globals.get("__name__"))
            return original()

        return get_worker_info

    def enter(self, dataset: int | None) -> int | None:
        """This thread runs a dataset's code now; returns whose it ran before, for `leave`.

        Args:
            dataset: Its number, None where it is not known.
        """
        before: int | None = getattr(self._thread, "dataset", None)
        self._thread.dataset = dataset
        return before

    def leave(self, before: int | None) -> None:
        """The dataset's code has returned."""
        self._thread.dataset = before

    def watched(self, loader: Any) -> bool:
        """Whether it would be seen if a loader's dataset shared its data out.

        Of a ``worker_init_fn`` it is not known what it does; datapipes are told their share by torch.
        """
        pipes = any(base.__name__ == "IterDataPipe" for base in type(loader.dataset).__mro__)
        return self.watches and getattr(loader, "worker_init_fn", None) is None and not pipes

    def _asked(self, by: Any) -> None:
        try:
            # A thread that the dataset has started may ask too, and then it is not known which dataset it is.
            key = os.getpid(), getattr(self._thread, "dataset", None)
            if key in self._said or str(by).startswith(_NOT_THE_DATASET):
                return
            self._said.add(key)
            self._recorder.event(EVENT, dataset=key[1])
        except Exception as error:
            self._recorder.failed("worker-info", error)
