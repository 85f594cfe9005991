"""Training loops in the forms that people write; run by test_loader_forms.py, plain and with the hooks.

Usage: forms_script.py FOLDER each WORKERS...  |  FOLDER folded METHOD. Prints a line of JSON for each iteration, in the
order in which they were begun, and at the end what became of the model and the random state.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import multiprocessing
import queue
import random
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SequentialSampler,
    get_worker_info,
)
from torch.utils.data import dataloader as torchs

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None
try:
    from tqdm import tqdm
except ImportError:

    def tqdm(batches, file):
        yield from batches


SLOW_ENOUGH_TO_BE_TIMED_NS = 30_000
LENGTH, BATCH = 36, 6
offset = 0.0


def work():
    """Spin: items faster than 20 microseconds are timed one in sixteen only."""
    end = time.perf_counter_ns() + SLOW_ENOUGH_TO_BE_TIMED_NS
    while time.perf_counter_ns() < end:
        pass


def noise():
    work()
    return torch.randn(4) + random.random() + np.random.rand() + offset


class Map(Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return noise(), index


class InOneGo(Map):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Certain(Map):
    """Which worker makes which batch is left to chance without an order: these items do not depend on it."""

    def __getitem__(self, index):
        work()
        return torch.full((4,), float(index)), index


class Stream(IterableDataset):
    """Each worker reads all; the second stops earlier."""

    def __iter__(self):
        info = get_worker_info()
        number = info.id if info else 0
        for index in range(24 - 10 * number):
            yield noise(), index


class Misjudged(Stream):
    """Gives more than it says it has: torch warns of the line that asked."""

    def __len__(self):
        return 10


class Outer(Dataset):
    """A loader inside a dataset."""

    def __init__(self):
        self.inner = None

    def __len__(self):
        return 12

    def __getitem__(self, index):
        work()
        if self.inner is None or index % 6 == 0:
            self.inner = iter(DataLoader(Map(), batch_size=4))
        return next(self.inner)[0].mean(0), index


class Backwards(Sampler):
    def __iter__(self):
        return iter(range(LENGTH - 1, -1, -1))

    def __len__(self):
        return LENGTH


def collate(samples, more=0.0):
    inputs, index = torch.utils.data.default_collate(samples)
    return [inputs + more, index]


class Collate:
    def __call__(self, samples):
        return collate(samples, 1.0)

    def method(self, samples):
        return collate(samples, 2.0)


class Generating(DataLoader):
    """A subclass whose ``__iter__`` is a generator."""

    def __iter__(self):
        yield from super().__iter__()


class Counting(torchs._MultiProcessingDataLoaderIter):
    def __init__(self, loader):
        super().__init__(loader)
        self.count = 0

    def __next__(self):
        batch = super().__next__()
        self.count += 1
        return batch


class OwnIterator(DataLoader):
    """A subclass with an iterator of its own."""

    def _get_iterator(self):
        return Counting(self) if self.num_workers else super()._get_iterator()


class OwnIter(DataLoader):
    """A subclass that makes its iterators without torch's ``__iter__``."""

    def __iter__(self):
        return self._get_iterator()


def begin_worker(folder, form, worker):
    """A ``worker_init_fn``: notes that it was called, and in which state."""
    global offset  # noqa: PLW0603 - a worker is a process of its own
    offset = 1.0 * worker
    with open(Path(folder) / f"{form}.{worker}", "a") as file:
        file.write(f"{random.random()} {np.random.rand()} {torch.rand(1).item()} {get_worker_info().seed}\n")


