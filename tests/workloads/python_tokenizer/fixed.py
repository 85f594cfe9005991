"""Spam or not: bag of word pieces. The tokenizer of the paper's repository was replaced by the library's."""

import random
import string

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
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


def fast_tokenizer(vocab):
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.enable_truncation(MAX_PIECES)
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    return tokenizer


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
        padded = torch.tensor([row.ids for row in self.tokenizer.encode_batch_fast([text for text, _ in rows])])
        return padded, torch.tensor([float(spam) for _, spam in rows])


def main():
    torch.manual_seed(17)
    torch.set_num_threads(1)
    mails = Mails(66 * 16)
    loader = DataLoader(
        mails, batch_size=16, shuffle=True, num_workers=1, collate_fn=Collator(fast_tokenizer(mails.vocab))
    )
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
