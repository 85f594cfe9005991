"""``tune.json`` (schema ``dlprof.tune/1``): written, read, and its JSON Schema, all from ``model/tune.py``."""

from __future__ import annotations

from typing import Any

import msgspec

from dlprof.model.tune import SCHEMA, Tune
from dlprof.words import in_english

FILE = "tune.json"
SCHEMA_FILE = "tune-1.schema.json"


def encode_tune(tune: Tune) -> bytes:
    """``tune`` as JSON, indented, UTF-8, with a final line break."""
    return msgspec.json.format(msgspec.json.encode(tune, enc_hook=in_english), indent=1) + b"\n"


def decode_tune(data: bytes) -> Tune:
    """Read what ``encode_tune`` wrote.

    Raises:
        ValueError: It is no JSON, or does not have the form.
    """
    try:
        return msgspec.json.decode(data, type=Tune)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def tune_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of ``tune.json``."""
    schema: dict[str, Any] = msgspec.json.schema(Tune)
    schema["$defs"]["Tune"]["properties"]["schema"] = {"const": SCHEMA}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}


if __name__ == "__main__":
    # Renews the schema file that the package ships; a test compares it with the types.
    import json
    from pathlib import Path

    target = Path(__file__).parents[1] / "schema" / SCHEMA_FILE
    target.write_text(json.dumps(tune_schema(), indent=1) + "\n", encoding="utf-8")
