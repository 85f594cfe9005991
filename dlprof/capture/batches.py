"""What a batch consists of, so that handing it over can be tried later with a copy of the same shape."""

from __future__ import annotations

import sys
from collections.abc import Mapping
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
    tensors: list[list[Any]] = []
    total = others = 0
    samples: int | None = None
    tensor_type = sys.modules["torch"].Tensor
    pending = [batch]
    for _ in range(_LIMIT):
        if not pending:
            break
        thing = pending.pop(0)
        if isinstance(thing, tensor_type) and not thing.is_nested:
            shape = list(thing.shape)
            tensors.append([shape, str(thing.dtype).removeprefix("torch.")])
            total += thing.numel() * thing.element_size()
            if samples is None and shape:
                samples = shape[0]
        elif isinstance(thing, Mapping):
            pending.extend(thing.values())
        elif isinstance(thing, list | tuple):
            pending.extend(thing)
        else:
            others += 1
    return {"tensors": tensors, "bytes": total, "samples": samples, "others": others}
