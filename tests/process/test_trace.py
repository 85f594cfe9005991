"""The merged trace of real runs: one clock, nothing arrives before it was sent, slices nest."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Scripts

from dlprof.analysis.steps import find_steps
from dlprof.formats.recording import assemble, how_it_ended, training_process
from dlprof.formats.trace_events import STEPS_THREAD
from dlprof.formats.trace_writer import write_trace
from dlprof.model.kinds import Flag, Kind
from dlprof.model.profile import Profile, RunFacts

SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.randn(16, 16), index

def main(method):
    context = method if method != "none" else None
    loader = DataLoader(Slow(), batch_size=8, num_workers=2 if context else 0, multiprocessing_context=context)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for inputs, _ in loader:
        model(inputs).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    main(sys.argv[1])
"""
WARMUP, STEPS, TRACED = 2, 12, 5
EXPECTED_ERROR_NS = 200_000


@pytest.mark.parametrize("method", ["fork", "spawn", "none"])
def test_a_run_becomes_one_trace_on_one_clock(
    scripts: Scripts, tmp_path: Path, method: str, record_property: Any
) -> None:
    ended = scripts.hooked(scripts.write(SCRIPT), method, steps=STEPS, warmup=WARMUP, trace_steps=TRACED)
    assert (ended.status, ended.stderr) == (0, b"")
    assert ended.recording is not None
    main_pid = training_process(ended.recording)
    run = RunFacts(
        ("train.py",), "2026-01-01T00:00:00+00:00", "host", STEPS, WARMUP, TRACED,
        how_it_ended(ended.recording, 0, main_pid), 0, 0,
    )  # fmt: skip
    found, aligned = assemble(ended.recording, run, {})
    assert aligned is not None
    assert aligned.clock.markers == TRACED + 1
    print(f"marker error {aligned.clock.error_ns} ns, spread {aligned.clock.spread_ns} ns")
    record_property("marker_error_ns", aligned.clock.error_ns)
    assert aligned.clock.error_ns < EXPECTED_ERROR_NS
    assert "clock-uncertain" not in {notice.slug for notice in found.notices}

    path = tmp_path / "run.pt.trace.json.gz"
    result = write_trace(found, path, aligned, find_steps(found))
    assert not result.cut
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    _assert_nothing_arrives_before_it_was_sent(found, method)
    _assert_nested([event for event in events if event["ph"] == "X"])
    _assert_torchs_requests_lie_in_ours(events, main_pid)
    arrows = [event for event in events if event["ph"] == "s" and event["cat"] == "dlprof.batch"]
    taken = found.spans.of(Kind.NEXT)
    batches = int(((taken.flags & int(Flag.ENDED)) == 0).sum())
    assert len(arrows) == (batches if method != "none" else 0)
    steps = [event["name"] for event in events if event["tid"] == STEPS_THREAD and event["ph"] == "X"]
    assert (
        len([name for name in steps if re.fullmatch(r"(warm-up |traced )?step \d+", name)]) == WARMUP + STEPS + TRACED
    )


def _assert_nothing_arrives_before_it_was_sent(profile: Profile, method: str) -> None:
    spans = profile.spans
    handed = _by_batch(profile, Kind.PUT, "start_ns")
    sent = _by_batch(profile, Kind.SEND, "start_ns")
    read = _by_batch(profile, Kind.RECEIVE, "end_ns")
    taken = spans.of(Kind.NEXT)
    taken = taken.where((taken.flags & int(Flag.ENDED)) == 0)
    assert (len(read) > 0) is (method != "none")
    for key, when in read.items():
        assert handed[key] <= sent[key] <= when
    for iterator, batch, end in zip(taken.iterator, taken.batch, taken.end_ns, strict=True):
        if method != "none":
            assert read[int(iterator), int(batch)] <= end


def _by_batch(profile: Profile, kind: Kind, column: str) -> dict[tuple[int, int], int]:
    found = profile.spans.of(kind)
    rows = zip(found.iterator, found.batch, getattr(found, column), strict=True)
    return {(int(iterator), int(batch)): int(when) for iterator, batch, when in rows}


def _bounds(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def _assert_nested(slices: list[dict[str, Any]]) -> None:
    threads: dict[Any, list[tuple[int, int]]] = {}
    for event in slices:
        threads.setdefault((event["pid"], event["tid"]), []).append(_bounds(event))
    for found in threads.values():
        open_: list[tuple[int, int]] = []
        for start, end in sorted(found, key=lambda each: each[0]):
            while open_ and open_[-1][1] <= start + 1:
                open_.pop()
            # A nanosecond is what reading torch's decimals as floating-point numbers costs.
            assert not open_ or end <= open_[-1][1] + 1
            open_.append((start, end))


def _assert_torchs_requests_lie_in_ours(events: list[dict[str, Any]], main_pid: int | None) -> None:
    place = (main_pid, main_pid)
    main = [event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == place]
    ours = [_bounds(event) for event in main if event["name"] == "next(loader)"]
    theirs = [_bounds(event) for event in main if event["name"].startswith("enumerate(DataLoader)#")]
    assert len(theirs) == TRACED
    for start, end in theirs:
        assert any(begin <= start and end <= until for begin, until in ours)
