"""Where dlprof's words stand, and the language in which they are said.

English stands in ``templates/*.toml``, in the page's template, and in code as ``tr("...")``. Another language is a
catalogue of gettext, ``templates/locale/<language>/LC_MESSAGES/dlprof.po``, from the English text to the other. It is
read as it is, by Babel, when it is first needed: nothing has to be compiled, in a checkout as in an installation.

What a `Report` holds is English, whatever the language, and so is its JSON: see `Said`.
"""

from __future__ import annotations

import functools
import gettext
import io
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec

from dlprof.errors import DlprofError

ENGLISH, CHINESE = "en", "zh"
LANGUAGES = (ENGLISH, CHINESE)
TAGS = {ENGLISH: "en", CHINESE: "zh-CN"}
"""Languages as a page names its own (BCP 47)."""

_Arguments = ParamSpec("_Arguments")
_spoken = ENGLISH

# ---- where they stand ----------------------------------------------------------------------------------------------


@functools.cache
def folder() -> Path:
    """The folder with the templates: inside the installed package, else beside the checkout's `pyproject.toml`.

    A ``templates`` folder beside an installed package belongs to somebody else and is never taken.

    Raises:
        DlprofError: Neither is there.
    """
    return find_folder(Path(__file__).resolve().parent)


def find_folder(package: Path) -> Path:
    """As `folder`, for a package at ``package``."""
    inside = package / "templates"
    if inside.is_dir():
        return inside
    beside = package.parent / "templates"
    if beside.is_dir() and _is_checkout(package.parent):
        return beside
    # In English, since the other language's words are missing too.
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
def _catalogue(language: str) -> gettext.NullTranslations:
    if language == ENGLISH:
        return gettext.NullTranslations()
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po

    compiled = io.BytesIO()
    with (folder() / "locale" / language / "LC_MESSAGES" / "dlprof.po").open("rb") as file:
        write_mo(compiled, read_po(file, locale=language))
    compiled.seek(0)
    return gettext.GNUTranslations(compiled)


# ---- the language --------------------------------------------------------------------------------------------------


def language() -> str:
    """The language in force, one of `LANGUAGES`."""
    return _spoken


def speak(language: str) -> None:
    """Say all that follows in this language."""
    global _spoken  # noqa: PLW0603 - one process has one reader
    _spoken = language


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Say in this language what is said within the block."""
    before = _spoken
    speak(language)
    try:
        yield
    finally:
        speak(before)


def of_locale(environ: Mapping[str, str]) -> str:
    """The language that the environment asks for: Chinese where the locale of messages is Chinese, else English."""
    locale = next(filter(None, (environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    return CHINESE if locale.lower().startswith(CHINESE) else ENGLISH


# ---- saying --------------------------------------------------------------------------------------------------------


def tr(english: str, /, **values: Any) -> str:
    """A text in the language in force.

    Args:
        english: What it is in English; written out where it is not one of ``templates/``.
        values: What is put for ``{name}`` in it; without any, braces stand for themselves.
    """
    found = _catalogue(_spoken).gettext(english) if english else ""
    return found.format(**values) if values else found


def trn(one: str, many: str, number: int, /, **values: Any) -> str:
    """As `tr`, for a text that depends on a number.

    Args:
        one: In English, for 1.
        many: In English, for every other number.
        number: Which number.
        values: What is put for ``{name}``.
    """
    return _catalogue(_spoken).ngettext(one, many, number).format(**values)


def marked(english: str) -> str:
    """The text as it is, known to the catalogues: for one that `tr` is given elsewhere."""
    return english


def joined(*sentences: str) -> str:
    """Sentences one after the other, empty ones left out; in Chinese without a space between them."""
    return ("" if _spoken == CHINESE else " ").join(filter(None, sentences))


class Said(str):
    """A text in English, as a `Report` holds it, that was also said in the language in force: ``spoken``."""

    __slots__ = ("spoken",)

    spoken: str


def in_english(value: Any) -> str:
    """What an encoder that takes plain text only is to write of a `Said`.

    Raises:
        NotImplementedError: ``value`` is none.
    """
    if isinstance(value, Said):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no text")


def said(function: Callable[_Arguments, str]) -> Callable[_Arguments, str]:
    """Make a function that words something return English, together with the language in force.

    Its arguments may be such texts themselves.
    """

    @functools.wraps(function)
    def in_both(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> str:
        with speaking(ENGLISH):
            english = function(*args, **kwargs)
        if _spoken == ENGLISH:
            return english
        both = Said(english)
        both.spoken = function(*map(shown, args), **{key: shown(value) for key, value in kwargs.items()})
        return both

    return in_both


def shown(value: Any) -> Any:
    """A text in the language in force, where it was said in it; anything else as it is."""
    return value.spoken if isinstance(value, Said) and _spoken != ENGLISH else value
