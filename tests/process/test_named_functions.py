"""``--span`` and padding on real scripts: what is found, and that the script stays the same to the bit."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

TIME_LIMIT_S = 240

SCRIPT = """
import hashlib, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

def augment(x, *, scale=1.0):
    return sorted(x * scale + torch.rand(1).item() for _ in range(200))[3]

class Set(Dataset):
    augment = staticmethod(augment)
    def __len__(self):
        return 160
    def __getitem__(self, index):
        return self.augment(float(index))

class Own(Set):
    def __getitem__(self, index):
        return super().__getitem__(index)

def collate(samples):
    # Six of sixteen fill up.
    ids = torch.zeros(4, 4, dtype=torch.long)
    for row in range(4):
        ids[row, : 4 - row] = 5
    return {"x": torch.tensor(samples).view(-1, 1), "input_ids": ids, "attention_mask": (ids > 0).long()}

def log(loss):
    # Long enough for several looks at the machine.
    time.sleep(pause)
    return float(loss.detach())

if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    workers, method = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0
    loader = DataLoader(Own(), 4, shuffle=True, collate_fn=collate, num_workers=workers, multiprocessing_context=method)
    seen = hashlib.md5()
    for batch in loader:
        seen.update(batch["x"].numpy().tobytes() + batch["input_ids"].numpy().tobytes())
        optimizer.zero_grad()
        loss = model(batch["x"]).sum()
        loss.backward()
        optimizer.step()
        log(loss)
    print(seen.hexdigest(), hashlib.md5(model.weight.detach().numpy().tobytes()).hexdigest(), torch.rand(1).item())
"""

NAMED = ("train:augment", "__main__:Own.__getitem__", "train:collate", "__main__:log", "train:missing")


def start(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=TIME_LIMIT_S, env=os.environ
    )


def profiled(folder: Path, *arguments: str, out: str = "run") -> tuple[str, dict[str, Any]]:
    options = ("--steps", "all", "--trace-steps", "0", "--format", "json,md", "--out", out)
    spans = [f"--span={name}" for name in NAMED]
    done = start(folder, "-m", "dlprof", "run", *options, *spans, "train.py", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / out / "report.json").read_text())


# Workers make the same whatever their start method, so the quickest stands for all.
RUNS = {
    "no workers": (("0",), ("0",)),
    "fork": (("2", "fork"), ("2", "fork")),
    "spawn": (("1", "spawn"), ("1", "fork")),
    "forkserver, slow": (("1", "forkserver", "0.08"), ("1", "fork")),
}
"""Arguments of the script under dlprof, and of the plain run that it is compared with."""


class Runs:
    """The runs of the script, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(SCRIPT)

    @functools.cache  # noqa: B019 - as long as the module's tests
    def plain(self, *arguments: str) -> str:
        return start(self.folder, "train.py", *arguments).stdout

    @functools.cache  # noqa: B019
    def profiled(self, name: str) -> tuple[str, dict[str, Any], str]:
        """What the script printed, and the report as JSON and as Markdown."""
        out = f"run {name}"
        stdout, report = profiled(self.folder, *RUNS[name][0], out=out)
        return stdout, report, (self.folder / out / "report.md").read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("named"))


@pytest.mark.parametrize("name", RUNS)
def test_functions_of_the_script_are_timed_and_it_stays_the_same(runs, name):
    with ThreadPoolExecutor(1) as aside:
        plain = aside.submit(runs.plain, *RUNS[name][1])
        stdout, report, markdown = runs.profiled(name)
    assert stdout == plain.result()
    assert stdout
    named = {(row["name"], row["where"]): row for row in report["environment"]["spans"]}
    steps = report["run"]["steps_measured"]
    assert named["train:augment", "data"]["calls"] == 4 * steps
    assert named["__main__:Own.__getitem__", "data"]["calls"] == 4 * steps
    assert named["__main__:log", "host"]["calls"] > 0
    whole, alone = (named["__main__:Own.__getitem__", "data"][key] for key in ("ms_per_batch", "self_ms_per_batch"))
    assert whole > alone
    # A function that is collate_fn remains what it is.
    assert ("train:collate", "data") in named
    assert "collate_fn" in report["input"]["per_batch_ms"]
    missing = [notice["text"] for notice in report["notices"] if notice["slug"] == "span-not-found"]
    assert len(missing) == 1
    assert "train:missing" in missing[0]
    assert "__main__:log" in markdown


def test_padding_is_a_share_of_the_tokens(runs):
    _, report, _ = runs.profiled("no workers")
    assert report["input"]["pad_ratio"] == pytest.approx(6 / 16)


TOKENS = """
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader

tokenizer = Tokenizer(models.WordLevel({"word": 1, "fill": 7}, unk_token="fill"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.enable_padding(pad_id=7, pad_token="fill")

def collate(texts):
    return {"input_ids": torch.tensor([encoded.ids for encoded in tokenizer.encode_batch(texts)])}

model = torch.nn.Embedding(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(["word", "word word word"] * 100, 2, collate_fn=collate, num_workers=1):
    model(batch["input_ids"]).sum().backward()
    optimizer.step()
"""


def test_the_pad_id_is_the_one_that_a_workers_tokenizer_declares(tmp_path):
    (tmp_path / "train.py").write_text(TOKENS)
    _, report = profiled(tmp_path)
    assert report["input"]["pad_ratio"] == pytest.approx(2 / 6)


def test_machine_and_processes_are_looked_at(runs):
    _, report, _ = runs.profiled("forkserver, slow")
    during = report["environment"]["during_the_steps"]
    assert during["cores_used"] > 0
    assert during["read_by_calls_per_step_bytes"] >= 0
    (worker,) = report["input"]["workers"]
    assert worker["private_mb_end"] > 0
    slugs = {notice["slug"] for notice in report["notices"]}
    assert not slugs & {"reads-cold-then-warm", "worker-memory-grows", "processes-not-readable"}
