from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from builders import ms, profile, step
from report_cases import CASES, CONTROL, MARKUP, hostile, tokenizer

from dlprof.analysis.moments import find_moments
from dlprof.diagnose import diagnose
from dlprof.render.html import breakable, render_html

PAGES = {case: render_html(make()) for case, make in CASES.items()}


class Outline(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.skipping = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.skipping = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self.skipping = False

    def handle_data(self, data: str) -> None:
        if not self.skipping:
            self.text.append(data)


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    return parsed


@pytest.mark.parametrize("case", CASES)
def test_the_page_may_not_ask_for_anything(case: str) -> None:
    tags = outline(PAGES[case]).tags
    policy = next(attrs["content"] for tag, attrs in tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    names = {tag for tag, _ in tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "input", "video", "audio"}
    for _, attrs in tags:
        assert not any(name.startswith("on") or name in {"src", "srcset"} for name in attrs)
        # Where a tooltip is, in numbers.
        assert re.fullmatch(r"((left|width|top|height):[\d.]+%;?){4}", attrs.get("style") or "left:0%;" * 4)
        assert (attrs.get("href") or "#").startswith("#")
    assert "url(" not in PAGES[case]
    assert "@import" not in PAGES[case]


@pytest.mark.parametrize("case", CASES)
def test_landmarks_headings_and_captions(case: str) -> None:
    tags = outline(PAGES[case]).tags
    names = [tag for tag, _ in tags]
    assert [names.count(tag) for tag in ("header", "main", "footer", "h1", "title")[:4]] == [1, 1, 1, 1]
    levels = [int(name[1]) for name in names if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1
    assert all(next_ - level <= 1 for level, next_ in pairwise(levels))
    assert names.count("table") == names.count("caption")
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs in tags:
        for target in (attrs.get("aria-labelledby") or "").split():
            assert target in ids
        if (attrs.get("href") or "").startswith("#"):
            assert (attrs["href"] or "")[1:] in ids
    assert tags[0] == ("html", {"lang": "en"})


@pytest.mark.parametrize("case", CASES)
def test_no_computer_words(case: str) -> None:
    said = " ".join(outline(PAGES[case]).text)
    assert not re.search(r"\b(nan|NaN|None|undefined|Infinity)\b", said)


def test_hostile_strings_stay_text() -> None:
    page = PAGES["hostile"]
    assert "<script" not in page.lower()
    assert "<img" not in page.lower()
    said = " ".join(outline(page).text)
    assert MARKUP in said
    assert "javascript:alert(3)" in said
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "\x00" not in page
    assert CONTROL not in page
    assert len(page) < 200_000


def test_what_the_first_screen_says_comes_before_the_rest() -> None:
    page = PAGES["tokenizer"].replace("\u00a0", " ")
    parts = [
        "<h1",
        "High confidence:",
        "Where the mean step of 61.9 ms goes",
        "Raise num_workers from 0 to 2",
        "num_workers=2, persistent_workers=True)</code></pre>",
        "Tokenize the dataset once",
        "Steps over time",
        "Inside the loader",
        "What other settings would give",
        "Why not?",
        "Loader settings in force",
        "Environment",
        "Notices",
        "How it was measured",
    ]
    places = [page.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


def test_the_size_of_a_page() -> None:
    assert max(len(PAGES[case]) for case in ("tokenizer", "images", "gpu")) < 150_000


def test_the_page_of_fifty_steps_and_eight_workers_has_at_most_600_kilobytes() -> None:
    parts = {
        "decode": ms(60),
        "transform": ms(9),
        "getitem": ms(4),
        "collate": ms(2),
        "no_core": ms(8),
        "pickle": ms(1),
    }
    parts |= {"send": ms(1), "receive": ms(1), "unpickle": ms(2), "compute": ms(12), "python": ms(1), "items": 16}
    slow = step(**parts | {"decode": ms(300)})
    run = profile(step(**parts) * 30 + slow + step(**parts) * 24 + step(**parts, traced=True) * 10, workers=8, warmup=5)
    report, moments = diagnose(run), find_moments(run)
    assert (report.run.steps_measured, len(report.input.workers if report.input else [])) == (50, 8)
    assert [len(moment.lanes) for moment in moments] == [9, 9]
    assert len(render_html(report, moments).encode()) <= 600_000


def test_rendering_twice_gives_the_same() -> None:
    assert render_html(tokenizer()) == PAGES["tokenizer"]
    assert render_html(hostile()) == PAGES["hostile"]


@pytest.mark.parametrize(
    ("code", "broken"),
    [
        ("examples/train_images.py:101", "examples/<wbr>train_images.py:101"),
        ("Photographs.__getitem__", "Photographs.<wbr>__getitem__"),
        ("a/<b>.c", "a/<wbr>&lt;b&gt;.c"),
    ],
)
def test_a_path_may_be_broken_between_its_parts(code: str, broken: str) -> None:
    assert breakable(code) == broken
