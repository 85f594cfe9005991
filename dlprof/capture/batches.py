"""What a batch consists of, so that handing it over can be tried later with a copy of the same shape."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

_LIMIT = 4096
"""Objects that are looked at, containers included: one may hold itself."""


def describe(batch: Any) -> dict[str, Any]:
    """Describe a batch without touching its values.

    Args:
        batch: Whatever the loader returned.

    Returns:
        ``tensors``: shape and dtype of each tensor, ``bytes``: their total, ``samples``: length of the first
        dimension of the first tensor (None where there is none), ``others``: how many other objects it holds.
    """
    found: list[list[Any]] = []
    total = others = 0
    samples: int | None = None
    tensor_type = sys.modules["torch"].Tensor
    for thing in _leaves(batch):
        if isinstance(thing, tensor_type) and not thing.is_nested:
            shape = list(thing.shape)
            found.append([shape, str(thing.dtype).removeprefix("torch.")])
            total += thing.numel() * thing.element_size()
            if samples is None and shape:
                samples = shape[0]
        else:
            others += 1
    return {"tensors": found, "bytes": total, "samples": samples, "others": others}


def tensors(batch: Any) -> list[Any]:
    """The tensors in a batch.

    Args:
        batch: Whatever the loader returned.
    """
    tensor_type = sys.modules["torch"].Tensor
    return [thing for thing in _leaves(batch) if isinstance(thing, tensor_type)]


def _leaves(batch: Any) -> Iterator[Any]:
    """What a batch holds, containers apart, in their order by depth."""
    pending = [batch]
    for _ in range(_LIMIT):
        if not pending:
            return
        thing = pending.pop(0)
        if isinstance(thing, Mapping):
            pending.extend(thing.values())
        elif isinstance(thing, list | tuple):
            pending.extend(thing)
        else:
            yield thing
