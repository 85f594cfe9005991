import time

import torch
from torch.utils.data import DataLoader, Dataset

import dlprof

# keyword spotting: 1 s of "audio" -> log-mel -> small classifier


class Keywords(Dataset):
    def __init__(self, n=66 * 8, bins=128, frame=400, hop=50):
        self.n, self.frame, self.hop = n, frame, hop
        freqs = torch.fft.rfftfreq(frame)
        self.filters = torch.stack([(-((freqs - c) ** 2) * 4e3).exp() for c in torch.linspace(0, 0.5, bins)])
        angles = torch.outer(torch.arange(frame // 2 + 1), torch.arange(frame)) * (2 * torch.pi / frame)
        self.cos, self.sin = angles.cos(), angles.sin()

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        wave = torch.randn(16000, generator=g)
        frames = wave.unfold(0, self.frame, self.hop)
        power = (frames @ self.cos.T) ** 2 + (frames @ self.sin.T) ** 2
        mel = (power @ self.filters.T).clamp_min(1e-6).log()
        for _ in range(12):  # smoothing over time and level normalisation, as the paper has it
            mel = 0.9 * mel + 0.1 * mel.roll(1, 0)
            mel = (mel - mel.mean()) / mel.std()
        return mel[::4], i % 12


def threads(worker_id):
    torch.set_num_threads(4)  # the transforms are torch code, so let them use the cores


torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(128, 12)
optim = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
loader = DataLoader(Keywords(), batch_size=8, num_workers=2, worker_init_fn=threads)
for mel, word in loader:
    with dlprof.span("gpu", kind="device"):
        time.sleep(0.020)
    loss = torch.nn.functional.cross_entropy(model(mel.mean(1)), word)
    optim.zero_grad()
    loss.backward()
    optim.step()
print(loss.item())
