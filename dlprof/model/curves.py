"""Numbers of single steps, as a program that draws curves takes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curves:
    """What each step took, and what for.

    Attributes:
        steps: Their numbers, ascending.
        ended_s: When each ended, seconds since the epoch.
        series: By its name (``step_ms``, ``input_wait_ms``, ``queue_depth``), one value a step; None where a step has
            none. Causes sum to ``step_ms``; those that no step has are left out.
    """

    steps: tuple[int, ...]
    ended_s: tuple[float, ...]
    series: dict[str, tuple[float | None, ...]]
