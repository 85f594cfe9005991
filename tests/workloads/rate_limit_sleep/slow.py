import itertools
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset


class RateLimited:
    """At most `per_second` calls: the annotation service bans us otherwise."""

    def __init__(self, per_second):
        self.gap = 1.0 / per_second

    def wait(self):
        time.sleep(self.gap)


class Annotations(IterableDataset):
    def __init__(self, limiter):
        super().__init__()
        self.limiter = limiter

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        generator = torch.Generator().manual_seed(worker.id)
        for n in itertools.count():
            self.limiter.wait()
            yield torch.randn(512, generator=generator), n % 3


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(512, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 3))
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
stream = DataLoader(Annotations(RateLimited(per_second=150)), batch_size=16, num_workers=2)
for x, y in itertools.islice(stream, 66):
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
print("final", loss.item())
