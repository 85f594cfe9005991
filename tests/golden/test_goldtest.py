from __future__ import annotations

import functools
from pathlib import Path

import pytest
from goldtest import GoldenMismatchError, compare, pdf_text, scrub

from dlprof.errors import DlprofError
from dlprof.render import render_pdf


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    path = tmp_path / "case" / "report.md"
    path.parent.mkdir()
    path.write_text("Made by dlprof 0.1.0.\nstep 3 ms\n")
    return path


def test_equal_but_for_the_version(golden: Path, tmp_path: Path) -> None:
    compare(b"Made by dlprof 12.0.1rc1.\nstep 3 ms\n", golden, keep=tmp_path)


def test_a_changed_number_fails_and_is_kept(golden: Path, tmp_path: Path) -> None:
    with pytest.raises(GoldenMismatchError, match=r"-step 3 ms\n\+step 4 ms"):
        compare(b"Made by dlprof 0.1.0.\nstep 4 ms\n", golden, keep=tmp_path / "actual")
    assert (tmp_path / "actual" / "case" / "report.md").read_text() == "Made by dlprof 0.1.0.\nstep 4 ms\n"


def test_a_line_ending_is_a_difference(golden: Path, tmp_path: Path) -> None:
    with pytest.raises(GoldenMismatchError, match="only line endings"):
        compare(b"Made by dlprof 0.1.0.\r\nstep 3 ms\r\n", golden, keep=tmp_path)


def test_a_missing_golden_file_fails(tmp_path: Path) -> None:
    with pytest.raises(GoldenMismatchError, match="missing"):
        compare(b"x", tmp_path / "case" / "new.md", keep=tmp_path)


def test_update_writes_only_what_differs(golden: Path, tmp_path: Path) -> None:
    before = golden.read_bytes()
    compare(b"Made by dlprof 9.9.9.\nstep 3 ms\n", golden, update=True)
    assert golden.read_bytes() == before
    compare(b"new\r\n", golden, update=True)
    assert golden.read_bytes() == b"new\r\n"
    compare(b"made", tmp_path / "another" / "report.md", update=True)
    assert (tmp_path / "another" / "report.md").read_text() == "made"


@pytest.mark.parametrize("version", ["0.1.0", "1.2.3.dev4+g12ab", "2.0"])
def test_scrub_takes_the_version_and_keeps_the_full_stop(version: str) -> None:
    assert scrub(f"Made by dlprof {version}.") == "Made by dlprof VERSION."
    assert scrub("num_workers 0.1.0") == "num_workers 0.1.0"


def test_scrub_takes_the_version_in_json() -> None:
    assert scrub('{\n "dlprof": "0.1.0",\n "host": "vm"') == '{\n "dlprof": "VERSION",\n "host": "vm"'


@functools.cache
def pdf(text: str, size: str = "148mm 60mm", version: str = "0.1.0") -> bytes:
    try:
        return render_pdf(
            f"<style>@page {{ size: {size}; margin: 15mm; @bottom-left {{ content: 'train.py · dlprof {version}' }}"
            "@bottom-right { content: 'page ' counter(page) ' of ' counter(pages) } }</style>"
            f"<h1>The step is bound by storage</h1><p>{text * 12}</p>"
        )
    except DlprofError as error:
        pytest.skip(f"{error.message} {error.hint}")


STEP = "A step takes 44.3 ms of which 9.1 ms are waits. "


def test_a_pdf_is_compared_by_its_text_wherever_its_lines_and_pages_break(tmp_path: Path) -> None:
    golden = tmp_path / "case" / "report.pdf"
    golden.parent.mkdir()
    golden.write_bytes(pdf(STEP))
    assert "page" not in pdf_text(pdf(STEP))
    compare(pdf(STEP, "105mm 74mm", "2.0"), golden, keep=tmp_path)
    assert golden.read_bytes() == pdf(STEP)
    with pytest.raises(GoldenMismatchError, match="8mswaits"):
        compare(pdf(STEP.replace("are waits", "are 8 ms waits")), golden, keep=tmp_path / "actual")


def test_update_renews_a_pdf_that_looks_different(tmp_path: Path) -> None:
    golden = tmp_path / "report.pdf"
    golden.write_bytes(pdf(STEP))
    compare(pdf(STEP, "105mm 74mm"), golden, update=True)
    assert golden.read_bytes() == pdf(STEP, "105mm 74mm")


def test_numbers_of_json_are_compared_to_six_digits(tmp_path: Path) -> None:
    golden = tmp_path / "report.json"
    golden.write_text('{"ms": 12.345678901234}')
    compare(b'{"ms": 12.345678901299}', golden, keep=tmp_path)
    with pytest.raises(GoldenMismatchError):
        compare(b'{"ms": 12.3457899}', golden, keep=tmp_path)
