"""Which iterable datasets ask what worker they run in: seen where their code runs, and nothing is changed by it."""

from __future__ import annotations

import pytest
from hooked_scripts import Scripts
from test_training_loops import profile_of

SCRIPT = """
import sys, threading
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

class All(IterableDataset):
    def __iter__(self):
        for number in range(12):
            yield torch.tensor([float(number)]) + torch.rand(1)

class Share(All):
    def __iter__(self):
        info = get_worker_info()
        yield from list(super().__iter__())[info.id if info else 0 :: info.num_workers if info else 1]

class ShareAtOnce(All):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return iter(list(super().__iter__())[info.id if info else 0 :: info.num_workers if info else 1])

class ShareInThread(All):
    def __iter__(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(get_worker_info()))
        thread.start()
        thread.join()
        yield from super().__iter__()

class Map(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        get_worker_info()
        return torch.tensor([float(index)])

def told(worker):
    pass

def main(kinds, workers, method):
    torch.manual_seed(2)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for kind in kinds:
        context = method if workers else None
        init = told if kind == "Told" else None
        dataset = All() if kind == "Told" else globals()[kind]()
        for batch in DataLoader(
            dataset, 2, num_workers=workers, multiprocessing_context=context, worker_init_fn=init
        ):
            model(batch).sum().backward()
            optimizer.step()
            print(kind, batch.tolist())
    print(torch.rand(1), model.weight)

if __name__ == "__main__":
    main(sys.argv[3:], int(sys.argv[1]), sys.argv[2])
"""
ASKS = {"All": False, "Share": True, "ShareAtOnce": True, "Map": None, "Told": None}


@pytest.mark.parametrize(
    ("workers", "method", "asks"),
    [
        # What a thread of a dataset asks in the training process may be meant for any of the loaders there.
        (0, "fork", ASKS),
        (0, "fork", {"ShareInThread": True}),
        (2, "fork", ASKS | {"ShareInThread": True}),
        (2, "spawn", {"All": False, "Share": True}),
    ],
)
def test_who_asks_is_seen_where_the_samples_are_made(
    scripts: Scripts, workers: int, method: str, asks: dict[str, bool | None]
) -> None:
    plain, hooked = scripts.both(scripts.write(SCRIPT), str(workers), method, *asks)
    assert (plain.status, plain.stderr) == (hooked.status, hooked.stderr) == (0, b"")
    assert plain.stdout == hooked.stdout
    assert hooked.recording is not None
    found = profile_of(hooked.recording).loaders
    assert [each.asks_worker for each in found] == list(asks.values())
