"""Frames come from a grabber whose C library blocks until the next frame is there, without letting go of the GIL."""

import ctypes

import torch
from torch.utils.data import DataLoader, Dataset

grabber = ctypes.PyDLL(None)  # stands in for the vendor's library


class Camera(Dataset):
    exposure_us = 4000

    def __init__(self, frames):
        self.frames = frames

    def __len__(self):
        return self.frames

    def __getitem__(self, n):
        grabber.usleep(self.exposure_us)
        frame = torch.full((3, 48, 48), (n % 17) / 17)
        return frame, n % 17


torch.manual_seed(0)
torch.set_num_threads(1)
cnn = torch.nn.Sequential(
    torch.nn.Conv2d(3, 48, 5),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(4),
    torch.nn.Flatten(),
    torch.nn.Linear(48 * 11 * 11, 17),
)
sgd = torch.optim.SGD(cnn.parameters(), 0.05)
for frame, target in DataLoader(Camera(66 * 16), batch_size=16, num_workers=2):
    loss = torch.nn.functional.cross_entropy(cnn(frame), target)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
print("loss", loss.item())
