"""The HTML report as a PDF, by its own print style."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from dlprof.errors import DlprofError
from dlprof.words import joined, marked, tr

INSTALL_PANGO = marked(
    "Install Pango: apt-get install -y libpango-1.0-0 libpangoft2-1.0-0 (Debian, Ubuntu), "
    "or dnf install -y pango (Fedora, RHEL)."
)


INSTALL_FONTS = marked(
    "Install a font that has them: apt-get install -y fonts-noto-cjk (Debian, Ubuntu), "
    "or dnf install -y google-noto-sans-cjk-fonts (Fedora, RHEL)."
)
_MISSING_GLYPH = ".notdef glyph"
"""How WeasyPrint's warning begins of a character that no installed font has; the character is its first argument."""
_EAST_ASIAN = ("CJK ", "IDEOGRAPHIC ", "HIRAGANA ", "KATAKANA ", "HANGUL ")
_NAMED_CHARACTERS = 8


class Pdf(bytes):
    """A document, and what to say of it: empty where its text is whole, else which characters are boxes."""

    remark: str = ""


def render_pdf(html: str) -> Pdf:
    """The pages of a report.

    Args:
        html: What `dlprof.render.html.render_html` returned.

    Returns:
        The document. Its remark names Chinese, Japanese and Korean characters that no installed font has.

    Raises:
        DlprofError: ``pdf-without-pango``: WeasyPrint or the Pango library it loads is missing.
    """
    try:
        import weasyprint
    except (ImportError, OSError) as error:
        raise DlprofError(
            "pdf-without-pango",
            tr("No PDF: WeasyPrint could not be loaded ({reason}).", reason=_first_line(error)),
            tr(INSTALL_PANGO),
        ) from error
    with _missing_glyphs() as missing:
        written = Pdf(weasyprint.HTML(string=html, url_fetcher=_closed_fetcher(weasyprint)).write_pdf())
    written.remark = _remark(missing)
    return written


def _remark(missing: dict[str, None]) -> str:
    east_asian = [each for each in missing if unicodedata.name(each, "").startswith(_EAST_ASIAN)]
    if not east_asian:
        return ""
    some = "".join(east_asian[:_NAMED_CHARACTERS])
    what = tr("The PDF shows boxes for {number} characters that no installed font has", number=len(east_asian))
    return joined(tr("{what} ({characters}).", what=what, characters=some), tr(INSTALL_FONTS))


@contextmanager
def _missing_glyphs() -> Iterator[dict[str, None]]:
    """Collect the characters that WeasyPrint finds no glyph for, each once.

    All else that it warns of, as of each CSS property that is for screens, the reader of a terminal can do nothing
    about.
    """
    missing: dict[str, None] = {}

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.msg, str) and record.msg.startswith(_MISSING_GLYPH) and record.args:
                missing[str(record.args[0])] = None  # type: ignore[index]

    logger = logging.getLogger("weasyprint")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:], logger.propagate = [Collector()], False
    logger.setLevel(logging.WARNING)
    try:
        yield missing
    finally:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def refuse(url: str, *_arguments: Any, **_settings: Any) -> NoReturn:
    """Fetch nothing: a report holds all it needs."""
    raise ValueError(f"a report may not fetch {url!r}")


def _closed_fetcher(weasyprint: Any) -> Any:
    base: Any = getattr(weasyprint.urls, "URLFetcher", None)
    if base is None:
        return refuse  # before WeasyPrint 68 a fetcher was a plain function

    class ClosedFetcher(base):  # type: ignore[misc]
        """Every address is refused."""

        def fetch(self, url: str, headers: Any = None) -> NoReturn:
            refuse(url, headers)

    return ClosedFetcher()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
