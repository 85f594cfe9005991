"""Make the README's pictures anew, from runs in tests/data: python tests/golden/pictures.py

Needs Chromium, and pdftoppm of poppler-utils. Letters look as the fonts of the machine do, so no test compares them.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from dlprof.api import report_document

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
SCREEN, PAGE = "text-0-workers", "text-2-workers"
"""Whose first screen, and of whose PDF a page."""


def main() -> None:
    """Write both pictures."""
    with tempfile.TemporaryDirectory() as folder:
        html, pdf = Path(folder, "report.html"), Path(folder, "report.pdf")
        html.write_bytes(report_document(ROOT / "tests/data" / SCREEN, "html"))
        pdf.write_bytes(report_document(ROOT / "tests/data" / PAGE, "pdf"))
        with sync_playwright() as started:
            chromium = os.environ.get("DLPROF_CHROMIUM", "/usr/bin/chromium")
            browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1000, "height": 880}, color_scheme="light")
            page.goto(html.as_uri())
            page.screenshot(path=REPORTS / "first-screen.png")
            browser.close()
        command = ["pdftoppm", "-png", "-r", "80", "-f", "2", "-l", "2", "-singlefile"]
        subprocess.run([*command, str(pdf), str(REPORTS / "pdf-page")], check=True)


if __name__ == "__main__":
    main()
