"""Per-pixel classification of small tiles, with a log of the class-wise intersection over union at every step."""

import json
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 6


class TileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2), nn.ReLU(), nn.ConvTranspose2d(8, CLASSES, 4, stride=2))

    def forward(self, tiles):
        return self.body(tiles)


class Log:
    def __init__(self, path):
        self.file = open(path, "w")  # noqa: SIM115

    def write(self, **values):
        self.file.write(json.dumps(values) + "\n")
        self.file.flush()


def iou(predicted, true):
    pairs = torch.bincount((predicted * CLASSES + true).flatten(), minlength=CLASSES**2).view(CLASSES, CLASSES)
    both = pairs.diagonal()
    either = pairs.sum(0) + pairs.sum(1) - both
    return (both / either.clamp(min=1)).tolist()


def fit():
    torch.manual_seed(42)
    torch.set_num_threads(1)
    tiles = torch.randn(66 * 8, 4, 128, 128)
    truth = tiles[:, :1].mul(2).round().clamp(0, CLASSES - 1).long().squeeze(1)
    loader = DataLoader(TensorDataset(tiles, truth), batch_size=8, shuffle=True)
    net = TileNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    log = Log(tempfile.mkdtemp() + "/metrics.jsonl")
    for step, (x, y) in enumerate(loader):
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.write(step=step, loss=loss.item(), iou=iou(out.argmax(1), y))


if __name__ == "__main__":
    fit()
