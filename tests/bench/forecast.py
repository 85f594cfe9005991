"""How right forecasts are: each from one profiled run, against a real run with ``dlprof run --set``.

    python tests/bench/forecast.py [NAME...] [--runs DIR [--again]] [--repeat N]

Every workload runs with each of its settings, the settings in turn, ``--repeat`` times. The runs without workers and
with two are also what the other settings are forecast from. With ``--runs`` they are kept in a folder, and those that
are there are not measured again: the same runs tell what another version of the simulator makes of them.

Runs during which other programs kept part of a core busy tell nothing of a forecast: how much that was is kept beside
each run, and their rows are printed but do not count.

Not collected by pytest: it depends on time. All workloads take about ten minutes on an idle machine with two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlprof.analysis.components import find_fetches
from dlprof.analysis.pipeline import build_pipeline, training_loader
from dlprof.analysis.steps import find_steps
from dlprof.api import load
from dlprof.model.kinds import Confidence
from dlprof.model.pipeline import Pipeline
from dlprof.model.report import Forecast
from dlprof.whatif.forecast import Change, forecast_changes
from dlprof.whatif.pipeline import DEFAULT_PREFETCH, Scenario, Simulator

TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"
OWN = "bench/pipelines.py"
LIMIT_S = 120
SAME = 1.05
"""Steps that differ by less are the same."""
QUIET = 0.15
"""Cores that other programs may keep busy during a run that counts."""
OTHERS = "others"
"""File beside a run that tells how many cores that was."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Setting:
    """Of the loader."""

    workers: int
    prefetch: int = DEFAULT_PREFETCH
    in_order: bool = True

    @property
    def name(self) -> str:
        """As the table and the folder of runs call it."""
        parts = [f"w{self.workers}"]
        parts += [f"p{self.prefetch}"] if self.prefetch != DEFAULT_PREFETCH else []
        parts += [] if self.in_order else ["any-order"]
        return "-".join(parts)

    def options(self) -> list[str]:
        """For ``dlprof run``."""
        values = {"num_workers": self.workers}
        if self.workers:
            values |= {"prefetch_factor": self.prefetch}
        if not self.in_order:
            values |= {"in_order": False}
        # What comes from a queue that was filled at the start was not waited for.
        warmup = max(5, self.workers * self.prefetch)
        # With many workers batches come in volleys: a few more or less at the end must not matter.
        steps = 40 if self.workers <= 2 else 80
        sets = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        return [*sets, "--warmup", str(warmup), "--steps", str(steps), "--trace-steps", "0"]


@dataclass(frozen=True, slots=True)
class Workload:
    """A script, what its input does, and the settings to measure beyond the two that are forecast from."""

    name: str
    script: tuple[str, ...]
    bound: str
    """``blocked``, ``cpu``, or ``saturated``: blocked on what serves one at a time."""
    others: tuple[Setting, ...]


BASELINES = Setting(0), Setting(2)
_COMPUTES = Setting(1), Setting(3), Setting(4)
_BLOCKS = Setting(1), Setting(4), Setting(8)


def _own(kind: str, bound: str, others: tuple[Setting, ...]) -> Workload:
    return Workload(kind, (OWN, kind), bound, others)


