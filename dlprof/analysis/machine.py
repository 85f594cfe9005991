"""What the looks from outside say of a run: reads from disk, throttling, other programs' load, workers' memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlprof.analysis.scope import own_spans
from dlprof.model.kinds import Kind, Role
from dlprof.model.machine import Machine, ProcessReadings
from dlprof.model.profile import Notice, Profile
from dlprof.model.steps import Step, Steps

_LEAST_LOOKS = 2
"""Looks within the steps from which on anything is said of them."""
_THROTTLED = 0.05
_OTHERS_SHARE = 0.1
_OTHERS_CORES = 0.5
FULL = 0.75
"""Other programs take nothing away while more than a quarter of the cores is idle."""
_COLD_BYTES_PER_STEP = 65_536
_COLD_BYTES = 10_000_000
_WARM_SHARE = 0.25
_GROWTH_READINGS = 4
_GROWTH_BYTES = 50_000_000
_GROWS_ON = 0.5
_OF_MEMORY = 0.9

Column = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Load:
    """What happened over a stretch of steps; None stands for what the system does not say.

    Attributes:
        steps: Steps in it.
        seconds: Its length.
        disk_bytes: Bytes that the training process and its workers read from storage.
        asked_bytes: Bytes that their read calls returned.
        major_faults: Their page faults that had to read from disk.
        cores_used: Cores that the command and all it started, and dlprof, kept busy on average.
        cores_others: Cores that other programs kept busy, of those that the training process may use.
        cores: How many these are.
        throttled_ratio: Of the time in which the run wanted to be on a core, the part that the quota kept it off.
    """

    steps: int
    seconds: float
    disk_bytes: float | None
    asked_bytes: float | None
    major_faults: float
    cores_used: float
    cores_others: float
    cores: int
    throttled_ratio: float


def load_during(profile: Profile, steps: Sequence[Step], part: tuple[float, float] = (0.0, 1.0)) -> Load | None:
    """What happened over some steps.

    Args:
        profile: The run.
        steps: Steps that follow each other.
        part: Which stretch of them, 0 to 1.

    Returns:
        None where there were too few looks to tell.
    """
    machine = profile.machine
    if machine is None or not steps:
        return None
    first, last = steps[0].wait_start_ns, steps[-1].body_end_ns
    length = last - first
    start, end = first + round(length * part[0]), first + round(length * part[1])
    at = np.array(machine.at_ns, dtype=np.float64)
    # Before the first and after the last look nothing is known.
    start, end = max(start, int(at[0])), min(end, int(at[-1]))
    if np.count_nonzero((at >= start) & (at <= end)) < _LEAST_LOOKS:
        return None
    seconds = (end - start) / 1e9

    def over(column: Column) -> float:
        # Of a process that has ended without being waited for the counters are lost: a sum never falls.
        return float(np.diff(np.interp([start, end], at, np.maximum.accumulate(column)))[0])

    busy, run = over(np.array(machine.busy_ns, float)), over(np.array(machine.run_cpu_ns, float))
    throttled = over(np.array(machine.throttled_ns, float))
    own = list(_own(profile, machine))
    disk, asked, faults = (_sum(own, name, len(at)) for name in ("disk_bytes", "asked_bytes", "major_faults"))
    return Load(
        steps=sum(start < step.body_end_ns <= end for step in steps),
        seconds=seconds,
        disk_bytes=None if disk is None else over(disk),
        asked_bytes=None if asked is None else over(asked),
        major_faults=0.0 if faults is None else over(faults),
        cores_used=run / 1e9 / seconds,
        cores_others=max(0.0, busy - run) / 1e9 / seconds,
        cores=machine.cores,
        throttled_ratio=throttled / (throttled + run) if throttled else 0.0,
    )


def _own(profile: Profile, machine: Machine) -> Iterator[ProcessReadings]:
    """The training process, its workers, and whatever stands between them (the server of forkserver)."""
    pids = {profile.main_pid, *(pid for i in profile.iterations if i.pid == profile.main_pid for pid in i.workers)}
    parents = {each.pid: each.parent for each in machine.processes}
    for each in machine.processes:
        above = each.pid
        while above in parents and above not in pids:
            above = parents[above]
        if above in pids:
            yield each


def _sum(processes: list[ProcessReadings], name: str, looks: int) -> Column | None:
    total = np.zeros(looks)
    for process in processes:
        values = np.array(getattr(process, name), dtype=np.float64)
        if (values < 0).any():
            return None
        total[list(process.look)] += values
    return total


def load_facts(profile: Profile, steps: Steps) -> dict[str, Any]:
    """The load over the measured steps, for the report's environment; empty where it is not known."""
    load = load_during(profile, steps.measured)
    if load is None or not load.steps:
        return {}
    facts = {
        "read_from_disk_per_step_bytes": load.disk_bytes,
        "read_by_calls_per_step_bytes": load.asked_bytes,
        "major_faults_per_step": load.major_faults,
    }
    per_step = {key: round(value / load.steps, 3) for key, value in facts.items() if value is not None}
    return {
        "during_the_steps": per_step
        | {
            "cores_used": round(load.cores_used, 3),
            "cores_used_by_others": round(load.cores_others, 3),
            "throttled_ratio": round(load.throttled_ratio, 4),
        }
    }


