"""The page as Chromium shows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_cases import CASES

from dlprof.render.html import render_html

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = Path(os.environ.get("DLPROF_CHROMIUM", "/usr/bin/chromium"))
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--headless", "--disable-background-networking", "--disable-sync"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {}
    for case, make in CASES.items():
        paths[case] = folder / f"{case}.html"
        paths[case].write_text(render_html(make()), encoding="utf-8")
    return paths


@pytest.mark.parametrize(
    ("width", "scheme", "script"),
    [(1280, "light", True), (1280, "dark", False), (400, "light", False), (400, "dark", True)],
)
@pytest.mark.parametrize("case", CASES)
def test_no_error_no_request_no_overflow(
    browser: Any, files: dict[str, Path], case: str, width: int, scheme: str, script: bool
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script
    )
    page = context.new_page()
    told: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("dialog", lambda dialog: told.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    address = files[case].as_uri()
    page.goto(address)
    assert told == []
    assert asked == [address]
    root = page.locator("html")
    assert root.evaluate("root => root.scrollWidth") <= width
    assert page.locator("h1").bounding_box()["y"] < 450
    shown = page.locator(".chart.wide" if width > 640 else ".chart.narrow")
    hidden = page.locator(".chart.narrow" if width > 640 else ".chart.wide")
    assert all(chart.is_visible() for chart in shown.all())
    assert not any(chart.is_visible() for chart in hidden.all())
    context.close()


def test_the_first_screen_shows_verdict_bar_and_advice(browser: Any, files: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(files["tokenizer"].as_uri())
    for shown in ("#headline", "#budget", ".budget .chart.wide", "#advice-1", "article:first-of-type pre"):
        box = page.locator(shown).bounding_box()
        assert box["y"] + box["height"] <= 900, shown
    assert page.locator("#advice-2").bounding_box()["y"] < 960
    page.close()


def test_the_keyboard_reaches_the_advice_and_what_scrolls(browser: Any, files: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(files["images"].as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "PRE"
    page.close()
