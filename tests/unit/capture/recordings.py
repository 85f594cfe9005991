"""A process's recording in a test: made without handlers that would outlive it, and read back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dlprof.capture.session import Session
from dlprof.formats.event_file import SUFFIX, read_events
from dlprof.formats.settings_file import Settings
from dlprof.formats.span_file import read_spans, record_dtype
from dlprof.model.kinds import Kind

PLENTY = 1 << 30


def asked(
    steps: int | None = None,
    warmup: int = 0,
    trace_steps: int = 0,
    max_disk_bytes: int = PLENTY,
    ends_script: bool = True,
    sample_hz: int = 100,
) -> Settings:
    """Settings that neither trace nor stop unless told to."""
    return Settings(steps, warmup, trace_steps, max_disk_bytes, os.getppid(), ends_script, sample_hz)


def begin(folder: Path, *, listens: bool = False, **settings: Any) -> Session:
    """A session that leaves no handlers in this process, except where it listens for the stop signal."""
    with pytest.MonkeyPatch.context() as patch:
        if not listens:
            patch.setattr("dlprof.capture.session._listen_in_main_thread", lambda: False)
        patch.setattr("os.register_at_fork", lambda **_: None)
        patch.setattr("atexit.register", lambda function: function)
        return Session(str(folder), asked(**settings))


@dataclass(frozen=True)
class Row:
    """A span as it was written."""

    kind: Kind
    role: str
    thread: int
    start_ns: int
    end_ns: int
    on_cpu_ns: int
    runnable_ns: int
    process_cpu_ns: int
    value: int
    batch: int
    iterator: int
    name: int
    weight: int
    flags: int


def rows(folder: Path, *kinds: Kind) -> list[Row]:
    """All spans of a folder of these kinds (all, without any), by the time of their start."""
    return sorted(_rows(folder, kinds), key=lambda row: (row.start_ns, -row.end_ns))


def _rows(folder: Path, kinds: tuple[Kind, ...]) -> Iterator[Row]:
    for path in folder.glob("*.spans"):
        found = read_spans(path)
        assert found is not None
        assert not found.truncated
        for record in found.records.tolist():
            values = dict(zip(record_dtype().names, record, strict=True))
            kind = Kind(values.pop("kind"))
            if not kinds or kind in kinds:
                yield Row(kind, str(found.role), found.thread_id, **values)


def events(folder: Path, *names: str, pid: int | None = None) -> list[dict[str, Any]]:
    """Events of a process (this one by default) with these names, all without any."""
    path = folder / f"{pid or os.getpid()}{SUFFIX}"
    found = read_events(path) if path.exists() else []
    return [event for event in found if not names or event["event"] in names]


def open_files() -> set[str]:
    """What this process has open."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:
            continue
    return found
