"""Rules about the step outside the wait for input: checkpoints, synchronisation, launches, precision, memory."""

from __future__ import annotations

import re
from typing import Any

from dlprof.advice.common import WORTH_CODING, Answer, Rule, speedup
from dlprof.model.advice import Advice, Findings
from dlprof.model.kinds import Bottleneck, Cause
from dlprof.model.pipeline import Interval
from dlprof.model.report import Evidence

WORTH_SHARE = 1 - 1 / WORTH_CODING
"""Share of the step from which a cause is worth a change of code."""
_RARER = 10
"""How much more seldom the forecast saves checkpoints."""
IN_FLOAT32 = 0.3
"""Part of the step in matrix products of 32-bit numbers, from which fewer bits are advised."""
ROOM = 0.5
"""Part of the device's memory, at most, that a run fills for whose batch of twice the size there is room."""
_FLOAT32 = re.compile(r"sgemm|s1688|f32f32|(gemm|conv)\w*<float\b", re.IGNORECASE)
"""In the names that NVIDIA's libraries give such kernels, TF32 ones included."""
_FEWER_BITS = re.compile(r"bf16|fp16|f16|half|hgemm|h884|s16816", re.IGNORECASE)
_NO_MEMORY = ("CUDA out of memory", "HIP out of memory", "OutOfMemoryError")
"""What torch's error says where the device's memory was full."""
_HOST = (Cause.PYTHON, Cause.KERNEL_LAUNCH, Cause.SYNCHRONIZATION, Cause.CHECKPOINT)


def checkpoint_less_often(findings: Findings) -> Answer:
    """Writing checkpoints takes much of the measured steps."""
    share = findings.mean.share(Cause.CHECKPOINT) if findings.mean is not None else 0.0
    if share < WORTH_SHARE:
        return None
    evidence = (Evidence("checkpoint", round(share, 4), "ratio"),)
    return Advice("checkpoint-less-often", None, None, None, _saved_seldom(findings, share), evidence)


def _saved_seldom(findings: Findings, share: float) -> tuple[float, float, float] | None:
    """What is gained by a tenth of the checkpoints, by what removing all of the host's work would save."""
    found = next((it for it in findings.judgement.candidates if it.bottleneck is Bottleneck.HOST_OVERHEAD), None)
    if found is None or not findings.reproduced or findings.mean is None:
        return None
    part = share / sum(findings.mean.share(cause) for cause in _HOST) * (1 - 1 / _RARER)
    return speedup(Interval(found.saved.low * part, found.saved.mid * part, found.saved.high * part))


def _on_accelerator(id_: str, cause: Cause) -> Rule:
    """The rule that a cause keeps the accelerator idle; by how much less it could be is not forecast."""

    def rule(findings: Findings) -> Answer:
        share = findings.mean.share(cause) if findings.mean is not None else 0.0
        if not findings.accelerator or share < WORTH_SHARE:
            return None
        return Advice(id_, None, None, None, None, (Evidence(cause.value, round(share, 4), "ratio"),))

    return rule


remove_host_syncs = _on_accelerator("remove-host-syncs", Cause.SYNCHRONIZATION)
fuse_small_kernels = _on_accelerator("fuse-small-kernels", Cause.KERNEL_LAUNCH)


def use_mixed_precision(findings: Findings) -> Answer:
    """Most of the step are matrix products in 32 bits, which the device does faster in 16."""
    if findings.mean is None or findings.device is None or not findings.accelerator:
        return None
    kernels = [it for it in findings.device.top_kernels if _FLOAT32.search(it.name) and not _FEWER_BITS.search(it.name)]
    # Only the kernels that take most are known, so it is at least that.
    share = sum(it.ms_per_step for it in kernels) * 1e6 / findings.mean.step_ns
    if share < IN_FLOAT32:
        return None
    evidence = (
        Evidence("device_compute", round(findings.mean.share(Cause.DEVICE_COMPUTE), 4), "ratio"),
        Evidence("float32_products_ratio", round(min(share, 1.0), 3), "ratio"),
    )
    return Advice("use-mixed-precision", None, None, None, None, evidence)


def raise_batch_size(findings: Findings) -> Answer:
    """Launching kernels holds the device up, and its memory has room for twice as large a batch."""
    share = findings.mean.share(Cause.KERNEL_LAUNCH) if findings.mean is not None else 0.0
    size = (findings.loader or {}).get("batch_size")
    filled = _filled(findings)
    if not findings.accelerator or share < WORTH_SHARE or not size or filled is None or filled > ROOM:
        return None
    evidence = (
        Evidence("kernel_launch", round(share, 4), "ratio"),
        Evidence("device_memory", round(filled, 3), "ratio"),
    )
    return Advice("raise-batch-size", "batch_size", size, 2 * size, None, evidence)


def gradient_checkpointing_or_zero3(findings: Findings) -> Answer:
    """The run ended because the device's memory was full."""
    if not any(text in findings.failure for text in _NO_MEMORY):
        return None
    filled = _filled(findings)
    evidence = [Evidence("device_memory_ran_out", 1, "count")]
    if filled is not None:
        evidence.append(Evidence("device_memory", round(filled, 3), "ratio"))
    return Advice("gradient-checkpointing-or-zero3", None, None, None, None, tuple(evidence))


def balance_ranks(findings: Findings) -> Answer:
    """The other ranks wait for one in the collectives; what makes it late may not be known, so no gain is forecast."""
    late = findings.notices.get("trace-straggler")
    if late is None or findings.mean is None:
        return None
    evidence = (
        Evidence("waits_for_the_late_rank", round(late["waited_ms"], 3), "ms"),
        Evidence("waits_for_the_late_rank_ratio", round(late["waited_ms"] * 1e6 / findings.mean.step_ns, 4), "ratio"),
    )
    return Advice("balance-ranks", None, None, None, None, evidence)


def _filled(findings: Findings) -> float | None:
    """Part of a device's memory that was in use at most, of the fullest one; None where that is not known."""
    gpus: list[dict[str, Any]] = findings.environment.get("gpus") or []
    pairs = [(gpu.get("memory_used_max_bytes"), gpu.get("memory_total_bytes")) for gpu in gpus]
    return max((used / total for used, total in pairs if used is not None and total), default=None)
