"""Molecule-like strings to fingerprints. The "parser is not thread-safe", so a lock is held around it."""

import argparse
import hashlib
import multiprocessing as mp
import random
import time

import torch
from torch.utils import data

import dlprof


class Fingerprints(data.Dataset):
    def __init__(self, strings, lock):
        self.strings = strings
        self.lock = lock

    def __len__(self):
        return len(self.strings)

    def __getitem__(self, k):
        with self.lock:
            bits = fingerprint(self.strings[k])
        return bits, torch.tensor([k % 2], dtype=torch.float32)


def fingerprint(s, size=1024):
    bits = torch.zeros(size)
    for radius in range(1, 9):
        for i in range(len(s) - radius):
            digest = hashlib.blake2b(s[i : i + radius].encode(), digest_size=4).digest()
            bits[int.from_bytes(digest, "little") % size] = 1.0
    return bits


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("-j", "--jobs", type=int, default=3)
    p.add_argument("-b", "--batch", type=int, default=24)
    return p.parse_args()


if __name__ == "__main__":
    args = parse_args()
    rng = random.Random(0)
    strings = ["".join(rng.choices("CCCNOcn()=1", k=60)) for _ in range(args.batch * 66)]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Linear(1024, 1)
    opt = torch.optim.Adam(net.parameters())
    dataset = Fingerprints(strings, mp.Lock())
    for bits, active in data.DataLoader(dataset, batch_size=args.batch, num_workers=args.jobs):
        with dlprof.span("message passing", kind="device"):
            time.sleep(0.018)
        opt.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(net(bits), active)
        loss.backward()
        opt.step()
    print(f"{loss.item():.4f}")
