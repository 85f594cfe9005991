"""Next-token model over short articles."""

import random

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

CONTEXT = 24

rng = random.Random(99)
syllables = [c + v for c in "bdfgklmnprstvz" for v in ("a", "e", "i", "o", "u", "ai", "or")]


def article():
    words = ("".join(rng.choices(syllables, k=rng.randint(1, 5))) for _ in range(850))
    return " ".join(words) + "."


def trained_tokenizer(texts):
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel()
    tokenizer.train_from_iterator(texts[:60], BpeTrainer(vocab_size=1500, show_progress=False))
    return tokenizer


class Articles(Dataset):
    def __init__(self, texts, tokenizer):
        self.texts = texts
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        ids = self.tokenizer.encode(self.texts[i]).ids
        return torch.tensor(ids[: CONTEXT + 1])


class Model(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.embedding = nn.Embedding(vocab, 48)
        self.recurrent = nn.GRU(48, 48, batch_first=True)
        self.out = nn.Linear(48, vocab)

    def forward(self, ids):
        hidden, _ = self.recurrent(self.embedding(ids[:, :-1]))
        return nn.functional.cross_entropy(self.out(hidden).transpose(1, 2), ids[:, 1:])


def main():
    torch.manual_seed(99)
    torch.set_num_threads(1)
    texts = [article() for _ in range(66 * 16)]
    tokenizer = trained_tokenizer(texts)
    loader = DataLoader(Articles(texts, tokenizer), batch_size=16, shuffle=True, num_workers=1)
    model = Model(tokenizer.get_vocab_size())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for ids in loader:
        loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    print("loss", torch.stack(losses[-10:]).mean().item())


if __name__ == "__main__":
    main()
