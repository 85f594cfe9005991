"""Runs the labelled workloads under dlprof and says which answers are right: ``make workloads``.

Exit status 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
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
from typing import Any

import labels
from labels import Variant, matches
from rich.console import Console
from rich.table import Table

LIMIT_S = 120
STEPS = ("--steps", "40", "--warmup", "5", "--trace-steps", "5")
SKIPPED_STEPS = 5
"""Of a plain run: they come from queues that were filled, or not yet filled, at the start."""
REMOVED = {"input": 4, "data-work": 12}
"""What a plain run does without from request `REMOVED_FROM` on, and how many steps it then takes until that shows: with
data work, until the queues hold no more that was made before."""
REMOVED_FROM, REMOVED_TO = 30, 62
"""All scripts ask for some more. Both parts are of one process: from start to start, steps of some differ twofold."""
COLUMNS = ("workload", "accepted", "verdict", "share", "confidence", "hot line", "advice", "answer")


@dataclass
class Outcome:
    """One run of one script, compared with its label."""

    variant: Variant
    verdict: str = ""
    share: str = ""
    confidence: str = ""
    line: str = ""
    advice: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    skipped: str | None = None
    seconds: float = 0.0
    report: dict[str, Any] | None = None


# ---- what this machine has -------------------------------------------------------------------------------------------


def missing(need: str) -> str | None:
    """Why a case cannot run here; None where it can."""
    what, _, name = need.partition(":")
    if what == "root":
        return None if os.geteuid() == 0 else "needs root"
    if what == "unshare":
        tried = shutil.which("unshare") and subprocess.run(["unshare", "-m", "true"], capture_output=True)
        return None if tried and tried.returncode == 0 else "unshare -m is not permitted"
    if what == "drop-caches":
        return None if os.access("/proc/sys/vm/drop_caches", os.W_OK) else "/proc/sys/vm/drop_caches is not writable"
    if what == "cgroup":
        writable = any(os.access(path, os.W_OK) for path in ("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/cpu"))
        return None if writable else "no writable cgroup"
    if what == "cores":
        return None if len(os.sched_getaffinity(0)) >= int(name) else f"needs {name} cores"
    if what == "command":
        return None if shutil.which(name) else f"{name} is not installed"
    if what == "module":
        return None if importlib.util.find_spec(name) else f"{name} is not installed"
    raise labels.LabelError(f"no such need: {need}")


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy with another process."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def started(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command with ``folder`` for its temporary files."""
    temporary = folder / "tmp"
    temporary.mkdir()
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
        env={**os.environ, "TMPDIR": str(temporary), **environment},
    )


# ---- under dlprof ----------------------------------------------------------------------------------------------------


def profiled(variant: Variant, *, busy: bool, keep: Path | None) -> Outcome:
    """Run a script under dlprof and compare the report with the label."""
    outcome = Outcome(variant)
    outcome.skipped = next(filter(None, map(missing, variant.needs)), None)
    if outcome.skipped:
        return outcome
    with tempfile.TemporaryDirectory(prefix="wl-") as name:
        folder = Path(name)
        out = folder / "run"
        own = [*variant.launch, sys.executable, "-m", "dlprof", "run", *STEPS, "--format", "json", "--out", str(out)]
        begun = time.monotonic()
        try:
            done = started([*own, *variant.options, str(variant.script)], folder, {})
        except subprocess.TimeoutExpired:
            outcome.wrong = (f"still running after {LIMIT_S} s",)
            return outcome
        finally:
            outcome.seconds = time.monotonic() - begun
        if keep is not None and out.exists():
            shutil.copytree(out, keep / variant.title.replace("/", "-"), dirs_exist_ok=True)
        if not (out / "report.json").exists():
            outcome.wrong = (f"no report, status {done.returncode}: {done.stderr.strip()[-300:]}",)
            return outcome
        outcome.report = json.loads((out / "report.json").read_text())
    judge(outcome, busy=busy, status=done.returncode)
    return outcome


