"""Where a run is written, and what is refused or replaced."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from dlprof.cli import run_folder
from dlprof.cli.run_folder import is_run, prepare, prepare_several
from dlprof.errors import EXIT_USAGE, UsageError
from dlprof.formats.settings_file import Settings


@pytest.fixture(autouse=True)
def _work_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_run(folder: Path) -> None:
    """A folder as a finished run leaves it."""
    (folder / "recording").mkdir(parents=True)
    Settings(5, 1, 0, 1, 1).save(folder / "recording")
    for name in ("run.dlprof", "report.html", "report.json", "h_1.2.pt.trace.json.gz", "events.out.tfevents.1"):
        (folder / name).write_text("old")


def refused(out: Path | str, *, force: bool = False, environ: dict[str, str] | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        prepare(str(out), "train", force=force, environ=environ or {})
    assert caught.value.status == EXIT_USAGE
    return caught.value


def test_default_is_a_new_folder_under_dlprof_runs() -> None:
    made = prepare(None, "train", force=False, environ={})
    assert re.fullmatch(r"dlprof-runs/train-\d{8}-\d{6}", str(made.path))
    assert list(made.path.iterdir()) == [made.recording]


def test_two_runs_in_the_same_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "_stamp", lambda rank: "20260101-000000")
    made = [prepare(None, "train", force=False, environ={}).path.name for _ in range(3)]
    assert made == [f"train-20260101-000000{suffix}" for suffix in ("", "-2", "-3")]


def test_a_name_cannot_lead_elsewhere() -> None:
    assert prepare(None, "a/../b\n", force=False, environ={}).path.parent == Path("dlprof-runs")


def test_out_may_be_new_or_empty() -> None:
    assert prepare("a/b", "train", force=False, environ={}).recording.is_dir()
    Path("empty").mkdir()
    assert prepare("empty", "train", force=False, environ={}).recording.is_dir()


def test_out_with_a_run_is_refused_and_force_named() -> None:
    make_run(Path("old"))
    error = refused("old")
    assert "exists and is not empty" in error.message
    assert "--force" in error.hint


def test_force_replaces_a_run_and_leaves_other_files() -> None:
    make_run(Path("old"))
    for name in ("notes.txt", "report.docx"):
        Path("old", name).write_text("mine")
    prepare("old", "train", force=True, environ={})
    assert sorted(os.listdir("old")) == ["notes.txt", "recording", "report.docx"]
    assert os.listdir("old/recording") == []


def test_force_replaces_a_run_that_was_never_analysed() -> None:
    make_run(Path("old"))
    Path("old/run.dlprof").unlink()
    prepare("old", "train", force=True, environ={})
    assert os.listdir("old/recording") == []


@pytest.mark.parametrize("name", ["train.py", "recording/voice.wav", "report.html"])
def test_force_replaces_nothing_else(name: str) -> None:
    path = Path("project", name)
    path.parent.mkdir(parents=True)
    path.write_text("precious")
    assert "not a dlprof run" in refused("project", force=True).message
    assert path.read_text() == "precious"


def test_out_that_cannot_be_a_folder() -> None:
    Path("file").write_text("")
    assert "is not a folder" in refused("file").message
    assert "Not a directory" in refused("file/sub").message
    assert "cannot write to /proc/none" in refused("/proc/none").message
    Path("loop").symlink_to("loop")
    assert "cannot write to loop" in refused("loop").message


def test_discard_takes_away_what_was_made_and_no_more() -> None:
    prepare("a/b", "train", force=False, environ={}).discard()
    assert not Path("a").exists()
    prepare(None, "train", force=False, environ={}).discard()
    assert not Path("dlprof-runs").exists()
    Path("empty").mkdir()
    prepare("empty", "train", force=False, environ={}).discard()
    assert os.listdir("empty") == []


def test_ranks_of_one_launch_share_a_folder() -> None:
    made = [prepare(None, "train", force=False, environ={"RANK": str(k), "WORLD_SIZE": "2"}) for k in range(2)]
    assert [one.path.name for one in made] == ["rank0", "rank1"]
    assert made[0].path.parent == made[1].path.parent
    ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    started = time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    stamp = time.mktime(time.strptime(made[0].path.parent.name, "train-%Y%m%d-%H%M%S"))
    assert abs(stamp - started) <= 2


def test_ranks_refuse_and_replace_like_single_runs() -> None:
    rank = {"RANK": "1", "WORLD_SIZE": "2"}
    make_run(Path("old/rank0"))
    prepare("old", "train", force=False, environ=rank)
    assert "old/rank1 exists" in refused("old", environ=rank).message
    Settings(5, 1, 0, 1, 1).save(Path("old/rank1/recording"))
    prepare("old", "train", force=True, environ=rank)
    assert is_run(Path("old/rank0"))
    Path("old/mine.txt").write_text("")
    assert "old exists" in refused("old", environ=rank).message


def test_force_removes_the_ranks_of_an_old_run() -> None:
    make_run(Path("old"))
    make_run(Path("old/rank0"))
    Path("old/rank1").mkdir()
    Path("old/rank1/mine.txt").write_text("")
    prepare("old", "train", force=True, environ={})
    assert sorted(os.listdir("old")) == ["rank1", "recording"]


def test_one_process_alone_has_no_rank_folder() -> None:
    made = prepare("out", "train", force=False, environ={"RANK": "0", "WORLD_SIZE": "1"})
    assert made.path == Path("out")


def make_tuning(folder: Path) -> None:
    for name in ("baseline", "trial-1", "trial-1-again"):
        make_run(folder / name)
    for name in ("tune.json", "report.html", "notes.txt"):
        (folder / name).write_text("")


def test_a_folder_of_several_runs_is_empty() -> None:
    folder = prepare_several("a/b", "train", force=False)
    assert os.listdir("a/b") == []
    folder.discard()
    assert not Path("a").exists()
    assert prepare_several(None, "train", force=False).path.parent == Path("dlprof-runs")


def test_force_replaces_several_runs_and_leaves_other_files() -> None:
    make_tuning(Path("old"))
    with pytest.raises(UsageError, match="exists and is not empty"):
        prepare_several("old", "train", force=False)
    prepare_several("old", "train", force=True)
    assert os.listdir("old") == ["notes.txt"]


def test_force_replaces_nothing_that_tune_did_not_leave() -> None:
    make_run(Path("run"))
    with pytest.raises(UsageError, match="nothing that dlprof tune left"):
        prepare_several("run", "train", force=True)
    assert Path("run/run.dlprof").exists()
