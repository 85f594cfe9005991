"""Comparison with golden files, byte for byte after the version of dlprof is scrubbed."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

ACTUAL = Path(__file__).parent / "actual"
DIFF_LINES = 60


class GoldenMismatchError(AssertionError):
    """The output is not the golden file's."""


def scrub(text: str) -> str:
    """Put one word for what differs between releases."""
    return re.sub(r"(?<=dlprof )\d+\.\d+(?:[.+-]?\w+)*", "VERSION", text)


def compare(actual: str, golden: Path, update: bool = False, keep: Path = ACTUAL) -> None:
    """Compare with a golden file.

    Args:
        actual: What was made now.
        golden: The file that holds what it should be.
        update: Write the golden file anew, if it differs.
        keep: Folder for the actual output of a failed comparison.

    Raises:
        GoldenMismatchError: They differ, or there is no golden file.
    """
    expected = golden.read_bytes().decode() if golden.exists() else None
    if expected is not None and scrub(expected) == scrub(actual):
        return
    if update:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_bytes(actual.encode())
        return
    kept = keep / golden.parent.name / golden.name
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(actual.encode())
    if expected is None:
        raise GoldenMismatchError(f"{golden} is missing; the output is kept in {kept}. Renew with --update.")
    lines = difflib.unified_diff(
        scrub(expected).splitlines(), scrub(actual).splitlines(), str(golden), str(kept), lineterm="", n=1
    )
    shown = [line if len(line) <= 400 else f"{line[:400]}…" for line in lines]
    if not shown:
        shown = ["(only line endings differ)"]
    more = f"\n… {len(shown) - DIFF_LINES} more lines" if len(shown) > DIFF_LINES else ""
    raise GoldenMismatchError("\n".join(shown[:DIFF_LINES]) + more + "\nRenew with --update.")
