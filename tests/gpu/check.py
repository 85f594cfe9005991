"""Profiles loops of known state on a GPU and compares the verdicts: ``make gpu-check``.

Needs torch, numpy and what dlprof needs for ``--format json``; no network. Exit status 1 where a verdict is wrong, 0
where all are right or there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATES = Path(__file__).with_name("states.py")
INPUT = ("storage_io", "cpu_preprocessing", "loader_overhead", "input_pipeline")
LIMIT_S = 180
_FIND_GPU = """
import torch
from states import accelerator
found = accelerator()
name = getattr(torch, found).get_device_name(0) if found else ""
print(torch.__version__, found or "", name, sep="|")
"""
_DRIVER = Path("/dev/nvidiactl")

Report = dict[str, Any]
Evidence = Callable[[Report], str | None]
"""What else has to be in a report; says what is wrong, or None."""


@dataclass(frozen=True)
class Truth:
    """What a right answer says of a state: verdict, component where only one is right, and more."""

    bottleneck: str
    components: tuple[str | None, ...] = ()
    evidence: tuple[Evidence, ...] = ()


# ---- evidence --------------------------------------------------------------------------------------------------------


def budget_share(report: Report, *causes: str) -> float:
    """Part of the step that these causes take."""
    return sum(row["share"] for row in report["budget"] if row["cause"] in causes)


def _share(cause: str, least: float = 0.0, most: float = 1.0) -> Evidence:
    def wrong(report: Report) -> str | None:
        share = budget_share(report, cause)
        return None if least <= share <= most else f"{cause} is {share:.0%} of the step"

    return wrong


def _pageable(least: float, most: float) -> Evidence:
    def wrong(report: Report) -> str | None:
        ratio = (report["device"] or {}).get("h2d_pageable_ratio")
        return None if ratio is not None and least <= ratio <= most else f"copies from pageable memory: {ratio}"

    return wrong


def _copies_have_a_speed(report: Report) -> str | None:
    speed = (report["device"] or {}).get("h2d_gb_per_s")
    return None if speed is not None and 0.1 < speed < 2000 else f"speed of copies: {speed} GB/s"


def _device_busy(least: float, most: float = 1.01) -> Evidence:
    def wrong(report: Report) -> str | None:
        ratio = (report["device"] or {}).get("busy_ratio")
        return None if ratio is not None and least <= ratio <= most else f"device busy: {ratio}"

    return wrong


def _budget_adds_up(report: Report) -> str | None:
    total, step = sum(row["ms_per_step"] for row in report["budget"]), report["step"]["mean_ms"]
    return None if step and abs(total - step) <= 1e-6 * step else f"the budget sums to {total} of {step} ms"


def _kernels_were_seen(report: Report) -> str | None:
    return None if (report["device"] or {}).get("top_kernels") else "no kernel was recorded"


TRUTHS: dict[str, Truth] = {
    "slow-loader": Truth(
        "cpu_preprocessing",
        ("dataset_getitem",),
        (_share("input_wait", least=0.6), _device_busy(0, 0.4)),
    ),
    "pageable-copies": Truth("h2d_copy", (), (_pageable(0.9, 1), _copies_have_a_speed)),
    "pinned-copies": Truth("h2d_copy", (), (_pageable(0, 0.1), _copies_have_a_speed)),
    "compute-bound": Truth("device_compute", ("compute",), (_device_busy(0.8), _share("input_wait", most=0.2))),
    "launch-bound": Truth("host_overhead", ("kernel_launch", "python"), (_device_busy(0, 0.7),)),
    "item-each-step": Truth("device_compute", ("compute",), (_device_busy(0.8), _share("input_wait", most=0.2))),
}
ALWAYS: tuple[Evidence, ...] = (_budget_adds_up, _kernels_were_seen)


def faults(report: Report, truth: Truth) -> list[str]:
    """What a report says wrongly; empty where all is right."""
    verdict = report["verdict"]
    found = []
    if verdict["bottleneck"] != truth.bottleneck:
        found.append(f"not {truth.bottleneck}")
    elif truth.components and verdict["component"] not in truth.components:
        found.append(f"component {verdict['component']}")
    said = (evidence(report) for evidence in (*ALWAYS, *truth.evidence))
    return found + [fault for fault in said if fault is not None]


def faults_between(reports: dict[str, Report]) -> list[str]:
    """What is wrong when two states are compared."""
    if not {"pageable-copies", "pinned-copies"} <= reports.keys():
        return []
    slow, fast = (reports[name]["device"] or {} for name in ("pageable-copies", "pinned-copies"))
    speeds = slow.get("h2d_gb_per_s"), fast.get("h2d_gb_per_s")
    if None in speeds or speeds[0] >= speeds[1]:
        return [f"copies from pinned memory are not faster: {speeds[0]} and {speeds[1]} GB/s"]
    return []


# ---- running ---------------------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Where Python finds dlprof: an installed one, or the wheel's in a kit, goes before this checkout's."""
    path = filter(None, [os.environ.get("PYTHONPATH"), str(STATES.parents[2])])
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


