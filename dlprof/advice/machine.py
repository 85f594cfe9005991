"""Rules about what the machine gives: cores, shared memory, open files, memory."""

from __future__ import annotations

import math

from dlprof.advice.common import (
    FINE_WAIT,
    Answer,
    crowded,
    no_core_evidence,
    queued_batches,
    queued_bytes,
    wait_evidence,
    wait_share,
    wanted_beyond_shm,
    workers_in_force,
)
from dlprof.model.advice import Advice, Findings
from dlprof.model.report import Evidence

THROTTLED = 0.05
"""Part of the time in which the run wanted a core that a quota kept it off, from which the quota costs."""
HELPED = 0.3
"""Part of the time on a core that a worker's other threads take, from which they are worth limiting."""
_MB = 2**20
_LEAST_SHM_MB = 64
_NO_SHM = ("shared memory(shm)", "shared memory (shm)", "No space left on device")
"""What torch's error says where /dev/shm was full."""
_OWN_FILES = 128
"""Files that a training process has open beside the batches': an allowance, not a measurement."""
_NO_FILES = ("Too many open files", "received 0 items of ancdata")


def raise_cpu_quota(findings: Findings) -> Answer:
    """The control group keeps the run off cores that are there."""
    environment = findings.environment
    quota, affinity = environment.get("cpu_quota"), environment.get("cpu_affinity")
    load = environment.get("during_the_steps") or {}
    throttled = load.get("throttled_ratio") or 0.0
    if not quota or not affinity or throttled < THROTTLED:
        return None
    # What was run and what was kept from running.
    wanted = math.ceil(round(load["cores_used"] / (1 - min(throttled, 0.99)), 2))
    to = min(max(wanted, math.floor(quota) + 1), affinity)
    if to <= quota:
        return None
    evidence = (
        Evidence("throttled_ratio", round(throttled, 3), "ratio"),
        Evidence("cores_used", load["cores_used"], "count"),
    )
    from_ = int(quota) if float(quota).is_integer() else round(quota, 2)
    return Advice("raise-cpu-quota", "cpu_quota", from_, to, None, evidence)


def widen_cpu_affinity(findings: Findings) -> Answer:
    """Data work waits for cores, and the machine has some that this process may not use."""
    environment = findings.environment
    affinity, count = environment.get("cpu_affinity"), environment.get("cpu_count")
    if not affinity or not count or affinity >= count or (environment.get("cpu_quota") or count) <= affinity:
        return None
    if not crowded(findings) or wait_share(findings) < FINE_WAIT:
        return None
    evidence = (*wait_evidence(findings), no_core_evidence(findings))
    return Advice("widen-cpu-affinity", "cpu_affinity", affinity, count, None, evidence)


def limit_worker_threads(findings: Findings) -> Answer:
    """Workers start threads of their own, and all of them together want more cores than there are."""
    helped = findings.facts.helper_ratio
    if not workers_in_force(findings) or helped < HELPED or not crowded(findings):
        return None
    evidence = (
        *wait_evidence(findings),
        Evidence("helper_ratio", round(helped, 3), "ratio"),
        no_core_evidence(findings),
        Evidence("cores", findings.cores, "count"),
    )
    return Advice("limit-worker-threads", None, None, None, None, evidence)


def raise_shm_size(findings: Findings) -> Answer:
    """The batches that can be queued at once do not fit /dev/shm, or did not, or would not with more workers."""
    total, free = (findings.environment.get(name) for name in ("shm_bytes", "shm_free_bytes"))
    if not total or free is None or free < 0:
        return None
    more = wanted_beyond_shm(findings)
    need = queued_bytes(findings, workers=None if more is None else more.to)
    failed = bool(workers_in_force(findings)) and any(text in findings.failure for text in _NO_SHM)
    if need <= free and not failed:
        return None
    # Twice as much, since batches differ; where it was full all the same, more than there was by as much again.
    wanted = max(2 * need + total - free, 4 * total if failed else 0, _LEAST_SHM_MB * _MB)
    to = 2 ** math.ceil(math.log2(wanted / _MB))
    evidence = (
        # Where it was full before the first batch had come, none is known.
        *([Evidence("queued_batches", need, "bytes")] if need else []),
        Evidence("shm_free", free, "bytes"),
        *([Evidence("shm_ran_out", 1, "count")] if failed else []),
        *([Evidence("workers_with_more_shm", more.to, "count")] if more is not None else []),
    )
    # What is gained is gained by those workers; the size alone changes no step.
    gain = more.speedup if more is not None else None
    return Advice("raise-shm-size", "shm_mb", round(total / _MB), to, gain, evidence)


def raise_open_files(findings: Findings) -> Answer:
    """Each tensor of a queued batch is an open file of the training process."""
    wanted = _open_files(findings)
    if wanted is None or not _may_be_raised_to(findings, wanted[0]):
        return None
    to, evidence = wanted
    return Advice("raise-open-files", "open_files", findings.environment["open_files_limit"], to, None, evidence)


def share_by_file_system(findings: Findings) -> Answer:
    """More open files are needed than this process may ask for."""
    wanted = _open_files(findings)
    if wanted is None or _may_be_raised_to(findings, wanted[0]):
        return None
    most = Evidence("open_files_hard_limit", findings.environment["open_files_hard_limit"], "count")
    return Advice("share-by-file-system", None, None, None, None, (*wanted[1], most))


def _may_be_raised_to(findings: Findings, to: int) -> bool:
    most = findings.environment.get("open_files_hard_limit")
    return most is None or most < 0 or to <= most


def _open_files(findings: Findings) -> tuple[int, tuple[Evidence, ...]] | None:
    """The limit on open files that the queued batches want, and why; None where that in force is enough."""
    limit = findings.environment.get("open_files_limit")
    if not workers_in_force(findings) or not limit or limit < 0:
        return None
    tensors = len(findings.facts.batch.tensors) if findings.facts.batch is not None else 0
    need = tensors * queued_batches(findings) + _OWN_FILES
    failed = any(text in findings.failure for text in _NO_FILES)
    if need <= limit and not failed:
        return None
    to = 2 ** math.ceil(math.log2(max(2 * need, 4 * limit if failed else 0)))
    return to, (Evidence("tensors_per_batch", tensors, "count"), Evidence("open_files_needed", need, "count"))


def shrink_worker_memory(findings: Findings) -> Answer:
    """The workers' memory grows so that it will not last the epoch."""
    grows = findings.notices.get("worker-memory-grows")
    if not grows:
        return None
    evidence = (
        Evidence("worker_growth_per_batch", grows["batch_bytes"], "bytes"),
        Evidence("worker_memory_at_end_of_epoch", grows["then_bytes"], "bytes"),
        Evidence("memory_limit", grows["limit_bytes"], "bytes"),
    )
    return Advice("shrink-worker-memory", None, None, None, None, evidence)


def match_shards_to_workers(findings: Findings) -> Answer:
    """Workers of an iterable dataset that get no data."""
    workers, busy = workers_in_force(findings), findings.facts.workers_with_batches
    if not (findings.loader or {}).get("iterable") or busy is None or busy >= workers:
        return None
    evidence = (Evidence("workers_with_batches", busy, "count"), Evidence("num_workers", workers, "count"))
    return Advice("match-shards-to-workers", "shards", busy, workers, None, evidence)
