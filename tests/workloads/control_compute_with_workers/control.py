"""Small residual network, light augmentation in two workers. The network is all there is to wait for."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset


class Cifar(Dataset):
    """As large as CIFAR's first batch, with noise in it."""

    def __init__(self, train=True):
        rng = np.random.default_rng(0 if train else 1)
        self.images = rng.integers(0, 256, (3000, 32, 32, 3), dtype=np.uint8)
        self.targets = rng.integers(0, 10, 3000)

    def __len__(self):
        return 66 * 32

    def __getitem__(self, i):
        image = self.images[i]
        if (i * 2654435761) & 64:
            image = image[:, ::-1]
        image = np.ascontiguousarray(image.transpose(2, 0, 1), dtype=np.float32) / 255
        return image, int(self.targets[i])


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


def resnet(width=16):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), Block(width), nn.MaxPool2d(2), Block(width), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip


def train():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = resnet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=66)
    correct = seen = 0
    for images, targets in DataLoader(Cifar(), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True):
        optimizer.zero_grad()
        out = net(images)
        F.cross_entropy(out, targets).backward()
        optimizer.step()
        schedule.step()
        correct += (out.argmax(1) == targets).sum()
        seen += len(targets)
    print(f"accuracy {correct / seen:.3f}")


if __name__ == "__main__":
    train()
