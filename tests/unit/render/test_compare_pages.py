"""The comparison in its formats, whatever the script's strings hold."""

from __future__ import annotations

import io
import re

import pytest
from compare_cases import CASES
from report_cases import CONTROL, MARKUP

from dlprof.errors import DlprofError
from dlprof.render import compare_lines, render_compare


def page(case: str, format_: str) -> str:
    ((_, made),) = render_compare(CASES[case](), [format_])
    assert isinstance(made, bytes)
    return made.decode()


@pytest.mark.parametrize("case", CASES)
def test_the_page_loads_nothing_and_runs_nothing(case: str) -> None:
    html = page(case, "html")
    assert "default-src 'none'" in html
    assert MARKUP not in html
    assert "<script" not in html
    assert "url(" not in html
    assert "\x1b" not in html
    assert len(html) < 600_000


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("format_", ["html", "md", "txt"])
def test_no_computer_words(case: str, format_: str) -> None:
    text = re.sub(r"<style>.*?</style>", "", page(case, format_), flags=re.S)
    assert not re.search(r"\b(nan|NaN|None|undefined)\b", text)


@pytest.mark.parametrize("format_", ["html", "md", "txt"])
def test_there_is_no_part_on_what_to_change(format_: str) -> None:
    assert "What to change" not in page("workers", format_)


def test_the_skip_link_leads_somewhere() -> None:
    html = page("workers", "html")
    (target,) = re.findall(r'class="skip" href="#([^"]+)"', html)
    assert f'id="{target}"' in html


def test_the_terminal_gets_the_result_its_causes_and_the_settings() -> None:
    lines = compare_lines(CASES["workers"]())
    assert lines[0].startswith("The second run is 1.5")
    assert any(line.startswith("waiting for input") and " shorter " in line for line in map(str.strip, lines))
    assert any("num_workers 0 → 2" in line for line in lines)
    assert not any(control in line for line in compare_lines(CASES["hostile"]()) for control in CONTROL[1:3])


def test_the_chart_is_drawn_in_both_widths() -> None:
    html = page("workers", "html")
    assert 'id="changes-wide-title"' in html
    assert 'id="changes-narrow-title"' in html


@pytest.mark.parametrize("case", ["workers", "hostile"])
def test_the_pdf_says_what_the_page_says(case: str) -> None:
    pypdf = pytest.importorskip("pypdf")
    ((_, made),) = render_compare(CASES[case](), ["pdf"])
    if isinstance(made, DlprofError):
        pytest.skip(made.message)
    pages = pypdf.PdfReader(io.BytesIO(made)).pages
    said = " ".join(" ".join(page.extract_text() for page in pages).split())
    assert "The second run is 1.5" in said
    assert "num_workers" in said
    assert len(pages) <= 6
