"""Rules about the step outside the wait for input: checkpoints, synchronisation, launches."""

from __future__ import annotations

from dlprof.advice.common import WORTH_CODING, Answer, Rule, speedup
from dlprof.model.advice import Advice, Findings
from dlprof.model.kinds import Bottleneck, Cause
from dlprof.model.pipeline import Interval
from dlprof.model.report import Evidence

WORTH_SHARE = 1 - 1 / WORTH_CODING
"""Share of the step from which a cause is worth a change of code."""
_RARER = 10
"""How much more seldom the forecast saves checkpoints."""
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