class Training:
    """A model, and an account of all iterations."""

    def __init__(self, folded):
        self.folded = folded
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.001)
        self.accounts = []

    def step(self, inputs, accumulate=False):
        self.model(inputs.reshape(-1, 4)).pow(2).mean().backward()
        if not accumulate:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def begin(self, form, loader, in_order=True):
        """Begin an iteration; its batches are accounted for as they are taken."""
        account = {"form": form, "workers": loader.num_workers, "persistent": loader.persistent_workers, "ended": False}
        account |= {"folded": self.folded, "samples": [], "digest": []}
        self.accounts.append(account)
        return self._batches(account, iter(loader), in_order)

    @staticmethod
    def _batches(account, iterator, in_order):
        for inputs, index in iterator:
            account["samples"].append(index.numel() if isinstance(index, torch.Tensor) else 1)
            account["digest"].append(hashlib.sha256(inputs.numpy().tobytes() + str(index).encode()).hexdigest()[:16])
            yield inputs
        account["ended"] = True
        if not in_order:
            account["digest"].sort()

    def epochs(self, form, loader, count=2):
        for _ in range(count):
            for inputs in self.begin(form, loader):
                self.step(inputs)

    def without_order(self, form, loader):
        # The model is left alone: what it learned would depend on the order.
        for inputs in self.begin(form, loader, in_order=False):
            self.model(inputs)

    def report(self):
        for account in self.accounts:
            print(json.dumps(account))
        states = repr((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))
        print(hashlib.sha256(states.encode()).hexdigest(), self.model.weight.sum().item())


