"""Recommender over (user, item, rating) tuples kept in a Python list; workers are forked and touch its objects."""

import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dlprof

USERS, ITEMS, WINDOW = 5000, 2000, 600


class Ratings(Dataset):
    def __init__(self, n):
        rng = random.Random(0)
        self.rows = [(float(rng.randrange(USERS)), float(rng.randrange(ITEMS)), rng.random()) for _ in range(n)]

    def __len__(self):
        return len(self.rows) // WINDOW

    def __getitem__(self, i):
        mine = self.rows[i * WINDOW : (i + 1) * WINDOW]
        users, items, stars = zip(*mine, strict=True)
        return torch.tensor(users), torch.tensor(items), torch.tensor(stars)


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8)

    def forward(self, u, i):
        return (self.user(u.long()) * self.item(i.long())).sum(-1)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Factors()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Ratings(68 * 8 * WINDOW), batch_size=8, shuffle=True, num_workers=2)
for users, items, stars in loader:
    with dlprof.span("gpu part", kind="device"):
        time.sleep(0.025)
    loss = (model(users, items) - stars).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print("mse", loss.item())
