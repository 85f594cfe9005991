import json
import random

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import DataLoader

random.seed(11)
torch.manual_seed(11)
torch.set_num_threads(1)

# Embeddings came out of a JSON Lines export, so a record's vector is a list until it is loaded.
FIELDS, WIDTH = 24, 48
lines = []
for uid in range(400):
    record = {"id": uid, "vectors": [[round(random.gauss(0, 1), 3) for _ in range(WIDTH)] for _ in range(FIELDS)]}
    record["good"] = int(record["vectors"][0][0] > 0)
    lines.append(json.dumps(record))
records = [json.loads(line) for line in lines]
for record in records:
    record["vectors"] = np.asarray(record["vectors"], dtype=np.float32)
train = [records[random.randrange(len(records))] for _ in range(70 * 256)]


def collate(samples):
    vectors = torch.from_numpy(np.stack([sample["vectors"] for sample in samples]))
    good = torch.tensor([sample["good"] for sample in samples])
    return {"vectors": vectors, "good": good}


class Scorer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(WIDTH, 192)
        self.out = torch.nn.Linear(FIELDS * 192, 2)

    def forward(self, vectors):
        return self.out(F.gelu(self.mix(vectors)).flatten(1))


def epoch(model, loader, optimizer):
    total = 0.0
    for batch in loader:
        loss = F.cross_entropy(model(batch["vectors"]), batch["good"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
    return total / len(loader)


scorer = Scorer()
sgd = torch.optim.SGD(scorer.parameters(), lr=0.05)
loader = DataLoader(train, batch_size=256, shuffle=True, collate_fn=collate, drop_last=True)
print("mean loss", float(epoch(scorer, loader, sgd)))
