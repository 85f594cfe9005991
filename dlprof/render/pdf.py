"""The HTML report as a PDF, by its own print style."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from dlprof.errors import DlprofError

INSTALL_PANGO = (
    "Install Pango: apt-get install -y libpango-1.0-0 libpangoft2-1.0-0 (Debian, Ubuntu), "
    "or dnf install -y pango (Fedora, RHEL)."
)


def render_pdf(html: str) -> bytes:
    """The pages of a report.

    Args:
        html: What `dlprof.render.html.render_html` returned.

    Raises:
        DlprofError: ``pdf-without-pango``: WeasyPrint or the Pango library it loads is missing.
    """
    try:
        import weasyprint
    except (ImportError, OSError) as error:
        raise DlprofError(
            "pdf-without-pango", f"No PDF: WeasyPrint could not be loaded ({_first_line(error)}).", INSTALL_PANGO
        ) from error
    # WeasyPrint warns of each CSS property that is for screens; the reader of a terminal can do nothing about it.
    logging.getLogger("weasyprint").setLevel(logging.CRITICAL)
    written: bytes = weasyprint.HTML(string=html, url_fetcher=_closed_fetcher(weasyprint)).write_pdf()
    return written


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
