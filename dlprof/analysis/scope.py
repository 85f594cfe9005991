"""Whose spans a diagnosis is about: the training process's and its workers', not those of other ranks or tools."""

from __future__ import annotations

import numpy as np

from dlprof.model.kinds import Kind, Role
from dlprof.model.profile import Profile, Spans


def own_spans(profile: Profile) -> Spans:
    """Spans of the training process, its device and its workers."""
    pids = {profile.main_pid, *(pid for i in profile.iterations if i.pid == profile.main_pid for pid in i.workers)}
    return _on_tracks(profile, [i for i, track in enumerate(profile.tracks) if track.pid in pids])


def process_spans(profile: Profile, *roles: Role) -> Spans:
    """Spans of the training process alone.

    Args:
        profile: The run.
        roles: Which of its threads; all but device streams where none is named.
    """
    wanted = set(roles or Role) - ({Role.DEVICE_STREAM} if not roles else set())
    tracks = [i for i, t in enumerate(profile.tracks) if t.pid == profile.main_pid and t.role in wanted]
    return _on_tracks(profile, tracks)


def training_spans(profile: Profile) -> Spans:
    """Spans of the threads that train: those whose optimizer steps.

    Without an optimizer they are those that request batches; without those too, the main thread.
    """
    spans = process_spans(profile)
    for kind in (Kind.OPTIMIZER, Kind.NEXT):
        tracks = np.unique(spans.track[spans.kind == int(kind)])
        if len(tracks):
            return _on_tracks(profile, tracks.tolist())
    return process_spans(profile, Role.MAIN)


def _on_tracks(profile: Profile, tracks: list[int]) -> Spans:
    return profile.spans.where(np.isin(profile.spans.track, tracks))
