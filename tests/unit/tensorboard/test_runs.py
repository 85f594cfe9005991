"""Which runs are found, and that nothing else is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from found_runs import HOSTILE

from dlprof.model.kinds import Bottleneck
from dlprof.model.listing import State
from dlprof.tensorboard.runs import Runs


def test_every_run_is_listed_with_what_is_known_of_it(root: Path) -> None:
    found = {run.name: run for run in Runs(root).listed()}
    assert {name: run.state for name, run in found.items()} == {
        "good": State.REPORTED,
        "tune/trial-1": State.REPORTED,
        HOSTILE: State.REPORTED,
        "saved": State.SAVED,
        "recorded": State.RECORDING,
        "damaged": State.DAMAGED,
        "cut": State.DAMAGED,
    }
    trial = found["tune/trial-1"]
    assert (trial.bottleneck, trial.component, trial.step_ms) == (Bottleneck.H2D_COPY, None, 5.0)
    assert trial.created == "2026-03-01T10:00:00+00:00"
    assert trial.trace == "here_1.2.pt.trace.json.gz"
    assert 0 < found["good"].input_wait_ratio < 1
    assert found["cut"].trace is None


def test_the_folder_itself_may_be_a_run(made: Path) -> None:
    (run,) = Runs(made).listed()
    assert run.name == "."
    assert Runs(made).find(".")[0] == made


def test_a_run_that_appears_or_changes_is_seen(root: Path, another: Callable[..., Path]) -> None:
    runs = Runs(root)
    before = {run.name for run in runs.listed()}
    another(root / "new")
    (root / "saved" / "report.json").write_bytes((root / "good" / "report.json").read_bytes())
    after = {run.name: run.state for run in runs.listed()}
    assert after.keys() - before == {"new"}
    assert after["saved"] is State.REPORTED


def test_a_folder_that_is_not_there_yet_has_no_runs(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "later")
    assert runs.listed() == []
    assert not runs.any()
    assert runs.find("x") is None


def test_any_stops_at_a_run(root: Path) -> None:
    assert Runs(root).any()
    assert not Runs(root / "notes").any()


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "good/../../outside",
        "good/..",
        "link",
        "link-in/run",
        "notes",
        "nothing",
        ".hidden",
        "recorded/recording",
        "good\0",
        "x" * 5000,
        "good/run.dlprof",
    ],
)
def test_what_is_no_run_of_the_folder_is_not_found(root: Path, another: Callable[..., Path], name: str) -> None:
    outside = another(root.parent / "outside")
    another(root / ".hidden")
    (root / "link").symlink_to(outside)
    (root / "link-in").symlink_to(root.parent, target_is_directory=True)
    runs = Runs(root)
    assert runs.find(name) is None
    assert runs.find(str(outside)) is None
    assert runs.find("good") is not None
    assert name not in {run.name for run in runs.listed()}


def test_a_link_to_the_folder_is_the_folder(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    assert Runs(link).find("good") == (root / "good", Runs(root).find("good")[1])


def test_a_report_that_is_a_link_is_not_read(root: Path) -> None:
    report = root / "good" / "report.json"
    os.rename(report, root.parent / "elsewhere.json")
    report.symlink_to(root.parent / "elsewhere.json")
    assert Runs(root).find("good")[1].state is State.SAVED
