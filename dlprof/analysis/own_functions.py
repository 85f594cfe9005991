"""Time in what the user has named: functions given with ``--span``, and parts marked with ``dlprof.span``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dlprof.analysis.components import COMPONENT_OF, Fetches, self_time
from dlprof.analysis.scope import own_spans
from dlprof.model.kinds import Kind
from dlprof.model.profile import Profile, Spans
from dlprof.model.steps import Steps

_WHERE = {
    Kind.USER_CALL: "data",
    Kind.USER_DATA: "data",
    Kind.USER_HOST: "host",
    Kind.USER_DEVICE: "device",
}

Mask = npt.NDArray[np.bool_]


def named_parts(profile: Profile, steps: Steps, fetches: Fetches) -> list[dict[str, Any]]:
    """What the user has named, over the measured steps, the longest first.

    Args:
        profile: The run.
        steps: Its steps.
        fetches: The makings of its batches.

    Returns:
        One dict for each name and place (``data`` within data work, ``host``, ``device``): ``ms_per_batch`` with all
        that was called from it, ``self_ms_per_batch`` without what has a span of its own, and ``calls``.
    """
    measured = steps.measured
    if not measured:
        return []
    index = fetches.index()
    rows = np.array([index[s.iterator, s.batch] for s in measured if (s.iterator, s.batch) in index], dtype=np.int64)
    spans = own_spans(profile).of(*_WHERE, *COMPONENT_OF)
    sums: dict[tuple[str, str], list[float]] = {}
    for track in np.unique(spans.where(np.isin(spans.kind, [int(kind) for kind in _WHERE])).track):
        here = spans.where(spans.track == track)
        made = fetches.spans.where(fetches.spans.track == track)
        wanted = _inside(here, made.start_ns, made.end_ns, np.isin(np.flatnonzero(fetches.spans.track == track), rows))
        if not len(made) or profile.tracks[int(track)].pid == profile.main_pid:
            begins = np.array([step.wait_start_ns for step in measured])
            ends = np.array([step.body_end_ns for step in measured])
            within = _inside(here, made.start_ns, made.end_ns, np.ones(len(made), dtype=bool))
            wanted |= ~within & _inside(here, begins, ends, np.ones(len(begins), dtype=bool))
        own, _ = self_time(here)
        for kind, where in _WHERE.items():
            for name in np.unique(here.name_id[wanted & (here.kind == int(kind))]):
                mine = wanted & (here.kind == int(kind)) & (here.name_id == name)
                known = sums.setdefault((here.names[int(name)], where), [0.0, 0.0, 0.0])
                known[0] += _outermost_ns(here.where(mine))
                known[1] += float(own[mine].sum())
                known[2] += float(here.weight[mine].sum())
    ranked = sorted(sums.items(), key=lambda item: -item[1][0])
    return [
        {
            "name": name,
            "where": where,
            "ms_per_batch": round(whole / 1e6 / len(measured), 4),
            "self_ms_per_batch": round(alone / 1e6 / len(measured), 4),
            "calls": int(calls),
        }
        for (name, where), (whole, alone, calls) in ranked
    ]


def _inside(spans: Spans, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], chosen: Mask) -> Mask:
    """Which spans begin within one of the chosen stretches, which are in order and do not overlap."""
    if not len(begins):
        return np.zeros(len(spans), dtype=bool)
    place = np.searchsorted(begins, spans.start_ns, side="right") - 1
    at = np.maximum(place, 0)
    found: Mask = (place >= 0) & (spans.start_ns < ends[at]) & chosen[at]
    return found


def _outermost_ns(spans: Spans) -> float:
    """Time in the spans of one thread and name, a call within a call counted once; nanoseconds."""
    order = np.lexsort((-spans.end_ns, spans.start_ns))
    ends = spans.end_ns[order]
    outer = np.ones(len(order), dtype=bool)
    outer[1:] = ends[1:] > np.maximum.accumulate(ends)[:-1]
    return float((spans.duration_ns()[order] * spans.weight[order])[outer].sum())