def load_notices(profile: Profile, steps: Steps) -> list[Notice]:
    """What a reader has to know of the machine: throttling, other programs, reads that were cold at first, memory."""
    load = load_during(profile, steps.measured)
    notices = []
    if load is not None and load.throttled_ratio >= _THROTTLED:
        quota = profile.machine.quota if profile.machine is not None else None
        values = {"share": load.throttled_ratio} | ({} if quota is None else {"cores": round(quota, 2)})
        notices.append(Notice("cpu-throttled", 1, values))
    if load is not None and _others_disturb(load):
        notices.append(Notice("machine-busy", 1, {"busy": round(load.cores_others, 1), "cores": load.cores}))
    return [*notices, *_cold_reads(profile, steps), *_growing_memory(profile, steps)]


def _others_disturb(load: Load) -> bool:
    full = (load.cores_used + load.cores_others) / max(load.cores, 1)
    return load.cores_others >= max(_OTHERS_CORES, _OTHERS_SHARE * load.cores) and full >= FULL


def _cold_reads(profile: Profile, steps: Steps) -> Iterator[Notice]:
    cold, warm = load_during(profile, steps.measured, (0.0, 1 / 3)), load_during(profile, steps.measured, (2 / 3, 1.0))
    if cold is None or warm is None or not cold.steps or not warm.steps:
        return
    if cold.disk_bytes is None or warm.disk_bytes is None:
        return
    before, after = cold.disk_bytes / cold.steps, warm.disk_bytes / warm.steps
    if cold.disk_bytes >= _COLD_BYTES and before >= _COLD_BYTES_PER_STEP and after <= _WARM_SHARE * before:
        yield Notice("reads-cold-then-warm", 1, {"cold_bytes": before, "warm_bytes": after})


# ---- memory of workers -----------------------------------------------------------------------------------------------


def private_memory_mb(profile: Profile) -> dict[int, tuple[float | None, float | None]]:
    """Private memory of each worker in megabytes (10^6) when it had begun to work, and at the last look.

    The first is None where there was only one look since the worker was ready.
    """
    found: dict[int, tuple[float | None, float | None]] = {}
    for pid, (_, private) in _memory_since_ready(profile).items():
        first = float(private[0]) / 1e6 if len(private) > 1 else None
        found[pid] = (first, float(private[-1]) / 1e6)
    return found


def _memory_since_ready(profile: Profile) -> dict[int, tuple[Column, Column]]:
    """Moments and bytes of each worker, from when it was ready on: what it loads before that is no growth."""
    if profile.machine is None:
        return {}
    starts = own_spans(profile).of(Kind.WORKER_START)
    ready = {profile.tracks[int(t)].pid: int(end) for t, end in zip(starts.track, starts.end_ns, strict=True)}
    workers = {track.pid for track in profile.tracks if track.role is Role.WORKER}
    found = {}
    for memory in profile.machine.memory:
        at = np.array(memory.at_ns, dtype=np.float64)
        since = at >= ready.get(memory.pid, 0)
        if memory.pid in workers and since.any():
            found[memory.pid] = (at[since], np.array(memory.private_bytes, dtype=np.float64)[since])
    return found


def _growing_memory(profile: Profile, steps: Steps) -> Iterator[Notice]:
    loader = next((each for each in profile.loaders if each.number == steps.loader), None)
    length = loader.settings.get("length") if loader is not None else None
    limit = profile.environment.get("memory_limit_bytes") or profile.environment.get("memory_bytes")
    if not isinstance(length, int) or not limit:
        return
    fetches = own_spans(profile).of(Kind.FETCH)
    pids = np.array([track.pid for track in profile.tracks], dtype=np.int64)[fetches.track]
    grown, made, now = [], 0, 0.0
    for pid, (at, private) in _memory_since_ready(profile).items():
        batches = np.searchsorted(np.sort(fetches.end_ns[pids == pid]), at).astype(np.float64)
        made += int(batches[-1])
        now += float(private[-1])
        rate = _steady_growth(batches, private)
        if rate is not None:
            grown.append(rate)
    if not grown or made >= length:
        return
    per_batch = float(np.mean(grown))
    # Each of the batches to come is made by one worker.
    then = now + per_batch * (length - made)
    if then > _OF_MEMORY * limit:
        values = {"batch_bytes": per_batch, "now_bytes": now, "then_bytes": then, "limit_bytes": limit}
        yield Notice("worker-memory-grows", len(grown), values)


def _steady_growth(batches: Column, private: Column) -> float | None:
    """Bytes a batch by which a worker grows, None where it does not, or does so less and less."""
    if len(private) < _GROWTH_READINGS or private[-1] - private[0] < _GROWTH_BYTES or batches[-1] <= batches[0]:
        return None
    middle = len(private) // 2
    if not batches[0] < batches[middle] < batches[-1]:
        return None
    early, late = (
        (private[to] - private[since]) / (batches[to] - batches[since]) for since, to in ((0, middle), (middle, -1))
    )
    whole = (private[-1] - private[0]) / (batches[-1] - batches[0])
    steady = early > 0 and late >= _GROWS_ON * early
    return float(min(whole, late)) if steady else None
