"""`dlprof tune` with real scripts: a winner is found, Ctrl-C keeps what is there, and nothing is tried for nothing."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import dlprof

ROOT = Path(dlprof.__file__).parents[1]
SCHEMA = json.loads((Path(dlprof.__file__).with_name("schema") / "tune-1.schema.json").read_text())
DEADLINE_S = 240

SCRIPT = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Items(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        time.sleep(ITEM_S)
        return torch.tensor([float(index)])

loader = DataLoader(Items(), 2)
print("workers", loader.num_workers, flush=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
for step, batch in enumerate(loader):
    model(batch).sum().backward()
    optimizer.step()
    time.sleep(STEP_S)
    if loader.num_workers and step == WAITS_AT:
        print("waits", flush=True)
        sys.stdin.read()
"""


def command(folder: Path, *options: str, item_s: float, step_s: float = 0.005, waits_at: float = -1) -> list[str]:
    text = SCRIPT.replace("ITEM_S", str(item_s)).replace("STEP_S", str(step_s)).replace("WAITS_AT", str(waits_at))
    (folder / "train.py").write_text(text)
    always = ["--steps", "12", "--warmup", "2", "--trace-steps", "0", "--sample-hz", "0", "--out", "out"]
    return [sys.executable, "-m", "dlprof", "tune", *always, "--trials", "1", "--format", "md", *options, "train.py"]


def run(folder: Path, *options: str, **times: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *options, **times),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "tune.json").read_text())
    jsonschema.validate(found, SCHEMA)
    return found


@pytest.mark.quiet
def test_workers_that_help_win(tmp_path: Path) -> None:
    done = run(tmp_path, item_s=0.02, step_s=0.03)
    assert done.returncode == 0, done.stderr
    found = result(tmp_path)
    (trial,) = found["trials"]
    workers = trial["settings"]["num_workers"]
    assert workers > 1
    assert (found["winner"], found["ending"]) == (1, "complete")
    assert trial["speedup"][0] > 1
    assert [each["folder"] for each in trial["runs"]] == ["trial-1", "trial-1-again"]
    assert [each["folder"] for each in found["baseline"]["runs"]] == ["baseline", "baseline-again"]
    assert f"DataLoader(..., num_workers={workers})" in found["how"]
    # The script's own output goes to its own stream, in every run.
    assert done.stdout.splitlines() == [f"workers {count}" for count in (0, workers, workers, 0)]
    assert found["conclusion"] in done.stderr
    assert f"DataLoader(..., num_workers={workers})" in (tmp_path / "out" / "report.md").read_text()
    assert sorted(os.listdir(tmp_path / "out")) == sorted(
        ["baseline", "baseline-again", "trial-1", "trial-1-again", "tune.json", "report.md"]
    )


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, item_s=0.02, step_s=0.03, waits_at=6),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        # What starts the tests may ignore the signal, as a shell does in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert process.stdout is not None
    line = b""
    while line != b"waits\n":
        ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
        assert ready
        line = process.stdout.readline()
        assert line, process.communicate()[1].decode()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err.decode()
    found = result(tmp_path)
    assert (found["ending"], found["winner"]) == ("interrupted", None)
    assert found["baseline"]["step_ms"][1] > 50
    ((trial,),) = [each["runs"] for each in found["trials"]]
    assert trial["failure"]["slug"] == "interrupted"
    assert "Interrupted" in (tmp_path / "out" / "report.md").read_text()


def test_nothing_is_tried_where_nothing_can_gain(tmp_path: Path) -> None:
    done = run(tmp_path, item_s=0.0, step_s=0.1)
    assert done.returncode == 0, done.stderr
    found = result(tmp_path)
    assert found["trials"] == []
    assert found["ending"] == "nothing-to-gain"
    assert "No loader setting can make the step 5 % faster" in done.stderr
    assert done.stdout == "workers 0\n"


def test_settings_that_the_script_does_not_bear_are_not_tried_again_and_again(tmp_path: Path) -> None:
    in_workers = 'if torch.utils.data.get_worker_info(): raise ValueError(f"no worker: {index}")\n        time.sleep'
    argv = command(tmp_path, "--trials", "6", item_s=0.02, step_s=0.03)
    script = tmp_path / "train.py"
    script.write_text(script.read_text().replace("time.sleep", in_workers, 1))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    found = result(tmp_path)
    assert (found["ending"], found["winner"], len(found["trials"])) == ("trials-fail", None, 2)
    lines = [line for line in done.stderr.splitlines() if line.startswith("dlprof: num_workers=")]
    assert len(lines) == 2
    assert all(
        line.split("ended with an exception (exit status 1): ")[1].startswith("ValueError: no w") for line in lines
    )
    assert "failed in the same way" in found["conclusion"]


def test_a_script_that_fails_as_it_is_is_run_once_and_told_once(tmp_path: Path) -> None:
    argv = command(tmp_path, item_s=0.0)
    script = tmp_path / "train.py"
    script.write_text(
        script.read_text().replace("time.sleep(STEP_S)", "").replace("for step", "raise KeyError('data')\nfor step")
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("dlprof:")]
    assert sum("exit status 1" in line for line in said) == 1
    assert "nothing was tried" in said[-1]
