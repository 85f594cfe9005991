"""Rules about the settings of the DataLoader other than the number of workers."""

from __future__ import annotations

from math import ceil

from dlprof.advice.common import (
    FINE_WAIT,
    SAME,
    WORTH_TRYING,
    Answer,
    Rule,
    candidate,
    queued_bytes,
    wait_evidence,
    wait_share,
    workers_in_force,
)
from dlprof.model.advice import Advice, Findings, Refusal
from dlprof.model.kinds import Bottleneck, Cause, Component
from dlprof.model.report import Device, Evidence, Forecast
from dlprof.words import marked

WORTH_SHARE = 1 - 1 / WORTH_TRYING
"""Share of the step or epoch from which a setting that takes it away is worth trying."""
MOST_WORKERS = 8
"""Workers that are advised at most where it is not known how many cores there are."""
PAGEABLE = 0.5
"""Part of the bytes copied to the device from memory that is not pinned, from which pinning is advised."""


def keep_workers_alive(findings: Findings) -> Answer:
    """Workers are started anew at every epoch. Starting them is no part of a step, so no step gets shorter."""
    loader = findings.loader
    anew = findings.facts.made_anew
    # A loader that is made anew has no workers to keep, whatever it is told.
    if loader is None or not workers_in_force(findings) or (loader.get("persistent_workers") and not anew):
        return None
    found = candidate(findings, Bottleneck.LOADER_OVERHEAD, Component.WORKER_STARTUP)
    if found is None:
        return Refusal("keep-workers-alive", "one-epoch")
    if found.saved.mid < WORTH_SHARE:
        return Refusal("keep-workers-alive", "small-share", {"share": found.saved.mid})
    evidence = [Evidence("worker_startup_share", round(found.saved.mid, 3), "ratio")]
    if findings.mean is not None and isinstance(loader.get("length"), int):
        # The share is that of a step together with its part of the start.
        per_step = findings.mean.step_ns * found.saved.mid / (1 - found.saved.mid)
        evidence.append(Evidence("worker_startup_per_epoch", round(per_step * loader["length"] / 1e6, 1), "ms"))
    if anew:
        return Advice("keep-workers-alive", None, None, None, None, tuple(evidence))
    return Advice("keep-workers-alive", "persistent_workers", False, True, None, tuple(evidence))


def _other_setting(id_: str, setting: str) -> Rule:
    """The rule that another value of a setting gains by the forecast."""

    def rule(findings: Findings) -> Answer:
        forecast = _smallest_change(findings, setting)
        if findings.loader is None or wait_share(findings) < FINE_WAIT:
            return None
        if not workers_in_force(findings):
            return Refusal(id_, "no-workers") if setting == "prefetch_factor" else None
        if forecast is None or not findings.reproduced or forecast.from_ == forecast.to:
            return None
        # Batches that are made under a lock come no sooner.
        if findings.taking_turns or forecast.speedup[1] < WORTH_TRYING or forecast.speedup[0] < SAME:
            return Refusal(id_, "steady")
        free = findings.environment.get("shm_free_bytes") or -1
        if setting == "prefetch_factor" and 0 <= free < queued_bytes(findings, int(forecast.to)):
            return Refusal(id_, "no-shm")
        return Advice(id_, setting, forecast.from_, forecast.to, forecast.speedup, tuple(wait_evidence(findings)))

    return rule


def _smallest_change(findings: Findings, setting: str) -> Forecast | None:
    """Of the forecasts of a setting, higher numbers only, the first that is as good as the best."""
    rows = [each for each in findings.setting_forecasts if each.setting == setting]
    rows = [each for each in rows if isinstance(each.to, bool) or each.to > each.from_]
    best = max((each.speedup[1] for each in rows), default=1.0)
    return next((each for each in rows if each.speedup[1] * SAME >= best), None)


raise_prefetch_factor = _other_setting("raise-prefetch-factor", "prefetch_factor")
allow_out_of_order = _other_setting("allow-out-of-order", "in_order")


def start_workers(findings: Findings, request_ns: float) -> Answer:
    """Batches are made in the training process, as a trace shows; on which machine with how many cores is not known.

    Args:
        findings: What was measured and concluded.
        request_ns: Time of the making of a batch, in the mean step.
    """
    if findings.loader is None or workers_in_force(findings) or findings.mean is None:
        return None
    share = wait_share(findings)
    if share < WORTH_SHARE:
        return None
    # As many as make batches as fast as the step without the wait takes them, and one that keeps the queue filled.
    rest = max(findings.mean.step_ns * (1 - share), 1.0)
    workers = min(ceil(request_ns / rest) + 1, MOST_WORKERS)
    evidence = (
        *wait_evidence(findings),
        Evidence("speedup_with_instant_data", round(1 / max(1 - share, 0.01), 3), "x"),
    )
    return Advice("raise-num-workers", "num_workers", 0, workers, None, evidence)


def pin_memory(findings: Findings) -> Answer:
    """Copies to the device that come from pageable memory and are waited for."""
    if findings.loader is None or findings.loader.get("pin_memory"):
        return None
    if not findings.accelerator:
        return Refusal("pin-memory", "no-device")
    share, device = _copied_share(findings), findings.device
    if device is None or device.h2d_pageable_ratio is None:
        return None
    if share < WORTH_SHARE:
        return Refusal("pin-memory", "not-the-cause", {"cause": marked("Copying to the device"), "share": share})
    if device.h2d_pageable_ratio < PAGEABLE:
        return None
    return Advice("pin-memory", "pin_memory", False, True, None, _copy_evidence(share, device))


def copy_non_blocking(findings: Findings) -> Answer:
    """Copies from pinned memory that are waited for all the same."""
    share, device = _copied_share(findings), findings.device
    if device is None or device.h2d_pageable_ratio is None or not findings.accelerator:
        return None
    if device.h2d_pageable_ratio >= PAGEABLE or share < WORTH_SHARE:
        return None
    return Advice("copy-non-blocking", None, None, None, None, _copy_evidence(share, device))


def _copied_share(findings: Findings) -> float:
    return findings.mean.share(Cause.H2D_COPY) if findings.mean is not None else 0.0


def _copy_evidence(share: float, device: Device) -> tuple[Evidence, ...]:
    ratio = device.h2d_pageable_ratio or 0.0
    return (
        Evidence("h2d_copy", round(share, 4), "ratio"),
        Evidence("h2d_pageable_ratio", round(ratio, 3), "ratio"),
    )


def unpin_memory(findings: Findings) -> Answer:
    """Pinned memory without a device to copy it to."""
    if findings.loader is None or not findings.loader.get("pin_memory") or findings.accelerator:
        return None
    spent = findings.per_batch_ms.get(Component.PIN_MEMORY, 0.0)
    return Advice("unpin-memory", "pin_memory", True, False, None, (Evidence("pinning_per_batch", spent, "ms"),))
