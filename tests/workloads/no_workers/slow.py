# Keyword spotting: log spectrograms of one-second clips -> small classifier.
# The network runs on an accelerator; here its step is a stand-in of 30 ms.
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dlprof

torch.manual_seed(1234)
torch.set_num_threads(1)

N_CLIPS, BATCH, RATE = 66 * 48, 48, 16_000
STEP_S = 0.030
window = torch.hann_window(512)


def log_spectrogram(clip):
    spectrum = torch.stft(clip, n_fft=512, hop_length=64, window=window, return_complex=True)
    return torch.log1p(spectrum.abs())[:, ::4]


class Clips(Dataset):
    def __init__(self, n):
        self.pool = torch.randn(64, RATE)  # the recordings
        self.n = n
        self.labels = torch.randint(0, 10, (n,))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        clip = self.pool[i % 64].roll(i)
        return log_spectrogram(clip), self.labels[i]


model = nn.Linear(257, 10)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(Clips(N_CLIPS), batch_size=BATCH, shuffle=True)

if __name__ == "__main__":
    for i, (spec, label) in enumerate(loader):
        with dlprof.span("accelerator step", kind="device"):
            time.sleep(STEP_S)
        logits = model(spec.mean(-1))
        loss = nn.functional.cross_entropy(logits, label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 25 == 0:
            print(i, round(loss.item(), 4))
