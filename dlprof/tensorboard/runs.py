"""The runs below a folder: found, listed, and opened by nothing but the names they are listed by."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from dlprof.errors import UnreadableInputError
from dlprof.formats import run_file, settings_file
from dlprof.formats.report_json import decode_report, is_report
from dlprof.model.kinds import Cause
from dlprof.model.listing import ListedRun, State

REPORT_JSON, REPORT_HTML = "report.json", "report.html"
_RECORDING = "recording"
_TRACES = (".pt.trace.json", ".pt.trace.json.gz")
_LONGEST_REPORT = 64_000_000
"""Bytes of a ``report.json`` that is still read; those of real runs have some ten thousand."""

_Version = tuple[int, ...]


class Runs:
    """The runs in a folder and in all folders below it. Links are not followed: what they lead to is elsewhere.

    Safe to be used by several threads.

    Args:
        root: The folder; it need not be there yet.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Path, tuple[_Version, ListedRun]] = {}
        self._lock = threading.Lock()

    def listed(self) -> list[ListedRun]:
        """All runs that are there now. A report is read again only when its file has changed."""
        root = self._root.resolve()
        with self._lock:
            self._known = {folder: self._looked_at(folder, root) for folder in _run_folders(root)}
            return [run for _, run in self._known.values()]

    def any(self) -> bool:
        """Whether there is a run; stops at the first."""
        return next(_run_folders(self._root.resolve()), None) is not None

    def find(self, name: str) -> tuple[Path, ListedRun] | None:
        """A run by its name in the list.

        Args:
            name: Whatever a browser sent.

        Returns:
            Its folder and what it shows; None where no run is listed by that name, which includes every path that
            leads out of the folder.
        """
        root = self._root.resolve()
        try:
            folder = root / name
            # "..", an absolute path, a link, and another spelling of a name all resolve to something else.
            if folder.resolve(strict=True) != folder or not all(map(_is_looked_into, folder.relative_to(root).parts)):
                return None
        except (OSError, ValueError, RuntimeError):
            return None
        return (folder, self._looked_at(folder, root)[1]) if _is_run(folder) else None

    def _looked_at(self, folder: Path, root: Path) -> tuple[_Version, ListedRun]:
        trace = _newest_trace(folder)
        version = _version(folder, trace)
        known = self._known.get(folder)
        if known is not None and known[0] == version:
            return known
        return version, _look_at(folder, folder.relative_to(root).as_posix(), trace)


def own_file(folder: Path, name: str) -> Path | None:
    """A file that lies in a run's folder itself; None where it is not there or is a link."""
    path = folder / name
    return path if path.is_file() and not path.is_symlink() else None


def _run_folders(root: Path) -> Iterator[Path]:
    for place, folders, _ in os.walk(root, followlinks=False):
        folders[:] = sorted(filter(_is_looked_into, folders))
        folder = Path(place)
        if _is_run(folder):
            yield folder


def _is_looked_into(name: str) -> bool:
    return name != _RECORDING and not name.startswith(".")


def _is_run(folder: Path) -> bool:
    if own_file(folder, run_file.NAME) or (folder / _RECORDING / settings_file.NAME).is_file():
        return True
    report = own_file(folder, REPORT_JSON)
    try:
        return report is not None and is_report(report)
    except OSError:
        return False


def _newest_trace(folder: Path) -> str | None:
    try:
        with os.scandir(folder) as entries:
            found = [
                (entry.stat().st_mtime_ns, entry.name)
                for entry in entries
                if entry.name.endswith(_TRACES) and entry.is_file(follow_symlinks=False)
            ]
    except OSError:
        return None
    return max(found, default=(0, None))[1]


def _version(folder: Path, trace: str | None) -> _Version:
    """Differs where what is shown of a run can have changed."""
    version = [hash(trace)]
    for name in (REPORT_JSON, run_file.NAME, _RECORDING):
        try:
            found = (folder / name).stat()
            version += [found.st_mtime_ns, found.st_size]
        except OSError:
            version += [0, 0]
    return tuple(version)


def _look_at(folder: Path, name: str, trace: str | None) -> ListedRun:
    path = own_file(folder, REPORT_JSON)
    if path is None:
        saved = own_file(folder, run_file.NAME)
        return ListedRun(name, _state_of(saved), _changed(saved or folder), trace=trace)
    try:
        if path.stat().st_size > _LONGEST_REPORT:
            return ListedRun(name, State.DAMAGED, _changed(path), trace=trace)
        report = decode_report(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return ListedRun(name, State.DAMAGED, _changed(path), trace=trace)
    return ListedRun(
        name,
        State.REPORTED,
        report.created,
        report.verdict.bottleneck,
        report.verdict.component,
        report.step.mean_ms,
        next((row.share for row in report.budget if row.cause is Cause.INPUT_WAIT), None),
        trace,
    )


def _state_of(saved: Path | None) -> State:
    """Of a run without ``report.json``."""
    if saved is None:
        return State.RECORDING
    try:
        run_file.load(saved)
    except UnreadableInputError:
        return State.DAMAGED
    return State.SAVED


def _changed(path: Path) -> str:
    try:
        seconds = path.stat().st_mtime
    except OSError:
        return ""
    return datetime.fromtimestamp(seconds, tz=UTC).astimezone().isoformat(timespec="seconds")
