"""Record the runs in this folder anew, each with 50 steps: python tests/data/record.py [NAME...]

Paths of the machine are shortened to those of the repository and of the installed packages. What the runs must say is
in tests/golden/test_recorded_golden.py; the reports are renewed by pytest tests/golden --update.
"""

from __future__ import annotations

import gzip
import os
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dlprof.formats import run_file

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNS = {
    "text-0-workers": ["examples/train_text.py"],
    "text-2-workers": ["examples/train_text.py", "--workers", "2"],
    "images": ["examples/train_images.py", "--workers", "2"],
    "storage": ["tests/workloads/random_small_reads/slow.py"],
    "compute": ["tests/workloads/control_compute_with_workers/control.py"],
    "crash": ["tests/data/crash/train.py"],
}
"""What is run, by the folder's name."""


def record(name: str) -> None:
    """Run a script under dlprof and keep the saved run.

    Args:
        name: Key of `RUNS`.

    Raises:
        SystemExit: A path of this machine is left in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        command = [sys.executable, "-m", "dlprof", "run", "--steps", "50", "--format", "json", "--out", str(out)]
        # The script's status is its own: one of them crashes.
        subprocess.run([*command, *RUNS[name]], cwd=ROOT, env={**os.environ, "TMPDIR": folder}, check=False)
        saved: Any = msgspec.msgpack.decode(gzip.decompress((out / run_file.NAME).read_bytes()))
        # The longer path first, where one lies in another.
        names = {f"{folder}/": "/tmp/", f"{ROOT}/": "", f"{sys.base_prefix}/": "/usr/", sys.executable: "python"}
        names |= {f"{packages}/": "" for packages in site.getsitepackages()}
        short = shortened(saved, dict(sorted(names.items(), key=lambda item: -len(item[0]))))
    own = (folder, str(ROOT), sys.prefix, str(Path.home()))
    left = sorted({text for text in texts(short) if any(path in text for path in own)})
    if left:
        raise SystemExit(f"{name}: nothing was written, since paths of this machine are left: {left}")
    target = HERE / name / run_file.NAME
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(gzip.compress(msgspec.msgpack.encode(short), compresslevel=9, mtime=0))
    run_file.load(target)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size:,} bytes")


def shortened(value: Any, names: dict[str, str]) -> Any:
    """``value`` with parts of its texts replaced, in their order."""
    if isinstance(value, str):
        for long, short in names.items():
            value = value.replace(long, short)
        return value
    if isinstance(value, dict):
        return {key: shortened(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [shortened(each, names) for each in value]
    return value


def texts(value: Any) -> Iterator[str]:
    """All texts in ``value``."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts([*value, *value.values()])
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or RUNS:
        record(chosen)
