"""The host runs ahead of an accelerator, at most two steps; then `to_device` waits, and looks slow.

The accelerator is a stand-in: a thread that takes 40 ms a step. The copy itself takes next to nothing.
"""

import collections
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.data import DataLoader, Dataset

import dlprof


class Stream:
    depth = 2

    def __init__(self):
        self.pool = ThreadPoolExecutor(1)
        self.queued = collections.deque()

    def to_device(self, tensor):
        while len(self.queued) >= self.depth:
            self.queued.popleft().result()
        return tensor.clone()

    def launch(self, seconds):
        self.queued.append(self.pool.submit(self._kernels, seconds))

    @staticmethod
    def _kernels(seconds):
        with dlprof.span("kernels", kind="device"):
            time.sleep(seconds)


class Frames(Dataset):
    def __init__(self):
        self.frames = torch.rand(200, 3, 64, 64, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return 66 * 8

    def __getitem__(self, i):
        return self.frames[i % 200], torch.tensor(i % 5)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    stream = Stream()
    model = torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(48, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for frames, action in DataLoader(Frames(), batch_size=8, num_workers=1):
        frames = stream.to_device(frames)
        loss = torch.nn.functional.cross_entropy(model(frames), action)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stream.launch(0.040)
    print(loss.item(), threading.active_count())


if __name__ == "__main__":
    main()
