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
from dlprof.model.profile import Profile, Samples, Spans
from dlprof.words import tr

NAME = "run.dlprof"
FORMAT = "dlprof.run/1"


class _Format(msgspec.Struct):
    """What every version of the file says."""

    format: str


class _Table(msgspec.Struct):
    columns: dict[str, bytes]
    rest: dict[str, Any]


class _Saved(msgspec.Struct):
    format: str
    profile: dict[str, Any]
    tables: dict[str, _Table]


_TABLES = {"spans": Spans, "samples": Samples}


def save(profile: Profile, path: Path) -> None:
    """Write ``profile``; the file appears whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    rest = {
        field.name: _encodable(msgspec.to_builtins(getattr(profile, field.name)))
        for field in fields(profile)
        if field.name not in _TABLES
    }
    saved = _Saved(FORMAT, rest, {name: _packed(getattr(profile, name)) for name in _TABLES})
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
        version = msgspec.msgpack.decode(data, type=_Format).format
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise _no_run(path) from error
        raise UnreadableInputError(
            "run-unreadable",
            tr("{path} cannot be read: {reason}.", path=path, reason=error.strerror),
            tr("Give the folder of a dlprof run."),
        ) from error
    except (EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise _no_run(path) from error
    if version != FORMAT:
        raise UnreadableInputError(
            "run-of-other-version",
            tr(
                "{path} is in format {version}; this dlprof reads {known}.",
                path=path,
                version=repr(version),
                known=FORMAT,
            ),
            tr("Use the dlprof version that wrote it, or run the script again."),
        )
    try:
        saved = msgspec.msgpack.decode(data, type=_Saved)
        tables = {name: _unpacked(saved.tables[name], kind) for name, kind in _TABLES.items()}
        parts = {
            field.name: msgspec.convert(saved.profile[field.name], type=_TYPES[field.name])
            for field in fields(Profile)
            if field.name not in _TABLES
        }
        return Profile(**parts, **tables)
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _no_run(path) from error


def printable(text: str) -> str:
    """A text that any format can hold: parts of file names that are not UTF-8 become escapes."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # Half of a character, and no byte of a file name.
        data = text.encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace")


def _packed(table: Spans | Samples) -> _Table:
    columns = {name: getattr(table, name).astype("<i8").tobytes() for name in table.COLUMNS}
    others = [field.name for field in fields(table) if field.name not in columns]
    return _Table(columns, {name: _encodable(msgspec.to_builtins(getattr(table, name))) for name in others})


def _unpacked(table: _Table, kind: type[Any]) -> Any:
    types = get_type_hints(kind)
    columns = {name: np.frombuffer(part, dtype="<i8").astype(np.int64) for name, part in table.columns.items()}
    return kind(**columns, **{name: msgspec.convert(value, type=types[name]) for name, value in table.rest.items()})


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(each) for each in value]
    return value


def _no_run(path: Path) -> UnreadableInputError:
    return UnreadableInputError(
        "run-damaged",
        tr("{path} is not a saved run, or is damaged.", path=path),
        tr("Give the folder of a dlprof run."),
    )


_TYPES = get_type_hints(Profile)
