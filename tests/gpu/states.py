"""A training loop that is known to be in one state; torch and the standard library only.

python states.py slow-loader            on the accelerator that torch finds
python states.py all --device cpu       every state for a few steps, to see that the code runs
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MB = 2**20
ITEM_S = 0.003
"""CPU time of one sample of the slow loader; a batch of 8 takes 24 ms."""
COPIED_BYTES = 256 * MB
"""Much for any bus, and little for the device's own memory."""
BUSY_S = 0.020
"""Device time of a step that is bound by compute."""


class Slow(Dataset):
    """Samples that cost CPU time."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.thread_time() + ITEM_S
        found = 0
        while time.thread_time() < until:
            found = (found * 31 + index) % 1_000_003
        return torch.full((256,), found / 1_000_003)


class Ready(Dataset):
    """Batches that lie ready in memory; whoever asks gets a view."""

    def __init__(self, batches: torch.Tensor) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batches[index % len(self.batches)]


def slow_loader(device: torch.device) -> Iterable[object]:
    """The device waits for the main process, which makes the batches itself."""
    yield from _train(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)), _batches(Slow(), 8), device)


def pageable_copies(device: torch.device) -> Iterable[object]:
    """Almost nothing but copies from pageable memory."""
    yield from _copies(device, pinned=False)


def pinned_copies(device: torch.device) -> Iterable[object]:
    """The same copies from pinned memory, which the host does not wait for."""
    yield from _looked_at_now_and_then(_copies(device, pinned=True))


def compute_bound(device: torch.device) -> Iterable[object]:
    """The device multiplies matrices, which the host does not wait for."""
    yield from _looked_at_now_and_then(_multiply(device))


def _looked_at_now_and_then(losses: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    """The host looks at every tenth loss, as scripts that log do.

    Without that a host that only launches would be done with the whole run before the device is with its first steps.
    """
    for index, loss in enumerate(losses):
        if index % 10 == 0:
            loss.item()
        yield loss


def item_each_step(device: torch.device) -> Iterable[object]:
    """The same, and the host waits for the loss in each step: the line looks slow, the device is."""
    for loss in _multiply(device):
        yield loss.item()


def launch_bound(device: torch.device) -> Iterable[object]:
    """Hundreds of operators on next to no data: the host cannot launch as fast as the device computes."""
    layers = [layer for _ in range(100) for layer in (nn.Linear(16, 16), nn.Tanh())]
    yield from _train(nn.Sequential(*layers, nn.Linear(16, 1)), _ready(torch.rand(4, 8, 16)), device, foreach=False)


STATES: dict[str, Callable[[torch.device], Iterable[object]]] = {
    "slow-loader": slow_loader,
    "pageable-copies": pageable_copies,
    "pinned-copies": pinned_copies,
    "compute-bound": compute_bound,
    "launch-bound": launch_bound,
    "item-each-step": item_each_step,
}


def accelerator() -> str | None:
    """The accelerator's type, None without one; also with versions of torch that have no ``torch.accelerator``."""
    if torch.cuda.is_available():
        return "cuda"
    found = getattr(torch, "accelerator", None)
    return found.current_accelerator().type if found is not None and found.is_available() else None


def _batches(data: Dataset, size: int | None) -> DataLoader:
    return DataLoader(data, batch_size=size, shuffle=size is not None, num_workers=0)


def _ready(batches: torch.Tensor) -> DataLoader:
    return _batches(Ready(batches), None)


def _train(
    model: nn.Module, loader: DataLoader, device: torch.device, foreach: bool | None = None
) -> Iterable[torch.Tensor]:
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
    for batch in loader:
        loss = model(batch.to(device, non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


def _copies(device: torch.device, *, pinned: bool) -> Iterable[torch.Tensor]:
    size = (COPIED_BYTES if device.type != "cpu" else MB) // 4
    batches = torch.rand(2, size)
    if pinned and device.type != "cpu":
        batches = batches.pin_memory()
    weight = nn.Parameter(torch.ones(1, device=device))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    for batch in _ready(batches):
        loss = (batch.to(device, non_blocking=pinned).mean() * weight).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


def _multiply(device: torch.device) -> Iterable[torch.Tensor]:
    size = 4096 if device.type != "cpu" else 128
    weight = nn.Parameter(torch.rand(size, size, device=device) / size)
    optimizer = torch.optim.SGD([weight], lr=1e-9)
    often = _repetitions(weight.detach(), device)
    for batch in _ready(torch.rand(4, size)):
        product = weight
        with torch.no_grad():
            for _ in range(often):
                product = product @ weight
        loss = ((batch.to(device) + product[0]) * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


def _repetitions(matrix: torch.Tensor, device: torch.device) -> int:
    """How many products take ``BUSY_S``."""
    if device.type == "cpu":
        return 2
    for _ in range(2):
        begin = time.perf_counter()
        for _ in range(10):
            matrix @ matrix
        getattr(torch, device.type).synchronize()
        each = (time.perf_counter() - begin) / 10
    return max(1, round(BUSY_S / each))


def main() -> None:
    """Run one state, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state", choices=[*STATES, "all"])
    parser.add_argument("--device", help="by default the accelerator")
    parser.add_argument("--batches", type=int, default=100_000, help="end after so many")
    asked = parser.parse_args()
    device = torch.device(asked.device or accelerator() or "cpu")
    torch.manual_seed(0)
    for name in STATES if asked.state == "all" else [asked.state]:
        for _, index in zip(STATES[name](device), range(1, asked.batches + 1), strict=False):
            if index == asked.batches:
                break
        print(name, "done")


if __name__ == "__main__":
    main()
