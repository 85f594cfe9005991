"""What is said of traces that real training runs left, against labels made independently.

The traces are not part of this repository: they are looked for beside it, or where DLPROF_TRACES says.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlprof.analysis.trace_rank import Rank, analyse
from dlprof.analysis.trace_steps import CutBy, LeftOut
from dlprof.diagnose_trace import diagnose_trace
from dlprof.formats.torch_trace import read_trace
from dlprof.model.kinds import Bottleneck, Cause
from dlprof.model.pipeline import OUTSIDE_INPUT
from dlprof.model.report import Report
from dlprof.render.numbers import milliseconds, percent

_GIVEN = os.environ.get("DLPROF_TRACES")
PLACES = [Path(_GIVEN)] if _GIVEN else [parent / "shared" / "traces" for parent in Path(__file__).parents]
TRACES = next((place for place in PLACES if (place / "labels.json").exists()), None)
LABELS: dict[str, Any] = json.loads((TRACES / "labels.json").read_text()) if TRACES else {}
RANKS = [name for name in LABELS if name.startswith("dlrm-8ranks/")]

pytestmark = pytest.mark.skipif(TRACES is None, reason="no real traces beside the repository, nor in DLPROF_TRACES")


@cache
def rank_of(name: str) -> Rank:
    assert TRACES is not None
    (rank,) = analyse(read_trace(TRACES / name))
    return rank


@cache
def report_on(*names: str) -> Report:
    return diagnose_trace([rank_of(name) for name in names], [names[0]])


def slugs(name):
    return {notice.slug for notice in report_on(name).notices}


def share(report, cause):
    return next(row.share for row in report.budget if row.cause is cause)


@pytest.mark.parametrize("name", LABELS or ["none"])
def test_the_verdict_is_one_that_the_label_accepts(name):
    verdict = report_on(name).verdict.bottleneck
    assert verdict in LABELS[name]["accept"]
    assert verdict not in LABELS[name]["must_not"]


@pytest.mark.parametrize("name", LABELS or ["none"])
def test_every_step_agrees_with_the_label(name):
    measures = rank_of(name).everything.measures
    ours = {
        "wall": measures.wall,
        "compute": measures.compute,
        "gpu_busy": measures.busy,
        "comm_exposed": measures.communication_exposed,
        "h2d_exposed": measures.h2d_exposed,
        "d2h_exposed": measures.d2h_exposed,
        "dataloader": measures.request,
        "dataloader_gpu_idle": measures.request_idle,
    }
    steps = LABELS[name]["steps_us"]
    for key, values in ours.items():
        expected = [step[key] for step in steps]
        found = (values[: len(steps)] / 1000).tolist()
        assert found == [pytest.approx(value, rel=0.005, abs=5) for value in expected], key
    assert measures.kernels[: len(steps)].tolist() == [step["n_kernels"] for step in steps]


@pytest.mark.parametrize("name", LABELS or ["none"])
def test_causes_of_every_step_sum_to_it(name):
    everything = rank_of(name).everything
    assert np.array_equal(everything.causes.sum(axis=1), everything.measures.wall)
    assert (everything.causes >= 0).all()
    idle = np.sum(list(everything.measures.idle.values()), axis=0)
    assert np.array_equal(idle, everything.measures.wall - everything.measures.busy)


@pytest.mark.parametrize("name", LABELS or ["none"])
def test_a_share_in_the_headline_is_one_of_the_budget(name):
    report = report_on(name)
    headline = report.verdict.headline.replace("\N{NO-BREAK SPACE}", " ")
    if report.verdict.bottleneck is Bottleneck.INCONCLUSIVE:
        return
    shares = {percent(row.share) for row in report.budget}
    assert set(re.findall(r"(?:< )?[\d.]+ %", headline)) <= shares
    times = {milliseconds(row.ms_per_step) for row in report.budget} | {milliseconds(report.step.mean_ms)}
    assert set(re.findall(r"[\d.]+ m?s\b", headline)) <= times
    causes = OUTSIDE_INPUT.get(report.verdict.bottleneck, (Cause.INPUT_WAIT,))
    if report.verdict.share is not None and report.verdict.bottleneck is not Bottleneck.DEVICE_COMPUTE:
        assert report.verdict.share == pytest.approx(sum(share(report, cause) for cause in causes))


def test_workers_made_the_input_cheap():
    before, after = (report_on(f"resnet50-workers{number}.pt.trace.json.gz") for number in (0, 4))
    assert (before.step.mean_ms, after.step.mean_ms) == (pytest.approx(175, abs=1), pytest.approx(140, abs=1))
    assert (share(before, Cause.INPUT_WAIT), share(after, Cause.INPUT_WAIT)) == (
        pytest.approx(0.34, abs=0.005),
        pytest.approx(0.01, abs=0.005),
    )
    assert before.advice[0].id == "raise-num-workers"
    assert (before.advice[0].from_, before.advice[0].to) == (0, 2)
    assert "raise-num-workers" not in {row.id for row in after.advice}


def test_a_queue_that_drains_is_told():
    name = "resnet-prefetch-drains.pt.trace.json.gz"
    assert {"trace-queue-drained", "trace-cut-by-loader", "trace-step-warm-up"} <= slugs(name)
    assert report_on(name).verdict.share == pytest.approx(0.47, abs=0.02)


def test_steps_in_which_the_host_runs_ahead_are_in_no_mean():
    name = "compute-v100-ns.pt.trace.json.gz"
    assert [step.left_out for step in rank_of(name).steps.all] == [LeftOut.AHEAD, LeftOut.AHEAD, None, None, None]
    assert report_on(name).step.mean_ms == pytest.approx(95.6, abs=0.1)


def test_a_stub_step_is_in_no_mean():
    name = "rocm-stub-step.pt.trace.json.gz"
    assert [step.left_out for step in rank_of(name).steps.all] == [None, LeftOut.STUB]


@pytest.mark.parametrize("workers", [0, 4])
def test_without_marks_steps_go_from_request_to_request(workers):
    steps = rank_of(f"resnet50-workers{workers}-nosteps.pt.trace.json.gz").steps
    assert steps.cut_by is CutBy.LOADER
    assert [step.left_out for step in steps.all] == [LeftOut.WARM_UP, None, None, None, None]


def test_a_trace_that_was_thinned_out_supports_no_verdict():
    name = "sampled-cannot-tell.pt.trace.json.gz"
    assert report_on(name).verdict.bottleneck is Bottleneck.INCONCLUSIVE
    assert "trace-thinned-out" in slugs(name)
    assert [other for other in LABELS if rank_of(other).unrecorded] == [name]


def test_one_rank_of_several_says_that_waiting_and_moving_data_look_alike():
    assert "trace-one-rank" in slugs("ddp-comm-mi300.pt.trace.json.gz")


def test_copies_from_pinned_memory_are_advised_to_be_hidden():
    report = report_on("copies-pinned.pt.trace.json")
    assert [row.id for row in report.advice] == ["copy-non-blocking"]
    assert report.device is not None
    assert report.device.h2d_gb_per_s == pytest.approx(5.0, abs=0.2)
    assert report.device.h2d_pageable_ratio == 0


def test_eight_ranks_in_one_report():
    report = report_on(*RANKS)
    assert report.run.world_size == 8
    rows = {row["rank"]: row for row in report.ranks}
    assert len(rows) == 8
    # By the labels rank 7 waits 1.6 ms in collectives and rank 1 waits 11.1 ms, nearly all of it for others.
    assert rows[1]["communication_ms"] == pytest.approx(11.06, abs=0.05)
    assert rows[1]["waited_for_others_ms"] == pytest.approx(11, abs=0.5)
    assert rows[1]["waited_most_for"] == "7"
    assert max(rows.values(), key=lambda row: row["others_waited_for_it_ms"])["rank"] == 7
    assert {"trace-ranks-wait", "trace-straggler"} <= {notice.slug for notice in report.notices}
    assert "balance-ranks" in {row.id for row in report.advice}
    # By the labels the job is bound by launching, with skew between ranks.
    assert report.verdict.bottleneck == "host_overhead"
