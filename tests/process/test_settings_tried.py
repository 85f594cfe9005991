"""--set, --ceiling and --fail-if on a script with two loaders: what is measured, what is said, and the status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import os, sys
import dlprof
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
for epoch in range(2):
    for batch in TRAIN:
        makers.add(("train", int(batch[0, 1]) == os.getpid()))
        sizes.add(len(batch))
        model(batch).sum().backward()
        optimizer.step()
        # The next one to get this batch would find no process of that number.
        batch.zero_()
print(sorted(makers), sorted(sizes))
sys.exit(0)
"""


def run(
    folder: Path, *options: str, status: int = 0, steps: str = "all", by: str = "train"
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    (folder / "two.py").write_text(SCRIPT.replace("TRAIN", by).replace("sys.exit(0)", f"sys.exit({status})"))
    always = ["--steps", steps, "--trace-steps", "0", "--format", "json", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-m", "dlprof", "run", *always, *options, "two.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, json.loads((folder / "out" / "report.json").read_bytes())


def test_the_loader_that_was_meant_gets_the_setting_and_a_failing_script_keeps_its_status(tmp_path: Path) -> None:
    options = ["--set", "1.num_workers=1", "--set", "train.batch_size=3", "--set", "0.prefetch_factor=2"]
    done, report = run(tmp_path, *options, "--fail-if", "step_ms>0", "--fail-if", "step_ms<0", status=7)
    assert done.stdout == "[('held', True), ('train', False)] [3]\n"
    assert done.returncode == 7
    loader = report["input"]["loader"]
    assert (loader["index"], loader["num_workers"], loader["batch_size"]) == (1, 1, 3)
    notices = {notice["slug"]: notice["text"] for notice in report["notices"]}
    # The second loader of the script stands on the line after the first one's.
    first = SCRIPT.splitlines().index("held = DataLoader(Held(), 2)") + 1
    train = f"Numbers, two.py:{first + 1}"
    assert f"num_workers 0 → 1 ({train}); batch_size 2 → 3 ({train})" in notices["set-applied"]
    refused = f"prefetch_factor (Held, two.py:{first}): it needs num_workers of at least 1"
    assert refused in notices["set-refused"]
    assert loader["made_at"] == f"two.py:{first + 1}"
    said = " ".join(done.stderr.split())
    assert said.count(refused) == said.count("--set was not applied") == 1
    assert "--fail-if step_ms>0 holds: it is" in said
    assert "--fail-if step_ms<0 does not hold: it is" in said


def test_after_the_measured_steps_come_some_on_batches_that_lie_ready(tmp_path: Path) -> None:
    options = ["--warmup", "2", "--ceiling", "--set", "5.num_workers=1", "--fail-if", "step_ms>0"]
    done, report = run(tmp_path, *options, steps="10")
    # A bound is crossed, and the script was good.
    assert done.returncode == 3, done.stderr
    assert report["run"]["exit"]["status"] == 0
    said = " ".join(done.stderr.split())
    assert said.count("No DataLoader of the script was meant by --set 5.num_workers=1") == 1
    first = SCRIPT.splitlines().index("held = DataLoader(Held(), 2)") + 1
    assert f"It made loaders of: 0 Held, two.py:{first}; 1 Numbers, two.py:{first + 1}." in said
    rows = [row for row in report["forecast"] if row["setting"] == "ceiling (measured)"]
    assert [(row["from"], row["to"]) for row in rows] == [("the loader", "ready batches")]
    assert report["run"]["steps_measured"] == 10
    assert len(report["steps"]) == 10
    (notice,) = [each["text"] for each in report["notices"] if each["slug"] == "ceiling"]
    assert notice.startswith("Measured over 20 more steps on batches that lay ready")


def test_where_batches_come_by_no_loader_the_ceiling_is_said_to_be_missing(tmp_path: Path) -> None:
    done, report = run(tmp_path, "--warmup", "2", "--ceiling", steps="10", by="dlprof.iterate(list(train))")
    assert done.returncode == 0, done.stderr
    (notice,) = [each["text"] for each in report["notices"] if each["slug"] == "ceiling-not-run"]
    assert "does not take its batches from a DataLoader" in notice


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--ceiling", "--steps", "all"], "--ceiling comes after the measured steps"),
        (["--set", "num_workers=0", "--set", "prefetch_factor=2"], "--set prefetch_factor=2 needs workers"),
        (["--set", "1.num_workers=0", "--set", "1.persistent_workers=true"], "--set 1.persistent_workers=True needs"),
    ],
)
def test_what_excludes_each_other_is_said_before_anything_starts(tmp_path: Path, options: list[str], says: str) -> None:
    (tmp_path / "two.py").write_text("raise SystemExit('started')")
    done = subprocess.run(
        [sys.executable, "-m", "dlprof", "run", *options, "two.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert [each.name for each in tmp_path.iterdir()] == ["two.py"]


NOT_FORKED = """
import torch
from torch.utils.data import DataLoader

GUARD
    def collate(rows):
        return torch.tensor(rows)
    for batch in DataLoader([1.0] * 8, 2, num_workers=1COLLATE):
        pass
"""


@pytest.mark.parametrize(
    ("guard", "collate", "torchs", "hint"),
    [
        ("if True:", "", "exited unexpectedly", 'What the script does belongs under if __name__ == "__main__":'),
        (
            "def main():",
            ", collate_fn=collate",
            "local object",
            "Put collate_fn, worker_init_fn and the dataset's class",
        ),
    ],
)
def test_what_a_script_lacks_for_workers_that_are_not_forked_is_said_beside_torchs_error(
    tmp_path: Path, guard: str, collate: str, torchs: str, hint: str
) -> None:
    text = NOT_FORKED.replace("GUARD", guard).replace("COLLATE", collate)
    (tmp_path / "it.py").write_text(text + ("\nmain()\n" if "main" in guard else ""))
    always = ["--sample-hz", "0", "--trace-steps", "0", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "dlprof", "run", *always, "--set", "multiprocessing_context=spawn", "it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = " ".join(done.stderr.split())
    assert done.returncode == 1
    assert torchs in said
    assert said.count(hint) == 1
