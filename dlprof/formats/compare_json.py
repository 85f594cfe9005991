"""``compare.json`` (schema ``dlprof.compare/1``): written, read, and its JSON Schema, all from ``model/compare.py``."""

from __future__ import annotations

from typing import Any

import msgspec

from dlprof.model.compare import SCHEMA, Compare
from dlprof.words import in_english

FILE = "compare.json"
SCHEMA_FILE = "compare-1.schema.json"


def encode_compare(compare: Compare) -> bytes:
    """``compare`` as JSON, indented, UTF-8, with a final line break."""
    return msgspec.json.format(msgspec.json.encode(compare, enc_hook=in_english), indent=1) + b"\n"


def decode_compare(data: bytes) -> Compare:
    """Read what ``encode_compare`` wrote.

    Raises:
        ValueError: It is no JSON, or does not have the form.
    """
    try:
        return msgspec.json.decode(data, type=Compare)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def compare_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of ``compare.json``."""
    schema: dict[str, Any] = msgspec.json.schema(Compare)
    schema["$defs"]["Compare"]["properties"]["schema"] = {"const": SCHEMA}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}


if __name__ == "__main__":
    # Renews the schema file that the package ships; a test compares it with the types.
    import json
    from pathlib import Path

    target = Path(__file__).parents[1] / "schema" / SCHEMA_FILE
    target.write_text(json.dumps(compare_schema(), indent=1) + "\n", encoding="utf-8")
