"""How fast, and with how much memory, ``dlprof analyze`` reads a trace, beside plain parsers of the same bytes.

    python tests/bench/read_trace.py [--mb 200 1000] [--repeat N] [--folder DIR]

Each reader is a process of its own, measured as a whole, and the readers take turns. Those that are not installed
(orjson, HolisticTraceAnalysis) are left out. Not collected by pytest: it depends on time.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import make_trace

OURS = "dlprof analyze"
LOADS = "import sys; data = open(sys.argv[1], 'rb').read()"
READERS = {
    OURS: None,
    "orjson.loads": f"{LOADS}; import orjson; orjson.loads(data)",
    "json.load": "import json, sys; json.load(open(sys.argv[1]))",
    "HolisticTraceAnalysis": (
        "import os, sys; from hta.trace_analysis import TraceAnalysis; "
        "t = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=os.path.dirname(sys.argv[1])); "
        "t.get_temporal_breakdown(visualize=False)"
    ),
}
NEEDS = {"orjson.loads": "orjson", "HolisticTraceAnalysis": "hta"}
UNCOMPRESSED_ONLY = ("orjson.loads", "json.load")


def command(reader: str, path: Path) -> list[str]:
    """What starts a reader on a trace."""
    script = READERS[reader]
    if script is None:
        return [sys.executable, "-m", "dlprof", "analyze", str(path), "--format", "txt"]
    return [sys.executable, "-c", script, str(path)]


def environment(folder: Path) -> dict[str, str]:
    """With compiled modules kept in a folder, as those of an installed package are."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def measured(reader: str, path: Path) -> tuple[float, float]:
    """Seconds and peak MB of one run.

    Raises:
        SystemExit: It failed.
    """
    began = time.perf_counter()
    process = subprocess.Popen(command(reader, path), stdout=subprocess.DEVNULL, env=environment(path.parent))
    _, status, usage = os.wait4(process.pid, 0)
    spent = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{reader} failed on {path.name} with status {process.returncode}")
    return spent, usage.ru_maxrss / 1e3


def traces(folder: Path, mb: float) -> list[Path]:
    """The plain and the compressed trace of a size, made where they are not there."""
    plain = folder / f"{mb:g}.pt.trace.json"
    if not plain.exists():
        with open(plain, "wb") as file:
            make_trace.write(file, int(mb * 1e6), 1500)
    compressed = plain.with_name(f"{plain.name}.gz")
    if not compressed.exists():
        with open(plain, "rb") as source, gzip.open(compressed, "wb", compresslevel=6) as file:
            shutil.copyfileobj(source, file, 2**22)
    return [plain, compressed]


def main() -> None:
    """Parse the command line and print one row for each reader and trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, nargs="+", default=[200, 1000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where traces are made, and kept")
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS))
    asked = parser.parse_args()
    there = [name for name in asked.readers if name not in NEEDS or importlib.util.find_spec(NEEDS[name])]
    folder = asked.folder or Path(tempfile.mkdtemp())
    try:
        for path in (path for mb in asked.mb for path in traces(folder, mb)):
            readers = [name for name in there if path.suffix != ".gz" or name not in UNCOMPRESSED_ONLY]
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
            for _ in range(asked.repeat):
                for name in readers:
                    found[name].append(measured(name, path))
            print(f"\n{path.name}, {path.stat().st_size / 1e6:.0f} MB")
            for name, runs in found.items():
                seconds = [spent for spent, _ in runs]
                peak = max(memory for _, memory in runs)
                print(f"  {name:<24}{statistics.median(seconds):8.2f} s ({min(seconds):.2f} least){peak:8.0f} MB")
    finally:
        if asked.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
