"""``report.json`` (schema ``dlprof.report/1``): written, read, and its JSON Schema, all from ``model/report.py``."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from dlprof.model.report import SCHEMA, Report
from dlprof.words import in_english

SCHEMA_FILE = "report-1.schema.json"
_HEAD = 200
"""Bytes of a file within which its schema is named, as its first field."""


def encode_report(report: Report) -> bytes:
    """``report`` as JSON, indented, UTF-8, with a final line break."""
    return msgspec.json.format(msgspec.json.encode(_plain(report), enc_hook=in_english), indent=1) + b"\n"


def decode_report(data: bytes) -> Report:
    """Read what ``encode_report`` wrote.

    Raises:
        ValueError: It is no JSON, or does not have the report's form.
    """
    try:
        return msgspec.convert(_python_names(msgspec.json.decode(data)), type=Report)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def is_report(path: Path) -> bool:
    """Whether a file says that it is a report, of whatever version; the rest of it is not looked at.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return SCHEMA.partition("/")[0].encode() in file.read(_HEAD)


def report_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of ``report.json``."""
    schema: dict[str, Any] = msgspec.json.schema(Report)
    for definition in schema["$defs"].values():
        for part in ("properties", "required"):
            names = definition.get(part)
            if isinstance(names, dict):
                definition[part] = {name.removesuffix("_"): value for name, value in names.items()}
            elif names is not None:
                definition[part] = [name.removesuffix("_") for name in names]
    schema["$defs"]["Report"]["properties"]["schema"] = {"const": SCHEMA}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name.removesuffix("_"): _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _python_names(document: Any) -> Any:
    """``from`` is a keyword: the types call it ``from_``. Only advice and forecasts have it."""
    if not isinstance(document, dict):
        return document
    renamed = dict(document)
    for section in ("forecast", "advice"):
        rows = document.get(section)
        if isinstance(rows, list):
            renamed[section] = [
                {"from_" if key == "from" else key: value for key, value in row.items()}
                for row in rows
                if isinstance(row, dict)
            ]
    return renamed


if __name__ == "__main__":
    # Renews the schema file that the package ships; a test compares it with the types.
    import json
    from pathlib import Path

    target = Path(__file__).parents[1] / "schema" / SCHEMA_FILE
    target.write_text(json.dumps(report_schema(), indent=1) + "\n", encoding="utf-8")