def what_is_missing() -> str | None:
    """Why nothing can be run with this Python, None where all is there."""
    # This file is run by whatever Python an image has.
    if sys.version_info < (3, 11):  # noqa: UP036
        return f"dlprof needs Python 3.11; this is {sys.version.split()[0]}. Name another: make gpu-check PYTHON=..."
    # Away from the checkout, whose dlprof Python would take first.
    command = [sys.executable, "-c", "import numpy, torch, dlprof.cli.main, dlprof.api"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(), cwd=tempfile.gettempdir()
    )
    if not done.returncode:
        return None
    lines = done.stderr.strip().splitlines()
    return (
        f"{lines[-1] if lines else done.returncode} ({sys.executable}). torch and numpy are the machine's own; the "
        "rest is in the folder that make gpu-kit fills, on a machine with a network, with KIT_PYTHON="
        f"{sys.version_info.major}.{sys.version_info.minor}."
    )


def find_gpu() -> tuple[str, str, str] | None:
    """Version of torch, device type and name; None without a device. Asked in a process of its own."""
    command = [sys.executable, "-c", _FIND_GPU]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=STATES.parent)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        print(f"torch cannot be used: {lines[-1] if lines else done.returncode}")
        return None
    version, kind, name = done.stdout.strip().splitlines()[-1].split("|")
    if not kind and _DRIVER.exists():
        print(
            f"There is an NVIDIA driver, but torch {version} of {sys.executable} does not use it. For another Python: "
            "make gpu-check VENV=none PYTHON=..."
        )
    return (version, kind, name) if kind else None


def profile(state: str, folder: Path, *, steps: int, trace_steps: int, script: Iterable[str] = ()) -> Report:
    """The report of one state.

    Raises:
        RuntimeError: dlprof or the script failed.
    """
    command = [sys.executable, "-m", "dlprof", "run", "--steps", str(steps), "--trace-steps", str(trace_steps)]
    command += ["--format", "json", "--out", str(folder), "--", sys.executable, str(STATES), state, *script]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        env=environment(),
        # Python looks for dlprof in the working folder first: it must not be the checkout.
        cwd=folder.parent,
    )
    file = folder / "report.json"
    if done.returncode or not file.exists():
        raise RuntimeError(f"status {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}")
    report: Report = json.loads(file.read_text(encoding="utf-8"))
    return report


def row(state: str, report: Report, found: list[str] | None) -> str:
    """One line of the table; ``found`` None where nothing is judged."""
    verdict, device = report["verdict"], report["device"] or {}
    said = verdict["bottleneck"] + (f" / {verdict['component']}" if verdict["component"] else "")
    share = "" if verdict["share"] is None else f"{verdict['share']:.0%}"
    busy = "" if not device else f"{device['busy_ratio']:.0%}"
    speed = device.get("h2d_gb_per_s")
    judged = "not judged" if found is None else "; ".join(found) or "right"
    columns = (
        f"{state:16}",
        f"{TRUTHS[state].bottleneck:18}",
        f"{said:36}",
        f"{share:>5}",
        f"{report['step']['mean_ms'] or 0:9.2f}",
        f"{busy:>5}",
        "" if speed is None else f"{speed:6.1f}",
        judged,
    )
    return "  ".join(columns)


def main() -> int:
    """Run the states and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("states", nargs="*", help=f"by default all: {', '.join(TRUTHS)}")
    parser.add_argument("--device", help="cpu: see that everything runs; nothing is judged")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--trace-steps", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="folder for the runs")
    asked = parser.parse_args()
    unknown = set(asked.states) - set(TRUTHS)
    if unknown:
        parser.error(f"no state {', '.join(sorted(unknown))}")
    missing = what_is_missing()
    if missing is not None:
        print(f"gpu-check: {missing}")
        return 1
    gpu = find_gpu()
    if gpu is None and asked.device != "cpu":
        print("gpu-check: SKIPPED, torch finds no GPU here. Nothing was checked.")
        return 0
    if gpu is not None:
        print("torch {}, {} {}".format(*gpu))
    judged = asked.device != "cpu"
    device = asked.device or (gpu[1] if gpu is not None else None)
    script = ["--device", device] if device else []
    print(f"{'state':16}  {'truth':18}  {'verdict':36}  share  step [ms]   busy    GB/s")
    wrong = 0
    reports: dict[str, Report] = {}
    with tempfile.TemporaryDirectory(prefix="dlprof-gpu-check-") as scratch:
        folder = (asked.keep or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for state in asked.states or TRUTHS:
            begin = time.monotonic()
            try:
                report = profile(
                    state,
                    folder / f"{state}-{int(begin)}",
                    steps=asked.steps,
                    trace_steps=asked.trace_steps,
                    script=script,
                )
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{state:16}  FAILED: {error}", flush=True)
                wrong += 1
                continue
            reports[state] = report
            found = faults(report, TRUTHS[state]) if judged else None
            wrong += bool(found)
            print(row(state, report, found), f"({time.monotonic() - begin:.0f} s)", flush=True)
            for notice in report["notices"] if found else ():
                print(f"{'':16}    {notice['slug']}: {notice['text']}")
    for fault in faults_between(reports) if judged else ():
        print(fault)
        wrong += 1
    if wrong:
        print(f"gpu-check: {wrong} WRONG")
    else:
        print("gpu-check: all right" if judged else "gpu-check: everything ran; nothing was judged")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
