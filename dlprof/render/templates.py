"""The one owner of the template engine, and the reader of the catalogues of English."""

from __future__ import annotations

import functools
import tomllib
from typing import Any

import jinja2
from markupsafe import Markup

from dlprof.words import folder, tr


@functools.cache
def _pages() -> jinja2.Environment:
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.globals["tr"] = tr
    return pages


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
    """Fill a sentence of the catalogue, in the language in force.

    Args:
        source: The sentence in English, with jinja2 placeholders.
        values: What it uses.

    Raises:
        jinja2.UndefinedError: A placeholder has no value.
    """
    return _sentence(tr(source)).render(**values).strip()
