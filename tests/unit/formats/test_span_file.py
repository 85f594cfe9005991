"""What a thread writes is what is read, also when the process died in the middle or the disk was full."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.formats import span_file
from dlprof.formats.span_file import RECORD_BYTES, DiskBudget, SpanWriter, read_spans, record_dtype
from dlprof.model.kinds import Kind, Role

HEADER_BYTES = 64
PLENTY = 1 << 30

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
records = st.fixed_dictionaries(
    {
        "kind": st.integers(0, 255),
        "start_ns": int64,
        "end_ns": int64,
        "batch": int32,
        "iterator": int32,
        "name": st.integers(0, (1 << 32) - 1),
        "on_cpu_ns": int64,
        "runnable_ns": int64,
        "process_cpu_ns": int64,
        "value": int64,
        "weight": st.integers(0, (1 << 16) - 1),
        "flags": st.integers(0, 255),
    }
)


def writer(folder: Path, thread: int = 7, role: Role = Role.WORKER, limit: int = PLENTY) -> SpanWriter:
    return SpanWriter(str(folder), role, thread, DiskBudget(limit))


def path_of(folder: Path, thread: int = 7) -> Path:
    return folder / f"{os.getpid()}-{thread}{span_file.SUFFIX}"


def starts(folder: Path, thread: int = 7) -> list[int]:
    found = read_spans(path_of(folder, thread))
    assert found is not None
    return found.records["start_ns"].tolist()


@settings(max_examples=40, deadline=None)
@given(written=st.lists(records, max_size=20))
def test_every_value_comes_back_as_it_was_written(tmp_path_factory, written):
    folder = tmp_path_factory.mktemp("recording")
    target = writer(folder)
    for record in written:
        target.add(**record)
    target.close()
    found = read_spans(path_of(folder))
    assert found is not None
    assert found.records.dtype == record_dtype()
    for name in record_dtype().names:
        assert found.records[name].tolist() == [record[name] for record in written]
    assert not found.truncated


def test_what_is_not_said_reads_as_not_known(tmp_path):
    target = writer(tmp_path)
    target.add(Kind.BODY, 1, 2)
    target.close()
    found = read_spans(path_of(tmp_path))
    record = dict(zip(record_dtype().names, found.records[0].tolist(), strict=True))
    assert record == {
        "start_ns": 1,
        "end_ns": 2,
        "kind": Kind.BODY,
        "on_cpu_ns": -1,
        "runnable_ns": -1,
        "process_cpu_ns": -1,
        "value": -1,
        "batch": -1,
        "iterator": -1,
        "name": 0,
        "weight": 1,
        "flags": 0,
    }


@pytest.mark.parametrize("role", [Role.MAIN, Role.WORKER, Role.FEEDER, Role.PIN_MEMORY, Role.THREAD])
def test_the_header_says_whose_spans_these_are_and_pairs_the_clocks(tmp_path, role):
    before = time.monotonic_ns(), time.time_ns()
    writer(tmp_path, thread=4321, role=role).close()
    after = time.monotonic_ns(), time.time_ns()
    found = read_spans(path_of(tmp_path, 4321))
    assert (found.role, found.pid, found.thread_id) == (role, os.getpid(), 4321)
    assert before[0] <= found.monotonic_ns <= after[0]
    assert before[1] <= found.wall_ns <= after[1]


def test_a_record_cut_off_by_the_process_death_costs_only_itself(tmp_path):
    target = writer(tmp_path)
    for number in range(3):
        target.add(Kind.NEXT, number, number)
    target.close()
    whole = path_of(tmp_path).read_bytes()
    for lost in range(1, RECORD_BYTES):
        path_of(tmp_path).write_bytes(whole[:-lost])
        found = read_spans(path_of(tmp_path))
        assert found.records["start_ns"].tolist() == [0, 1]
        assert found.truncated


def test_spans_are_on_disk_after_a_flush_and_when_the_buffer_is_full_though_nobody_closed(tmp_path):
    target = writer(tmp_path)
    target.add(Kind.NEXT, 0, 0)
    assert starts(tmp_path) == []
    target.flush()
    assert starts(tmp_path) == [0]
    for number in range(1, 600):
        target.add(Kind.NEXT, number, number)
    assert len(starts(tmp_path)) >= 512
    target.close()
    assert starts(tmp_path) == list(range(600))


def test_the_file_never_grows_past_its_limit_and_what_did_not_fit_is_counted(tmp_path):
    limit = 700 * RECORD_BYTES
    target = writer(tmp_path, limit=limit)
    for number in range(2000):
        target.add(Kind.NEXT, number, number)
    target.close()
    kept = starts(tmp_path)
    assert path_of(tmp_path).stat().st_size <= HEADER_BYTES + limit
    assert kept == list(range(len(kept)))
    assert target.recorded == 2000
    assert target.lost == 2000 - len(kept)


def test_a_writer_that_is_abandoned_leaves_what_it_had_in_memory_to_the_parent(tmp_path):
    target = writer(tmp_path)
    target.add(Kind.NEXT, 1, 2)
    target.abandon()
    assert starts(tmp_path) == []


def test_a_second_writer_of_the_same_thread_goes_on_behind_the_first(tmp_path):
    for number in range(2):
        target = writer(tmp_path)
        target.add(Kind.NEXT, number, number)
        target.close()
    assert starts(tmp_path) == [0, 1]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[: HEADER_BYTES - 1], id="header cut off"),
        pytest.param(lambda data: b"GIF8" + data[4:], id="another kind of file"),
        pytest.param(lambda data: data[:4] + b"\x02\x00" + data[6:], id="a later version"),
        pytest.param(lambda data: data[:6] + b"\xff\x00" + data[8:], id="a role not known here"),
    ],
)
def test_what_is_no_span_file_of_this_version_is_not_read(tmp_path, damage):
    writer(tmp_path).close()
    path_of(tmp_path).write_bytes(damage(path_of(tmp_path).read_bytes()))
    assert read_spans(path_of(tmp_path)) is None


def test_a_file_that_is_gone_is_the_callers_to_know(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_spans(tmp_path / "1-1.spans")


def test_a_folder_that_is_gone_is_the_callers_to_know(tmp_path):
    with pytest.raises(FileNotFoundError):
        writer(tmp_path / "gone")


def test_a_record_is_as_long_as_the_format_says():
    assert record_dtype().itemsize == RECORD_BYTES


def test_a_value_that_does_not_fit_is_refused_and_the_next_span_takes_its_place(tmp_path):
    target = writer(tmp_path)
    with pytest.raises(Exception, match=r"format requires|argument out of range|int too large"):
        target.add(Kind.NEXT, 1, 2, value=1 << 70)
    target.add(Kind.NEXT, 3, 4)
    target.close()
    assert starts(tmp_path) == [3]


def test_a_write_that_the_disk_took_only_in_part_does_not_shift_the_records_after_it(tmp_path, monkeypatch):
    target = writer(tmp_path)
    target.add(Kind.NEXT, 1, 1)
    real_write = os.write
    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "write", lambda fd, data: real_write(fd, bytes(data)[:10]))
        with contextlib.suppress(OSError):
            target.flush()
    target.add(Kind.NEXT, 2, 2)
    target.close()
    found = read_spans(path_of(tmp_path)).records
    assert set(zip(found["start_ns"].tolist(), found["end_ns"].tolist(), strict=True)) <= {(1, 1), (2, 2)}
