"""Run by ``handover_probe`` as a script of its own: one worker hands over batches of a given shape."""

import json
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):  # type: ignore[misc] # torch is not typed here
    """Batches of zeros: tensors of the given shapes, and as many small strings as there were other objects."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked

    def __len__(self) -> int:
        return int(self._asked["batches"])

    def __getitem__(self, index: int) -> list[Any]:
        tensors = [torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in self._asked["tensors"]]
        return [*tensors, *(str(number) for number in range(self._asked["others"]))]


if __name__ == "__main__":
    torch.set_num_threads(1)
    loader = DataLoader(Batches(json.loads(sys.argv[1])), batch_size=None, num_workers=1)
    for _ in loader:
        pass
