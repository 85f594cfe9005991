#!/usr/bin/env python3
"""Language identification from character n-grams: hashed features built on the fly by two workers."""

import argparse
import random
import time
import zlib

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset

import dlprof

LETTERS = {0: "etaoinshrdlu ", 1: "enisratdhulcg ", 2: "aeiosrnldtcmp ", 3: "ainksutlevom "}


def make_text(seed: int) -> tuple[str, int]:
    rng = random.Random(seed)
    label = rng.randrange(len(LETTERS))
    return "".join(rng.choices(LETTERS[label], k=320)), label


class NGrams(Dataset):
    def __init__(self, texts, buckets=4096):
        self.texts = texts
        self.buckets = buckets

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        text, label = self.texts[index]
        counts = torch.zeros(self.buckets)
        buckets = []
        for n in (1, 2, 3, 4):
            buckets += [zlib.crc32(text[i : i + n].encode()) % self.buckets for i in range(len(text) - n + 1)]
        counts.index_add_(0, torch.tensor(buckets), torch.ones(len(buckets)))
        return counts.log1p(), label


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--batches", type=int, default=66)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    pool = [make_text(i) for i in range(512)]
    data = NGrams([pool[i % len(pool)] for i in range(args.batch_size * args.batches)])
    weights = torch.zeros(4096, 4, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    for x, y in DataLoader(data, args.batch_size, shuffle=True, num_workers=args.workers):
        with dlprof.span("train step on the accelerator", kind="device"):
            time.sleep(0.024)
        loss = F.cross_entropy(x @ weights, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


if __name__ == "__main__":
    main()
