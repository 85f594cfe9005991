"""Where a run is written: chosen, checked and made before the script starts."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlprof.capture.process_status import start_time_s
from dlprof.cli.options import FORMATS
from dlprof.errors import UsageError
from dlprof.formats import settings_file
from dlprof.words import tr

RUNS = "dlprof-runs"
RECORDING = "recording"
SAVED_RUN = "run.dlprof"
RESULT = "tune.json"
COMPARISON = "compare.json"

# All that dlprof writes into a run's folder, and so all that --force may remove.
_OURS = (SAVED_RUN, *(f"report.{name}" for name in FORMATS), "*.pt.trace.json.gz", "events.out.tfevents.*")
_RANK_FOLDER = re.compile(r"rank\d+")
_ONE_OF_SEVERAL = re.compile(r"(baseline|trial-\d+)(-again)?")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of a run that is about to start.

    Attributes:
        path: The folder.
        made: The folders that were made for it, outermost first.
    """

    path: Path
    made: tuple[Path, ...]

    @property
    def recording(self) -> Path:
        """Where the profiled processes write."""
        return self.path / RECORDING

    def discard(self) -> None:
        """Take everything away again, for a command that could not be started."""
        shutil.rmtree(self.recording, ignore_errors=True)
        for folder in reversed(self.made):
            with suppress(OSError):
                folder.rmdir()


def prepare(out: str | None, name: str, *, force: bool, environ: Mapping[str, str]) -> RunFolder:
    """Make the folder of a run, empty but for ``recording/``.

    Args:
        out: As given with ``--out``; None for a new folder under ``dlprof-runs/``.
        name: What is run, for the new folder's name.
        force: Whether a dlprof run in ``out`` is replaced. Files that are not dlprof's stay.
        environ: With ``RANK`` set by a launcher of several processes, the run goes to ``rank<k>/`` of the
            folder, which is the same for all of them.

    Returns:
        The folder.

    Raises:
        UsageError: The folder is in use or cannot be made or written.
    """
    rank = launched_rank(environ)
    base = Path(out) if out is not None else Path(RUNS) / f"{_file_name(name)}-{_stamp(rank)}"
    try:
        if rank is not None:
            folder = base / f"rank{rank}"
            _make_room(base, force, remove=rank == 0, siblings=True)
            _make_room(folder, force, remove=True, siblings=False)
            made: Sequence[Path] = _make_all(folder)
        elif out is not None:
            folder = base
            _make_room(folder, force, remove=True, siblings=False)
            made = _make_all(folder)
        else:
            folder, made = _make_unused(base)
        (folder / RECORDING).mkdir()
    except OSError as error:
        raise _not_writable(base, error) from error
    return RunFolder(folder, tuple(made))


def prepare_several(out: str | None, name: str, *, force: bool) -> RunFolder:
    """Make the empty folder of several runs and the report on them.

    Args:
        out: As given with ``--out``; None for a new folder under ``dlprof-runs/``.
        name: What is run, for the new folder's name.
        force: Whether what ``dlprof tune`` left in ``out`` is replaced. Files that are not dlprof's stay.

    Raises:
        UsageError: The folder is in use or cannot be made.
    """
    base = Path(out) if out is not None else Path(RUNS) / f"{_file_name(name)}-{_stamp(None)}"
    try:
        if out is None:
            return RunFolder(*_make_unused(base))
        _make_room_for_several(base, force)
        return RunFolder(base, tuple(_make_all(base)))
    except OSError as error:
        raise _not_writable(base, error) from error


def prepare_result(out: str | None, name: str, *, force: bool) -> RunFolder:
    """Make the folder of a result that is no run.

    Args:
        out: As given with ``--out``; None for a new folder under ``dlprof-runs/``.
        name: For the new folder's name.
        force: Whether a former result in ``out`` is replaced. Files that are not dlprof's stay.

    Raises:
        UsageError: The folder is in use or cannot be made.
    """
    base = Path(out) if out is not None else Path(RUNS) / f"{_file_name(name)}-{_stamp(None)}"
    try:
        if out is None:
            return RunFolder(*_make_unused(base))
        _make_room_for_result(base, force)
        return RunFolder(base, tuple(_make_all(base)))
    except OSError as error:
        raise _not_writable(base, error) from error


def free_report_folder(out: str | None, name: str, *, force: bool) -> Path:
    """A folder for reports on something that was not run here; it is not made yet.

    Args:
        out: As given with ``--out``; None for a new folder under ``dlprof-runs/``.
        name: What is reported on, for the new folder's name.
        force: Whether reports in ``out`` are overwritten.

    Raises:
        UsageError: The folder is in use or cannot be written.
    """
    if out is None:
        base = Path(RUNS) / f"{_file_name(name)}-{_stamp(None)}"
        taken = (base.with_name(f"{base.name}-{number}") for number in itertools.count(2))
        return next(path for path in itertools.chain([base], taken) if not path.exists())
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            "out-not-a-folder", tr("{folder} is not a folder", folder=folder), tr("name another with --out")
        )
    used = os.listdir(folder) if folder.exists() else []
    ours = any(f"report.{name}" in used for name in FORMATS)
    if used and not (force and ours):
        hint = (
            tr("name another --out, or overwrite the reports in it with --force") if ours else tr("name another --out")
        )
        raise UsageError("out-exists", tr("{folder} exists and is not empty", folder=folder), hint)
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(above, os.W_OK):
        raise UsageError(
            "out-not-writable", tr("cannot write to {folder}", folder=folder), tr("name another folder with --out")
        )
    return folder


