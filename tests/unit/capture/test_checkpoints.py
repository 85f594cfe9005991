"""Writing a checkpoint: what torch.save takes, and the renaming that puts a saved file into its place."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from recordings import begin, rows

from dlprof.capture.checkpoints import Checkpoints
from dlprof.capture.patches import Patches
from dlprof.model.kinds import Kind

RENAMING = os.replace, os.rename


@pytest.fixture
def session(tmp_path):
    return begin(tmp_path)


def written(session, tmp_path, *kinds: Kind):
    session.recorder.flush_all()
    return rows(tmp_path, *kinds)


@pytest.fixture
def serialization(session):
    module = ModuleType("torch.serialization")

    def save(thing: str, f: Any) -> int:
        if thing == "bad":
            raise OSError("the user's own disk is full")
        if isinstance(f, list):
            f.append(thing)
        else:
            Path(f).write_text(thing)
        return 7

    module.save = save
    patches = Patches()
    Checkpoints(session.recorder, patches).hook(module)
    yield module
    patches.restore()
    assert module.save is save
    assert (os.replace, os.rename) == RENAMING


def test_saving_is_a_checkpoint(session, serialization, tmp_path):
    kept: list[object] = []
    assert serialization.save("state", f=kept) == 7
    assert kept == ["state"]
    assert len(written(session, tmp_path, Kind.CHECKPOINT)) == 1
    assert serialization.save.__name__ == "save"


def test_an_error_while_saving_passes(session, serialization, tmp_path):
    with pytest.raises(OSError, match="user's own"):
        serialization.save("bad", [])
    assert len(written(session, tmp_path, Kind.CHECKPOINT)) == 1
    assert session.recorder.on


def test_a_recording_that_has_ended_leaves_saving_alone(session, serialization, tmp_path):
    session.recorder.on = False
    assert serialization.save("state", []) == 7
    assert written(session, tmp_path) == []


def test_a_recording_that_fails_does_not_keep_the_script_from_saving(session, serialization, monkeypatch):
    def full(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(session.recorder.thread().writer), "add", full)
    assert serialization.save("state", []) == 7
    assert not session.recorder.on


@pytest.mark.parametrize("rename", ["replace", "rename"])
def test_putting_a_checkpoint_into_its_place_is_part_of_writing_it(session, serialization, tmp_path, rename):
    fresh, last = tmp_path / "fresh.pt", tmp_path / "last.pt"
    serialization.save("first", fresh)
    getattr(fresh, rename)(last)
    assert last.read_text() == "first"
    assert len(written(session, tmp_path, Kind.CHECKPOINT)) == 2
    getattr(os, rename)(last, tmp_path / "older.pt")
    assert len(written(session, tmp_path, Kind.CHECKPOINT)) == 2


def test_so_is_a_folder_that_holds_one(session, serialization, tmp_path):
    (tmp_path / "half").mkdir()
    serialization.save("state", str(tmp_path / "half" / "model.pt"))
    serialization.save("state", str(tmp_path / "half" / "optimizer.pt"))
    os.rename(str(tmp_path / "half"), str(tmp_path / "whole"))
    assert len(written(session, tmp_path, Kind.CHECKPOINT)) == 3


def test_other_files_are_renamed_as_ever(session, serialization, tmp_path):
    serialization.save("state", tmp_path / "model.pt")
    (tmp_path / "log.txt").write_text("line")
    os.replace(os.fsencode(tmp_path / "log.txt"), os.fsencode(tmp_path / "old.txt"))
    with pytest.raises(FileNotFoundError):
        os.rename(tmp_path / "log.txt", tmp_path / "older.txt")
    assert (tmp_path / "old.txt").read_text() == "line"
    assert len(written(session, tmp_path, Kind.CHECKPOINT)) == 1


def test_nothing_is_renamed_through_here_before_something_is_saved(session, serialization):
    assert (os.replace, os.rename) == RENAMING
