"""What is shown in Chinese: nothing is left in English but names, ids and code; JSON does not change."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import compare_cases
import pytest
import report_cases
import tune_cases

from dlprof.errors import DlprofError
from dlprof.formats.compare_json import encode_compare
from dlprof.formats.report_json import encode_report
from dlprof.formats.tune_json import encode_tune
from dlprof.render import (
    compare_lines,
    render_brief,
    render_compare,
    render_each,
    render_pdf,
    render_tune,
    summary,
    tune_lines,
)
from dlprof.render.explanations import every, explanation_lines
from dlprof.render.templates import messages
from dlprof.render.text import SAID_APART
from dlprof.render.wording import notice_text
from dlprof.words import CHINESE, speaking

pypdf = pytest.importorskip("pypdf")

Pages = Callable[[], dict[str, str]]
ENGLISH_WORDS = re.compile(r"\b[A-Za-z][a-z']+(?: [A-Za-z]?[a-z']+){2,}")
"""Three words in a row."""
NAMES = (
    "dlprof ",
    "get install",
    "for batch in dlprof",
    "expected sequence of length",
    "killed by signal",
    "decode per batch",
    "tokenizer per batch",
)
"""Commands, code, what exceptions say, and metrics that only these samples have."""


def left_in_english(text: str) -> list[str]:
    """Runs of English words in prose; code, and lines of the script, are left out."""
    text = re.sub(r"(?s)```.*?```|<pre.*?</pre>|<style>.*?</style>|<code>.*?</code>|`[^`]*`|<[^>]*>", " ", text)
    prose = "\n".join(line for line in text.split("\n") if not line.startswith("    "))
    return [found for found in ENGLISH_WORDS.findall(prose) if not found.startswith(NAMES)]


def decoded(documents: Iterator[tuple[str, Any]]) -> dict[str, str]:
    return {name: page.decode() for name, page in documents if isinstance(page, bytes)}


def of_report(case: str) -> dict[str, str]:
    report = report_cases.CASES[case]()
    short = summary(report)
    lines = [short.headline, *(label for label, _ in short.bar), *short.advice, *short.notices]
    return decoded(render_each(report, ["html", "md", "txt"])) | {
        "brief": render_brief(report),
        "terminal": "\n".join(lines),
    }


def of_tune(case: str) -> dict[str, str]:
    found = tune_cases.CASES[case]()
    return decoded(render_tune(found, ["html", "md", "txt"])) | {"terminal": "\n".join(tune_lines(found))}


def of_compare(case: str) -> dict[str, str]:
    found = compare_cases.CASES[case]()
    return decoded(render_compare(found, ["html", "md", "txt"])) | {"terminal": "\n".join(compare_lines(found))}


SAMPLES: dict[str, tuple[Callable[[str], dict[str, str]], str]] = {
    **{f"report-{case}": (of_report, case) for case in report_cases.CASES if case != "hostile"},
    **{f"tune-{case}": (of_tune, case) for case in tune_cases.CASES},
    **{f"compare-{case}": (of_compare, case) for case in compare_cases.CASES},
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_sentence_is_left_in_english(sample: str) -> None:
    make, case = SAMPLES[sample]
    with speaking(CHINESE):
        pages = make(case)
    assert {name: left_in_english(page) for name, page in pages.items() if left_in_english(page)} == {}
    assert all(re.search(r"[\u4e00-\u9fff]{2}", page) for page in pages.values())


def test_what_would_be_left_is_found() -> None:
    make, case = SAMPLES["report-tokenizer"]
    assert all(left_in_english(page) for page in make(case).values())


@pytest.mark.parametrize("case", report_cases.CASES)
def test_the_json_of_a_report_does_not_change(case: str) -> None:
    made = re.compile(rb'"created":"[^"]*"')
    english = encode_report(report_cases.CASES[case]())
    with speaking(CHINESE):
        assert made.sub(b"", encode_report(report_cases.CASES[case]())) == made.sub(b"", english)


def test_the_json_of_other_results_does_not_change() -> None:
    english = encode_tune(tune_cases.CASES["won"]()), encode_compare(compare_cases.CASES["workers"]())
    with speaking(CHINESE):
        chinese = encode_tune(tune_cases.CASES["won"]()), encode_compare(compare_cases.CASES["workers"]())
    assert chinese == english


def test_every_explanation_is_chinese() -> None:
    with speaking(CHINESE):
        for each in every():
            lines = explanation_lines(each)
            assert left_in_english("\n".join(lines)) == [], each.id
            assert max(map(len, lines)) <= 80


def test_every_notice_is_chinese_without_values() -> None:
    with speaking(CHINESE):
        for slug in messages()["notice"]:
            assert re.search(r"[\u4e00-\u9fff]", notice_text(slug).spoken), slug
    assert set(SAID_APART) <= set(messages()["notice"])


def test_the_page_names_its_language() -> None:
    ((_, english),) = render_each(report_cases.tokenizer(), ["html"])
    with speaking(CHINESE):
        ((_, chinese),) = render_each(report_cases.tokenizer(), ["html"])
    assert b'<html lang="en">' in english
    assert b'<html lang="zh-CN">' in chinese


def test_headline_and_advice_can_be_read_from_the_pdf() -> None:
    with speaking(CHINESE):
        report = report_cases.tokenizer()
        ((_, made),) = render_each(report, ["pdf"])
    if isinstance(made, DlprofError):
        pytest.skip(made.message)
    reader = pypdf.PdfReader(io.BytesIO(made))
    said = "".join("".join(page.extract_text() for page in reader.pages).split())
    assert "CPU预处理是瓶颈：训练循环在等tokenizer" in said
    assert "把num_workers从0增加到2" in said
    assert f"第1页，共{len(reader.pages)}页" in said
    assert "pageof" not in said


def test_characters_that_no_font_has_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    weasyprint = pytest.importorskip("weasyprint")

    class Boxes:
        """As WeasyPrint does where fonts lack characters."""

        def __init__(self, **_: Any) -> None:
            pass

        def write_pdf(self) -> bytes:
            logger = logging.getLogger("weasyprint")
            for character in "数据数\N{GRINNING FACE}":
                logger.warning(
                    '.notdef glyph rendered for Unicode string unsupported by fonts: "%s" (U+%04X)',
                    character,
                    ord(character),
                )
            logger.warning("Ignored `%s` at %d:%d, %s.", "x: y", 1, 1, "unknown property")
            return b"%PDF"

    monkeypatch.setattr(weasyprint, "HTML", Boxes)
    boxed = render_pdf("<p>数据 data</p>")
    assert boxed == b"%PDF"
    assert boxed.remark.startswith("The PDF shows boxes for 2 characters that no installed font has (数据).")
    assert "apt-get install -y fonts-noto-cjk" in boxed.remark


def test_real_text_without_a_font_for_it_is_noticed(tmp_path: Path) -> None:
    """With fontconfig told of a folder that has no font but one for Latin letters."""
    pytest.importorskip("weasyprint")
    latin = subprocess.run(
        ["fc-match", "-f", "%{file}", "Liberation Sans:lang=en"], capture_output=True, text=True, check=False
    ).stdout
    if not latin or "CJK" in latin:
        pytest.skip("there is no font for Latin letters only")
    (tmp_path / "fonts").mkdir()
    shutil.copy(latin, tmp_path / "fonts")
    config = tmp_path / "fonts.conf"
    config.write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">'
        f"<fontconfig><dir>{tmp_path / 'fonts'}</dir><cachedir>{tmp_path / 'cache'}</cachedir></fontconfig>"
    )
    code = "from dlprof.render import render_pdf; print(render_pdf('<p>data 数据</p>').remark)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"FONTCONFIG_FILE": str(config), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "WeasyPrint could not be loaded" in done.stderr:
        pytest.skip("no Pango")
    assert "(数据)" in done.stdout, done.stderr
    assert "fonts-noto-cjk" in done.stdout
