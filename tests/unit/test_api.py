"""What a run counts for among those that `dlprof tune` compares."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from builders import end_of_epoch, joined, ms, profile, step

from dlprof.api import measured_run
from dlprof.diagnose import diagnose
from dlprof.formats import run_file
from dlprof.formats.report_json import encode_report
from dlprof.model.profile import Loader


@pytest.mark.parametrize("persistent", [True, False])
def test_a_step_counts_with_its_part_of_starting_workers_anew(tmp_path: Path, persistent: bool) -> None:
    plan = joined(step(getitem=ms(4), compute=ms(20)) * 12 + end_of_epoch() for _ in range(3))
    found = profile(plan, workers=2, startup=ms(36), persistent=persistent)
    first, *others = found.loaders
    lasting = Loader(first.number, first.pid, {**first.settings, "length": 12})
    found = replace(found, loaders=(lasting, *others))
    report = diagnose(found)
    run_file.save(found, tmp_path / run_file.NAME)
    (tmp_path / "report.json").write_bytes(encode_report(report))
    measured = measured_run(tmp_path, "baseline", 1.0)
    assert measured.failure is None
    restart_ms = 0 if persistent else 36 / 12
    assert measured.steps_ms == pytest.approx([row.ms + restart_ms for row in report.steps], abs=0.02)
