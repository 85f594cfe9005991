"""Train a small convnet to tell scikit-learn's two sample photographs apart, a Chinese temple and a flower.

    python examples/train_images.py --workers 2

The first start writes some hundreds of JPEG files, each a crop of one of them, some mirrored, all recoloured.
"""

import argparse
import hashlib
import os
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

CLASSES = ["china", "flower"]
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)
WARMUP = 5


def arguments() -> argparse.Namespace:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "train-images"
    parser = argparse.ArgumentParser(description="Train a small convnet on crops of two photographs.")
    add = parser.add_argument
    add("--workers", type=int, default=0, help="data loader workers (%(default)s)")
    add("--batch-size", type=int, default=12, help="images in a batch (%(default)s)")
    add("--size", type=int, default=96, help="width and height the network sees (%(default)s)")
    add("--images", type=int, default=840, help="images made of the two photographs (%(default)s)")
    add("--learning-rate", type=float, default=1e-3, help="(%(default)s)")
    add("--epochs", type=int, default=1, help="(%(default)s)")
    add("--steps", type=int, help="stop after so many steps")
    add("--log-every", type=int, default=10, help="steps between two lines (%(default)s)")
    add("--seed", type=int, default=0, help="(%(default)s)")
    add("--threads", type=int, default=1, help="threads that compute one operation (%(default)s)")
    add("--device", default=device, help="(%(default)s)")
    add("--cache", type=Path, default=cache, help="folder for the images (%(default)s)")
    return parser.parse_args()


def write_images(folder: Path, count: int) -> None:
    """Write crops of the photographs, 480 to 640 pixels wide, half of them mirrored, all recoloured."""
    from sklearn.datasets import load_sample_image  # slow to import, and only needed here

    rng = random.Random(0)
    photographs = {name: Image.fromarray(load_sample_image(f"{name}.jpg")) for name in CLASSES}
    for number in range(count):
        name = CLASSES[number % 2]
        photograph = photographs[name]
        width = rng.randint(480, photograph.width)
        height = width * photograph.height // photograph.width
        left, top = rng.randint(0, photograph.width - width), rng.randint(0, photograph.height - height)
        image = photograph.crop((left, top, left + width, top + height))
        if rng.random() < 0.5:
            image = ImageOps.mirror(image)
        image = ImageEnhance.Color(image).enhance(rng.uniform(0.5, 1.5))
        image = ImageEnhance.Brightness(image).enhance(rng.uniform(0.7, 1.3))
        image.save(folder / f"{name}-{number:04}.jpg", quality=95)


def find_images(count: int, cache: Path) -> list[Path]:
    """The images' paths; they are made where they are not there yet."""
    folder = cache / f"photographs-{count}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            images = Path(made, "images")
            images.mkdir()
            write_images(images, count)
            try:
                images.rename(folder)
            except OSError:
                if not folder.exists():  # else another start was faster, and made the same
                    raise
    return sorted(folder.glob("*.jpg"))


class Photographs(Dataset):
    """JPEG files with their class, cut and coloured differently in every epoch."""

    def __init__(self, paths: list[Path], size: int, seed: int):
        self.paths = paths
        self.size = size
        self.seed = seed
        self.epoch = 0

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        image = self.transform(image, random.Random(f"{self.seed} {self.epoch} {index}"))
        return image, CLASSES.index(path.name.split("-")[0])

    def transform(self, image, rng):
        """A random crop, sometimes mirrored, at the network's size and normalised."""
        side = int(min(image.size) * rng.uniform(0.6, 1.0))
        left, top = rng.randint(0, image.width - side), rng.randint(0, image.height - side)
        image = image.crop((left, top, left + side, top + side))
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        if rng.random() < 0.5:
            image = ImageOps.mirror(image)
        pixels = (np.asarray(image, dtype=np.float32) / 255 - MEAN) / STD
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def make_model() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (8, 16, 32, 64):
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(channels, len(CLASSES))]
    return nn.Sequential(*layers)


def train(model: nn.Module, loader: DataLoader, args: argparse.Namespace) -> list[float]:
    """Train, and return each step's seconds: from the request for its batch to the next request."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    losses, seconds = [], []
    model.train()
    for epoch in range(args.epochs):
        loader.dataset.epoch = epoch
        started = time.perf_counter()
        for batch in loader:
            images, labels = (part.to(args.device, non_blocking=True) for part in batch)
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

            now = time.perf_counter()
            seconds.append(now - started)
            started = now
            if len(seconds) % args.log_every == 0:
                mean_loss = torch.stack(losses).mean().item()
                mean_ms = 1e3 * sum(seconds[-args.log_every :]) / args.log_every
                print(f"step {len(seconds):4}  loss {mean_loss:.6f}  {mean_ms:.1f} ms/step", flush=True)
                losses.clear()
            if len(seconds) == args.steps:
                return seconds
    return seconds


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    loader = DataLoader(
        Photographs(find_images(args.images, args.cache), args.size, args.seed),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        pin_memory=args.device.startswith("cuda"),
    )
    model = make_model().to(args.device)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(loader.dataset)} images, {len(loader)} steps an epoch, {parameters:,} parameters")

    seconds = train(model, loader, args)

    steady = seconds[WARMUP:]
    if steady:
        print(f"{len(seconds)} steps, {1e3 * sum(steady) / len(steady):.1f} ms/step after the first {WARMUP}")
    checksum = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters()))
    print(f"weights sha256 {checksum.hexdigest()}")


if __name__ == "__main__":
    main()
