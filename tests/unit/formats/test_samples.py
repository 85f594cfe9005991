"""Sample files put together: whose looks they are, where a batch's making begins, and whose code a frame is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlprof
from dlprof.formats.places import shown_file
from dlprof.formats.sample_file import Frames, SampleWriter
from dlprof.formats.samples import assemble_samples
from dlprof.model.kinds import Role
from dlprof.model.profile import Frame, Samples, Stack, Track

PACKAGE = Path(dlprof.__file__).parent
FETCH = (str(PACKAGE / "capture" / "fetching.py"), 160, "Fetching._timed_fetch.<locals>.timed_fetch")
ITEM = (str(PACKAGE / "capture" / "fetching.py"), 290, "TimedDataset.__getitem__")
TORCH = ("/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", 52, "_MapDatasetFetcher.fetch")
USER = ("/home/me/train.py", 7, "Texts.__getitem__")
LOOP = ("/home/me/train.py", 90, "<module>")
TRACKS = [Track(100, 100, Role.MAIN, 0), Track(200, 200, Role.WORKER, 0), Track(200, 205, Role.FEEDER, 0)]


def write(folder: Path, name: str, *looks: tuple[int, int, int, Frames], spent_ns: int = 0) -> None:
    """A sample file; each look is its time, process and thread, and frames."""
    folder.mkdir(exist_ok=True)
    writer = SampleWriter(str(folder), 1 << 30)
    for at, pid, thread, frames in looks:
        writer.add(at, pid, thread, (at * 10, at * 100, at * 5), 4, frames)
    writer.close(spent_ns)
    for path in list(folder.glob(f"{os.getpid()}.*")):
        path.rename(path.with_name(name + path.suffix))


def rows(found: Samples) -> list[tuple[Any, ...]]:
    return list(
        zip(
            found.track.tolist(),
            found.at_ns.tolist(),
            found.on_cpu_ns.tolist(),
            found.runnable_ns.tolist(),
            found.kernel_ns.tolist(),
            found.doing.tolist(),
            [found.stacks[place] for place in found.stack.tolist()],
            strict=True,
        )
    )


def stack_of(folder: Path, *frames: tuple[str, int, str]) -> Stack:
    write(folder, "1", (5, 100, 100, frames))
    found, _, _ = assemble_samples(folder, TRACKS)
    return found.stacks[int(found.stack[0])]


# ---- files -----------------------------------------------------------------------------------------------------------


def test_without_sample_files_there_are_no_looks(tmp_path):
    found, spent_ns, damaged = assemble_samples(tmp_path, TRACKS)
    assert (len(found), spent_ns, damaged) == (0, 0, [])
    assert found.stacks == (Stack((), False),)


def test_looks_of_several_files_are_brought_into_order(tmp_path):
    write(tmp_path, "1", (7, 200, 200, (USER,)), (3, 100, 100, (LOOP,)), (5, 200, 200, ()), spent_ns=30)
    write(tmp_path, "2", (4, 100, 100, (USER,)), (6, 200, 200, (LOOP,)), spent_ns=4)
    found, spent_ns, damaged = assemble_samples(tmp_path, TRACKS)
    assert (spent_ns, damaged) == (34, [])
    assert [(row[0], row[1]) for row in rows(found)] == [(0, 3), (0, 4), (1, 5), (1, 6), (1, 7)]
    for track, at, on_cpu, runnable, kernel, doing, _ in rows(found):
        assert (on_cpu, runnable, kernel, doing) == (at * 10, at * 100, at * 5, 4), track
    functions = [[frame.function for frame in row[-1].frames] for row in rows(found)]
    assert functions == [["<module>"], ["Texts.__getitem__"], [], ["<module>"], ["Texts.__getitem__"]]
    # The same stack in two files is one.
    assert len(found.stacks) == 3


def test_looks_at_threads_without_a_track_are_left_out(tmp_path):
    write(tmp_path, "1", (1, 100, 100, ()), (2, 100, 101, ()), (3, 999, 999, ()), (4, 200, 205, ()))
    found, _, _ = assemble_samples(tmp_path, TRACKS)
    assert [(row[0], row[1]) for row in rows(found)] == [(0, 1), (2, 4)]


def test_a_file_that_is_damaged_is_named_and_the_others_are_read(tmp_path):
    write(tmp_path, "1", (1, 100, 100, ()))
    (tmp_path / "2.samples").write_bytes(b"hello" * 20)
    (tmp_path / "3.samples").write_bytes(b"DLPT\x01\0\0\0" + bytes(8))
    found, _, damaged = assemble_samples(tmp_path, TRACKS)
    assert len(found) == 1
    assert damaged == ["2.samples", "3.samples"]


def test_a_file_into_which_nothing_was_written_is_not_damaged(tmp_path):
    (tmp_path / "1.samples").touch()
    (tmp_path / "1.stacks").touch()
    found, _, damaged = assemble_samples(tmp_path, TRACKS)
    assert (len(found), damaged) == (0, [])


def test_a_stack_that_was_cut_off_is_not_known(tmp_path):
    write(tmp_path, "1", (1, 100, 100, (USER,)), (2, 100, 100, (LOOP,)))
    path = tmp_path / "1.stacks"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] + b'[["/home/me')
    found, _, _ = assemble_samples(tmp_path, TRACKS)
    assert [len(row[-1].frames) for row in rows(found)] == [1, 0]
    path.write_bytes(b"")
    found, _, _ = assemble_samples(tmp_path, TRACKS)
    assert [row[-1] for row in rows(found)] == [Stack((), False)] * 2


@given(
    looks=st.lists(
        st.tuples(
            st.integers(0, 100),
            st.sampled_from([(100, 100), (200, 200), (7, 7)]),
            st.sampled_from([(), (USER,), (LOOP,)]),
        ),
        max_size=20,
    )
)
def test_every_look_at_a_known_thread_is_there_once(tmp_path_factory, looks):
    folder = tmp_path_factory.mktemp("recording")
    write(folder, "1", *((at, *whose, frames) for at, whose, frames in looks))
    found, _, _ = assemble_samples(folder, TRACKS)
    expected = sorted((0 if whose[0] == 100 else 1, at, len(frames)) for at, whose, frames in looks if whose[0] != 7)
    assert sorted((row[0], row[1], len(row[-1].frames)) for row in rows(found)) == expected
    assert [(row[0], row[1]) for row in rows(found)] == [(track, at) for track, at, _ in expected]


# ---- where the making of a batch begins ------------------------------------------------------------------------------


def test_a_stack_ends_where_a_batch_is_asked_for(tmp_path):
    found = stack_of(tmp_path, USER, ITEM, TORCH, FETCH, TORCH, LOOP)
    assert found.in_fetch
    assert [frame.function for frame in found.frames] == ["Texts.__getitem__", "_MapDatasetFetcher.fetch"]


def test_outside_of_that_all_frames_are_kept_but_ours(tmp_path):
    ours = (str(PACKAGE / "capture" / "session.py"), 1, "Session.after_request")
    found = stack_of(tmp_path, ours, TORCH, LOOP)
    assert not found.in_fetch
    assert [frame.function for frame in found.frames] == ["_MapDatasetFetcher.fetch", "<module>"]


def test_a_function_of_the_users_own_with_that_name_is_not_ours(tmp_path):
    assert not stack_of(tmp_path, USER, ("/home/me/capture/fetching.py", 1, "timed_fetch")).in_fetch


def test_the_loop_inside_a_loader_inside_a_dataset_is_within_the_inner_batch(tmp_path):
    found = stack_of(tmp_path, USER, FETCH, TORCH, USER, FETCH, LOOP)
    assert found.in_fetch
    assert len(found.frames) == 1


# ---- whose code ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "is_user"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("/home/me/library/data.py", True),
        ("/home/me/python3/data.py", True),
        ("/opt/lib/pythonic/data.py", True),
        ("/tmp/ipykernel_77/123.py", True),
        ("<ipython-input-3-abc>", True),
        ("<stdin>", True),
        ("/venv/lib/python3.11/site-packages/torch/utils/data/dataset.py", False),
        ("/usr/lib/python3/dist-packages/PIL/Image.py", False),
        ("/usr/lib/python3.11/json/decoder.py", False),
        ("/usr/lib64/python3.12/json/decoder.py", False),
        ("/opt/python311.zip/json/decoder.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        ("<__array_function__ internals>", False),
        (os.__file__, False),
        (pytest.__file__, False),
        (__file__, True),
    ],
)
def test_whose_code_a_frame_is(tmp_path, file, is_user):
    (frame,) = stack_of(tmp_path, (file, 1, "f")).frames
    assert frame.is_user is is_user


def test_the_line_is_shown_with_its_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "größe.py"
    script.write_text("import os\n\n    wert = 'é'  # so\n", encoding="utf-8")
    other = ("/somewhere/else.py", 3, "g")
    found = stack_of(tmp_path / "recording", (str(script), 3, "f"), (str(script), 99, "f"), other, ("<stdin>", 1, "h"))
    assert found.frames == (
        Frame("größe.py", 3, "f", "wert = 'é'  # so", True),
        Frame("größe.py", 99, "f", "", True),
        Frame("/somewhere/else.py", 3, "g", "", True),
        Frame("<stdin>", 1, "h", "", True),
    )


def test_a_folder_whose_name_only_begins_like_the_working_folder_is_another(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert shown_file(str(tmp_path / "workshop" / "a.py")) == str(tmp_path / "workshop" / "a.py")
    assert shown_file(str(tmp_path / "work" / "b" / "a.py")) == os.path.join("b", "a.py")
