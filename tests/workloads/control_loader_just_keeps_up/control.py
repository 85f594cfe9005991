"""Denoising of signals. The worker has work for three quarters of each step, and all of it is hidden behind the step.

The accelerator's step is a stand-in of 40 ms.
"""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dlprof


class Signals(Dataset):
    def __init__(self, count: int, length: int = 16384) -> None:
        self.count = count
        self.time = np.linspace(0, 40, length)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(number)
        clean = sum(np.sin(self.time * f) / (k + 1) for k, f in enumerate(rng.uniform(1, 30, size=10)))
        noisy = clean + rng.standard_normal(len(clean))
        return {"noisy": noisy[::64].astype(np.float32), "clean": clean[::64].astype(np.float32)}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with dlprof.span("accelerator step", kind="device"):
        time.sleep(0.040)
    optimizer.zero_grad()
    loss = nn.functional.l1_loss(model(batch["noisy"]), batch["clean"])
    loss.backward()
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = nn.Linear(256, 256)
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Signals(66 * 12), batch_size=12, num_workers=1, shuffle=True)
    losses = [step(model, optimizer, batch) for batch in loader]
    print("loss", float(torch.stack(losses).mean()))
