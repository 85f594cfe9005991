"""``run.dlprof``: the saved Profile. MessagePack in gzip, with a format name that carries the version.

History: ``dlprof.run/1`` first version.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np

from dlprof.errors import UnreadableInputError
from dlprof.model.profile import Profile, Spans

NAME = "run.dlprof"
FORMAT = "dlprof.run/1"


class _Saved(msgspec.Struct):
    format: str
    profile: dict[str, Any]
    columns: dict[str, bytes]
    names: list[str]


def save(profile: Profile, path: Path) -> None:
    """Write ``profile``; the file appears whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    rest = {field.name: getattr(profile, field.name) for field in fields(profile) if field.name != "spans"}
    columns = {name: getattr(profile.spans, name).astype("<i8").tobytes() for name in Spans.COLUMNS}
    saved = _Saved(FORMAT, rest, columns, list(profile.spans.names))
    part = path.with_name(path.name + ".part")
    part.write_bytes(gzip.compress(msgspec.msgpack.encode(saved), compresslevel=5))
    part.replace(path)


def load(path: Path) -> Profile:
    """Read a saved run.

    Raises:
        UnreadableInputError: The file is missing, damaged, of a later version, or no saved run.
    """
    try:
        data = gzip.decompress(path.read_bytes())
        saved = msgspec.msgpack.decode(data, type=_Saved)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise _no_run(path) from error
        raise UnreadableInputError(
            "run-unreadable", f"{path} cannot be read: {error.strerror}.", "Give the folder of a dlprof run."
        ) from error
    except (EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise _no_run(path) from error
    if saved.format != FORMAT:
        raise UnreadableInputError(
            "run-of-other-version",
            f"{path} is in format {saved.format!r}; this dlprof reads {FORMAT}.",
            "Use the dlprof version that wrote it, or run the script again.",
        )
    columns = {name: np.frombuffer(data, dtype="<i8").astype(np.int64) for name, data in saved.columns.items()}
    try:
        spans = Spans(**columns, names=tuple(saved.names))
        parts = {
            field.name: msgspec.convert(saved.profile[field.name], type=_TYPES[field.name])
            for field in fields(Profile)
            if field.name != "spans"
        }
        return Profile(**parts, spans=spans)
    except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise _no_run(path) from error


def _no_run(path: Path) -> UnreadableInputError:
    return UnreadableInputError(
        "run-damaged", f"{path} is not a saved run, or is damaged.", "Give the folder of a dlprof run."
    )


_TYPES = get_type_hints(Profile)
