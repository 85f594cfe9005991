#!/usr/bin/env python
"""Click-through rate on a table that fits in memory."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def table(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, columns, generator=generator)
    clicked = (features[:, :4].sum(1) + torch.randn(rows, generator=generator) > 1).float()
    return features, clicked


def build(columns: int) -> nn.Module:
    return nn.Sequential(nn.Linear(columns, 256), nn.ReLU(), nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=66 * 4096)
    parser.add_argument("--columns", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=4096)
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(*table(args.rows, args.columns, seed=3))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    model = build(args.columns)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss_fn = nn.BCEWithLogitsLoss()

    model.train()
    seen = 0
    for features, clicked in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(features).squeeze(1), clicked)
        loss.backward()
        optimizer.step()
        seen += len(features)
    print(f"{seen} rows, last loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
