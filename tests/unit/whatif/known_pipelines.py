"""Pipelines that are known by construction."""

from __future__ import annotations

import numpy as np

from dlprof.model.kinds import Component
from dlprof.model.pipeline import ALONE, Competition, Nanoseconds, Part, Pipeline

MS = 1e6


def part(cpu: float | Nanoseconds = 0.0, blocked: float | Nanoseconds = 0.0, batches: int = 40) -> Part:
    """Milliseconds per batch, the same for each or one by one."""
    return Part(np.full(batches, cpu) * MS, np.full(batches, blocked) * MS)


def measured(
    workers: int = 0,
    *,
    parts: dict[Component, Part],
    main: float | Nanoseconds = 0.0,
    main_cpu: float | Nanoseconds = 0.0,
    no_core: float = 0.0,
    handover: float = 0.0,
    receive: float = 0.0,
    step: float | None = None,
    cores: float = 64,
    prefetch: int = 2,
    in_order: bool = True,
    batch_bytes: int = -1,
    shm_free_bytes: int = -1,
    handover_known: bool = True,
    competition: Competition = ALONE,
) -> Pipeline:
    """A pipeline in milliseconds. ``step``: the measured step; by default the sum of all work (0 workers)."""
    batches = next(iter(parts.values())).cpu_ns.size
    fetch_ns = sum((it.cpu_ns + it.blocked_ns for it in parts.values()), start=np.zeros(batches))
    main_ns = np.full(batches, main) * MS
    step_ns = fetch_ns + main_ns if step is None else np.full(batches, step * MS)
    return Pipeline(
        workers=workers,
        prefetch_factor=prefetch if workers else 0,
        in_order=in_order,
        cores=cores,
        parts=parts,
        handover_cpu_ns=np.full(batches, handover * MS),
        receive_cpu_ns=np.full(batches, receive * MS),
        main_wall_ns=main_ns,
        main_cpu_ns=np.full(batches, main_cpu) * MS,
        main_no_core_ns=np.full(batches, no_core) * MS,
        step_ns=step_ns,
        wait_ns=np.maximum(step_ns - main_ns, 0),
        handover_known=handover_known,
        batch_bytes=batch_bytes,
        shm_free_bytes=shm_free_bytes,
        competition=competition,
    )
