"""Files with looks at threads: what was added comes back, whatever of it is cut off."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlprof.formats.sample_file import NO_STACK, STACKS_SUFFIX, SUFFIX, Frames, SampleWriter, read_samples

HEADER_BYTES, RECORD_BYTES = 16, 48
PLENTY = 1 << 30
INNER: Frames = (("train.py", 7, "Dataset.__getitem__"), ("fetch.py", 1, "fetch"))
OUTER: Frames = (("größe.py", 3, "𐎠.<locals>.inner"),)

times = st.integers(0, (1 << 63) - 1)
numbers = st.integers(1, (1 << 32) - 1)
frames = st.lists(
    st.tuples(st.text(max_size=5), st.integers(0, 1 << 31), st.text(st.characters(), max_size=5)), max_size=3
).map(tuple)
all_times = st.tuples(times, times, times)
looks = st.lists(st.tuples(times, numbers, numbers, all_times, st.integers(0, 7), frames), max_size=120)


def path_in(folder: Path) -> Path:
    return folder / f"{os.getpid()}{SUFFIX}"


def written(folder: Path, *looked: tuple[Any, ...], spent_ns: int = 0, limit: int = PLENTY) -> SampleWriter:
    writer = SampleWriter(str(folder), limit)
    for look in looked:
        writer.add(*look)
    writer.close(spent_ns)
    return writer


def rows(folder: Path) -> list[tuple[Any, ...]]:
    found = read_samples(path_in(folder))
    assert found is not None
    records, stacks, _ = found
    times = ("on_cpu_ns", "runnable_ns", "kernel_ns")
    return [
        (
            *(int(each[name]) for name in ("at_ns", "pid", "thread")),
            tuple(int(each[name]) for name in times),
            int(each["doing"]),
            stacks[each["stack"] - 1] if each["stack"] != NO_STACK else (),
        )
        for each in records
    ]


def look(at: int, stack: Frames = INNER) -> tuple[Any, ...]:
    return (at, 100, 101, (at * 2, at * 3, at), 1, stack)


@settings(max_examples=60, deadline=None)
@given(looked=looks, spent=times)
def test_what_was_added_comes_back(tmp_path_factory, looked, spent):
    folder = tmp_path_factory.mktemp("looks")
    written(folder, *looked, spent_ns=spent)
    assert rows(folder) == looked
    found = read_samples(path_in(folder))
    assert found is not None
    assert found[2] == spent
    assert len(found[1]) == len({look[-1] for look in looked} - {()})


def test_a_stack_is_written_once(tmp_path):
    written(tmp_path, look(1), look(2, OUTER), look(3), look(4, ()), look(5, OUTER))
    assert [row[-1] for row in rows(tmp_path)] == [INNER, OUTER, INNER, (), OUTER]
    assert len(path_in(tmp_path).with_suffix(STACKS_SUFFIX).read_bytes().splitlines()) == 2


def test_a_name_that_is_no_text_comes_back(tmp_path):
    odd: Frames = (("caf\udce9\n.py", 1, "f\x85\u2028"),)
    written(tmp_path, look(1, odd), look(2, INNER))
    assert [row[-1] for row in rows(tmp_path)] == [odd, INNER]


@pytest.mark.parametrize("cut", range(1, RECORD_BYTES))
def test_a_record_that_is_cut_off_is_passed_over(tmp_path, cut):
    writer = SampleWriter(str(tmp_path), PLENTY)
    for number in range(3):
        writer.add(*look(number))
    writer.flush()
    writer.abandon()
    data = path_in(tmp_path).read_bytes()
    assert len(data) == HEADER_BYTES + 3 * RECORD_BYTES
    path_in(tmp_path).write_bytes(data[:-cut])
    assert rows(tmp_path) == [look(0), look(1)]


@pytest.mark.parametrize("left", [0, 1, 20, -1])
def test_a_stack_that_is_cut_off_is_not_known(tmp_path, left):
    written(tmp_path, look(1), look(2, OUTER))
    path = path_in(tmp_path).with_suffix(STACKS_SUFFIX)
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second.rstrip()[:left])
    found = read_samples(path_in(tmp_path))
    assert found is not None
    records, stacks, _ = found
    assert stacks[0] == INNER
    # Either there is no line for it, or one that says nothing.
    assert stacks[1:] in ([], [()])
    assert records["stack"].tolist() == [1, 2]


@pytest.mark.parametrize("line", [b"5", b"[1]", b'[["a", "b", "c"]]', b"{}", b'[["a", 1]]', b"null"])
def test_a_line_that_is_no_stack_is_not_known(tmp_path, line):
    written(tmp_path, look(1), look(2, OUTER))
    path = path_in(tmp_path).with_suffix(STACKS_SUFFIX)
    path.write_bytes(line + b"\n" + path.read_bytes().splitlines()[1] + b"\n")
    assert [row[-1] for row in rows(tmp_path)] == [(), OUTER]


@pytest.mark.parametrize("data", [b"", b"DLPT", b"x" * 64, b"DLPT" + (2).to_bytes(4, "little") + bytes(8)])
def test_a_file_of_another_kind_is_none_of_ours(tmp_path, data):
    path_in(tmp_path).write_bytes(data)
    assert read_samples(path_in(tmp_path)) is None


def test_a_file_without_its_stacks_is_an_error(tmp_path):
    written(tmp_path, look(1))
    path_in(tmp_path).with_suffix(STACKS_SUFFIX).unlink()
    with pytest.raises(OSError, match="No such file"):
        read_samples(path_in(tmp_path))


# ---- the limit -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 30), limit=st.integers(0, 1000))
def test_no_more_is_written_than_allowed(tmp_path_factory, count, limit):
    folder = tmp_path_factory.mktemp("looks")
    stacks = [((f"file{number}.py", number, "f"),) for number in range(count)]
    writer = written(folder, *(look(number, stacks[number]) for number in range(count)), limit=limit)
    found = rows(folder)
    assert len(found) + writer.lost == count
    # What is lost is the end, and a stack that there was no room for is not known.
    assert [row[:-1] for row in found] == [look(number)[:-1] for number in range(len(found))]
    assert all(row[-1] in ((), stacks[number]) for number, row in enumerate(found))
    sizes = path_in(folder).stat().st_size + path_in(folder).with_suffix(STACKS_SUFFIX).stat().st_size
    # Beside the limit: the header, the looking's cost, and the record whose stack took the last room.
    assert sizes <= limit + HEADER_BYTES + 2 * RECORD_BYTES


def test_the_number_of_stacks_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("dlprof.formats.sample_file._MOST_STACKS", 1)
    written(tmp_path, look(1), look(2, OUTER), look(3))
    assert [row[-1] for row in rows(tmp_path)] == [INNER, (), INNER]


# ---- files -----------------------------------------------------------------------------------------------------------


def test_what_was_flushed_is_there_though_the_looker_is_killed(tmp_path):
    writer = SampleWriter(str(tmp_path), PLENTY)
    writer.add(*look(1))
    writer.flush()
    found = read_samples(path_in(tmp_path))
    assert found is not None
    assert len(found[0]) == 1
    assert found[2] == 0
    writer.abandon()


def test_looks_reach_the_file_before_the_end(tmp_path):
    writer = SampleWriter(str(tmp_path), PLENTY)
    for number in range(200):
        writer.add(*look(number))
    found = read_samples(path_in(tmp_path))
    assert found is not None
    assert len(found[0]) > 80
    writer.abandon()


def test_nothing_is_written_by_a_child_that_gives_the_files_up(tmp_path):
    writer = SampleWriter(str(tmp_path), PLENTY)
    writer.add(*look(1))
    writer.abandon()
    assert path_in(tmp_path).read_bytes() == b""


def test_the_files_are_closed(tmp_path):
    before = os.listdir("/proc/self/fd")
    written(tmp_path, look(1))
    assert os.listdir("/proc/self/fd") == before
