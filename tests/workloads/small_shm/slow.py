"""Sequence model with a length curriculum: batches grow over the epoch, and with them what two workers queue."""

import time

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

import dlprof

FEATURES, BATCH = 80, 24


class Utterances(Dataset):
    def __len__(self):
        return 68 * BATCH

    def __getitem__(self, i):
        frames = 100 + 12 * (i // BATCH)
        return torch.full((frames, FEATURES), (i % 9) / 9)


class ShortestFirst(Sampler):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))

    def __len__(self):
        return self.n


torch.manual_seed(0)
torch.set_num_threads(1)
data = Utterances()
loader = DataLoader(data, BATCH, sampler=ShortestFirst(len(data)), num_workers=2, prefetch_factor=2)
layer = torch.nn.Linear(FEATURES, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
for step, batch in enumerate(loader):
    with dlprof.span("encoder", kind="device"):
        time.sleep(0.025)
    loss = layer(batch.mean(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"{step}: {batch.shape[1]} frames, loss {loss.item():.4f}", flush=True)
