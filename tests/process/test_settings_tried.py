"""--set and --fail-if on a script with two loaders: what is measured, what is said, and the status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        # In a worker, the process that makes a batch is another one than that which trains.
        return torch.tensor([float(index), float(os.getpid())])

class Held(Numbers):
    pass

held = DataLoader(Held(), 2)
train = DataLoader(Numbers(), 2, shuffle=True)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
makers, sizes = set(), set()
for batch in held:
    makers.add(("held", int(batch[0, 1]) == os.getpid()))
for batch in train:
    makers.add(("train", int(batch[0, 1]) == os.getpid()))
    sizes.add(len(batch))
    model(batch).sum().backward()
    optimizer.step()
print(sorted(makers), sorted(sizes))
sys.exit(0)
"""


def run(folder: Path, *options: str, status: int = 0) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    (folder / "two.py").write_text(SCRIPT.replace("sys.exit(0)", f"sys.exit({status})"))
    always = ["--steps", "all", "--trace-steps", "0", "--format", "json", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-m", "dlprof", "run", *always, *options, "two.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, json.loads((folder / "out" / "report.json").read_bytes())


def test_the_loader_that_was_meant_gets_the_setting(tmp_path: Path) -> None:
    options = ["--set", "1.num_workers=1", "--set", "train.batch_size=3", "--set", "0.prefetch_factor=2"]
    done, report = run(tmp_path, *options, "--fail-if", "input_wait>100%")
    assert done.stdout == "[('held', True), ('train', False)] [3]\n"
    assert done.returncode == 0
    loader = report["input"]["loader"]
    assert (loader["index"], loader["num_workers"], loader["batch_size"]) == (1, 1, 3)
    notices = {notice["slug"]: notice["text"] for notice in report["notices"]}
    assert "num_workers 0 → 1 (Numbers); batch_size 2 → 3 (Numbers)" in notices["set-applied"]
    assert "prefetch_factor: it needs num_workers of at least 1" in notices["set-refused"]
    assert "--set was not applied: prefetch_factor" in " ".join(done.stderr.split())


def test_a_crossed_bound_and_a_setting_for_nobody_are_said(tmp_path: Path) -> None:
    done, report = run(tmp_path, "--set", "5.num_workers=1", "--fail-if", "step_ms>0", "--fail-if", "step_ms<0")
    assert done.returncode == 3
    assert report["run"]["exit"]["status"] == 0
    said = " ".join(done.stderr.split())
    assert "--fail-if step_ms>0: it is" in said
    assert "step_ms<0" not in said
    assert "No DataLoader of the script was meant by --set 5.num_workers=1" in said


def test_a_script_that_fails_keeps_its_status(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "--fail-if", "step_ms>0", status=7)
    assert done.returncode == 7
    assert "--fail-if step_ms>0: it is" in " ".join(done.stderr.split())
