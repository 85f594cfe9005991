"""Train a small decoder-only language model on the sources of Python's standard library.

    python examples/train_text.py --workers 2

Each sample is a window of a long document, somewhere else in every epoch, so the whole document is tokenized
to find it: by default in the dataset's ``__getitem__``, with ``--tokenize collate`` a batch at once, or with
``--tokenize ahead`` before the training begins.
"""

import argparse
import hashlib
import os
import platform
import random
import sysconfig
import tempfile
import time
from pathlib import Path

import tokenizers
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

PAD = 0
WARMUP = 5
SIZES = {"small": (2, 64), "medium": (4, 128), "large": (6, 192)}  # layers, width


def arguments() -> argparse.Namespace:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "train-text"
    parser = argparse.ArgumentParser(description="Train a small language model on Python's standard library.")
    add = parser.add_argument
    add("--workers", type=int, default=0, help="data loader workers (%(default)s)")
    add("--batch-size", type=int, default=8, help="windows in a batch (%(default)s)")
    add("--length", type=int, default=48, help="tokens in a window (%(default)s)")
    add("--tokenize", choices=["getitem", "collate", "ahead"], default="getitem", help="where (%(default)s)")
    add("--documents", type=int, default=1000, help="at most so many documents (%(default)s)")
    add("--characters", type=int, default=16_000, help="characters in a document (%(default)s)")
    add("--vocabulary", type=int, default=4096, help="tokens in the vocabulary (%(default)s)")
    add("--model-size", choices=SIZES, default="small", help="layers and width (%(default)s)")
    add("--layers", type=int, help="instead of the model size's")
    add("--width", type=int, help="instead of the model size's; a multiple of 32")
    add("--learning-rate", type=float, default=1e-3, help="(%(default)s)")
    add("--epochs", type=int, default=1, help="(%(default)s)")
    add("--steps", type=int, help="stop after so many steps")
    add("--log-every", type=int, default=10, help="steps between two lines (%(default)s)")
    add("--seed", type=int, default=0, help="(%(default)s)")
    add("--threads", type=int, default=1, help="threads that compute one operation (%(default)s)")
    add("--device", default=device, help="(%(default)s)")
    add("--cache", type=Path, default=cache, help="folder for the tokenizer (%(default)s)")
    args = parser.parse_args()
    layers, width = SIZES[args.model_size]
    args.layers = args.layers or layers
    args.width = args.width or width
    return args


def read_documents(count: int, characters: int) -> list[str]:
    """The standard library's sources, one after the other, cut into documents of equal length."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    documents: list[str] = []
    rest = ""
    for path in sorted(folder.rglob("*.py")):
        if not {"site-packages", "dist-packages", "test", "tests"}.isdisjoint(path.relative_to(folder).parts):
            continue
        rest += path.read_text(encoding="utf-8", errors="ignore") + "\n"
        while len(rest) >= characters:
            documents.append(rest[:characters])
            rest = rest[characters:]
            if len(documents) == count:
                return documents
    return documents


def load_tokenizer(documents: list[str], vocabulary: int, cache: Path) -> Tokenizer:
    """A byte-level BPE tokenizer of these documents; the one made last time where there is one."""
    settings = f"{len(documents)}x{len(documents[0])}-{vocabulary}"
    path = cache / f"bpe-python{platform.python_version()}-tokenizers{tokenizers.__version__}-{settings}.json"
    if path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        os.replace(f"{folder}/tokenizer.json", path)
    return tokenizer


class Documents(Dataset):
    """Documents as text or ids, each with the place of its window; a tokenizer turns text into ids."""

    def __init__(self, documents: list, seed: int, tokenizer: Tokenizer | None = None):
        self.documents = documents
        self.seed = seed
        self.epoch = 0
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.documents)

    def __getitem__(self, index):
        document = self.documents[index]
        if self.tokenizer is not None:
            document = self.tokenizer.encode(document).ids
        place = random.Random(f"{self.seed} {self.epoch} {index}").random()
        return document, place


class Collate:
    """Cuts the windows out of the documents and stacks them; a tokenizer turns text into ids first."""

    def __init__(self, length: int, tokenizer: Tokenizer | None = None):
        self.length = length
        self.tokenizer = tokenizer

    def __call__(self, samples):
        documents, places = zip(*samples, strict=True)
        if self.tokenizer is not None:
            documents = [encoding.ids for encoding in self.tokenizer.encode_batch(list(documents))]
        batch = torch.full((len(samples), self.length + 1), PAD)
        for row, ids, place in zip(batch, documents, places, strict=True):
            start = int(place * max(1, len(ids) - self.length))
            window = torch.as_tensor(ids[start : start + self.length + 1])
            row[: len(window)] = window
        return batch


def tokenize_all(tokenizer: Tokenizer, documents: list[str], at_once: int = 64) -> list[torch.Tensor]:
    ids = []
    for start in range(0, len(documents), at_once):
        ids += [torch.tensor(e.ids) for e in tokenizer.encode_batch(documents[start : start + at_once])]
    return ids


def make_loader(args: argparse.Namespace) -> DataLoader:
    documents = read_documents(args.documents, args.characters)
    tokenizer = load_tokenizer(documents, args.vocabulary, args.cache)
    if args.tokenize == "ahead":
        started = time.perf_counter()
        documents = tokenize_all(tokenizer, documents)
        print(f"tokenized {len(documents)} documents in {time.perf_counter() - started:.1f} s", flush=True)
    if args.workers:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are forked: no threads of their own
    return DataLoader(
        Documents(documents, args.seed, tokenizer if args.tokenize == "getitem" else None),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        collate_fn=Collate(args.length, tokenizer if args.tokenize == "collate" else None),
        pin_memory=args.device.startswith("cuda"),
    )


class LanguageModel(nn.Module):
    """A decoder-only transformer whose output layer is its embedding."""

    def __init__(self, vocabulary: int, length: int, layers: int, width: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(
            width, width // 32, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, ids):
        hidden = self.dropout(self.tokens(ids) + self.positions.weight)
        hidden = self.layers(hidden, mask=self.mask, is_causal=True)
        return functional.linear(hidden, self.tokens.weight)


def train(model: nn.Module, loader: DataLoader, args: argparse.Namespace) -> list[float]:
    """Train, and return each step's seconds: from the request for its batch to the next request."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    losses, seconds = [], []
    model.train()
    for epoch in range(args.epochs):
        loader.dataset.epoch = epoch
        started = time.perf_counter()
        for batch in loader:
            ids = batch.to(args.device, non_blocking=True)
            logits = model(ids[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

            now = time.perf_counter()
            seconds.append(now - started)
            started = now
            if len(seconds) % args.log_every == 0:
                mean_loss = torch.stack(losses).mean().item()
                mean_ms = 1e3 * sum(seconds[-args.log_every :]) / args.log_every
                print(f"step {len(seconds):4}  loss {mean_loss:.6f}  {mean_ms:.1f} ms/step", flush=True)
                losses.clear()
            if len(seconds) == args.steps:
                return seconds
    return seconds


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    loader = make_loader(args)
    model = LanguageModel(args.vocabulary, args.length, args.layers, args.width).to(args.device)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(loader.dataset)} documents, {len(loader)} steps an epoch, {parameters:,} parameters")

    seconds = train(model, loader, args)

    steady = seconds[WARMUP:]
    if steady:
        print(f"{len(seconds)} steps, {1e3 * sum(steady) / len(steady):.1f} ms/step after the first {WARMUP}")
    checksum = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters()))
    print(f"weights sha256 {checksum.hexdigest()}")


if __name__ == "__main__":
    main()
