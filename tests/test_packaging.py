"""The public surface and what the package carries."""

from __future__ import annotations

import json
import re
from pathlib import Path

import dlprof
from dlprof.formats.report_json import SCHEMA_FILE, report_schema

ROOT = Path(__file__).parents[1]


def test_public_names() -> None:
    assert sorted(dlprof.__all__) == ["__version__", "iterate", "profile", "read_trace", "span"]
    assert all(getattr(dlprof, name) is not None for name in dlprof.__all__)


def test_version_is_in_the_form_that_pip_orders() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", dlprof.__version__)


def test_the_packaged_schema_is_that_of_the_types() -> None:
    packaged = Path(dlprof.__file__).with_name("schema") / SCHEMA_FILE
    assert json.loads(packaged.read_text()) == report_schema(), "run: python -m dlprof.formats.report_json"


def test_licence_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0" in text
