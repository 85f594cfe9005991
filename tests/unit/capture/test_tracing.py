"""torch.profiler on our behalf: between steps, marked on both clocks, and never in the user's way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from recordings import asked, events, rows

from dlprof.capture.device import Accelerator
from dlprof.capture.recorder import Recorder
from dlprof.capture.tracing import MARKER, Tracer
from dlprof.formats.chrome_trace import read_torch_trace
from dlprof.formats.recording import CLOCK_MARKER
from dlprof.model.kinds import Kind


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path), asked())


@pytest.fixture
def tracer(recorder):
    tracer = Tracer(recorder)
    yield tracer
    tracer.stop()


def work() -> None:
    torch.ones(64, 64) @ torch.ones(64, 64)


def spans(recorder: Recorder, folder: Path, *kinds: Kind):
    recorder.flush_all()
    return rows(folder, *kinds)


def test_what_lies_between_start_and_stop_is_exported_with_markers_on_both_clocks(tracer, recorder, tmp_path):
    assert tracer.start()
    for _ in range(3):
        tracer.mark()
        work()
    tracer.stop()
    assert not tracer.on
    tracer.export()
    (event,) = events(tmp_path, "trace")
    trace = read_torch_trace(tmp_path / event["path"], MARKER)
    assert len(event["markers"]) == len(trace.markers_ns) == 3
    assert sum(each.kind is Kind.OPERATOR for each in trace.events) >= 3


def test_the_window_and_our_own_work_around_it_are_spans(tracer, recorder, tmp_path):
    tracer.start()
    work()
    tracer.stop()
    (window,) = spans(recorder, tmp_path, Kind.TRACED)
    begun, ended = spans(recorder, tmp_path, Kind.OWN)
    assert begun.end_ns <= window.start_ns <= window.end_ns <= ended.start_ns
    assert [event["name"] for event in events(tmp_path, "name")] == ["start-profiler", "stop-profiler"]


def test_torch_is_left_as_it_was(tracer, monkeypatch):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    module = torch.autograd.profiler
    before = {name: vars(module).get(name) for name in ("_prepare_profiler", "_enable_profiler")}
    tracer.start()
    tracer.stop()
    assert {name: vars(module).get(name) for name in before} == before
    assert "KINETO_LOG_LEVEL" not in os.environ
    assert not torch.autograd._profiler_enabled()


def test_the_users_profiler_goes_first(tracer, tmp_path):
    with torch.autograd.profiler.profile(use_cpu=True) as theirs:
        assert not tracer.start()
        work()
    assert not tracer.on
    assert [notice["slug"] for notice in events(tmp_path, "notice")] == ["trace-skipped-user-profiler"]
    assert len(theirs.function_events) > 0


def test_a_profiler_that_the_user_starts_inside_ours_ends_ours(tracer, recorder, tmp_path):
    tracer.start()
    with torch.autograd.profiler.profile(use_cpu=True) as theirs:
        assert not tracer.on
        work()
    assert any("mm" in event.name for event in theirs.function_events)
    assert [notice["slug"] for notice in events(tmp_path, "notice")] == ["trace-yielded-user-profiler"]
    assert len(spans(recorder, tmp_path, Kind.TRACED)) == 1


def test_ours_that_cannot_be_stopped_does_not_keep_the_users_from_starting(tracer):
    tracer.start()
    profile = tracer._profile

    class Broken:
        def __exit__(self, *_: object) -> None:
            profile.__exit__(None, None, None)
            raise RuntimeError("Kineto says no")

    tracer._profile = Broken()
    with torch.autograd.profiler.profile(use_cpu=True) as theirs:
        work()
    assert len(theirs.function_events) > 0


def test_stopping_twice_or_exporting_nothing_does_nothing(tracer, tmp_path):
    tracer.stop()
    tracer.export()
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_is_still_on_at_the_end_is_exported(tracer, tmp_path):
    tracer.start()
    tracer.mark()
    work()
    tracer.export()
    assert len(events(tmp_path, "trace")) == 1


class FakeProfile:
    """Stands in for ``torch.autograd.profiler.profile``: says how it was asked for."""

    asked: ClassVar[list[dict[str, object]]] = []

    def __init__(self, **asked: object) -> None:
        self.asked.append(asked)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("accelerator", "supported", "device"),
    [
        (None, ["CPU", "CUDA"], None),
        ("cuda", ["CPU", "CUDA"], "cuda"),
        ("xpu", ["CPU", "XPU"], "xpu"),
        ("npu", ["CPU", "PrivateUse1"], "npu"),
        ("cuda", ["CPU"], None),
        ("npu", ["CPU", "CUDA"], None),
        ("other", ["CPU", "PrivateUse1"], None),
    ],
)
def test_the_accelerator_in_use_is_traced_with_its_kernels(
    tracer, tmp_path, monkeypatch, accelerator, supported, device
):
    in_use = None if accelerator is None else Accelerator(accelerator, None)
    activities = {getattr(torch.autograd.ProfilerActivity, name) for name in supported}
    monkeypatch.setattr("dlprof.capture.tracing.accelerator_in_use", lambda: in_use)
    monkeypatch.setattr(torch.autograd, "_supported_activities", lambda: activities)
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "npu")
    monkeypatch.setattr(torch.autograd.profiler, "profile", FakeProfile)
    monkeypatch.setattr(FakeProfile, "asked", [])
    assert tracer.start()
    # Without use_kineto there would be operators on the device, but no kernels and no copies.
    assert FakeProfile.asked == [{"use_cpu": True, "use_device": device, "use_kineto": True}]
    slugs = [notice["slug"] for notice in events(tmp_path, "notice")]
    assert slugs == (["trace-without-device"] if accelerator and not device else [])


def test_writer_and_reader_call_the_marker_by_the_same_name():
    assert MARKER == CLOCK_MARKER
