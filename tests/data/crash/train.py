"""Tell worn bearings from sound ones by how they vibrate. One recording has gaps, which the dataset does not accept."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

RECORDINGS = 1200
WITH_GAPS = 417
SAMPLES = 32768
WINDOW = 512
BATCH = 16


class Vibrations(Dataset):
    """Spectrograms of recordings; those of worn bearings have a knock in every turn."""

    def __init__(self):
        self.noise = np.random.default_rng(0).standard_normal(4 * SAMPLES).astype(np.float32)

    def __len__(self):
        return RECORDINGS

    def __getitem__(self, number):
        signal = self.read(number)
        missing = np.count_nonzero(np.isnan(signal))
        if missing:
            raise ValueError(f"recording {number}: {missing} of {SAMPLES} samples are missing")
        return self.spectrogram(signal), number % 2

    def read(self, number):
        """A recording as the sensor wrote it, gaps as NaN."""
        begin = number * 7919 % (3 * SAMPLES)
        signal = self.noise[begin : begin + SAMPLES].copy()
        signal[:: 2000 + number % 97] += 8 * (number % 2)
        if number == WITH_GAPS:
            signal[5000:5400] = np.nan
        return signal

    def spectrogram(self, signal):
        """Logarithm of the power by frequency and time."""
        windows = np.lib.stride_tricks.sliding_window_view(signal, WINDOW)[:: WINDOW // 4]
        power = np.abs(np.fft.rfft(windows * np.hanning(WINDOW))) ** 2
        return torch.from_numpy(np.log1p(power).T.astype(np.float32))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv1d(WINDOW // 2 + 1, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Vibrations(), batch_size=BATCH, shuffle=True, num_workers=2)
    for step, (spectrograms, worn) in enumerate(loader, 1):
        loss = functional.cross_entropy(model(spectrograms), worn)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}  loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
