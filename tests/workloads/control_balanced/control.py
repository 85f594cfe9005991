"""Robot arm: predicts the next pose. The worker and the loop take about as long, so that neither alone is to blame.

A batch is 34 ms of work in the worker. The loop has 18 ms of the accelerator (a stand-in) and 14 ms of Python, in which
an average of the weights is kept. Without the Python the worker would still need its 34 ms, and the other way round.
"""

import time

import torch
from torch.utils.data import DataLoader, IterableDataset

import dlprof


def python_for(seconds):
    """Python work of a known length, in CPU time."""
    end, turns = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        turns += 1
    return turns


class Recordings(IterableDataset):
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        generator = torch.Generator().manual_seed(6)
        for _ in range(self.batches):
            python_for(0.034)
            yield torch.randn(16, 12, generator=generator), torch.randn(16, 6, generator=generator)


class Average:
    def __init__(self, model):
        self.weights = [p.detach().flatten().tolist() for p in model.parameters()]

    def update(self):
        python_for(0.014)


def main():
    torch.manual_seed(6)
    torch.set_num_threads(1)
    arm = torch.nn.Linear(12, 6)
    average = Average(arm)
    optimizer = torch.optim.SGD(arm.parameters(), lr=0.01)
    for joints, pose in DataLoader(Recordings(66), batch_size=None, num_workers=1):
        with dlprof.span("accelerator step", kind="device"):
            time.sleep(0.018)
        loss = (arm(joints) - pose).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update()


if __name__ == "__main__":
    main()
