"""Denoising autoencoder on synthetic seismograms. Four workers band-pass and whiten the traces."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dlprof

# timings jumped around on the login node, so stay on one core
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
torch.set_num_threads(1)

RATE, LENGTH, BATCH, TRACES = 100.0, 6000, 19, 19 * 68


class Seismograms(Dataset):
    def __init__(self, traces):
        self.traces = traces
        freq = np.fft.rfftfreq(LENGTH, 1 / RATE)
        self.bands = [np.exp(-((freq - f) ** 2) / (2 * (0.2 * f) ** 2)) for f in (0.5, 1, 2, 4, 8, 12, 16, 20, 24, 30)]

    def __len__(self):
        return self.traces

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        clean = np.cumsum(rng.standard_normal(LENGTH)) * 0.01
        noisy = clean + rng.standard_normal(LENGTH)
        out = [self.envelope(noisy, band) for band in self.bands]
        bands = np.stack(out)[:, ::8].astype(np.float32)
        return torch.from_numpy(bands), torch.from_numpy(clean[::8].astype(np.float32))

    def envelope(self, x, band):
        analytic = np.fft.ifft(np.concatenate([np.fft.rfft(x) * band, np.zeros(LENGTH - LENGTH // 2 - 1)]))
        e = np.abs(analytic)
        return e / (np.median(e) + 1e-9)


net = nn.Conv1d(10, 1, 9, padding=4)
opt = torch.optim.Adam(net.parameters(), 1e-3)
loader = DataLoader(Seismograms(TRACES), batch_size=BATCH, num_workers=4)

for step, (x, y) in enumerate(loader):
    with dlprof.span("accelerator", kind="device"):
        time.sleep(0.022)
    loss = (net(x).squeeze(1) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
