"""The messages of all sources, as a catalogue: what a translation has to have.

``python tests/catalogue.py`` brings ``templates/locale/*/LC_MESSAGES/dlprof.po`` up to date: messages that are new
stand there without a translation, those that are gone are left out, and one whose English changed a little keeps its
translation, marked fuzzy, to be looked at.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_file
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).parents[1]
LOCALES = ROOT / "templates" / "locale"
KEYWORDS: dict[str, Any] = {"tr": None, "trn": (1, 2), "marked": None}
Message = str | tuple[str, ...]


def messages() -> Iterator[tuple[Message, str]]:
    """Every message, with the file that it stands in; one that stands in several comes several times."""
    for name in ("messages.toml", "explanations.toml"):
        texts = tomllib.loads((ROOT / "templates" / name).read_text(encoding="utf-8"))
        for text in _strings(texts):
            yield text, f"templates/{name}"
    for path in sorted((ROOT / "templates").glob("*.j2")):
        yield from _in_code(path, "jinja2")
    for path in sorted((ROOT / "dlprof").rglob("*.py")):
        yield from _in_code(path, "python")


def _strings(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        for value in found.values():
            yield from _strings(value)
    else:
        yield found


def _in_code(path: Path, method: str) -> Iterator[tuple[Message, str]]:
    options = {"extensions": "", "trimmed": "false"} if method == "jinja2" else {}
    extractor = "jinja2.ext:babel_extract" if method == "jinja2" else method
    for _, message, _, _ in extract_from_file(extractor, path, keywords=KEYWORDS, options=options):
        yield message, path.relative_to(ROOT).as_posix()


def template() -> Catalog:
    """All messages, without translations."""
    catalogue = Catalog(project="dlprof", version="0", msgid_bugs_address="", charset="utf-8", fuzzy=False)
    for message, place in messages():
        catalogue.add(message, locations=[(place, 0)])
    return catalogue


def update(path: Path) -> None:
    """Bring a catalogue up to date with the sources; what only its head tells stays."""
    with path.open("rb") as file:
        catalogue = read_po(file, locale=path.parents[1].name)
    header, created = catalogue.header_comment, catalogue.creation_date
    catalogue.update(template(), update_header_comment=False, keep_user_comments=True)
    # So that nothing differs where nothing is new.
    catalogue.header_comment, catalogue.creation_date = header, created
    catalogue.obsolete.clear()
    with path.open("wb") as file:
        write_po(file, catalogue, width=0, include_lineno=False)


if __name__ == "__main__":
    for po in LOCALES.glob("*/LC_MESSAGES/dlprof.po"):
        update(po)
