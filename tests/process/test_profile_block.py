"""``dlprof.profile()`` inside a program: the block is reported, the loop is never stopped, nothing stays behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hooked_scripts import Scripts

PROGRAM = """
import json, os, sys
import torch
from torch.utils.data import DataLoader, Dataset
import dlprof

class Squares(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return torch.full((4,), float(index)), sum(range(2000))

def state():
    finders = [type(finder).__name__ for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return DataLoader.__iter__, torch.save, os.environ.get("PYTHONPATH"), os.environ.get("DLPROF_RECORDING"), finders

def main(workers, method):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    loader = DataLoader(Squares(), batch_size=8, num_workers=workers, multiprocessing_context=method)
    before, taken = state(), 0
    with dlprof.profile(steps=20, warmup=2, trace_steps=5) as prof:
        for inputs, _ in loader:
            model(inputs).sum().backward()
            optimizer.step()
            taken += 1
    assert state() == before
    verdict = prof.report and prof.report["verdict"]["bottleneck"]
    measured = prof.report and prof.report["run"]["steps_measured"]
    print(json.dumps([taken, measured, verdict, str(prof)[:40], "<iframe sandbox" in prof._repr_html_()]))

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
"""


@pytest.mark.parametrize("arguments", [("0",), ("2", "spawn")])
def test_a_block_is_reported_and_the_loop_goes_on(scripts: Scripts, arguments: tuple[str, ...]) -> None:
    done = scripts.plain(scripts.write(PROGRAM), *arguments)
    assert done.status == 0, done.stderr.decode()
    taken, measured, verdict, text, framed = json.loads(done.stdout)
    assert (taken, measured, framed) == (50, 20, True)
    assert verdict
    assert not text.startswith("no report")
    (folder,) = (scripts.folder / "dlprof-runs").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {"run.dlprof", "report.html", "report.json"} <= names
    assert "recording" not in names
    report = json.loads((folder / "report.json").read_text())
    assert "in-process" in {notice["slug"] for notice in report["notices"]}


def test_inside_dlprof_run_the_block_adds_to_its_run(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "dlprof",
            "run",
            "--steps",
            "all",
            "--out",
            "run",
            "--format",
            "json",
            "program.py",
            "0",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[:3] == [50, None, None]
    assert not (tmp_path / "dlprof-runs").exists()
    assert json.loads((tmp_path / "run" / "report.json").read_text())["run"]["steps_measured"] > 0


@pytest.mark.parametrize("wrong", ["steps=0", "warmup=-1", "trace_steps=-1"])
def test_numbers_that_make_no_sense_are_refused(scripts: Scripts, wrong: str) -> None:
    done = scripts.plain(scripts.write(f"import dlprof\ndlprof.profile({wrong})\n"))
    assert b"ValueError" in done.stderr
