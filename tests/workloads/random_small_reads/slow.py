# Click-through model. Every user has 24 visited items; the item vectors stand in one file of 4 KB rows, and a sample
# reads the rows of its items where they happen to be.
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROW = 1024  # float32
HISTORY = 24
BATCH = 32
USERS = BATCH * 66


def write_vectors(path):
    rng = np.random.default_rng(7)
    block = rng.standard_normal((HISTORY * 64, ROW), dtype=np.float32)
    with open(path, "wb") as f:
        for k in range(USERS // 64):
            block[:, 0] = k
            f.write(block.tobytes())
        f.flush()
        os.fsync(f.fileno())
        # as in the first epoch after the job starts: nothing of the file is in memory
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Visits(Dataset):
    def __init__(self, path):
        self.path = path
        self.items = np.random.default_rng(1).permutation(USERS * HISTORY).reshape(USERS, HISTORY)
        self.fd = None

    def __len__(self):
        return USERS

    def __getitem__(self, user):
        if self.fd is None:
            self.fd = os.open(self.path, os.O_RDONLY)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        history = np.empty((HISTORY, ROW), np.float32)
        for slot, item in enumerate(self.items[user]):
            row = os.pread(self.fd, ROW * 4, int(item) * ROW * 4)
            history[slot] = np.frombuffer(row, np.float32)
        return torch.from_numpy(history.mean(0)), torch.tensor(float(user % 2))


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "items.f32")
    write_vectors(path)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(ROW, 2048), nn.ReLU(), nn.Linear(2048, 1))
    opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
    loss_of = nn.BCEWithLogitsLoss()
    for n, (x, y) in enumerate(DataLoader(Visits(path), batch_size=BATCH, shuffle=True, num_workers=1)):
        loss = loss_of(model(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if n % 25 == 0:
            print(n, loss.item(), flush=True)
