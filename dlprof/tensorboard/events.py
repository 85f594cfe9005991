"""A run's numbers and sentences for TensorBoard's own pages, in the file of events that they read.

Where TensorBoard is not installed nothing is written, and nothing said: who installs it later gets the file by
``dlprof report RUN``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from dlprof.formats import run_file
from dlprof.formats.report_json import decode_report
from dlprof.model.curves import Curves
from dlprof.model.kinds import Cause
from dlprof.model.report import Report
from dlprof.tensorboard.runs import REPORT_JSON, own_file
from dlprof.words import ENGLISH, language, tr

_OURS = "events.out.tfevents.*.dlprof"
"""By its end it differs from what the script itself may write there."""
_PREFIX = "dlprof"


def write_run_events(folder: Path) -> str:
    """Write the events of a saved run beside it, in place of those that were there.

    Args:
        folder: The run's. What is no run, or has no measured step, gets none.

    Returns:
        Why they could not be written, a sentence; else empty.
    """
    saved = own_file(folder, run_file.NAME)
    if saved is None:
        return ""
    try:
        from dlprof.analysis.curves import curves
        from dlprof.diagnose import diagnose

        profile = run_file.load(saved)
        found = curves(profile)
        # Its sentences are English, whatever the language.
        written = own_file(folder, REPORT_JSON) if language() == ENGLISH else None
        report = decode_report(written.read_bytes()) if written is not None else diagnose(profile)
        _write(folder, report, {} if found is None else {"": found})
    except Exception as error:  # noqa: BLE001 - a report is complete without them
        return _failure(error)
    return ""


def write_trace_events(report: Report, rows: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Write the events of analysed traces beside their report, in place of those that were there.

    Args:
        report: What is said of them.
        rows: One for each step of each rank, as of a ``Job``.
        folder: Where to.

    Returns:
        Why they could not be written, a sentence; else empty.
    """
    try:
        _write(folder, report, dict(_of_rows(report, rows)))
    except Exception as error:  # noqa: BLE001 - a report is complete without them
        return _failure(error)
    return ""


def _failure(error: Exception) -> str:
    what = f"{type(error).__name__}: {error}".partition("\n")[0]
    return tr("the events for TensorBoard were not written: {error}", error=what)


def _of_rows(report: Report, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Curves]]:
    """Curves of each rank, under the rank's name where there are several."""
    counted = [row for row in rows if row["left_out"] is None]
    files = dict.fromkeys(row["file"] for row in counted)
    ranks = {row["rank"] for row in counted}
    began = _seconds(report.created)
    for number, file in enumerate(files):
        own = sorted((row for row in counted if row["file"] == file), key=lambda row: int(row["step"]))
        rank = own[0]["rank"] if len(ranks) == len(files) else number
        series: dict[str, tuple[float | None, ...]] = {"step_ms": tuple(row["ms"] for row in own)}
        for cause in Cause:
            values = tuple(float(row[f"{cause.value}_ms"]) for row in own)
            if any(values):
                series[f"{cause.value}_ms"] = values
        if any(row["device_busy_ms"] for row in own):
            series["gpu_utilization"] = tuple(row["device_busy_ms"] / row["ms"] if row["ms"] else None for row in own)
        name = f"rank{rank}" if len(files) > 1 else ""
        yield name, Curves(tuple(row["step"] for row in own), tuple(began for _ in own), series)


def _write(folder: Path, report: Report, found: Mapping[str, Curves]) -> None:
    try:
        # Not its file writer: that one works in a thread, and loads TensorFlow where there is one.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.record_writer import RecordWriter
        from tensorboard.util.tensor_util import make_tensor_proto
    except ImportError:
        return
    from dlprof.render import markdown_excerpts

    for former in folder.glob(_OURS):
        former.unlink()
    began = min((each.ended_s[0] for each in found.values() if each.ended_s), default=_seconds(report.created))
    host = re.sub(r"[^A-Za-z0-9-]", "_", report.host) or "host"
    path = folder / f"events.out.tfevents.{int(began):010d}.{host}.dlprof"
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
        for name, text in zip(("headline", "advice"), markdown_excerpts(report), strict=True):
            value = Summary.Value(
                tag=f"{_PREFIX}/{name}",
                metadata=create_summary_metadata(display_name="", description=""),
                tensor=make_tensor_proto([text]),
            )
            writer.write(Event(wall_time=began, step=0, summary=Summary(value=[value])).SerializeToString())
        for step, ended_s, numbers in _scalars(report, found, began):
            values = [Summary.Value(tag=f"{_PREFIX}/{tag}", simple_value=number) for tag, number in numbers.items()]
            writer.write(Event(wall_time=ended_s, step=step, summary=Summary(value=values)).SerializeToString())


def _scalars(
    report: Report, found: Mapping[str, Curves], began: float
) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Number of the step, when it ended, and the numbers by their tags."""
    last, ended = 0, began
    for rank, each in found.items():
        below = f"{rank}/" if rank else ""
        for place, (step, ended_s) in enumerate(zip(each.steps, each.ended_s, strict=True)):
            values = {f"{below}{tag}": series[place] for tag, series in each.series.items()}
            yield step, ended_s, {tag: value for tag, value in values.items() if value is not None}
            last, ended = max(last, step), max(ended, ended_s)
    utilization = _utilization(report)
    if utilization is not None and not any("gpu_utilization" in each.series for each in found.values()):
        yield last, ended, {"gpu_utilization": utilization}


def _utilization(report: Report) -> float | None:
    """How busy the devices were over the whole run, 0 to 1: by their driver, else in the traced steps."""
    gpus = report.environment.get("gpus")
    known = list(_rates(gpus if isinstance(gpus, list) else []))
    if known:
        return sum(known) / len(known)
    return report.device.busy_ratio if report.device else None


def _rates(gpus: Iterable[Any]) -> Iterator[float]:
    for gpu in gpus:
        ratio = gpu.get("utilization_mean_ratio") if isinstance(gpu, dict) else None
        if isinstance(ratio, int | float):
            yield float(ratio)


def _seconds(created: str) -> float:
    try:
        return datetime.fromisoformat(created).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
