import random
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import dlprof


class Conversations(Dataset):
    """Conversations in a file; only its path goes to the workers."""

    def __init__(self, path):
        self.path = path
        self.items = None
        self.count = len(np.load(path, mmap_mode="r"))

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if self.items is None:
            self.items = np.load(self.path, mmap_mode="r")
        return torch.from_numpy(self.items[i].astype(np.int64))


def write(path, count):
    rng = random.Random(11)
    np.save(path, np.array([rng.choices(range(500), k=12) for _ in range(count)], dtype=np.int16))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write(f"{folder}/conversations.npy", 40_000)
        dataset = Conversations(f"{folder}/conversations.npy")
        loader = DataLoader(dataset, batch_size=32, num_workers=2, multiprocessing_context="fork")
        emb = torch.nn.EmbeddingBag(500, 64)
        head = torch.nn.Linear(64, 1)
        opt = torch.optim.SGD([*emb.parameters(), *head.parameters()], lr=0.1)
        began = time.perf_counter()
        for step, ids in enumerate(loader):
            if step == 0:
                print(f"first batch after {time.perf_counter() - began:.1f} s", flush=True)
            with dlprof.span("forward/backward", kind="device"):
                time.sleep(0.025)
            loss = head(emb(ids)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step == 65:
                break
