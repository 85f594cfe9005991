"""What of a run is resampled when it is compared with another: times step by step and batch by batch."""

from __future__ import annotations

import numpy as np

from dlprof.analysis.components import find_fetches
from dlprof.analysis.partition import CAUSES, OPEN_CAUSES, partition
from dlprof.analysis.sections import batch_times_ns
from dlprof.analysis.steps import find_steps
from dlprof.model.compare import Sample
from dlprof.model.profile import Profile
from dlprof.model.report import Report

_MS = 1e6


def sample_of(profile: Profile) -> Sample:
    """The measured steps of a run; without any, columns of length 0.

    Args:
        profile: The run.
    """
    steps = find_steps(profile)
    parts = partition(profile, steps)
    if parts is None:
        return Sample(np.empty(0))
    return Sample(
        # What other loaders' phases take within a step is not the step's.
        step_ms=parts.light.sum(axis=1) / _MS,
        causes_ms={cause: parts.light[:, place] / _MS for place, cause in enumerate(CAUSES)},
        shares={cause: parts.open_shares[:, place] for place, cause in enumerate(OPEN_CAUSES)},
        batches_ms={key: spent / _MS for key, spent in batch_times_ns(profile, steps, find_fetches(profile)).items()},
    )


def sample_of_report(report: Report) -> Sample:
    """The steps of a run of which only the report is there: no cause or component is known step by step.

    Args:
        report: Of the run.
    """
    return Sample(np.array([row.ms for row in report.steps if not row.traced and row.ms > 0], dtype=np.float64))
