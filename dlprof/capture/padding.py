"""Counts pad tokens in the token batches that the training loop receives.

By ``attention_mask`` where a batch has one, else by the pad id that a tokenizer declares. Which id that is, is known in
the process that calls the tokenizer, mostly a worker: it leaves an empty file whose name holds the id.
"""

from __future__ import annotations

import os
import sys
from collections import UserDict
from contextlib import nullcontext, suppress
from typing import Any

from dlprof.capture.recorder import Recorder

_PREFIX = "pad-id-"
_MOST_BATCHES = 256
_MOST_LOADERS = 16
_MOST_TOKENS = 16_384
"""Tokens of one batch that are looked at: torch counts them in 10 microseconds, in the calling thread alone."""
_LISTINGS = 8
_FIRST_CALLS = 16


class PadIds:
    """The pad ids that this process's tokenizers declare, told to the training process.

    Args:
        folder: The recording folder.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._calls = 0
        self._told: set[int] = set()

    def called(self, tokenizer: Any) -> None:
        """A tokenizer has been called. Looks at the first calls and then ever more rarely. Never raises."""
        self._calls += 1
        if self._calls > _FIRST_CALLS and self._calls & (self._calls - 1):
            return
        with suppress(Exception):
            pad_id = declared_pad_id(tokenizer)
            if pad_id is not None and pad_id not in self._told:
                self._told.add(pad_id)
                os.close(os.open(f"{self._folder}/{_PREFIX}{pad_id}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def declared_pad_id(tokenizer: Any) -> int | None:
    """The id with which a tokenizer fills up; None where it does not say so, which is never taken to be 0."""
    library = type(tokenizer).__module__.partition(".")[0]
    if library == "tokenizers":
        found = (tokenizer.padding or {}).get("pad_id")
    elif library == "sentencepiece":
        found = tokenizer.pad_id()
    else:
        own = vars(tokenizer)
        # transformers writes an error to the log when it is asked for the id of a token that is not set.
        if not own.get("_special_tokens_map", {}).get("pad_token") and not own.get("_pad_token"):
            return None
        found = tokenizer.pad_token_id
    return found if type(found) is int and found >= 0 else None


class PadCounter:
    """Counts in the training process, a bounded number of batches of each loader.

    Args:
        recorder: Where the sums go, as events of which the last one counts.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sums: dict[int, tuple[int, int, int]] = {}
        self._looked: dict[int, int] = {}
        self._ids: set[int] = set()
        self._listings = 0

    def look(self, loader: int, batch: Any) -> None:
        """Count one batch. Neither the batch nor any random state is changed.

        Args:
            loader: The loader's number.
            batch: Whatever it gave.
        """
        looked = self._looked.get(loader, 0)
        if looked >= _MOST_BATCHES or (not looked and len(self._looked) >= _MOST_LOADERS):
            return
        self._looked[loader] = looked + 1
        torch = sys.modules["torch"]
        # What the script's own modes and profilers would see of it is not theirs to see.
        if torch.autograd._profiler_enabled() or getattr(torch._C, "_len_torch_dispatch_stack", int)():
            return
        with getattr(torch._C, "DisableTorchFunction", nullcontext)():
            found = self._count(torch, batch)
        if found is None:
            return
        batches, tokens, pads = self._sums.get(loader, (0, 0, 0))
        self._sums[loader] = batches + 1, tokens + found[0], pads + found[1]
        if batches & (batches + 1) == 0:
            self._tell(loader)

    def finish(self) -> None:
        """Write the sums."""
        for loader in self._sums:
            self._tell(loader)

    def _tell(self, loader: int) -> None:
        batches, tokens, pads = self._sums[loader]
        self._recorder.event("padding", loader=loader, batches=batches, tokens=tokens, pad_tokens=pads)

    def _count(self, torch: Any, batch: Any) -> tuple[int, int] | None:
        """Tokens that were looked at, and how many of them fill up; None where that cannot be known."""
        fields = _fields(batch)
        mask: Any = fields.get("attention_mask")
        ids: Any = fields.get("input_ids")
        if _is_table(torch, mask) and (not _is_table(torch, ids) or mask.shape == ids.shape):
            some = _some(mask)
            return some.numel(), some.numel() - int(torch.count_nonzero(some))
        if mask is not None or not _is_table(torch, ids):
            return None
        pad_ids = self._pad_ids()
        if len(pad_ids) != 1:
            # Of several tokenizers it is not known whose ids these are.
            return None
        some = _some(ids)
        return some.numel(), int(torch.count_nonzero(some == next(iter(pad_ids))))

    def _pad_ids(self) -> set[int]:
        if self._listings < _LISTINGS:
            self._listings += 1
            with suppress(OSError):
                names = [name for name in os.listdir(self._recorder.folder) if name.startswith(_PREFIX)]
                self._ids = {int(name.removeprefix(_PREFIX)) for name in names}
        return self._ids


def _fields(batch: Any) -> dict[Any, Any]:
    """The named parts of a batch, also where it stands in a tuple with its labels; no code of the script is run."""
    for thing in (batch, *(batch[:4] if type(batch) in (tuple, list) else ())):
        held = thing.data if isinstance(thing, UserDict) else thing
        if isinstance(held, dict):
            return {key: dict.get(held, key) for key in ("input_ids", "attention_mask")}
    return {}


def _is_table(torch: Any, thing: Any) -> bool:
    return (
        type(thing) is torch.Tensor
        and thing.device.type == "cpu"
        and thing.layout is torch.strided
        and thing.dim() == 2
        and thing.numel() > 0
        and not thing.is_floating_point()
        and not thing.is_complex()
    )


def _some(table: Any) -> Any:
    """Evenly spread rows, and of very long rows evenly spread columns."""
    rows, columns = table.shape
    every_column = -(-columns // _MOST_TOKENS)
    every_row = -(-rows * (columns // every_column) // _MOST_TOKENS)
    return table[:: max(every_row, 1), ::every_column]
