"""Real scripts, plain or with the hooks in place, without the supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dlprof.formats.recording import Recording, read_recording
from dlprof.formats.settings_file import FOLDER_VARIABLE, Settings

ROOT = Path(__file__).parents[2]
BOOTSTRAP = ROOT / "dlprof" / "capture" / "bootstrap"
TIME_LIMIT_S = 240


@dataclass(frozen=True)
class Ended:
    """How a script ended, and what was recorded of it."""

    status: int
    stdout: bytes
    stderr: bytes
    recording: Recording | None


class Scripts:
    """Runs scripts in a folder, plain or with the hooks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def write(self, source: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.write_text(source, encoding="utf-8")
        return path

    def plain(self, script: Path, *args: str) -> Ended:
        return self._run([sys.executable, str(script), *args], dict(os.environ), None)

    def both(self, script: Path, *args: str, trace_steps: int = 0) -> tuple[Ended, Ended]:
        """Run plain and with the hooks, at the same time: neither may change with what else the machine does."""
        with ThreadPoolExecutor(1) as aside:
            plain = aside.submit(self.plain, script, *args)
            hooked = self.hooked(script, *args, trace_steps=trace_steps)
            return plain.result(), hooked

    def hooked(
        self,
        script: Path,
        *args: str,
        steps: int | None = None,
        warmup: int = 2,
        trace_steps: int = 0,
        path: tuple[Path, ...] = (),
    ) -> Ended:
        """Run with the hooks in place and no supervisor; ``steps`` None is ``--steps all``.

        A ``sitecustomize`` in one of the folders of ``path`` runs before the hooks are put in place.
        """
        self._count += 1
        folder = self.folder / f"recording{self._count}"
        folder.mkdir()
        Settings(steps, warmup, trace_steps, 100_000_000, os.getpid()).save(folder)
        env = dict(
            os.environ, PYTHONPATH=os.pathsep.join(map(str, (BOOTSTRAP, *path))), **{FOLDER_VARIABLE: str(folder)}
        )
        return self._run([sys.executable, str(script), *args], env, folder)

    def _run(self, command: list[str], env: dict[str, str], recording: Path | None) -> Ended:
        done = subprocess.run(
            command, env=env, cwd=self.folder, capture_output=True, timeout=TIME_LIMIT_S, stdin=subprocess.DEVNULL
        )
        read = read_recording(recording) if recording is not None else None
        return Ended(done.returncode, done.stdout, done.stderr, read)
