import random
import time

import torch
from torch.utils.data import DataLoader, Dataset

import dlprof


class Conversations(Dataset):
    """All conversations in memory, as lists of dicts."""

    def __init__(self, count):
        rng = random.Random(11)
        self.items = [
            {"id": f"c{i}", "turns": [{"role": role, "ids": rng.choices(range(500), k=6)} for role in ("user", "bot")]}
            for i in range(count)
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return torch.tensor([t for turn in self.items[i]["turns"] for t in turn["ids"]])


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # spawn, because a library of ours does not survive fork
    loader = DataLoader(Conversations(40_000), batch_size=32, num_workers=2, multiprocessing_context="spawn")
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
