"""Toy detector: each image has some boxes, and the targets are handed over as they come: one tensor each."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Target:
    boxes: list = field(default_factory=list)
    labels: list = field(default_factory=list)


class Scenes(Dataset):
    def __init__(self, size, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.images = torch.rand(size, 3, 64, 64, generator=g)
        self.counts = torch.randint(2, 6, (size,), generator=g).tolist()
        self.boxes = torch.rand(size, 8, 4, generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        target = Target()
        for k in range(self.counts[i]):
            target.boxes.append(self.boxes[i, k].clone())
            target.labels.append(torch.tensor(k % 4))
        return self.images[i], target


def collate(samples):
    images, targets = zip(*samples, strict=True)
    return torch.stack(images), list(targets)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    backbone = nn.Sequential(nn.Conv2d(3, 40, 3, 2), nn.ReLU(), nn.Conv2d(40, 56, 3, 2), nn.ReLU(), nn.Flatten())
    head = nn.Linear(56 * 15 * 15, 4)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.01)
    loader = DataLoader(Scenes(66 * 16), batch_size=16, shuffle=True, collate_fn=collate, num_workers=2)
    for images, targets in loader:
        wanted = torch.stack([torch.stack(t.boxes).mean(0) for t in targets])
        loss = (head(backbone(images)) - wanted).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("l1", loss.item())


if __name__ == "__main__":
    main()
