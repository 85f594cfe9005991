"""Spam or not: bag of word pieces. The tokenizer is the one from the paper's repository."""

import random
import string
import unicodedata

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

MAX_PIECES = 2048


def lexicon(rng, count=3000):
    return sorted({"".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 9))) for _ in range(count)})


def vocabulary(words, rng):
    pieces = ["[PAD]", "[UNK]"]
    pieces += list(string.ascii_lowercase)
    pieces += ["##" + letter for letter in string.ascii_lowercase]
    pieces += rng.sample(words, len(words) // 3)
    pieces += sorted({"##" + word[-3:] for word in words})
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


class WordPiece:
    """Greedy, longest match first."""

    def __init__(self, vocab):
        self.vocab = vocab

    def pieces_of(self, word):
        found, start = [], 0
        while start < len(word):
            end = len(word)
            while end > start:
                piece = word[start:end] if start == 0 else "##" + word[start:end]
                if piece in self.vocab:
                    break
                end -= 1
            found.append(self.vocab.get(piece, 1))
            start = max(end, start + 1)
        return found

    def tokenize(self, text):
        ids = []
        for word in split_on_punctuation(strip_accents(space_ideographs(clean(text)).lower())):
            ids.extend(self.pieces_of(word))
        return ids


def clean(text):
    out = []
    for char in text:
        if ord(char) in (0, 0xFFFD) or (unicodedata.category(char).startswith("C") and char not in "\t\n\r"):
            continue
        out.append(" " if char in " \t\n\r" or unicodedata.category(char) == "Zs" else char)
    return "".join(out)


IDEOGRAPHS = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0xF900, 0xFAFF))


def space_ideographs(text):
    out = []
    for char in text:
        point = ord(char)
        out.append(f" {char} " if any(first <= point <= last for first, last in IDEOGRAPHS) else char)
    return "".join(out)


def strip_accents(text):
    return "".join(char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn")


def split_on_punctuation(text):
    out = []
    for char in text:
        out.append(f" {char} " if unicodedata.category(char).startswith("P") else char)
    return "".join(out).split()


class Mails(Dataset):
    def __init__(self, count, seed=17):
        rng = random.Random(seed)
        self.words = lexicon(rng)
        self.vocab = vocabulary(self.words, rng)
        self.texts = [", ".join(rng.choices(self.words, k=200)).capitalize() + "!" for _ in range(count)]
        self.spam = [rng.randint(0, 1) for _ in range(count)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], self.spam[index]


class Collator:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, rows):
        ids = [self.tokenizer.tokenize(text)[:MAX_PIECES] for text, _ in rows]
        longest = max(map(len, ids))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
        return padded, torch.tensor([float(spam) for _, spam in rows])


def main():
    torch.manual_seed(17)
    torch.set_num_threads(1)
    mails = Mails(66 * 16)
    loader = DataLoader(mails, batch_size=16, shuffle=True, num_workers=1, collate_fn=Collator(WordPiece(mails.vocab)))
    bag = nn.EmbeddingBag(len(mails.vocab), 64, padding_idx=0)
    head = nn.Sequential(nn.Linear(64, 1280), nn.Tanh(), nn.Linear(1280, 1280), nn.Tanh(), nn.Linear(1280, 1))
    optimizer = optim.Adam([*bag.parameters(), *head.parameters()], lr=1e-2)
    for number, (ids, spam) in enumerate(loader):
        loss = nn.functional.binary_cross_entropy_with_logits(head(bag(ids)).squeeze(1), spam)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 20 == 0:
            print(f"{number} {loss.item():.4f}")


if __name__ == "__main__":
    main()
