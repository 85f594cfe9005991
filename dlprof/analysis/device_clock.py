"""The step by the device's own clock, against the script's: a script may run ahead of its device for many steps."""

from __future__ import annotations

from dlprof.analysis.scope import process_spans
from dlprof.model.kinds import Kind
from dlprof.model.profile import Profile
from dlprof.model.steps import Steps

_AHEAD = 0.20
"""From here on a verdict could be another one: it is the share from which a bottleneck is named."""
_LEAST_STEPS = 5


def ahead_of_device(profile: Profile, steps: Steps) -> tuple[float, float] | None:
    """Whether the script ran ahead of the device while it was measured, so that its own step times are too short.

    Launching work takes less time than the work, and nothing makes a script wait that does not look at its results,
    until the device's queue is full (about a thousand launches: many steps, where a step is a few of them).

    Args:
        profile: The run.
        steps: Its steps.

    Returns:
        Mean nanoseconds of a step as the script made it and as the device did, over the measured steps of which both
        are known, where the device's are longer by more than 20 %; else None.
    """
    spans = process_spans(profile).of(Kind.DEVICE_STEP)
    by_device = dict(zip(zip(spans.iterator.tolist(), spans.batch.tolist(), strict=True), spans.value, strict=True))
    # Another loader's phase is in the device's count and not in the step.
    known = [step for step in steps.measured if (step.iterator, step.batch) in by_device and not step.phases_ns]
    if len(known) < _LEAST_STEPS:
        return None
    script = sum(step.duration_ns for step in known) / len(known)
    device = float(sum(by_device[step.iterator, step.batch] for step in known)) / len(known)
    return (script, device) if device > (1 + _AHEAD) * script else None
