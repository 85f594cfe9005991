"""How torch versions name what they record: category and name of a trace event to a ``Kind``.

Seen in traces of torch 2.13 (CPU). Names of the CUDA runtime and of ROCm's HIP are NVIDIA's and AMD's own.
"""

from __future__ import annotations

import re

from dlprof.model.kinds import Kind

OPERATOR_CATEGORIES = frozenset({"cpu_op", "Operator"})
KERNEL_CATEGORIES = frozenset({"kernel", "Kernel"})
COPY_CATEGORIES = frozenset({"gpu_memcpy", "Memcpy"})
RUNTIME_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "xpu_runtime"})

_COLLECTIVE = re.compile(r"nccl|rccl|AllReduce|all_reduce|allreduce|ReduceScatter|AllGather", re.IGNORECASE)
_SYNCHRONIZE = re.compile(r"Synchronize|StreamWaitEvent|EventQuery")
_ALLOCATE = re.compile(r"Malloc|Free|HostAlloc|MemAddressReserve|MemMap|MemCreate")
_LAUNCH = re.compile(r"Launch|Memcpy|Memset")


def kind_of(category: str, name: str) -> Kind | None:
    """The kind of a complete event.

    Args:
        category: Its ``cat``.
        name: Its ``name``.

    Returns:
        None for events that say nothing about where time goes (annotations, flows, Python frames).
    """
    if category in OPERATOR_CATEGORIES:
        return Kind.OPERATOR
    if category in KERNEL_CATEGORIES:
        return Kind.COLLECTIVE if _COLLECTIVE.search(name) else Kind.KERNEL
    if category in COPY_CATEGORIES:
        if "HtoD" in name or "Host -> Device" in name:
            return Kind.COPY_H2D
        return Kind.COPY_D2H if "DtoH" in name or "Device -> Host" in name else Kind.COPY_OTHER
    if category in RUNTIME_CATEGORIES:
        if _SYNCHRONIZE.search(name):
            return Kind.SYNCHRONIZE
        if _ALLOCATE.search(name):
            return Kind.ALLOCATOR
        return Kind.LAUNCH if _LAUNCH.search(name) else None
    return None
