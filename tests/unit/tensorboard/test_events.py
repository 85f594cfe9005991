"""What TensorBoard's own pages read of a run."""

from __future__ import annotations

import builtins
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import ms
from traces import step, text, trace

from dlprof import api
from dlprof.analysis.curves import curves
from dlprof.cli.main import main
from dlprof.formats import run_file
from dlprof.tensorboard.events import write_run_events, write_trace_events

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

RECORDED = Path(__file__).parents[2] / "data"


def read(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, str]]:
    """Scalars and texts by their tags, as TensorBoard reads them."""
    found = accumulator.EventAccumulator(str(folder)).Reload()
    scalars = {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    texts = {}
    for tag in found.Tags()["tensors"]:
        assert found.SummaryMetadata(tag).plugin_data.plugin_name == "text"
        (event,) = found.Tensors(tag)
        texts[tag] = event.tensor_proto.string_val[0].decode()
    return scalars, texts


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*tfevents*"))


def test_a_runs_steps_and_sentences(made: Path, tmp_path: Path) -> None:
    run = shutil.copytree(made, tmp_path / "run")
    assert write_run_events(run) == ""
    scalars, texts = read(run)
    expected = curves(run_file.load(run / run_file.NAME))
    assert scalars.keys() == {f"dlprof/{name}" for name in expected.series}
    assert {"step_ms", "input_wait_ms", "device_compute_ms", "queue_depth"} <= expected.series.keys()
    for name, values in expected.series.items():
        points = scalars[f"dlprof/{name}"]
        assert [step for step, _ in points] == list(expected.steps)
        assert [value for _, value in points] == pytest.approx(values, rel=1e-6)
    assert texts.keys() == {"dlprof/headline", "dlprof/advice"}
    assert "CPU preprocessing bounds the step" in texts["dlprof/headline"]
    assert texts["dlprof/advice"].startswith("#### Tokenize the dataset once")
    assert "dataset.map(" in texts["dlprof/advice"]
    assert "<details>" not in texts["dlprof/advice"]


def test_writing_again_replaces_our_file_and_no_other(made: Path, tmp_path: Path) -> None:
    run = shutil.copytree(made, tmp_path / "run")
    (run / "events.out.tfevents.1.host.7").write_bytes(b"the script's own")
    assert write_run_events(run) == ""
    (run / "events.out.tfevents.0000000001.elsewhere.dlprof").write_bytes(b"former")
    once = files(run)
    assert write_run_events(run) == ""
    assert len(files(run)) == 2
    assert set(files(run)) < set(once)
    assert (run / "events.out.tfevents.1.host.7").read_bytes() == b"the script's own"


def test_without_a_report_json_the_sentences_are_there_too(tmp_path: Path) -> None:
    shutil.copy(RECORDED / "compute" / run_file.NAME, tmp_path)
    assert write_run_events(tmp_path) == ""
    _, texts = read(tmp_path)
    assert "bound by compute" in texts["dlprof/headline"]


def test_what_is_no_run_gets_none(tmp_path: Path) -> None:
    assert write_run_events(tmp_path) == ""
    assert files(tmp_path) == []


def test_a_run_that_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    (tmp_path / run_file.NAME).write_bytes(b"half")
    assert "events for TensorBoard were not written" in write_run_events(tmp_path)


def test_without_tensorboard_nothing_is_written_or_said(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(made, tmp_path / "run")
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "tensorboard":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert write_run_events(run) == ""
    assert files(run) == []


def row(step: int, file: str, rank: int | None, *, left_out: str | None = None, busy: float = 0.0) -> dict[str, Any]:
    causes = {f"{cause}_ms": 0.0 for cause in ("h2d_copy", "communication", "synchronization", "kernel_launch")}
    causes |= {"python_ms": 0.0, "checkpoint_ms": 0.0, "other_ms": 0.0}
    causes |= {"input_wait_ms": 4.0, "device_compute_ms": 6.0}
    return {
        "file": file,
        "rank": rank,
        "step": step,
        "left_out": left_out,
        "ms": 10.0,
        "device_busy_ms": busy,
        **causes,
    }


def test_a_traces_steps_that_count(made: Path, tmp_path: Path) -> None:
    rows = [row(2, "a", 0, busy=5.0), row(1, "a", 0, busy=2.0), row(0, "a", 0, left_out="first")]
    assert write_trace_events(api._report_in(made), rows, tmp_path) == ""
    scalars, texts = read(tmp_path)
    assert scalars == {
        "dlprof/step_ms": [(1, 10.0), (2, 10.0)],
        "dlprof/input_wait_ms": [(1, 4.0), (2, 4.0)],
        "dlprof/device_compute_ms": [(1, 6.0), (2, 6.0)],
        "dlprof/gpu_utilization": [(1, pytest.approx(0.2)), (2, 0.5)],
    }
    assert "dlprof/headline" in texts


@pytest.mark.parametrize(("ranks", "names"), [((3, 5), ("rank3", "rank5")), ((None, None), ("rank0", "rank1"))])
def test_each_rank_has_its_own(
    made: Path, tmp_path: Path, ranks: tuple[int | None, int | None], names: tuple[str, str]
) -> None:
    rows = [row(1, "a", ranks[0]), row(1, "b", ranks[1])]
    assert write_trace_events(api._report_in(made), rows, tmp_path) == ""
    scalars, _ = read(tmp_path)
    assert {tag for tag in scalars if tag.endswith("step_ms")} == {f"dlprof/{name}/step_ms" for name in names}


def test_what_the_driver_says_of_the_gpus_is_shown(made: Path, tmp_path: Path) -> None:
    gpus = [{"utilization_mean_ratio": 0.25}, {"utilization_mean_ratio": 0.75}, {"index": 2}, None]
    report = replace(api._report_in(made), environment={"gpus": gpus})
    assert write_trace_events(report, [row(4, "a", 0)], tmp_path) == ""
    assert read(tmp_path)[0]["dlprof/gpu_utilization"] == [(4, 0.5)]


def test_the_commands_write_them_beside_the_run_and_the_traces_report(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(made, tmp_path / "run")
    assert main(["report", str(run), "--format", "md", "--out", "elsewhere"]) == 0
    assert files(run) == files(tmp_path / "elsewhere") == []
    assert main(["report", str(run), "--format", "md"]) == 0
    assert len(files(run)) == 1
    waiting = step(input=ms(30), operator=ms(2), compute=ms(20)) * 12
    Path("a.pt.trace.json").write_bytes(text(trace(waiting)))
    assert main(["analyze", "a.pt.trace.json", "--format", "json", "--out", "found"]) == 0
    scalars, texts = read(tmp_path / "found")
    assert {"dlprof/step_ms", "dlprof/input_wait_ms", "dlprof/gpu_utilization"} <= scalars.keys()
    assert "input pipeline bounds the step" in texts["dlprof/headline"]
    assert main(["analyze", "a.pt.trace.json", "--format", "txt"]) == 0
    assert files(tmp_path) == []
