"""The ranks of one job side by side: who is slow, and who waits for whom in the collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlprof.analysis.trace_rank import Rank

_LATE = 0.10
"""Part of the step that the others wait for one rank, from which it is named."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Who waits for whom.

    A collective ends everywhere at about the same time, so a rank whose kernel lasts longer has arrived earlier, by
    the difference, than the one whose kernel is shortest. That needs no common clock.

    Attributes:
        matrix_ns: Nanoseconds per step that the rank of the row waited for the one of the column, shape ``(r, r)``.
        matched: Collectives that all ranks have.
    """

    matrix_ns: npt.NDArray[np.float64]
    matched: int

    @property
    def waited_ns(self) -> npt.NDArray[np.float64]:
        """Per step, of each rank for all others, shape ``(r,)``."""
        return np.asarray(self.matrix_ns.sum(axis=1))

    @property
    def caused_ns(self) -> npt.NDArray[np.float64]:
        """Per step, mean over the other ranks, for each rank, shape ``(r,)``."""
        others = max(1, len(self.matrix_ns) - 1)
        return np.asarray(self.matrix_ns.sum(axis=0) / others)


def waits(ranks: Sequence[Rank]) -> Waits:
    """Compare the collectives of the ranks of one job.

    Args:
        ranks: At least two, which ran the same steps.
    """
    matrix = np.zeros((len(ranks), len(ranks)))
    lengths = [_lengths(rank) for rank in ranks]
    common = set(lengths[0]).intersection(*lengths[1:]) if lengths else set()
    for key in sorted(common):
        spent = np.array([each[key] for each in lengths], dtype=np.float64)
        last = int(np.argmin(spent))
        matrix[:, last] += spent - spent[last]
    steps = len({key[0] for key in common})
    return Waits(matrix / steps if steps else matrix, len(common))


def _lengths(rank: Rank) -> dict[tuple[int, str, int], int]:
    """Length of each collective, by step, name and its number among those of that name in the step."""
    found: dict[tuple[int, str, int], int] = {}
    seen: dict[tuple[int, str], int] = {}
    columns = rank.collectives
    for step, name, spent in zip(columns.step.tolist(), columns.name, columns.duration_ns.tolist(), strict=True):
        number = seen.get((step, name), 0)
        seen[step, name] = number + 1
        found[step, name, number] = spent
    return found


def straggler(found: Waits, step_ns: float) -> int | None:
    """The place of the rank that the others wait for most, None where no one stands out."""
    caused = found.caused_ns
    if not found.matched or not len(caused):
        return None
    worst = int(np.argmax(caused))
    return worst if caused[worst] >= _LATE * step_ns else None