def launched_rank(environ: Mapping[str, str]) -> int | None:
    """This process's rank among several, None where there is only one."""
    rank = environ.get("RANK", "")
    return int(rank) if rank.isdecimal() and environ.get("WORLD_SIZE") != "1" else None


def is_run(folder: Path) -> bool:
    """Whether a folder holds a dlprof run, finished or not."""
    return (folder / SAVED_RUN).is_file() or (folder / RECORDING / settings_file.NAME).is_file()


def _not_writable(base: Path, error: OSError) -> UsageError:
    reason = error.strerror or str(error)
    return UsageError(
        "out-not-writable",
        tr("cannot write to {folder}: {reason}", folder=base, reason=reason),
        tr("name another folder with --out"),
    )


def _stamp(rank: int | None) -> str:
    # The processes of one launch agree on the time at which their launcher was started.
    when = None if rank is None else start_time_s(os.getppid())
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(when))


def _file_name(name: str) -> str:
    return re.sub(r"[\x00-\x1f/]", "_", name) or "run"


def _make_unused(base: Path) -> tuple[Path, tuple[Path, ...]]:
    """Make ``base`` or, where that is there, ``base-2`` and so on; returns it and all that was made."""
    for number in itertools.count(1):
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        if not folder.exists():
            above = _make_all(folder.parent)
            # Another run may be making the same folder: only one of the two succeeds.
            with suppress(FileExistsError):
                folder.mkdir()
                return folder, (*above, folder)
    raise AssertionError("unreachable")


def _make_room(folder: Path, force: bool, *, remove: bool, siblings: bool) -> None:
    """Refuse a folder that is in use; with ``force`` remove the run that is in it.

    Args:
        folder: Need not exist.
        force: Whether a run may be replaced.
        remove: Whether it is this process that removes it.
        siblings: Whether ``rank<k>/`` belong to processes started with this one, and stay.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            "out-not-a-folder", tr("{folder} is not a folder", folder=folder), tr("name another with --out")
        )
    used = os.listdir(folder) if folder.exists() else []
    if siblings:
        used = [entry for entry in used if not _RANK_FOLDER.fullmatch(entry)]
    if not used:
        return
    ours = is_run(folder)
    if not force:
        hint = tr("name another --out, or replace the run in it with --force") if ours else tr("name another --out")
        raise UsageError("out-exists", tr("{folder} exists and is not empty", folder=folder), hint)
    if not ours:
        raise UsageError(
            "out-not-a-run",
            tr("{folder} is not empty and not a dlprof run, which is all that --force replaces", folder=folder),
            tr("name another --out"),
        )
    if remove:
        _remove_run(folder, ranks=not siblings)


def _make_room_for_several(folder: Path, force: bool) -> None:
    """As `_make_room`, for a folder of several runs."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            "out-not-a-folder", tr("{folder} is not a folder", folder=folder), tr("name another with --out")
        )
    if not folder.exists() or not os.listdir(folder):
        return
    runs = [path for path in folder.iterdir() if _ONE_OF_SEVERAL.fullmatch(path.name) and is_run(path)]
    if not force:
        hint = tr("name another --out, or replace the runs in it with --force") if runs else tr("name another --out")
        raise UsageError("out-exists", tr("{folder} exists and is not empty", folder=folder), hint)
    if not runs:
        raise UsageError(
            "out-not-a-run",
            tr(
                "{folder} is not empty and nothing that dlprof tune left, which is all that --force replaces",
                folder=folder,
            ),
            tr("name another --out"),
        )
    for path in runs:
        _remove_run(path, ranks=False)
        with suppress(OSError):
            path.rmdir()
    for name in (RESULT, *(f"report.{name}" for name in FORMATS)):
        (folder / name).unlink(missing_ok=True)


def _make_room_for_result(folder: Path, force: bool) -> None:
    """As `_make_room`, for a folder of a result that is no run."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            "out-not-a-folder", tr("{folder} is not a folder", folder=folder), tr("name another with --out")
        )
    used = os.listdir(folder) if folder.exists() else []
    if not used:
        return
    names = (COMPARISON, *(f"report.{name}" for name in FORMATS))
    ours = not is_run(folder) and RESULT not in used and any(name in used for name in names)
    if not (force and ours):
        hint = (
            tr("name another --out, or overwrite the result in it with --force") if ours else tr("name another --out")
        )
        raise UsageError("out-exists", tr("{folder} exists and is not empty", folder=folder), hint)
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _remove_run(folder: Path, *, ranks: bool) -> None:
    for pattern in _OURS:
        for path in folder.glob(pattern):
            path.unlink()
    recording = folder / RECORDING
    if (recording / settings_file.NAME).is_file():
        shutil.rmtree(recording)
    if ranks:
        for path in folder.iterdir():
            if _RANK_FOLDER.fullmatch(path.name) and is_run(path):
                _remove_run(path, ranks=False)
                with suppress(OSError):
                    path.rmdir()


def _make_all(folder: Path) -> list[Path]:
    """Make a folder and those above it; returns those that were not there, outermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    made = []
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        made.append(path)
    return made
