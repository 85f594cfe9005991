"""Trains a tabular model on CSV shards, streamed: every worker takes each num_workers-th shard."""

import glob
import os
import random
import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SHARDS = 2
WORKERS = 2
ROWS, COLUMNS, BATCH = 66 * 150, 200, 150


def export(folder):
    rng = random.Random(2)
    rows = [",".join(f"{rng.gauss(0, 1):.5f}" for _ in range(COLUMNS)) for _ in range(256)]
    for s in range(SHARDS):
        with open(os.path.join(folder, f"part-{s:03d}.csv"), "w") as f:
            for r in range(ROWS // SHARDS):
                f.write(f"{r % 2},{rows[(r * 7 + s) % 256]}\n")


class CsvShards(IterableDataset):
    def __init__(self, pattern):
        self.files = sorted(glob.glob(pattern))

    def __iter__(self):
        info = get_worker_info()
        for name in self.files[info.id :: info.num_workers]:
            with open(name) as f:
                for line in f:
                    yield self.parse(line)

    def parse(self, line):
        label, *cells = line.rstrip("\n").split(",")
        # winsorised to three sigmas, scaled to 0..1, square root
        values = [round((min(max(float(cell), -3.0), 3.0) + 3.0) / 6.0, 4) ** 0.5 for cell in cells]
        return torch.tensor(values), float(label)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        export(folder)
        data = DataLoader(CsvShards(os.path.join(folder, "*.csv")), batch_size=BATCH, num_workers=WORKERS)
        model = nn.Sequential(nn.Linear(COLUMNS, 64), nn.Tanh(), nn.Linear(64, 1))
        sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in data:
            sgd.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())
            loss.backward()
            sgd.step()
        print(loss.item())
    return 0


if __name__ == "__main__":
    sys.exit(main())
