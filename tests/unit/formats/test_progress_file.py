from __future__ import annotations

import os

import pytest

from dlprof.formats.progress_file import ALL_STEPS, PREFIX, Phase, Progress, ProgressWriter, read_progress

STATE = {
    "batches_done": 12,
    "batches_total": 65,
    "wait_ns": 3,
    "measured_ns": 4,
    "first_batch_ns": 5,
    "stop_requested_ns": 0,
    "updated_ns": 7,
}


def test_the_supervisor_reads_the_last_record_that_the_script_wrote(tmp_path):
    writer = ProgressWriter(str(tmp_path))
    writer.write(Phase.WARM_UP, **STATE)
    writer.write(Phase.MEASURING, **STATE | {"batches_done": 13})
    assert read_progress(tmp_path) == [Progress(os.getpid(), Phase.MEASURING, **STATE | {"batches_done": 13})]


def test_a_run_that_is_never_stopped_says_so(tmp_path):
    ProgressWriter(str(tmp_path)).write(Phase.MEASURING, **STATE | {"batches_total": ALL_STEPS})
    assert read_progress(tmp_path)[0].batches_total == ALL_STEPS


def test_nothing_is_read_before_the_first_record(tmp_path):
    ProgressWriter(str(tmp_path))
    assert read_progress(tmp_path) == []
    assert read_progress(tmp_path / "not there") == []


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="cut off"),
        pytest.param(lambda data: b"GIF8" + data[4:], id="another kind of file"),
        pytest.param(lambda data: data[:4] + b"\x63" + data[5:], id="a phase not known here"),
    ],
)
def test_what_is_no_progress_record_is_passed_over(tmp_path, damage):
    ProgressWriter(str(tmp_path)).write(Phase.DONE, **STATE)
    path = tmp_path / f"{PREFIX}{os.getpid()}"
    (tmp_path / f"{PREFIX}1").write_bytes(damage(path.read_bytes()))
    assert [each.pid for each in read_progress(tmp_path)] == [os.getpid()]


def test_every_training_process_has_its_own_record(tmp_path):
    ProgressWriter(str(tmp_path)).write(Phase.DONE, **STATE)
    path = tmp_path / f"{PREFIX}{os.getpid()}"
    (tmp_path / f"{PREFIX}77").write_bytes(path.read_bytes())
    assert len(read_progress(tmp_path)) == 2
