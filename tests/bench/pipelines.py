"""Training scripts whose input is slow in one known way, for ``forecast.py``.

    python tests/bench/pipelines.py KIND

Loaders are made without workers: ``dlprof run --set num_workers=N`` sets them. The device is stood in for by a sleep,
but for kinds that say they compute.
"""

from __future__ import annotations

import hashlib
import socket
import socketserver
import subprocess
import sys
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import dlprof

BATCHES = 400
"""More than any run takes."""


class Waiting(Dataset):
    """Samples that come from a service with a latency; one in ``rare`` takes ten times as long."""

    def __init__(self, seconds: float, rare: int = 0) -> None:
        self.seconds, self.rare = seconds, rare

    def __len__(self) -> int:
        return BATCHES * 8

    def __getitem__(self, index: int) -> torch.Tensor:
        slow = self.rare and index % self.rare == self.rare // 2
        time.sleep(self.seconds * (10 if slow else 1))
        return torch.full((128,), float(index % 7))


class Stream(IterableDataset):
    """Endless samples with a latency."""

    def __iter__(self):
        while True:
            time.sleep(0.006)
            yield torch.ones(128)


class Computing(Dataset):
    """Samples that take CPU time: a digest of so many bytes a round (without the GIL) or a loop in Python."""

    def __init__(self, rounds: int, *, python: bool = False, spread: bool = False, wait: float = 0.0) -> None:
        self.rounds, self.python, self.spread, self.wait = rounds, python, spread, wait
        self.bytes = bytes(100_000)

    def __len__(self) -> int:
        return BATCHES * 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.wait:
            time.sleep(self.wait)
        rounds = self.rounds * (1 + index * 7 % 5) // 3 if self.spread else self.rounds
        total = 0
        for _ in range(rounds):
            total += sum(range(3000)) if self.python else hashlib.sha256(self.bytes).digest()[0]
        return torch.full((128,), float(total % 7))


class Pictures(Dataset):
    """Large samples: 600 kB each, made quickly."""

    def __len__(self) -> int:
        return BATCHES * 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.random.default_rng(index).random((3, 224, 224), dtype=np.float32))


class OneAtATime(socketserver.BaseRequestHandler):
    """A source that serves one request after the other, whoever asks: 4 ms each."""

    def handle(self) -> None:
        time.sleep(0.004)
        self.request.sendall(b"x" * 64)


class Source(socketserver.TCPServer):
    """Where that is served; all workers may queue for it."""

    request_queue_size = 64


class Remote(Dataset):
    """Samples from that source."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __len__(self) -> int:
        return BATCHES * 8

    def __getitem__(self, index: int) -> torch.Tensor:
        with socket.create_connection(("127.0.0.1", self.port)) as source:
            got = source.recv(64)
        return torch.full((128,), float(len(got)))


DATASETS = {
    "latency": lambda: Waiting(0.006),
    "latency-computing-step": lambda: Waiting(0.006),
    "latency-uneven": lambda: Waiting(0.003, rare=60),
    "stream": Stream,
    "digest": lambda: Computing(28),
    "digest-uneven": lambda: Computing(28, spread=True),
    "digest-computing-step": lambda: Computing(28),
    "python-loop": lambda: Computing(70, python=True),
    "half-waiting": lambda: Computing(28, wait=0.003),
    "pictures": Pictures,
}
STEP_S = {"pictures": 0.015}
"""How long the device is busy with a batch; 9 ms where it is not said."""


def train(kind: str, dataset: Dataset) -> None:
    """Train until the profiler stops it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = 1200 if kind.endswith("computing-step") else 16
    model = torch.nn.Sequential(torch.nn.Linear(128, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    sgd = torch.optim.SGD(model.parameters(), lr=0.001)
    for batch in DataLoader(dataset, batch_size=8):
        rows = batch.flatten(1)[:, :128]
        if width == 16:
            with dlprof.span("stand-in", kind="device"):
                time.sleep(STEP_S.get(kind, 0.009))
        model(rows).square().mean().backward()
        sgd.step()
        sgd.zero_grad()


def main() -> None:
    """Train one kind."""
    kind = sys.argv[1]
    if kind == "serve":
        with Source(("127.0.0.1", 0), OneAtATime) as server:
            print(server.server_address[1], flush=True)
            server.serve_forever()
    elif kind == "saturated":
        source = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True)
        try:
            train(kind, Remote(int(source.stdout.readline())))
        finally:
            source.kill()
            source.wait()
    else:
        train(kind, DATASETS[kind]())


if __name__ == "__main__":
    main()
