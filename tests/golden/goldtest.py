"""Comparison with golden files, byte for byte after the version of dlprof is scrubbed.

A PDF is compared by its text, and numbers of a JSON file to six digits.
"""

from __future__ import annotations

import difflib
import io
import re
from pathlib import Path

import pytest

from dlprof.errors import DlprofError

REPORTS = Path(__file__).parents[2] / "reports"
ACTUAL = Path(__file__).parent / "actual"
DIFF_LINES = 60


class GoldenMismatchError(AssertionError):
    """The output is not the golden file's."""


def scrub(text: str) -> str:
    """Put one word for what differs between releases."""
    return re.sub(r"(?<=dlprof )\d+\.\d+(?:[.+-]?\w+)*|(?<=\"dlprof\": \")[^\"]+", "VERSION", text)


def pdf_text(data: bytes) -> str:
    """The text of a PDF without its page numbers and spaces, a sentence a line.

    Fonts differ between machines, and with them where lines, words and pages are broken.
    """
    import pypdf

    pages = [scrub(page.extract_text()).splitlines() for page in pypdf.PdfReader(io.BytesIO(data)).pages]
    pages = [[re.sub(r"page \d+ of \d+", "", line) for line in page] for page in pages]
    # What runs along the foot of each page.
    foot = set.intersection(*map(set, pages)) if len(pages) > 1 else set()
    text = "".join(line for page in pages for line in page if line not in foot)
    return re.sub(r"(?<=[.:])", "\n", re.sub(r"\s", "", text))


def comparable(data: bytes, suffix: str) -> str:
    """What is compared of a file whose name ends with ``suffix``."""
    if suffix == ".pdf":
        return pdf_text(data)
    text = scrub(data.decode())
    # In the last digits sums differ between processors.
    return re.sub(r"-?\d+\.\d+(?:e[+-]?\d+)?", lambda it: f"{float(it[0]):.6g}", text) if suffix == ".json" else text


def compare(actual: bytes, golden: Path, update: bool = False, keep: Path = ACTUAL) -> None:
    """Compare with a golden file.

    Args:
        actual: What was made now.
        golden: The file that holds what it should be.
        update: Write the golden file anew, if it differs.
        keep: Folder for the actual output of a failed comparison.

    Raises:
        GoldenMismatchError: They differ, or there is no golden file.
    """
    expected = golden.read_bytes() if golden.exists() else None
    if expected == actual:
        return
    shown = comparable(actual, golden.suffix)
    wanted = None if expected is None else comparable(expected, golden.suffix)
    # A PDF's bytes hold its looks, too: those are renewed with it, and not compared.
    if shown == wanted and not (update and golden.suffix == ".pdf"):
        return
    if update:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_bytes(actual)
        return
    kept = keep / golden.parent.name / golden.name
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(actual)
    if wanted is None:
        raise GoldenMismatchError(f"{golden} is missing; the output is kept in {kept}. Renew with --update.")
    diff = difflib.unified_diff(wanted.splitlines(), shown.splitlines(), str(golden), str(kept), lineterm="", n=1)
    lines = [line if len(line) <= 400 else f"{line[:400]}…" for line in diff]
    if not lines:
        lines = ["(only line endings differ)"]
    more = f"\n… {len(lines) - DIFF_LINES} more lines" if len(lines) > DIFF_LINES else ""
    raise GoldenMismatchError("\n".join(lines[:DIFF_LINES]) + more + "\nRenew with --update.")


def check(made: bytes | DlprofError, golden: Path, update: bool) -> None:
    """Compare what ``render_each`` made with a golden file; the test is skipped where no PDF can be made."""
    if isinstance(made, DlprofError):
        pytest.skip(f"{made.message} {made.hint}")
    compare(made, golden, update)
