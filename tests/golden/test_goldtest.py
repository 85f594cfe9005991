from __future__ import annotations

from pathlib import Path

import pytest
from goldtest import GoldenMismatchError, compare, scrub


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    path = tmp_path / "case" / "report.md"
    path.parent.mkdir()
    path.write_text("Made by dlprof 0.1.0.\nstep 3 ms\n")
    return path


def test_equal_but_for_the_version(golden: Path, tmp_path: Path) -> None:
    compare("Made by dlprof 12.0.1rc1.\nstep 3 ms\n", golden, keep=tmp_path)


def test_a_changed_number_fails_and_is_kept(golden: Path, tmp_path: Path) -> None:
    with pytest.raises(GoldenMismatchError, match=r"-step 3 ms\n\+step 4 ms"):
        compare("Made by dlprof 0.1.0.\nstep 4 ms\n", golden, keep=tmp_path / "actual")
    assert (tmp_path / "actual" / "case" / "report.md").read_text() == "Made by dlprof 0.1.0.\nstep 4 ms\n"


def test_a_line_ending_is_a_difference(golden: Path, tmp_path: Path) -> None:
    with pytest.raises(GoldenMismatchError, match="only line endings"):
        compare("Made by dlprof 0.1.0.\r\nstep 3 ms\r\n", golden, keep=tmp_path)


def test_a_missing_golden_file_fails(tmp_path: Path) -> None:
    with pytest.raises(GoldenMismatchError, match="missing"):
        compare("x", tmp_path / "case" / "new.md", keep=tmp_path)


def test_update_writes_only_what_differs(golden: Path, tmp_path: Path) -> None:
    before = golden.read_bytes()
    compare("Made by dlprof 9.9.9.\nstep 3 ms\n", golden, update=True)
    assert golden.read_bytes() == before
    compare("new\r\n", golden, update=True)
    assert golden.read_bytes() == b"new\r\n"
    compare("made", tmp_path / "another" / "report.md", update=True)
    assert (tmp_path / "another" / "report.md").read_text() == "made"


@pytest.mark.parametrize("version", ["0.1.0", "1.2.3.dev4+g12ab", "2.0"])
def test_scrub_takes_the_version_and_keeps_the_full_stop(version: str) -> None:
    assert scrub(f"Made by dlprof {version}.") == "Made by dlprof VERSION."
    assert scrub("num_workers 0.1.0") == "num_workers 0.1.0"
