#!/usr/bin/env python
"""Weather fields in plain files, read back right after they were written."""

import os
import shutil
import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

GRID = 384
FILES = 80


def archive():
    folder = tempfile.mkdtemp(prefix="fields")
    y, x = np.mgrid[0:GRID, 0:GRID] / GRID
    for n in range(FILES):
        field = np.sin(9 * x + n) * np.cos(7 * y - n) + 0.01 * np.random.default_rng(n).random((GRID, GRID))
        with open(os.path.join(folder, f"{n:04d}.f32"), "wb") as f:
            f.write(field.astype(np.float32).tobytes())
    return folder


class Fields(Dataset):
    def __init__(self, folder, times):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder)) * times

    def __len__(self):
        return len(self.files)

    def __getitem__(self, n):
        with open(self.files[n], "rb") as f:
            raw = f.read()
        field = np.frombuffer(raw, np.float32).reshape(GRID, GRID)
        return torch.from_numpy(field[::6, ::6].copy())


folder = archive()
try:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    forecast = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 1, 3, padding=1)
    )
    opt = torch.optim.Adam(forecast.parameters(), 1e-3)
    for batch in DataLoader(Fields(folder, 14), batch_size=16, shuffle=True, num_workers=2):
        now, later = batch[:-1, None], batch[1:, None]
        loss = (forecast(now) - later).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("mse", loss.item())
finally:
    shutil.rmtree(folder)