def judge(outcome: Outcome, *, busy: bool, status: int) -> None:
    """Fill in what the report says and what of it is wrong."""
    report, variant = outcome.report, outcome.variant
    assert report is not None
    verdict = report["verdict"]
    given = verdict["bottleneck"], verdict["component"]
    outcome.verdict = f"{given[0]}/{given[1] or '-'}"
    outcome.share = "" if verdict["share"] is None else f"{verdict['share']:.0%}"
    outcome.confidence = verdict["confidence"]
    outcome.advice = tuple(row["id"] for row in report["advice"])
    wrong = []
    if variant.status is not None and status != variant.status:
        wrong.append(f"status {status}")
    if not any(matches(answer, *given) for answer in (*variant.accept, *(variant.accept_busy if busy else ()))):
        wrong.append("verdict")
    given_never = [id_ for id_ in outcome.advice if id_ in variant.must_not]
    given_never += [answer for answer in variant.must_not if answer not in labels.ADVICE and matches(answer, *given)]
    wrong.extend(f"never {answer}" for answer in given_never)
    if variant.line is not None:
        ranks = {state: rank_of_line(report, variant, state) for state in variant.states}
        outcome.line = ", ".join(f"{state} {f'#{rank}' if rank else 'not found'}" for state, rank in ranks.items())
        if not any(rank is not None and rank <= 2 for rank in ranks.values()):
            wrong.append("hot line")
    outcome.wrong = tuple(wrong)


def rank_of_line(report: dict[str, Any], variant: Variant, state: str) -> int | None:
    """Place of the planted line among the hot lines of a state, 1-based; None where it is not among them."""
    number = variant.line_number
    lines = (report["input"] or {}).get("hot_lines") or []
    same = sorted((row for row in lines if row["state"] == state), key=lambda row: -row["share"])
    places = [row["where"].endswith(f"{variant.script.name}:{number}") for row in same]
    return places.index(True) + 1 if True in places else None


def table_of(outcomes: list[Outcome], *, advice_counts: bool) -> Table:
    """One row a run."""
    table = Table(title="Labelled workloads")
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for each in outcomes:
        variant = each.variant
        absent = [f"[dim]no {id_}[/]" for id_ in variant.advice if id_ not in each.advice and not each.skipped]
        if each.skipped:
            answer = f"[yellow]skipped: {each.skipped}[/]"
        elif each.wrong or (advice_counts and absent):
            answer = f"[red]wrong[/]: {', '.join((*each.wrong, *(('advice',) if advice_counts and absent else ())))}"
        else:
            answer = "[green]right[/]"
        accepted = "\n".join(variant.accept)
        advice = "\n".join((*each.advice, *absent))
        table.add_row(
            variant.title,
            accepted,
            each.verdict,
            each.share,
            each.confidence,
            each.line,
            advice,
            answer,
            end_section=True,
        )
    return table


def run_under_dlprof(chosen: list[Variant], options: argparse.Namespace, console: Console) -> int:
    """Run and print; returns the exit status."""
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    bad = False
    with busy_core() if options.busy else contextlib.nullcontext():
        for turn in range(options.repeat):
            outcomes = []
            for variant in chosen:
                outcome = profiled(variant, busy=options.busy, keep=options.keep)
                outcomes.append(outcome)
                said = outcome.skipped or ", ".join(outcome.wrong) or "right"
                print(
                    f"{variant.title}: {outcome.verdict} {said} ({outcome.seconds:.0f} s)", file=sys.stderr, flush=True
                )
            console.print(table_of(outcomes, advice_counts=options.advice))
            ran = [each for each in outcomes if not each.skipped]
            wrong = [
                each
                for each in ran
                if each.wrong or (options.advice and not set(each.variant.advice) <= set(each.advice))
            ]
            bad = bad or bool(wrong)
            state = ", one core kept busy" if options.busy else ""
            console.print(
                f"run {turn + 1} of {options.repeat}{state}: {len(ran) - len(wrong)} of {len(ran)} right, "
                f"{len(outcomes) - len(ran)} skipped"
            )
    return int(bad)


# ---- plain -----------------------------------------------------------------------------------------------------------


