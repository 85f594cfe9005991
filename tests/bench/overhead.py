"""What looking costs: the examples plain and under ``dlprof run --steps all``, interleaved.

    python tests/bench/overhead.py [ROUNDS]

Prints the ratio of the step times that the scripts themselves measure, with and without torch.profiler's traced steps
(which lie at the end and are counted here). Not collected by pytest: it depends on time.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = {
    "text, 0 workers": ["train_text.py", "--steps", "60"],
    "text, 2 workers": ["train_text.py", "--steps", "60", "--workers", "2"],
    "ready ids, 0 workers": ["train_text.py", "--steps", "60", "--tokenize", "ahead"],
    "images, 1 worker": ["train_images.py", "--steps", "60", "--workers", "1"],
}
LAST = re.compile(r"([\d.]+) ms/step")


def ms_per_step(prefix: list[str], case: list[str]) -> float:
    """The median of the step times that the script prints."""
    script, *options = case
    done = subprocess.run(
        [sys.executable, *prefix, str(EXAMPLES / script), *(["--"] if prefix else []), *options],
        capture_output=True,
        text=True,
        check=True,
    )
    return statistics.median(float(found) for found in LAST.findall(done.stdout))


def main(rounds: int) -> None:
    """Measure every case and print a table."""
    print(f"{'case':24} {'plain ms':>9} {'light':>7} {'traced':>7}   ratio to plain, median of {rounds} rounds")
    for name, case in CASES.items():
        plain, light, traced = [], [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                common = ["-m", "dlprof", "run", "--steps", "all", "--format", "json", "--out"]
                plain.append(ms_per_step([], case))
                light.append(ms_per_step([*common, f"{folder}/light", "--trace-steps", "0"], case))
                traced.append(ms_per_step([*common, f"{folder}/traced"], case))
        ratios = [statistics.median(b / a for a, b in zip(plain, other, strict=True)) for other in (light, traced)]
        print(f"{name:24} {statistics.median(plain):9.1f} {ratios[0]:7.3f} {ratios[1]:7.3f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
