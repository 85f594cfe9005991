"""What a batch waits for while it is made, and at which line: real scripts, looked at from outside and from inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlprof.analysis.components import find_fetches
from dlprof.analysis.input_wait import split_waits
from dlprof.analysis.steps import find_steps
from dlprof.formats.run_file import NAME, load

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 240

SCRIPT = '''
import ctypes, itertools, json, multiprocessing, os, socket, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

TEXT = json.dumps([[number / 7, str(number)] for number in range(15000)])
LIBRARY = ctypes.PyDLL(None)

def serve(server, hold):
    """Answers each byte after a moment."""
    while True:
        connection, _ = server.accept()
        while connection.recv(1):
            time.sleep(hold)
            connection.sendall(b"x" * 8)

class Data(Dataset):
    def __init__(self, mode, lock, port):
        self.mode, self.lock, self.port = mode, lock, port
        self.connection = None

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return getattr(self, self.mode)(index)

    def parse(self, index):
        values = json.loads(TEXT)  # parse
        return torch.tensor(values[index % 100][0])

    def holds_gil(self, index):
        LIBRARY.usleep(9000)  # holds_gil
        return torch.tensor(float(index))

    def sleeps(self, index):
        time.sleep(0.009)  # sleeps
        return torch.tensor(float(index))

    def locks(self, index):
        with self.lock:  # locks
            LIBRARY.usleep(4000)
        return torch.tensor(float(index))

    def receives(self, index):
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", self.port))
        self.connection.sendall(b"?")
        answer = self.connection.recv(8)  # receives
        return torch.tensor(float(len(answer)))

def blocks(cases):
    """A block for each case; what comes after its steps is not looked at."""
    import dlprof
    for case in cases:
        workers, method = case.split("-")
        with dlprof.profile(steps=20, warmup=2, trace_steps=0, out=case):
            main("sleeps", int(workers), method, 30)

def main(mode, workers, method, batches):
    torch.set_num_threads(1)
    server, port = None, 0
    if mode == "receives":
        server = socket.create_server(("127.0.0.1", 0))
        port = server.getsockname()[1]
        serving = multiprocessing.get_context("fork").Process(target=serve_all, args=(server,), daemon=True)
        serving.start()
    context = multiprocessing.get_context(method)
    dataset = Data(mode, context.Lock() if mode == "locks" else None, port)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    loader = DataLoader(dataset, 2, num_workers=workers, multiprocessing_context=context if workers else None)
    for batch in itertools.islice(loader, batches):
        model(batch[:, None]).sum().backward()
        optimizer.step()

def serve_all(server):
    for _ in range(3):
        threading.Thread(target=serve, args=(server, 0.009), daemon=True).start()
    serve(server, 0.009)

if __name__ == "__main__":
    if sys.argv[1] == "blocks":
        blocks(sys.argv[2:])
    else:
        # More than dlprof asks for.
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3], 400)
'''


def line_of(mode: str) -> str:
    lines = SCRIPT.splitlines()
    (place,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mode}")]
    return f"script.py:{place}"


def run(folder: Path, *arguments: str, steps: str = "80", options: tuple[str, ...] = ()) -> dict[str, Any]:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "dlprof", "run", "--out", "run", "--format", "json"]
    command += ["--warmup", "2", "--trace-steps", "0", "--steps", steps, *options, "script.py", "--", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=os.environ.copy(), capture_output=True, text=True, timeout=TIME_LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((folder / "run" / "report.json").read_text())
    return report


def lines_in(report: dict[str, Any], state: str) -> list[str]:
    return [line["where"] for line in report["input"]["hot_lines"] if line["state"] == state]


def assert_parts_sum(run: Path, report: dict[str, Any]) -> None:
    """The parts of the wait for input sum to it; taken from the saved run, since the report names only the largest."""
    profile = load(run / NAME)
    steps = find_steps(profile).measured
    parts = split_waits(profile, steps, find_fetches(profile))
    assert 0.98 <= parts.sum() / sum(step.wait_ns for step in steps) <= 1.02
    shown = sum(row["ms_per_step"] for row in report["budget"] if row["cause"] == "input_wait")
    assert shown > 0


BLOCKED = {
    "parse": ("cpu", {"dataset_getitem", "cpu_contention"}),
    "holds_gil": ("sleep", {"sleep"}),
    "sleeps": ("sleep", {"sleep"}),
    # Of three workers one sleeps while it holds the lock, and two wait for it.
    "locks": ("lock", {"lock_wait"}),
    "receives": ("network", {"storage_io"}),
}
"""State in which the planted line spends its time, and the components that the verdict may name."""


@pytest.mark.parametrize(
    ("mode", "workers", "method"),
    [
        pytest.param("parse", "1", "spawn", marks=pytest.mark.quiet),
        ("holds_gil", "1", "fork"),
        ("sleeps", "0", "fork"),
        ("sleeps", "1", "forkserver"),
        ("locks", "3", "fork"),
        ("receives", "2", "fork"),
    ],
)
def test_the_planted_line_and_what_it_waits_for_are_found(tmp_path, mode, workers, method):
    # The more threads there are, the more rarely each is looked at; and these steps are short.
    report = run(tmp_path, mode, workers, method, steps="160" if mode == "locks" else "80")
    state, components = BLOCKED[mode]
    assert line_of(mode) in lines_in(report, state)[:2], report["input"]["hot_lines"]
    assert report["verdict"]["component"] in components, report["verdict"]
    assert_parts_sum(tmp_path / "run", report)
    slugs = {notice["slug"] for notice in report["notices"]}
    assert not slugs & {"samples-lost", "frames-not-found", "recording-damaged"}


def test_without_looks_there_are_no_lines(tmp_path):
    report = run(tmp_path, "sleeps", "1", "fork", options=("--sample-hz", "0"))
    assert report["input"]["hot_lines"] == []
    assert set(report["input"]["per_batch_ms"]) & {"sleep", "lock_wait", "storage_io"} == set()
    assert_parts_sum(tmp_path / "run", report)


BLOCKS = ("0-fork", "1-fork", "1-spawn")


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a block for each number of workers and start method; the folder with their runs."""
    folder = tmp_path_factory.mktemp("blocks")
    (folder / "script.py").write_text(SCRIPT)
    # A block writes every document, and the PDF takes seconds.
    (folder / "broken").mkdir()
    (folder / "broken" / "weasyprint.py").write_text("raise OSError('there is no Pango')\n")
    done = subprocess.run(
        [sys.executable, "script.py", "blocks", *BLOCKS],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "broken"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_looked_at_from_inside(blocks: Path, block: str) -> None:
    report = json.loads((blocks / block / "report.json").read_text())
    assert line_of("sleeps") in lines_in(report, "sleep")[:2], report["input"]["hot_lines"]
    assert_parts_sum(blocks / block, report)
