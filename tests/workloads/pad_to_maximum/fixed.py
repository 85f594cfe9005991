"""Sentiment of reviews with a small Transformer. Token ids are ready; a review has 12 to 256 of them."""

import math

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VOCAB, PAD, MAX_LENGTH = 2000, 0, 256


class Reviews(Dataset):
    def __init__(self, size, seed=0):
        g = torch.Generator().manual_seed(seed)
        lengths = (torch.randn(size, generator=g) * 0.5 + math.log(36)).exp().long().clamp(12, MAX_LENGTH)
        self.ids = [torch.randint(1, VOCAB, (int(n),), generator=g) for n in lengths]
        self.positive = torch.randint(0, 2, (size,), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.positive[i]


def collate(rows):
    ids = pad_sequence([tokens for tokens, _ in rows], batch_first=True, padding_value=PAD)
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "labels": torch.stack([label for _, label in rows]),
    }


class Classifier(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width, padding_idx=PAD)
        self.positions = nn.Embedding(MAX_LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=128, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids) + self.positions.weight[: input_ids.shape[1]]
        x = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        weights = attention_mask.unsqueeze(-1).float()
        return self.head((x * weights).sum(1) / weights.sum(1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    loader = DataLoader(Reviews(66 * 16), batch_size=16, shuffle=True, collate_fn=collate)
    for step, batch in enumerate(loader):
        labels = batch.pop("labels")
        loss = nn.functional.cross_entropy(model(**batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"{step:3} {loss.item():.4f}")


if __name__ == "__main__":
    main()