WORKLOADS = (
    _own("latency", "blocked", _BLOCKS),
    _own("latency-computing-step", "blocked", (Setting(4), Setting(6))),
    _own("latency-uneven", "blocked", (Setting(2, 8), Setting(2, 2, in_order=False), Setting(4))),
    _own("stream", "blocked", _BLOCKS),
    Workload("http", ("workloads/http_per_sample/slow.py",), "blocked", (Setting(1), Setting(4))),
    _own("digest", "cpu", _COMPUTES),
    _own("digest-uneven", "cpu", (Setting(1), Setting(2, 8), Setting(4))),
    _own("digest-computing-step", "cpu", _COMPUTES),
    _own("python-loop", "cpu", (Setting(1), Setting(4))),
    _own("half-waiting", "blocked", (Setting(1), Setting(4))),
    _own("pictures", "cpu", (Setting(1), Setting(4))),
    Workload("jpeg", ("workloads/decode_per_sample/slow.py",), "cpu", (Setting(1), Setting(3))),
    Workload("tokenizer", ("workloads/python_tokenizer/slow.py",), "cpu", (Setting(1), Setting(3))),
    Workload("collate", ("workloads/collate_from_lists/slow.py",), "cpu", (Setting(1), Setting(3))),
    Workload("text", (str(EXAMPLES / "train_text.py"), "--steps", "90"), "cpu", (Setting(1), Setting(3))),
    _own("saturated", "saturated", (Setting(1), Setting(4), Setting(8))),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One forecast against what was measured."""

    workload: Workload
    base: Setting
    setting: Setting
    base_ms: float
    """The step of the run that is forecast from."""
    usual_base_ms: float
    """The median of all runs with its setting."""
    forecast: Forecast
    measured_ms: float
    others: float
    """Cores that other programs kept busy during the runs, at most."""

    @property
    def quiet(self) -> bool:
        """Whether the row counts."""
        return self.others <= QUIET

    @property
    def error(self) -> float:
        """Forecast over measured step, minus 1."""
        return self.forecast.step_ms[1] / self.measured_ms - 1

    @property
    def held(self) -> bool:
        """Whether what was measured lies between the 10th and the 90th percentile."""
        return self.forecast.step_ms[0] <= self.measured_ms <= self.forecast.step_ms[2]

    @property
    def group(self) -> str:
        """Beyond the cores a forecast of work that computes need only be right in its direction."""
        beyond = self.workload.bound == "cpu" and self.setting.workers > len(os.sched_getaffinity(0))
        return "beyond the cores" if beyond else self.workload.bound

    @property
    def right_direction(self) -> bool:
        """Whether it is faster, the same within 5 %, or slower, as forecast."""
        return _direction(self.forecast.step_ms[1] / self.base_ms) == _direction(self.measured_ms / self.usual_base_ms)


def _direction(ratio: float) -> int:
    return (ratio > SAME) - (ratio < 1 / SAME)


# ---- measuring ------------------------------------------------------------------------------------------------------


def cpu_seconds() -> tuple[float, float]:
    """CPU time spent since the start: by all of the machine, and by this process and its children that have ended."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = Path("/proc/stat").read_text().split(maxsplit=8)[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / TICKS, sum(os.times()[:4])


def measure(workload: Workload, setting: Setting, out: Path) -> None:
    """One run. Nothing is written where it fails, and that is said."""
    script, *arguments = workload.script
    begun, (machine, own) = time.monotonic(), cpu_seconds()
    run = [sys.executable, "-m", "dlprof", "run", *setting.options(), "--format", "json", "--out", str(out)]
    try:
        done = subprocess.run(
            [*run, str(TESTS / script), "--", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        print(f"{workload.name} {setting.name}: still running after {LIMIT_S} s", file=sys.stderr)
        return
    if done.returncode or not (out / "run.dlprof").exists():
        print(f"{workload.name} {setting.name}: status {done.returncode}\n{done.stderr[-500:]}", file=sys.stderr)
    machine, own = (after - before for after, before in zip(cpu_seconds(), (machine, own), strict=True))
    if out.exists():
        (out / OTHERS).write_text(f"{max(machine - own, 0) / (time.monotonic() - begun):.3f}\n")


def folder_of(runs: Path, workload: Workload, setting: Setting, turn: int) -> Path:
    """Where a run is kept."""
    return runs / workload.name / f"{setting.name}.{turn}"


def others_during(path: Path) -> float:
    """Cores that other programs kept busy during a run, or during its measured steps; 0 where it is not known."""
    whole = float((path / OTHERS).read_text()) if (path / OTHERS).exists() else 0.0
    if not (path / "report.json").exists():
        return whole
    steps = json.loads((path / "report.json").read_text())["environment"].get("during_the_steps", {})
    return max(whole, steps.get("cores_used_by_others") or 0.0)


def measure_all(workloads: list[Workload], runs: Path, repeat: int, *, again: bool) -> None:
    """Make the runs that are missing, all settings of a workload in turn; ``again``: also those that were disturbed."""
    for workload in workloads:
        begun, made = time.monotonic(), 0
        for turn in range(repeat):
            for setting in (*BASELINES, *workload.others):
                out = folder_of(runs, workload, setting, turn)
                if again and others_during(out) > QUIET:
                    shutil.rmtree(out)
                if not out.exists():
                    measure(workload, setting, out)
                    made += 1
        if made:
            load_now = os.getloadavg()[0]
            print(
                f"{workload.name}: {made} runs, {time.monotonic() - begun:.0f} s, load {load_now:.1f}",
                file=sys.stderr,
                flush=True,
            )


# ---- forecasts ------------------------------------------------------------------------------------------------------


def pipeline_of(path: Path, setting: Setting) -> Pipeline | None:
    """What was measured in a run; None where there is none with this setting."""
    if not (path / "run.dlprof").exists():
        return None
    profile = load(path / "run.dlprof")
    steps = find_steps(profile)
    pipeline = build_pipeline(profile, steps, find_fetches(profile))
    loader = training_loader(profile, steps)
    if pipeline is None or loader is None or pipeline.workers != setting.workers:
        return None
    return pipeline


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    step_ms: float
    others: float
    pipeline: Pipeline


def runs_of(workload: Workload, setting: Setting, runs: Path) -> list[Measured]:
    """Runs with a setting, fastest first; those that other programs disturbed only where there are no others."""
    found = []
    for path in runs.glob(f"{workload.name}/{setting.name}.*"):
        pipeline = pipeline_of(path, setting)
        if pipeline is not None:
            found.append(Measured(float(pipeline.step_ns.mean()) / 1e6, others_during(path), pipeline))
    found.sort(key=lambda each: each.step_ms)
    return [each for each in found if each.others <= QUIET] or found


def rows_of(workload: Workload, runs: Path) -> Iterator[Row]:
    """Forecast each setting from each baseline's median run; the median of its own runs is what was measured."""
    found = {setting: runs_of(workload, setting, runs) for setting in (*BASELINES, *workload.others)}
    found = {setting: measured for setting, measured in found.items() if measured}
    for base in BASELINES:
        if base not in found:
            continue
        start = found[base][(len(found[base]) - 1) // 2]
        usual_ms = statistics.median(each.step_ms for each in found[base])
        settings = [setting for setting in found if setting != base]
        changes = [
            Change("", base.name, setting.name, Scenario(setting.workers, setting.prefetch, setting.in_order))
            for setting in settings
        ]
        forecasts = forecast_changes(Simulator(start.pipeline), changes)
        for setting, forecast in zip(settings, forecasts, strict=True):
            measured_ms = statistics.median(each.step_ms for each in found[setting])
            others = max(start.others, *(each.others for each in found[setting]))
            yield Row(workload, base, setting, start.step_ms, usual_ms, forecast, measured_ms, others)


# ---- table ----------------------------------------------------------------------------------------------------------


def print_row(row: Row) -> None:
    """One line."""
    low, middle, high = row.forecast.step_ms
    print(
        f"{row.workload.name:23} {row.base.name:>3} → {row.setting.name:13} {row.base_ms:7.1f}"
        f" {middle:7.1f} ({low:6.1f}-{high:6.1f}) {row.measured_ms:7.1f} {row.error:+7.1%}"
        f"  {'' if row.held else 'outside':8}{row.forecast.confidence:7}{row.group}"
        f"{'' if row.right_direction else ', wrong direction'}"
        f"{'' if row.quiet else f', {row.others:.1f} cores busy with others'}"
    )


def print_summary(every: list[Row]) -> bool:
    """Print how right the forecasts are as a whole; returns whether that is right enough."""
    rows = [row for row in every if row.quiet]
    print(f"{len(rows)} of {len(every)} forecasts count: no other programs kept a core busy meanwhile")
    if 2 * len(rows) < len(every):
        print("too busy to tell: measure again on an idle machine")
        return False
    near = [row for row in rows if row.group in ("blocked", "cpu")]
    beyond = [row for row in rows if row.group == "beyond the cores"]
    saturated = [row for row in rows if row.group == "saturated"]
    good = True
    for name, group in (
        ("on-CPU within the cores, and blocked", near),
        ("  of these on-CPU", [row for row in near if row.group == "cpu"]),
        ("  of these blocked", [row for row in near if row.group == "blocked"]),
    ):
        if not group:
            continue
        errors = np.abs([row.error for row in group])
        middle, high = float(np.median(errors)), float(np.quantile(errors, 0.9))
        held = statistics.mean(row.held for row in group)
        print(f"{name}: {len(group)} forecasts, median error {middle:.1%}, 90th percentile {high:.1%}, held {held:.0%}")
        good = good and (group is not near or (middle <= 0.07 and high <= 0.20 and held >= 0.70))
    if beyond:
        direction = statistics.mean(row.right_direction for row in beyond)
        low = statistics.mean(row.forecast.confidence is Confidence.LOW for row in beyond)
        print(f"CPU-bound beyond the cores: {len(beyond)} forecasts, direction right {direction:.0%}, low {low:.0%}")
        good = good and direction >= 0.9 and low == 1
    if saturated:
        more = [row for row in saturated if row.setting.workers > max(row.base.workers, 1)]
        gained = {id(row): max(1.0, row.base_ms / row.measured_ms) for row in more}
        promised = [row for row in more if row.forecast.speedup[0] > gained[id(row)] * SAME]
        print(
            f"one saturated source: {len(more)} forecasts of more workers, {len(promised)} promise a gain that is not"
        )
        good = good and not promised
    print("as wanted" if good else "NOT as wanted")
    return good


def main() -> int:
    """Measure, forecast, compare; exit status 1 where it is not as wanted."""
    parser = argparse.ArgumentParser(description="Compares forecasts with runs.")
    parser.add_argument("names", nargs="*", help="parts of workloads' names; all without")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="keep the runs there, and use those that are there")
    parser.add_argument("--repeat", type=int, default=2, metavar="N", help="runs of each setting (%(default)s)")
    parser.add_argument("--again", action="store_true", help="make those of them again that other programs disturbed")
    options = parser.parse_args()
    chosen = [each for each in WORKLOADS if not options.names or any(part in each.name for part in options.names)]
    if not chosen:
        parser.error("no workload has such a name")
    with tempfile.TemporaryDirectory(prefix="forecast-") as folder:
        runs = options.runs or Path(folder)
        measure_all(chosen, runs, options.repeat, again=options.again)
        head = f"{'workload':23} {'from → to':18} {'base':>7} {'forecast (p10-p90)':>25} {'run, ms':>7} {'error':>7}"
        print(head)
        rows = []
        for workload in chosen:
            for row in rows_of(workload, runs):
                print_row(row)
                rows.append(row)
    return 0 if print_summary(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
