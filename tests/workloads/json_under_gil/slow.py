"""Point clouds exported as JSON, one document per scan, parsed at every access."""

import json
import random
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


def export(folder: Path, scans: int) -> None:
    rng = random.Random(4)
    for number in range(scans):
        points = [[round(rng.random(), 6) for _ in range(3)] for _ in range(2500)]
        (folder / f"scan{number}.json").write_text(json.dumps({"label": number % 3, "points": points}))


class Scans(Dataset):
    def __init__(self, folder: Path, length: int) -> None:
        self.texts = [file.read_text() for file in sorted(folder.glob("scan*.json"))]
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, item: int):
        text = self.texts[item % len(self.texts)]
        scan = json.loads(text)
        corners = scan["points"][:: 2500 // 65]
        return torch.tensor(corners), scan["label"]


def run() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        export(Path(name), 40)
        dataset = Scans(Path(name), 66 * 12)
    model = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.LazyLinear(3000),
        torch.nn.ReLU(),
        torch.nn.Linear(3000, 800),
        torch.nn.ReLU(),
        torch.nn.Linear(800, 3),
    )
    loader = DataLoader(dataset, batch_size=12, num_workers=2)
    model(torch.zeros(1, 66, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for points, label in loader:
        loss = torch.nn.functional.cross_entropy(model(points), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


run()
