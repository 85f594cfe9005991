from __future__ import annotations

import functools
import io
import sys

import pytest
from report_cases import CASES, tokenizer

from dlprof.errors import DlprofError
from dlprof.render import RENDERERS, render_each, render_html, render_pdf
from dlprof.render.pdf import refuse

pypdf = pytest.importorskip("pypdf")


@functools.cache
def pdf_of(case: str) -> pypdf.PdfReader:
    try:
        made = render_pdf(render_html(CASES[case]()))
    except DlprofError as error:
        pytest.skip(f"{error.message} {error.hint}")
    return pypdf.PdfReader(io.BytesIO(made))


def words(reader: pypdf.PdfReader) -> str:
    return " ".join(" ".join(page.extract_text() for page in reader.pages).replace("\u00a0", " ").split())


def test_the_headline_and_the_advice_can_be_read_from_it() -> None:
    reader = pdf_of("tokenizer")
    said = words(reader)
    assert "the tokenizer keeps the training loop waiting for 58 % of it (36.1 ms of 61.9 ms)." in said
    assert "Raise num_workers from 0 to 2" in said
    assert "DataLoader(..., num_workers=2, persistent_workers=True)" in said
    assert f"page 1 of {len(reader.pages)}" in said
    assert "dlprof 0" in said


@pytest.mark.parametrize("case", ["tokenizer", "images", "gpu"])
def test_the_usual_case_takes_four_pages_of_a4_at_most(case: str) -> None:
    reader = pdf_of(case)
    assert len(reader.pages) <= 4
    width, height = (float(value) * 25.4 / 72 for value in reader.pages[0].mediabox[2:])
    assert (round(width), round(height)) == (210, 297)


@pytest.mark.parametrize("case", ["images", "gpu", "trace"])
def test_no_table_runs_out_of_the_page(case: str) -> None:
    beyond: list[str] = []
    margin = 16 * 72 / 25.4
    for page in pdf_of(case).pages:
        right = float(page.mediabox.right) - margin

        def visit(text: str, matrix: list[float], at: list[float], *_: object, right: float = right) -> None:
            if text.strip() and at[4] * matrix[0] + matrix[4] > right:
                beyond.append(text)

        page.extract_text(visitor_text=visit)
    assert beyond == []


def test_bookmarks_lead_through_it() -> None:
    titles: list[str] = []

    def collect(items: list[object]) -> None:
        for item in items:
            if isinstance(item, list):
                collect(item)
            else:
                titles.append(str(getattr(item, "title", "")))

    collect(pdf_of("tokenizer").outline)
    assert {"What to change", "Steps over time", "Inside the loader", "How it was measured"} <= set(titles)


def test_hostile_strings_are_text_within_the_page() -> None:
    said = words(pdf_of("hostile"))
    assert "<script>alert(1)</script>" in said.replace(" ", "")


def test_it_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def record(url: str, *_: object, **__: object) -> None:
        asked.append(url)
        raise ValueError(url)

    monkeypatch.setattr("dlprof.render.pdf.refuse", record)
    pdf_of.__wrapped__("tokenizer")
    assert asked == []


@pytest.mark.parametrize("url", ["https://example.org/x.png", "file:///etc/passwd", "http://127.0.0.1/"])
def test_a_page_that_asks_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="may not fetch"):
        refuse(url)
    page = f'<html><link rel="stylesheet" href="{url}"><img src="{url}">still here</html>'
    try:
        made = render_pdf(page)
    except DlprofError as error:
        pytest.skip(error.message)
    assert "still here" in words(pypdf.PdfReader(io.BytesIO(made)))


def test_without_pango_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    with pytest.raises(DlprofError) as caught:
        render_pdf("<p>x</p>")
    assert caught.value.slug == "pdf-without-pango"
    assert "apt-get install -y libpango-1.0-0 libpangoft2-1.0-0" in caught.value.hint
    assert "dnf install -y pango" in caught.value.hint


def test_the_other_formats_are_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    made = dict(render_each(tokenizer(), ["pdf", "html", "md", "txt"]))
    assert set(made) == {renderer.file_name for renderer in RENDERERS.values()}
    assert isinstance(made["report.pdf"], DlprofError)
    assert all(isinstance(made[name], bytes) for name in ("report.html", "report.md", "report.txt"))
