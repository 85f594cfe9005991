"""Item embeddings from pairs that were bought together. Nothing of the work may be lost: save often."""

import os
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAVE_EVERY = 2
ITEMS, WIDTH = 130_000, 64


class Pairs(Dataset):
    def __init__(self, count: int) -> None:
        self.pairs = torch.randint(0, ITEMS, (count, 128, 2), generator=torch.Generator().manual_seed(8))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.pairs[index]


class Items(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ITEMS, WIDTH, sparse=True)
        self.tower = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH))

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        left, right = self.tower(self.table(pairs)).unbind(1)
        return nn.functional.cross_entropy(left @ right.T, torch.arange(len(pairs)))


class Trainer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = Items()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def save(self, step: int) -> None:
        fresh = self.folder / "fresh.pt"
        torch.save({"step": step, "model": self.model.state_dict()}, fresh)
        os.replace(fresh, self.folder / "last.pt")

    def run(self, loader: DataLoader) -> None:
        for step, batch in enumerate(loader, 1):
            loss = self.model(batch.flatten(0, 1))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % SAVE_EVERY == 0:
                self.save(step)
            if step % 22 == 0:
                print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    torch.manual_seed(8)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        Trainer(Path(name)).run(DataLoader(Pairs(66 * 8), batch_size=8, shuffle=True))
