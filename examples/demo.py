"""Profile train_text.py, follow the first advice, profile again, and compare forecast and measurement.

    python examples/demo.py

The last line on standard output is the path of the first report.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).with_name("train_text.py")
STEPS = 50


class DemoError(Exception):
    """What went wrong, in one line."""


def script_options(advice: dict) -> list[str] | None:
    """The options of train_text.py that follow an advice, or None where it has none for that."""
    match advice["id"]:
        case "raise-num-workers" | "lower-num-workers" if advice.get("to") is not None:
            return ["--workers", str(int(advice["to"]))]
        case "pretokenize-dataset":
            return ["--tokenize", "ahead"]
        case "batch-tokenizer-calls":
            return ["--tokenize", "collate"]
    return None


def choose(report: dict) -> tuple[dict, list[str]]:
    """The first advice that train_text.py has an option for, and that option."""
    for advice in report["advice"]:
        options = script_options(advice)
        if options is not None:
            return advice, options
        print(f"demo: train_text.py has no option for the advice {advice['id']}; taking the next one")
    raise DemoError("the report has no advice that train_text.py has an option for")


def forecast(report: dict, advice: dict) -> list[float] | None:
    """The step time in ms that was forecast for an advice (p10, p50, p90), or None where none was."""
    change = (advice["setting"], advice["to"])
    for entry in report["forecast"]:
        if change == (entry["setting"], entry["to"]) and advice["setting"] is not None:
            return entry["step_ms"]
    if advice["speedup"] is None:
        return None
    return [report["step"]["mean_ms"] / speedup for speedup in reversed(advice["speedup"])]


def describe(verdict: dict) -> str:
    name = " / ".join(filter(None, [verdict["bottleneck"], verdict["component"]]))
    share = "" if verdict["share"] is None else f", {verdict['share']:.0%} of the step"
    return f"{name}{share} ({verdict['confidence']} confidence)"


def table(before: dict, after: dict, advice: dict, options: list[str]) -> str:
    """What the two reports say, side by side."""
    old, new = before["step"]["mean_ms"], after["step"]["mean_ms"]
    expected = forecast(before, advice)
    spread = "none" if expected is None else "{1:.1f} ms ({0:.1f} to {2:.1f})".format(*expected)
    rows = [
        ("", "before", f"after {advice['id']}"),
        ("options", "none", " ".join(options)),
        ("step, forecast", "", spread),
        ("step, measured", f"{old:.1f} ms", f"{new:.1f} ms ({old / new:.2f} times as fast)"),
        ("verdict", describe(before["verdict"]), describe(after["verdict"])),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def profile(folder: Path, options: list[str]) -> dict:
    """Run train_text.py under dlprof, and return what report.json says."""
    arguments = ["run", "--out", str(folder), str(SCRIPT), "--steps", str(STEPS), *options]
    print("demo: dlprof", *arguments, flush=True)
    status = subprocess.run([sys.executable, "-m", "dlprof", *arguments], check=False).returncode
    if status != 0:
        raise DemoError(f"the run ended with status {status}")
    for name in ("report.json", "report.html"):
        if not (folder / name).is_file():
            raise DemoError(f"the run left no {folder / name}")
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def main() -> None:
    folder = Path("dlprof-runs", time.strftime("demo-%Y%m%d-%H%M%S"))
    folder.mkdir(parents=True)
    before = profile(folder / "before", [])
    advice, options = choose(before)
    after = profile(folder / "after", options)
    print(f"\n{table(before, after, advice, options)}\n")
    for when, report in (("before", before), ("after", after)):
        for notice in report["notices"]:  # a machine that was not steady, say: then the two do not compare
            print(f"{when}: {notice['text']}")
    print(folder / "before" / "report.html")
    if after["step"]["mean_ms"] >= before["step"]["mean_ms"]:
        raise DemoError(f"following {advice['id']} did not make the step faster")


if __name__ == "__main__":
    try:
        main()
    except (DemoError, OSError) as error:
        sys.exit(f"demo: {error}")
