"""The one owner of the template engine and of the templates folder."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from dlprof.errors import DlprofError


@functools.cache
def folder() -> Path:
    """The folder with the templates: inside the installed package, else beside the checkout's `pyproject.toml`.

    A ``templates`` folder beside an installed package belongs to somebody else and is never taken.

    Raises:
        DlprofError: Neither is there.
    """
    package = Path(__file__).resolve().parent.parent
    return find_folder(package)


def find_folder(package: Path) -> Path:
    """As `folder`, for a package at ``package``."""
    inside = package / "templates"
    if inside.is_dir():
        return inside
    beside = package.parent / "templates"
    if beside.is_dir() and _is_checkout(package.parent):
        return beside
    raise DlprofError(
        "templates-missing",
        f"The report's templates are missing: there is no folder {inside}.",
        "The installation is incomplete: pip install --force-reinstall dlprof",
    )


def _is_checkout(root: Path) -> bool:
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False
    return bool(project.get("project", {}).get("name") == "dlprof")


@functools.cache
def _pages() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@functools.cache
def _sentences() -> jinja2.Environment:
    # Sentences are plain text: they are escaped where they are put into a page.
    return jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined)  # noqa: S701


@functools.cache
def _sentence(source: str) -> jinja2.Template:
    return _sentences().from_string(source)


def page(name: str, /, **values: Any) -> str:
    """Fill an HTML template of the folder; everything that is not `trusted` is escaped.

    Args:
        name: File name, such as ``report.html.j2``.
        values: What the template uses.
    """
    return _pages().get_template(name).render(**values)


def trusted(markup: str) -> Markup:
    """Mark HTML, CSS or SVG that dlprof wrote itself as not to be escaped."""
    return Markup(markup)  # noqa: S704


def style(name: str) -> Markup:
    """A style sheet of the folder, ready to stand in a page."""
    return trusted((folder() / name).read_text(encoding="utf-8"))


@functools.cache
def messages() -> dict[str, Any]:
    """The catalogue of sentences, ``messages.toml``."""
    return tomllib.loads((folder() / "messages.toml").read_text(encoding="utf-8"))


@functools.cache
def explanations() -> dict[str, dict[str, dict[str, str]]]:
    """The catalogue of explanations, ``explanations.toml``: by section and id."""
    return tomllib.loads((folder() / "explanations.toml").read_text(encoding="utf-8"))


def sentence(source: str, /, **values: Any) -> str:
    """Fill a sentence of the catalogue.

    Args:
        source: The sentence, with jinja2 placeholders.
        values: What it uses.

    Raises:
        jinja2.UndefinedError: A placeholder has no value.
    """
    return _sentence(source).render(**values).strip()
