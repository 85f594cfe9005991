"""``dlprof.profile``: records a block of a running program, without a supervisor and without ever stopping it.

What only a supervisor can do is left out, with a notice: no reader of the workers from outside, no stall watch. The
analysis runs in a child process when the block ends. Inside ``dlprof run`` the block adds nothing: all is recorded.
"""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from dlprof.capture import install
from dlprof.capture.outcome import ClockPair, Outcome
from dlprof.capture.supervisor import child_environment
from dlprof.formats.sample_file import LOOK_INSIDE
from dlprof.formats.settings_file import Settings

_MOST_DISK_BYTES = 500_000_000
_RECORDING = "recording"
_TIME_LIMIT_S = 600
_VARIABLES = ("PYTHONPATH", "DLPROF_RECORDING")


class profile:  # noqa: N801 - used like a function, as torch.profiler.profile is
    """Record the training loop within a ``with`` block.

    Args:
        steps: Measured steps; the loop goes on after them, unrecorded. None for all.
        warmup: Steps before the measured ones.
        trace_steps: Steps under torch.profiler; 0 for none.
        out: Folder of the run; by default a new one under ``dlprof-runs/``.

    Attributes:
        folder: Where the reports are; None inside ``dlprof run``, whose own report covers the block.
        report: ``report.json`` as a dict, once the block has ended.

    Raises:
        ValueError: A number that makes no sense.
        FileExistsError: ``out`` exists and is not empty.
        OSError: It cannot be written.
    """

    def __init__(
        self, steps: int | None = 50, *, warmup: int = 5, trace_steps: int = 10, out: str | None = None
    ) -> None:
        if (steps is not None and steps < 1) or warmup < 0 or trace_steps < 0:
            raise ValueError("steps is at least 1 or None, warmup and trace_steps at least 0")
        self._settings = Settings(steps, warmup, trace_steps, _MOST_DISK_BYTES, os.getpid(), ends_script=False)
        self._out = out
        self.folder: Path | None = None
        self.report: dict[str, Any] | None = None
        self._failure = ""

    def __enter__(self) -> profile:
        if install.current() is not None:
            return self
        self.folder = _make_folder(self._out)
        recording = self.folder / _RECORDING
        recording.mkdir()
        self._settings.save(recording)
        # Nobody outside looks at this process's threads.
        (recording / LOOK_INSIDE).touch()
        self._environment = {name: os.environ.get(name) for name in _VARIABLES}
        self._started = ClockPair.now()
        self._patches = install.install(str(recording.absolute()))
        # Workers that are not forked start with the environment, and get their hooks from it.
        hooked = child_environment(recording)
        os.environ.update({name: hooked[name] for name in _VARIABLES})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.folder is None:
            return
        session = install.current()
        if session is not None:
            session.recorder.notice("in-process")
            session.close(error)
        self._patches.restore()
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        outcome = Outcome(os.getpid(), 0, None, self._started, ClockPair.now(), False, (), (), [])
        outcome.save(self.folder / _RECORDING, getattr(sys, "orig_argv", sys.argv))
        self._analyse(self.folder)

    def _analyse(self, folder: Path) -> None:
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), package]))
        try:
            done = subprocess.run(
                [sys.executable, "-m", "dlprof", "report", str(folder), "--format", "html,pdf,json,md,txt"],
                env=os.environ | {"PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=_TIME_LIMIT_S,
                check=False,
            )
            self._failure = done.stderr.strip()
            self.report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # The block's own result stands whatever becomes of the report.
            self._failure = self._failure or str(error)

    def __str__(self) -> str:
        if self.folder is None:
            return "recorded by dlprof run; see its report"
        try:
            return (self.folder / "report.txt").read_text(encoding="utf-8")
        except OSError:
            return f"no report: {self._failure}\nto make it: dlprof report {self.folder}"

    def _repr_html_(self) -> str:
        """The report, for a notebook: in a frame of its own, so that neither's styles reach the other."""
        try:
            page = ((self.folder or Path()) / "report.html").read_text(encoding="utf-8")
        except OSError:
            return f"<pre>{html.escape(str(self))}</pre>"
        return (
            f'<iframe sandbox srcdoc="{html.escape(page)}" title="dlprof report" '
            'style="width:100%;height:40em;border:1px solid #8888"></iframe>'
        )


def _make_folder(out: str | None) -> Path:
    if out is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = Path("dlprof-runs") / f"profile-{stamp}"
        number = 1
        while folder.exists():
            number += 1
            folder = Path("dlprof-runs") / f"profile-{stamp}-{number}"
    else:
        folder = Path(out)
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(f"{out} exists and is not empty; name another folder with out=")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
