"""Image patches in an Arrow file, memory-mapped by Hugging Face datasets, from a file that is in memory."""

import os
import tempfile

import datasets
import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader

BATCH, BATCHES, SIDE = 24, 66, 500


def write(path):
    rng = np.random.default_rng(0)
    schema = pa.schema({"pixels": pa.binary(), "label": pa.int64()})
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for first in range(0, BATCH * BATCHES, BATCH):
            rows = [rng.bytes(SIDE * SIDE) for _ in range(BATCH)]
            writer.write_batch(pa.record_batch([rows, [(first + i) % 5 for i in range(BATCH)]], schema=schema))


def collate(rows):
    patches = [np.frombuffer(row["pixels"], np.uint8).reshape(SIDE, SIDE)[::4, ::4] for row in rows]
    return torch.from_numpy(np.stack(patches)), torch.tensor([row["label"] for row in rows])


with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "patches.arrow")
    write(file)
    data = datasets.Dataset.from_file(file)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(),
        torch.nn.Linear(256, 5),
    )  # fmt: skip
    opt = torch.optim.SGD(net.parameters(), 0.01)
    for images, labels in DataLoader(data, BATCH, collate_fn=collate, num_workers=1):
        loss = torch.nn.functional.cross_entropy(net(images[:, None] / 255), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("done", round(loss.item(), 3))
