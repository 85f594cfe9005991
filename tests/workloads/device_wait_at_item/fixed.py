"""The loop queues work on an accelerator and asks for the loss each step, still with `.item()` in each step.

The accelerator is a stand-in: a thread that works off a queue, 16 ms a step since the network runs in bfloat16.
"""

import queue
import threading
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import dlprof


class Accelerator:
    def __init__(self, step_s):
        self.step_s = step_s
        self.work = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            result = self.work.get()
            with dlprof.span("kernels", kind="device"):
                time.sleep(self.step_s)
            result.set()

    def launch(self, value):
        result = Pending(value)
        self.work.put(result)
        return result


class Pending:
    """A number that the accelerator still computes."""

    def __init__(self, value):
        self.value = value
        self.done = threading.Event()

    def set(self):
        self.done.set()

    def item(self):
        self.done.wait()
        return float(self.value)


class Windows(Dataset):
    """Sliding windows over a long series."""

    def __init__(self, count, width=128):
        self.series = np.cumsum(np.random.default_rng(5).standard_normal(200_000)).astype(np.float32)
        self.count, self.width = count, width

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        at = (index * 97) % (len(self.series) - self.width - 1)
        window = self.series[at : at + self.width]
        return window - window.mean(), self.series[at + self.width] - window[-1]


def train(accelerator, batches=66, batch_size=32):
    torch.manual_seed(2)
    torch.set_num_threads(1)
    loader = DataLoader(Windows(batches * batch_size), batch_size=batch_size, num_workers=1)
    model = torch.nn.Linear(128, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    running = 0.0
    for windows, following in loader:
        loss = torch.nn.functional.mse_loss(model(windows).squeeze(1), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pending = accelerator.launch(loss.detach())
        running = 0.9 * running + 0.1 * pending.item()
    return running


if __name__ == "__main__":
    print("loss", round(train(Accelerator(step_s=0.016)), 4))
