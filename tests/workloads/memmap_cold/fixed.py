"""Graph-style sampling from a feature table that is a numpy memmap: each sample gathers 20 rows from all over it."""

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class NeighbourFeatures(Dataset):
    """Mean of the features of 20 neighbours."""

    def __init__(self, file: Path, samples: int, rows: int, width: int) -> None:
        self.table = np.memmap(file, dtype=np.float32, mode="r", shape=(rows, width))
        self.table._mmap.madvise(mmap.MADV_RANDOM)  # no use in reading ahead
        self.neighbours = np.random.default_rng(0).permutation(rows)[: samples * 20].reshape(samples, 20)

    def __len__(self) -> int:
        return len(self.neighbours)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        around = self.table[self.neighbours[index]]
        return torch.from_numpy(around.mean(axis=0)), torch.tensor(index % 7)


def make_table(file: Path, rows: int, width: int) -> None:
    rng = np.random.default_rng(5)
    with file.open("wb") as out:
        for _ in range(0, rows, 2640):
            out.write(rng.standard_normal((2640, width), dtype=np.float32).tobytes())
        out.flush()
        os.fsync(out.fileno())


def warm(file: Path) -> None:
    """Read the file once from front to back, at full speed: it fits into memory."""
    with file.open("rb", buffering=0) as handle:
        while handle.read(1 << 22):
            pass


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    batch, batches, width = 32, 66, 1024
    rows = batch * batches * 20
    with tempfile.TemporaryDirectory(prefix="features-") as folder:
        file = Path(folder, "table.f32")
        make_table(file, rows, width)
        warm(file)
        dataset = NeighbourFeatures(file, batch * batches, rows, width)
        loader = DataLoader(dataset, batch_size=batch, num_workers=1)
        model = nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, 7))
        optimizer = torch.optim.AdamW(model.parameters())
        criterion = nn.CrossEntropyLoss()
        total = 0.0
        for features, target in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(features), target)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"mean loss {total / len(loader):.3f}")


if __name__ == "__main__":
    main()
