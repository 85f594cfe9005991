"""What the simulator needs to know of a measured run: service times per batch, and what limits them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from dlprof.model.kinds import Bottleneck, Cause, Component

Nanoseconds = npt.NDArray[np.float64]

OUTSIDE_INPUT: Mapping[Bottleneck, tuple[Cause, ...]] = MappingProxyType(
    {
        Bottleneck.H2D_COPY: (Cause.H2D_COPY,),
        Bottleneck.COMMUNICATION: (Cause.COMMUNICATION,),
        Bottleneck.HOST_OVERHEAD: (Cause.PYTHON, Cause.KERNEL_LAUNCH, Cause.SYNCHRONIZATION, Cause.CHECKPOINT),
    }
)
"""Bottlenecks outside the input, and the causes of the budget that they are made of."""
BOTTLENECK_OF: Mapping[Component, Bottleneck] = MappingProxyType(
    {
        Component.STORAGE_IO: Bottleneck.STORAGE_IO,
        Component.TOKENIZER: Bottleneck.CPU_PREPROCESSING,
        Component.COLLATE_FN: Bottleneck.CPU_PREPROCESSING,
        Component.DECODE: Bottleneck.CPU_PREPROCESSING,
        Component.TRANSFORM: Bottleneck.CPU_PREPROCESSING,
        Component.DATASET_GETITEM: Bottleneck.CPU_PREPROCESSING,
        Component.CPU_CONTENTION: Bottleneck.CPU_PREPROCESSING,
        Component.LOCK_WAIT: Bottleneck.CPU_PREPROCESSING,
        Component.SAMPLER: Bottleneck.CPU_PREPROCESSING,
        Component.PICKLE: Bottleneck.LOADER_OVERHEAD,
        Component.TRANSPORT: Bottleneck.LOADER_OVERHEAD,
        Component.UNPICKLE: Bottleneck.LOADER_OVERHEAD,
        Component.PIN_MEMORY: Bottleneck.LOADER_OVERHEAD,
        Component.WORKER_STARTUP: Bottleneck.LOADER_OVERHEAD,
        Component.SLEEP: Bottleneck.INPUT_PIPELINE,
    }
)
"""What bounds the step where this component of the input pipeline does."""


@dataclass(frozen=True, slots=True)
class Part:
    """One component's share of the work on each batch.

    Attributes:
        cpu_ns: On-CPU time, helper threads included; shape ``(batches,)``.
        blocked_ns: Time blocked (not: waiting for a core); shape ``(batches,)``.
    """

    cpu_ns: Nanoseconds
    blocked_ns: Nanoseconds


@dataclass(frozen=True, slots=True)
class Competition:
    """Other programs, which share the machine's cores with the run: with a quota it may use fewer than these.

    Attributes:
        threads: How many of theirs wanted a core, on average.
        cores: Cores that all share.
    """

    threads: float
    cores: float


ALONE = Competition(0.0, math.inf)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A measured input pipeline and the step it feeds. All arrays have shape ``(batches,)``, in batch order.

    Attributes:
        workers: ``num_workers`` in force.
        prefetch_factor: Batches requested ahead per worker (0 where there are no workers).
        in_order: Whether batches are returned in the order of their indices.
        cores: Cores this rank can use: affinity and cgroup quota, over the ranks of the node.
        parts: Self time per component of making one batch where it is made: in a worker, or in the main
            process with 0 workers. Waiting for a core is left out, since the simulator derives it.
        handover_cpu_ns: A worker's own cost of handing a batch over (pickling, writing to the pipe). With 0
            workers this is what one probed batch cost, repeated.
        receive_cpu_ns: The main process's cost of receiving a batch (reading, unpickling). As above with 0
            workers.
        main_wall_ns: The step outside the request for a batch, wall time.
        main_cpu_ns: CPU time of the main process (all its threads) in that part; may exceed the wall time.
        main_no_core_ns: Wait of the main thread for a core in that part; 0 where it is not known.
        step_ns: The measured steps, wall time.
        wait_ns: The part of each step inside the request for a batch.
        handover_known: False where hand-over could be neither measured nor probed.
        batch_bytes: Bytes of one batch's tensors, -1 where unknown.
        shm_free_bytes: Free space in /dev/shm, -1 where unknown.
        competition: Other programs on the same cores.
    """

    workers: int
    prefetch_factor: int
    in_order: bool
    cores: float
    parts: dict[Component, Part]
    handover_cpu_ns: Nanoseconds
    receive_cpu_ns: Nanoseconds
    main_wall_ns: Nanoseconds
    main_cpu_ns: Nanoseconds
    main_no_core_ns: Nanoseconds
    step_ns: Nanoseconds
    wait_ns: Nanoseconds
    handover_known: bool = True
    batch_bytes: int = -1
    shm_free_bytes: int = -1
    competition: Competition = ALONE


@dataclass(frozen=True, slots=True)
class Interval:
    """A bootstrap estimate.

    Attributes:
        low: 5th percentile.
        mid: Median.
        high: 95th percentile.
    """

    low: float
    mid: float
    high: float
