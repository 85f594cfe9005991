"""How long the pages of runs take in a real browser: the table of many runs, and a large trace in the timeline.

    python tests/bench/viewer.py [--runs N] [--mb N]

Needs Chromium, playwright and viztracer. The table is to be there within 2 s for 500 runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from dlprof.tensorboard.application import Application
from dlprof.tensorboard.runs import Runs
from dlprof.tensorboard.server import Server

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("DLPROF_CHROMIUM", "/usr/bin/chromium")
CASES = ("images", "storage", "compute", "text-2-workers", "crash")
IN_A_FOLDER = 20
WAIT_MS = 300_000


def make_runs(root: Path, count: int) -> None:
    """Runs with what a real one has, in folders of some each."""
    for number in range(count):
        case = CASES[number % len(CASES)]
        run = root / f"group-{number // IN_A_FOLDER}" / f"train-{number}"
        run.mkdir(parents=True)
        for name in ("report.json", "report.html"):
            shutil.copy(ROOT / "reports" / case / name, run)
        shutil.copy(ROOT / "tests" / "data" / case / "run.dlprof", run)
        (run / "host_1.2.pt.trace.json.gz").write_bytes(b"")


def make_large_trace(root: Path, size_mb: int) -> None:
    """One run with a trace of this size."""
    run = root / "large"
    run.mkdir(parents=True)
    shutil.copy(ROOT / "reports" / "compute" / "report.json", run)
    trace = run / "host_1.2.pt.trace.json"
    subprocess.run([sys.executable, ROOT / "tests/bench/make_trace.py", trace, "--mb", str(size_mb)], check=True)


def timed(what: str, act: Callable[[], Any]) -> None:
    """Say how long something took, in seconds."""
    began = time.perf_counter()
    act()
    print(f"{what}: {time.perf_counter() - began:.2f} s")


def in_browser(root: Path, use: Callable[[Any, str], None]) -> None:
    """Serve a folder and open a page."""
    with Server(Application(Runs(root)), 0) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.set_default_timeout(WAIT_MS)
            use(page, server.address)
            browser.close()
        server.stop()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description="How long the pages of runs take.")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--mb", type=int, default=200)
    arguments = parser.parse_args()

    def table(page: Any, address: str) -> None:
        def shown() -> None:
            page.goto(f"{address}runs")
            page.get_by_role("link", name=f"train-{arguments.runs - 1}").first.wait_for()

        timed(f"table of {arguments.runs} runs, first", shown)
        timed("again", shown)
        assert page.locator("tbody tr").count() == arguments.runs

    def timeline(page: Any, address: str) -> None:
        def shown() -> None:
            page.goto(f"{address}timeline?run=large")
            page.frame_locator("#timeline").get_by_text("Process 4321").first.wait_for()

        timed(f"trace of {arguments.mb} MB", shown)

    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder) / "many", arguments.runs)
        in_browser(Path(folder) / "many", table)
        make_large_trace(Path(folder) / "one", arguments.mb)
        in_browser(Path(folder) / "one", timeline)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
