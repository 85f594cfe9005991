"""A typical step and the slowest one, with what every thread did meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dlprof.analysis.scope import own_spans, process_spans, training_spans
from dlprof.analysis.steps import find_steps
from dlprof.model.kinds import Kind, Role
from dlprof.model.moments import Lane, Moment, Part, Slice
from dlprof.model.profile import Profile, Spans
from dlprof.model.steps import Step

_LEAST_STEPS = 3
_MOST_LANES = 18
_BEFORE = 2.0
"""How many lengths of the step are shown before it at most, for the making of its batch."""
_MS = 1e6


def find_moments(profile: Profile) -> tuple[Moment, ...]:
    """The step whose length is the most usual, and the slowest.

    Args:
        profile: The run.

    Returns:
        Nothing where fewer than three steps were measured, or another thread requests the batches.
    """
    steps = find_steps(profile)
    measured = steps.measured
    if len(measured) < _LEAST_STEPS or steps.handed_over:
        return ()
    lengths = np.array([step.duration_ns for step in measured])
    typical = measured[int(np.argmin(np.abs(lengths - np.median(lengths))))]
    slowest = measured[int(np.argmax(lengths))]
    chosen = [("typical", typical), ("slowest", slowest)]
    return tuple(_moment(key, step, profile, steps.all) for key, step in chosen[: 1 + (typical is not slowest)])


def _moment(key: str, step: Step, profile: Profile, steps: Sequence[Step]) -> Moment:
    spans = own_spans(profile)
    fetches = spans.of(Kind.FETCH)
    own = fetches.where((fetches.iterator == step.iterator) & (fetches.batch == step.batch))
    zero = step.wait_start_ns
    earliest = zero - round(_BEFORE * step.duration_ns)
    begins = [int(own.start_ns.min())] if len(own) else []
    window = (max(min([zero, *begins]), earliest), step.body_end_ns)
    names = _names(profile, fetches)
    loop = [
        Slice(start, end, part)
        for each in steps
        for part, start_ns, end_ns in (
            (Part.WAIT, each.wait_start_ns, each.wait_end_ns),
            (Part.STEP, each.body_start_ns, each.body_end_ns),
        )
        for start, end in _cut(start_ns, end_ns, window, zero)
    ]
    loop += _slices(training_spans(profile).of(Kind.UNPICKLE), Part.UNPICKLE, window, zero)
    lanes = [Lane("training loop", tuple(loop))]
    for track, name in names.items():
        slices = [*_making(fetches.where(fetches.track == track), step, window, zero)]
        pid = profile.tracks[track].pid
        handed = spans.of(Kind.PICKLE, Kind.SEND)
        handed = handed.where((handed.iterator == step.iterator) & (handed.batch == step.batch))
        threads = np.array([each.pid for each in profile.tracks])[handed.track]
        slices += _slices(handed.where(threads == pid), Part.HAND_OVER, window, zero)
        lanes.append(Lane(name, tuple(slices)))
    lanes += _other_lanes(profile, window, zero)
    return Moment(
        key=key,
        index=step.index,
        ms=step.duration_ns / _MS,
        wait_ms=step.wait_ns / _MS,
        from_ms=(window[0] - zero) / _MS,
        to_ms=(window[1] - zero) / _MS,
        made_ms=float(own.duration_ns().sum()) / _MS if len(own) else None,
        made_from_ms=(begins[0] - zero) / _MS if begins else None,
        made_by=names.get(int(own.track[0]), "") if len(own) else "",
        lanes=tuple(lanes[:_MOST_LANES]),
    )


def _names(profile: Profile, fetches: Spans) -> dict[int, str]:
    """The tracks that make batches of the training loop's loader, and what they are called, in order."""
    tracks = [int(track) for track in np.unique(fetches.track)]
    workers = sorted(
        (it for it in tracks if profile.tracks[it].role is Role.WORKER), key=lambda it: profile.tracks[it].pid
    )
    others = [it for it in tracks if it not in workers]
    named = dict.fromkeys(others[:1], "making batches")
    return named | {track: f"worker {number}" for number, track in enumerate(workers)}


def _other_lanes(profile: Profile, window: tuple[int, int], zero: int) -> Iterator[Lane]:
    here = process_spans(profile, *Role)
    for name, kind, part in (
        ("pinning", Kind.PIN_MEMORY, Part.PIN),
        ("device", Kind.USER_DEVICE, Part.DEVICE),
    ):
        found = _slices(here.of(kind), part, window, zero)
        if found:
            yield Lane(name, tuple(found))


def _making(fetches: Spans, step: Step, window: tuple[int, int], zero: int) -> Iterator[Slice]:
    own = (fetches.iterator == step.iterator) & (fetches.batch == step.batch)
    yield from _slices(fetches.where(~own), Part.OTHERS, window, zero)
    yield from _slices(fetches.where(own), Part.AWAITED, window, zero)


def _slices(spans: Spans, part: Part, window: tuple[int, int], zero: int) -> list[Slice]:
    return [
        Slice(start, end, part)
        for start_ns, end_ns in zip(spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True)
        for start, end in _cut(start_ns, end_ns, window, zero)
    ]


def _cut(start_ns: int, end_ns: int, window: tuple[int, int], zero: int) -> Iterator[tuple[float, float]]:
    """What of a stretch lies in the window, in ms since the step began; nothing where none does."""
    start, end = max(start_ns, window[0]), min(end_ns, window[1])
    if end > start:
        yield (start - zero) / _MS, (end - zero) / _MS
