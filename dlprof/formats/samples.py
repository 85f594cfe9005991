"""What threads were doing and where they were, from the sample files of a recording."""

from __future__ import annotations

import linecache
import os
from pathlib import Path
from typing import Any

import numpy as np

from dlprof.formats import sample_file
from dlprof.formats.places import is_users, shown_file
from dlprof.formats.sample_file import Frames
from dlprof.model.profile import NO_SAMPLES, Frame, Samples, Stack, Track

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_FETCH = (str(Path("capture") / "fetching.py"), "timed_fetch")
"""Our own frame around the making of a batch: what is outside of it called for the batch."""


def assemble_samples(folder: Path, tracks: list[Track]) -> tuple[Samples, int, list[str]]:
    """All looks at threads that have a track, by track in the order of time.

    Args:
        folder: The recording folder.
        tracks: The run's tracks.

    Returns:
        The looks, the CPU time that they took in ns, and the names of files that could not be read.
    """
    numbers: dict[Frames, int] = {(): 0}
    parts: list[tuple[Any, Any]] = []
    damaged: list[str] = []
    spent_ns = 0
    for path in sorted(folder.glob("*" + sample_file.SUFFIX)):
        try:
            found = sample_file.read_samples(path)
            # Whoever looked was ended before anything was written: nothing is damaged.
            is_empty = path.stat().st_size == 0
        except OSError:
            found, is_empty = None, False
        if found is None:
            if not is_empty:
                damaged.append(path.name)
            continue
        records, stacks, spent = found
        spent_ns += spent
        place = np.array([0, *(numbers.setdefault(frames, len(numbers)) for frames in stacks)], dtype=np.int64)
        stack = records["stack"].astype(np.int64)
        parts.append((records, place[np.where(stack < len(place), stack, 0)]))
    if not parts:
        return NO_SAMPLES, spent_ns, damaged
    records = np.concatenate([part for part, _ in parts])
    stack = np.concatenate([part for _, part in parts])
    track = _tracks_of(records["pid"], records["thread"], tracks)
    order = np.lexsort((records["at_ns"], track))
    order = order[track[order] >= 0]
    columns = {
        name: records[name][order].astype(np.int64)
        for name in ("at_ns", "on_cpu_ns", "runnable_ns", "kernel_ns", "doing")
    }
    samples = Samples(
        **columns, track=track[order], stack=stack[order], stacks=tuple(_stack(frames) for frames in numbers)
    )
    return samples, spent_ns, damaged


def _tracks_of(pids: Any, threads: Any, tracks: list[Track]) -> Any:
    known = {(track.pid, track.thread): i for i, track in enumerate(tracks)}
    pairs = zip(pids.tolist(), threads.tolist(), strict=True)
    return np.array([known.get(pair, -1) for pair in pairs], dtype=np.int64)


def _stack(frames: Frames) -> Stack:
    inner = []
    in_fetch = False
    for file, line, function in frames:
        if file.startswith(_PACKAGE):
            in_fetch = file.endswith(_FETCH[0]) and function.endswith(_FETCH[1])
            if in_fetch:
                break
            continue
        inner.append(Frame(shown_file(file), line, function, linecache.getline(file, line).strip(), is_users(file)))
    return Stack(tuple(inner), in_fetch)
