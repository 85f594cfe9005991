"""The page as Chromium shows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compare_cases import CASES as COMPARISONS
from compare_cases import RECORDED
from report_cases import CASES
from tune_cases import CASES as RESULTS

from dlprof.analysis.moments import find_moments
from dlprof.diagnose import diagnose
from dlprof.formats import run_file
from dlprof.render import render_compare, render_tune
from dlprof.render.html import render_html

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = Path(os.environ.get("DLPROF_CHROMIUM", "/usr/bin/chromium"))
PAGES = [*CASES, "recorded", "compare-workers", "compare-hostile", "tune-won", "tune-hostile"]
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
    pages: dict[str, Any] = {case: render_html(make()).encode() for case, make in CASES.items()}
    run = run_file.load(RECORDED / "text-2-workers" / run_file.NAME)
    pages["recorded"] = render_html(diagnose(run), find_moments(run)).encode()
    for case in ("workers", "hostile"):
        ((_, pages[f"compare-{case}"]),) = render_compare(COMPARISONS[case](), ["html"])
    for case in ("won", "hostile"):
        ((_, pages[f"tune-{case}"]),) = render_tune(RESULTS[case](), ["html"])
    paths = {name: folder / f"{name}.html" for name in pages}
    for name, path in paths.items():
        path.write_bytes(pages[name])
    return paths


@pytest.mark.parametrize(
    ("width", "scheme", "script"),
    [(1440, "light", True), (1440, "dark", False), (390, "light", False), (390, "dark", True)],
)
@pytest.mark.parametrize("case", PAGES)
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


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")])
@pytest.mark.parametrize("case", PAGES)
def test_axe_finds_nothing(browser: Any, files: dict[str, Path], case: str, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(files[case].as_uri())
    found = axe.Axe().run(page).response["violations"]
    assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found] == []
    context.close()


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("script", [True, False])
def test_a_tooltip_shows_on_hover_and_on_focus(browser: Any, files: dict[str, Path], width: int, script: bool) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=script)
    page = context.new_page()
    page.goto(files["images"].as_uri())
    chart = page.locator(f"figure .chart.{'wide' if width > 640 else 'narrow'}").first
    for over in (chart.locator(".tip").first, chart.locator(".tip").last):
        text = over.locator("span")
        assert not text.is_visible()
        over.hover()
        assert text.is_visible()
        box = text.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert chart.locator(".tip").first.text_content() == "step 5: 667 ms, waiting 476 ms of it"
    slowest = chart.locator(".tip[tabindex]").nth(1)
    slowest.focus()
    assert slowest.locator("span").is_visible()
    context.close()


def test_few_tips_stop_the_keyboard_and_all_that_do_have_a_name(browser: Any, files: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(files["tokenizer"].as_uri())
    stops = page.locator(".wide .tip[tabindex]")
    assert 3 <= stops.count() <= 10
    assert all(stop.get_attribute("aria-label") for stop in stops.all())
    page.close()