def plain(variant: Variant, without: str | None = None) -> tuple[list[float], float]:
    """When a run without dlprof asked for each batch, in s, and the whole run's time in s.

    Args:
        variant: The script.
        without: Key of `REMOVED`; None for the script as it is.
    """
    with tempfile.TemporaryDirectory(prefix="wl-") as name:
        times = Path(name) / "times"
        environment = {"PYTHONPATH": str(labels.HERE / "stopwatch"), "WORKLOAD_STOPWATCH": str(times)}
        if without:
            environment |= {"WORKLOAD_WITHOUT": without, "WORKLOAD_REQUESTS": f"{REMOVED_FROM}:{REMOVED_TO}"}
        begun = time.monotonic()
        done = started([*variant.launch, sys.executable, str(variant.script)], Path(name), environment)
        took = time.monotonic() - begun
        if variant.status is not None and done.returncode != variant.status:
            raise SystemExit(f"{variant.title} ended with {done.returncode}:\n{done.stderr}")
        return [float(line) for line in times.read_text().split()], took


def step_ms(asked: list[float]) -> float:
    """Mean time from one request for a batch to the next, in ms."""
    return (asked[-1] - asked[0]) / (len(asked) - 1) * 1e3


def saved(variant: Variant, without: str) -> float:
    """By what part a step is shorter without the input, or without the data work, in one plain run."""
    asked, _ = plain(variant, without)
    as_it_is = step_ms(asked[SKIPPED_STEPS : REMOVED_FROM + 1])
    return 1 - step_ms(asked[REMOVED_FROM + REMOVED[without] : REMOVED_TO]) / as_it_is


def run_plain(chosen: list[Variant], turns: int, console: Console) -> int:
    """Measure each script and its case's fix: runs interleaved, medians over them. Returns the exit status."""
    table = Table("script", "step, ms", *(f"saved without {what}" for what in REMOVED), "whole run, s", "old/new step")
    for case in sorted({variant.case for variant in chosen}):
        of_case = [variant for variant in chosen if variant.case == case]
        why = next(filter(None, (missing(need) for need in of_case[0].needs)), None)
        if why:
            table.add_row(case, why)
            continue
        steps: dict[str, list[float]] = {variant.name: [] for variant in of_case}
        took: dict[str, list[float]] = {variant.name: [] for variant in of_case}
        gains: dict[tuple[str, str], list[float]] = {}
        for _ in range(turns):
            for variant in of_case:
                asked, seconds = plain(variant)
                steps[variant.name].append(step_ms(asked[SKIPPED_STEPS:]))
                took[variant.name].append(seconds)
                for what in REMOVED:
                    gains.setdefault((variant.name, what), []).append(saved(variant, what))
        middle = {name: statistics.median(runs) for name, runs in steps.items()}
        for variant in of_case:
            name = variant.name
            shown = [
                f"{statistics.median(runs):.0%} ({min(runs):.0%} to {max(runs):.0%})"
                for runs in (gains[name, what] for what in REMOVED)
            ]
            table.add_row(
                variant.title,
                f"{middle[name]:.1f} ({min(steps[name]):.1f} to {max(steps[name]):.1f})",
                *shown,
                f"{statistics.median(took[name]):.1f}",
                f"{middle['slow'] / middle['fixed']:.2f}" if name == "fixed" and "slow" in middle else "",
            )
    console.print(table)
    return 0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Runs the labelled workloads under dlprof and compares the answers.")
    add = parser.add_argument
    add("names", nargs="*", help="parts of CASE/SCRIPT names; all without")
    add("--repeat", type=int, default=1, metavar="N", help="run all of them N times")
    add("--busy", action="store_true", help="keep one core busy with another process meanwhile")
    add("--advice", action="store_true", help="expected advice that is missing is wrong")
    add("--keep", type=Path, metavar="DIR", help="keep the runs' folders there")
    add("--plain", type=int, metavar="N", help="no dlprof: measure each fix, and what removing input saves, N times")
    options = parser.parse_args()
    every = [variant for case in labels.cases() for variant in labels.variants(case)]
    chosen = [each for each in every if not options.names or any(name in each.title for name in options.names)]
    if not chosen:
        parser.error("no case has such a name")
    console = Console(width=None if sys.stdout.isatty() else 200)
    if options.plain:
        with busy_core() if options.busy else contextlib.nullcontext():
            return run_plain(chosen, options.plain, console)
    return run_under_dlprof(chosen, options, console)


if __name__ == "__main__":
    sys.exit(main())
