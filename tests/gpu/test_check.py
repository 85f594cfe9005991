"""gpu-check itself, as far as it can be tested without a GPU: what it calls right and wrong, and that its loops run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import check
import pytest
import torch
from states import STATES

FOLDER = Path(__file__).parent


def report(bottleneck, component=None, *, busy=0.9, pageable=None, speed=None, **shares):
    """As much of a report.json as is looked at."""
    budget = [{"cause": cause, "share": share, "ms_per_step": share * 10} for cause, share in shares.items()]
    device = {
        "busy_ratio": busy,
        "h2d_pageable_ratio": pageable,
        "h2d_gb_per_s": speed,
        "top_kernels": [{"name": "gemm"}],
    }
    return {
        "verdict": {"bottleneck": bottleneck, "component": component, "share": 0.5},
        "device": device,
        "budget": budget,
        "step": {"mean_ms": 10.0},
        "notices": [],
    }


RIGHT = {
    "slow-loader": report("cpu_preprocessing", "dataset_getitem", busy=0.1, input_wait=0.9, python=0.1),
    "pageable-copies": report("h2d_copy", pageable=1.0, speed=6.0, h2d_copy=1.0),
    "pinned-copies": report("h2d_copy", pageable=0.0, speed=25.0, h2d_copy=1.0),
    "compute-bound": report("device_compute", "compute", device_compute=1.0),
    "launch-bound": report("host_overhead", "kernel_launch", busy=0.3, kernel_launch=0.7, device_compute=0.3),
    "item-each-step": report("device_compute", "compute", device_compute=1.0),
}


def test_every_state_has_a_truth():
    assert check.TRUTHS.keys() == STATES.keys() == RIGHT.keys()


@pytest.mark.parametrize("state", STATES)
def test_a_right_report_has_no_faults(state):
    assert check.faults(RIGHT[state], check.TRUTHS[state]) == []


@pytest.mark.parametrize(
    ("state", "wrong", "said"),
    [
        ("item-each-step", report("cpu_preprocessing", input_wait=0.9, device_compute=0.1), "not device_compute"),
        ("item-each-step", report("device_compute", "compute", input_wait=0.3, device_compute=0.7), "input_wait is"),
        ("slow-loader", report("cpu_preprocessing", "tokenizer", busy=0.1, input_wait=1.0), "component tokenizer"),
        ("slow-loader", report("device_compute", "compute", busy=0.1, input_wait=1.0), "not cpu_preprocessing"),
        ("pageable-copies", report("h2d_copy", pageable=0.0, speed=6.0, h2d_copy=1.0), "pageable memory: 0.0"),
        ("pinned-copies", report("h2d_copy", pageable=None, speed=6.0, h2d_copy=1.0), "pageable memory: None"),
        ("pinned-copies", report("h2d_copy", pageable=0.0, speed=None, h2d_copy=1.0), "speed of copies"),
        ("compute-bound", report("device_compute", "compute", device_compute=2.0), "sums to"),
        ("compute-bound", RIGHT["compute-bound"] | {"device": None}, "no kernel was recorded"),
        ("launch-bound", report("host_overhead", "checkpoint", busy=0.3, kernel_launch=1.0), "component checkpoint"),
    ],
)
def test_what_is_wrong_is_named(state, wrong, said):
    assert any(said in fault for fault in check.faults(wrong, check.TRUTHS[state]))


def test_pinned_copies_have_to_be_the_faster_ones():
    assert check.faults_between(RIGHT) == []
    assert check.faults_between({"slow-loader": RIGHT["slow-loader"]}) == []
    swapped = RIGHT | {"pinned-copies": RIGHT["pageable-copies"]}
    assert len(check.faults_between(swapped)) == 1


def test_every_loop_runs_on_the_cpu():
    command = [sys.executable, str(FOLDER / "states.py"), "all", "--device", "cpu", "--batches", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [f"{name} done" for name in STATES]


def test_a_loop_is_profiled_and_put_in_the_table(tmp_path):
    made = check.profile(
        "launch-bound", tmp_path / "run", steps=3, trace_steps=1, script=["--device", "cpu", "--batches", "20"]
    )
    assert "not judged" in check.row("launch-bound", made, None)
    assert check.row("launch-bound", made, ["no"]).endswith("no")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_is_no_failure():
    done = subprocess.run([sys.executable, str(FOLDER / "check.py")], capture_output=True, text=True)
    assert done.returncode == 0
    assert "torch finds no GPU here" in done.stdout


def test_a_state_that_there_is_not_is_refused():
    done = subprocess.run([sys.executable, str(FOLDER / "check.py"), "fast"], capture_output=True, text=True)
    assert done.returncode == 2


def test_a_python_without_what_dlprof_needs_is_told_where_to_get_it(monkeypatch, tmp_path):
    assert check.what_is_missing() is None
    (tmp_path / "msgspec.py").write_text("raise ModuleNotFoundError('no msgspec here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = check.what_is_missing()
    assert "no msgspec here" in said
    assert "make gpu-kit" in said


def test_the_wheel_is_checked_and_not_the_checkout(monkeypatch, tmp_path):
    # As in a kit; from within the checkout, as make runs it.
    (tmp_path / "dlprof").mkdir()
    (tmp_path / "dlprof" / "__init__.py").write_text("raise ImportError('of the kit')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(FOLDER.parents[1])
    assert "of the kit" in check.what_is_missing()
    with pytest.raises(RuntimeError, match="of the kit"):
        check.profile("launch-bound", tmp_path / "run", steps=3, trace_steps=0)
