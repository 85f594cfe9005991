"""How torch versions name what they record: category and name of a trace event to a ``Kind``.

Seen in traces of torch 1.x to 2.x on CPU, V100, H100 and MI300. Names of the CUDA runtime and of ROCm's HIP are
NVIDIA's and AMD's own; those of Intel's Unified Runtime are from its documentation.
"""

from __future__ import annotations

import re

from dlprof.model.kinds import Kind

OPERATOR_CATEGORIES = frozenset({"cpu_op", "Operator"})
KERNEL_CATEGORIES = frozenset({"kernel", "Kernel"})
COPY_CATEGORIES = frozenset({"gpu_memcpy", "Memcpy"})
FILL_CATEGORIES = frozenset({"gpu_memset", "Memset"})
RUNTIME_CATEGORIES = frozenset(
    {
        "cuda_runtime",
        "cuda_driver",
        "Runtime",
        "hip_runtime",
        "xpu_runtime",
        "xpu_driver",
        "mtia_runtime",
        "privateuse1_runtime",
        "privateuse1_driver",
    }
)

_COLLECTIVE = re.compile(
    r"nccl|rccl|all_?reduce|ReduceScatter|reduce_scatter|AllGather|all_gather|cross_device_reduce", re.IGNORECASE
)
_SYNCHRONIZE = re.compile(
    # The host waits until the device has got there. Not cudaStreamWaitEvent, by which a stream waits, and not the
    # queries, which answer at once.
    r"Synchronize|urEventWait|urQueueFinish"
    # A copy without "Async" returns when it is done.
    r"|^(cuda|hip)Memcpy(2D|3D)?(ToArray|FromArray|ToSymbol|FromSymbol|Peer|WithStream)?(_v\d+)?(_ptds)?$"
    r"|^(cu|hip)Memcpy(HtoD|DtoH|DtoD)(_v\d+)?$"
)
_ALLOCATE = re.compile(
    r"Malloc|Free|HostAlloc|HostRegister|HostUnregister|MemAddressReserve|MemMap|MemUnmap|MemCreate|MemRelease"
    r"|MemSetAccess|USM\w*Alloc"
)
_LAUNCH = re.compile(r"Launch|Memcpy|Memset|MemFill|StreamWaitEvent|EventRecord|EventQuery|StreamQuery|Enqueue")


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
    if category in FILL_CATEGORIES:
        # The device fills memory of its own: it is busy, and nothing crosses the bus.
        return Kind.KERNEL
    if category in RUNTIME_CATEGORIES:
        if _SYNCHRONIZE.search(name):
            return Kind.SYNCHRONIZE
        if _ALLOCATE.search(name):
            return Kind.ALLOCATOR
        return Kind.LAUNCH if _LAUNCH.search(name) else None
    return None