def each_form(training, folder, workers):
    """Every form by itself."""
    usual = {"num_workers": workers}

    def settings(form):
        begin = functools.partial(begin_worker, folder, f"{form}{workers}")
        return usual | {"worker_init_fn": begin} if workers else usual

    forms = {
        "map": functools.partial(DataLoader, Map(), BATCH),
        "getitems": functools.partial(DataLoader, InOneGo(), BATCH),
        "stream": functools.partial(DataLoader, Stream(), 5),
        "stream-unbatched": functools.partial(DataLoader, Stream(), None),
        "batch-sampler": functools.partial(
            DataLoader, Map(), batch_sampler=BatchSampler(SequentialSampler(range(LENGTH)), BATCH, False)
        ),
        "unbatched": functools.partial(DataLoader, Map(), None),
        "lambda": functools.partial(DataLoader, Map(), BATCH, collate_fn=lambda samples: collate(samples, 3.0)),
        "partial": functools.partial(DataLoader, Map(), BATCH, collate_fn=functools.partial(collate, more=4.0)),
        "callable": functools.partial(DataLoader, Map(), BATCH, collate_fn=Collate()),
        "bound": functools.partial(DataLoader, Map(), BATCH, collate_fn=Collate().method),
        "sampler": functools.partial(DataLoader, Map(), BATCH, sampler=Backwards()),
        "generator": functools.partial(
            DataLoader, Map(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(4)
        ),
        "pinned": functools.partial(DataLoader, Map(), BATCH, pin_memory=True),
        "generating": functools.partial(Generating, Map(), BATCH),
        "own-iterator": functools.partial(OwnIterator, Map(), BATCH),
        "own-iter": functools.partial(OwnIter, Map(), BATCH),
        "nested": functools.partial(DataLoader, Outer(), 4),
    }
    if workers:
        forms["timeout"] = functools.partial(DataLoader, Map(), BATCH, timeout=60)
        forms["persistent"] = functools.partial(DataLoader, Map(), BATCH, persistent_workers=True)
        forms["persistent-stream"] = functools.partial(DataLoader, Stream(), 5, persistent_workers=True)
    if StatefulDataLoader is not None:
        forms["stateful"] = functools.partial(StatefulDataLoader, Map(), BATCH)
        forms["stateful-stream"] = functools.partial(StatefulDataLoader, Stream(), 5)
        if workers:
            forms["stateful-persistent"] = functools.partial(StatefulDataLoader, Map(), BATCH, persistent_workers=True)
    for form, make in forms.items():
        training.epochs(form, make(**settings(form)))
    misjudged = DataLoader(Misjudged(), 5, **usual)
    training.model(torch.full((4,), float(len(misjudged))))
    training.epochs("misjudged", misjudged)
    if workers:
        training.without_order("unordered", DataLoader(Certain(), BATCH, in_order=False, **usual))
    each_loop(training, DataLoader(Map(), BATCH, **settings("loops")), workers)


def each_loop(training, loader, workers):
    """Every way to ask for batches, of one loader."""
    for _ in range(3):
        training.step(next(training.begin("anew each step", loader)))
    for epoch in range(2):
        again = DataLoader(Map(), BATCH, num_workers=0 if loader.persistent_workers else workers)
        training.epochs(f"anew each epoch {epoch}", again, 1)
    for _, inputs in enumerate(tqdm(training.begin("tqdm", loader), file=io.StringIO())):
        training.step(inputs)
    other = DataLoader(Map(), 4)
    for inputs, more in zip(training.begin("zip", loader), training.begin("zipped", other), strict=False):
        training.step(inputs)
        training.step(more)
    for number, inputs in enumerate(training.begin("accumulating", loader)):
        training.step(inputs, accumulate=number % 3 != 2)
    taken = 0
    while taken < LENGTH // BATCH + 2:
        for inputs in training.begin("endless", loader):
            training.step(inputs)
            taken += 1
            if taken == LENGTH // BATCH + 2:
                break
    validation = DataLoader(Map(), 9)
    for _ in range(2):
        training.epochs("trained", loader, 1)
        for inputs in training.begin("validated", validation):
            with torch.no_grad():
                training.model(inputs)
    _prefetching(training, loader)
    thread = threading.Thread(target=training.epochs, args=("in a thread", loader, 1))
    thread.start()
    thread.join()


def _prefetching(training, loader):
    ready = queue.Queue(2)

    def feed():
        for inputs in training.begin("prefetching", loader):
            ready.put(inputs)
        ready.put(None)

    thread = threading.Thread(target=feed)
    thread.start()
    while (inputs := ready.get()) is not None:
        training.step(inputs)
    thread.join()


def folded(training, folder):
    """The same with few workers: starting one costs seconds where Python starts anew."""

    def settings(form, workers):
        return {"num_workers": workers, "worker_init_fn": functools.partial(begin_worker, folder, form)}

    several = DataLoader(
        Map(),
        BATCH,
        collate_fn=functools.partial(collate, more=4.0),
        sampler=Backwards(),
        generator=torch.Generator().manual_seed(4),
        timeout=120,
        pin_memory=True,
        **settings("several", 2),
    )
    training.epochs("several", several, 1)
    persistent = DataLoader(
        InOneGo(),
        BATCH,
        shuffle=True,
        collate_fn=Collate().method,
        persistent_workers=True,
        **settings("persistent", 2),
    )
    each_loop(training, persistent, 2)
    del persistent
    training.epochs("stream", Generating(Stream(), 5, collate_fn=Collate(), **settings("stream", 2)), 1)
    batches = BatchSampler(SequentialSampler(range(LENGTH)), BATCH, False)
    unordered = OwnIterator(Certain(), batch_sampler=batches, in_order=False, **settings("unordered", 2))
    training.without_order("unordered", unordered)
    training.epochs("nested", OwnIter(Outer(), None, **settings("nested", 1)), 1)
    if StatefulDataLoader is not None:
        stateful = StatefulDataLoader(Stream(), 5, persistent_workers=True, **settings("stateful", 1))
        training.epochs("stateful", stateful)


def main():
    folder, what, *rest = sys.argv[1:]
    training = Training(what == "folded")
    if what == "each":
        multiprocessing.set_start_method("fork")
        for workers in rest:
            each_form(training, folder, int(workers))
    else:
        multiprocessing.set_start_method(rest[0])
        if rest[0] == "forkserver":
            multiprocessing.set_forkserver_preload(["torch"])
        folded(training, folder)
    training.report()


if __name__ == "__main__":
    main()
