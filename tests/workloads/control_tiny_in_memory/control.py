from sys import stdout

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(31)

x = torch.randn(512, 784)
y = x[:, :10].argmax(dim=1)
data = TensorDataset(x, y)

mlp = nn.Sequential(
    nn.Linear(784, 1536), nn.ReLU(), nn.Dropout(0.2), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 10)
)
adam = torch.optim.Adam(mlp.parameters(), 1e-4)
loss = nn.CrossEntropyLoss()

for epoch in range(9):
    for bx, by in DataLoader(data, batch_size=64, shuffle=True):
        adam.zero_grad()
        value = loss(mlp(bx), by)
        value.backward()
        adam.step()
    stdout.write(f"epoch {epoch}: {value.item():.3f}\n")
