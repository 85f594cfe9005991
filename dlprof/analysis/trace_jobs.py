"""Which traces of a folder are of one job: its ranks, or several spans of time of one process."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import PurePath

from dlprof.analysis.trace_rank import Rank

_APART_NS = 600 * 10**9
"""Time between two traces of one job at most: a job that runs anew later is another one."""
_RANK_FOLDER = re.compile(r"(rank|worker|node)?[-_]?\d+", re.IGNORECASE)
_NUMBERED = re.compile(r"((?:rank|worker)[-_. ]?)\d+", re.IGNORECASE)


def group(ranks: Sequence[Rank]) -> list[list[Rank]]:
    """Tell the jobs in a folder apart.

    Args:
        ranks: What the folder's traces show.

    Returns:
        Jobs in the order of their beginning, each with its ranks in order, and of a rank its spans in order.
    """
    jobs: dict[Hashable, list[list[Rank]]] = {}
    for rank in sorted(ranks, key=lambda each: each.began_ns):
        known = jobs.setdefault(_kind(rank), [])
        if known and _belongs(rank, known[-1]):
            known[-1].append(rank)
        else:
            known.append([rank])
    found = [
        sorted(job, key=lambda each: (each.origin.rank or 0, each.began_ns)) for own in jobs.values() for job in own
    ]
    return sorted(found, key=lambda job: min(rank.began_ns for rank in job))


def job_name(job: Sequence[Rank]) -> str:
    """A name for a job: that of its file, without what tells its ranks apart."""
    names = {rank.origin.worker for rank in job}
    if len(names) == 1:
        return names.pop()
    common = {_NUMBERED.sub("", name).strip("-_. ") for name in names}
    folder = PurePath(job[0].origin.folder).name
    return (common.pop() if len(common) == 1 else "") or folder or f"job-of-{len(names)}-traces"


def _kind(rank: Rank) -> Hashable:
    """What all traces of one job have in common."""
    origin = rank.origin
    folder = PurePath(origin.folder)
    if _RANK_FOLDER.fullmatch(folder.name):
        # One folder a rank.
        folder = folder.parent
    if origin.world_size > 1:
        return folder, origin.world_size, origin.devices
    numberless = _NUMBERED.sub(r"\1#", origin.worker)
    # Processes of one file are one job.
    return folder, numberless if origin.rank is not None else origin.worker


def _belongs(rank: Rank, job: Sequence[Rank]) -> bool:
    last = max(each.ended_ns for each in job)
    same = [each for each in job if each.origin.rank == rank.origin.rank]
    if rank.began_ns > last + _APART_NS:
        return False
    # A rank is there once, or in several spans of time of the same process.
    return all(
        each.origin.worker == rank.origin.worker and (each.ended_ns <= rank.began_ns or each.origin == rank.origin)
        for each in same
    )
