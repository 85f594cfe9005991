"""Training loops of which another thread than the main one requests the batches, or does everything."""

from __future__ import annotations

import numpy as np
import pytest
from hooked_scripts import Scripts
from test_training_loops import profile_of

from dlprof.analysis.partition import partition
from dlprof.analysis.steps import find_steps
from dlprof.diagnose import diagnose
from dlprof.model.kinds import Bottleneck, Cause, ExitReason, Kind, Role

LOOP = """
import hashlib, queue, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

form, slow_ms, busy_ms, workers = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
EPOCHS, BATCHES = 2, 20

class Samples(Dataset):
    def __len__(self):
        return BATCHES * 4

    def __getitem__(self, index):
        time.sleep(slow_ms / 4000)
        return torch.randn(8)

def fed(loader):
    ready = queue.SimpleQueue() if form == "simple-queue" else queue.Queue()
    room = threading.Semaphore(2)

    def feed():
        for batch in loader:
            room.acquire()
            ready.put(batch)
        ready.put(None)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    while (batch := ready.get()) is not None:
        room.release()
        yield batch
    thread.join()

def train():
    torch.manual_seed(1)
    digest = hashlib.sha256()
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(Samples(), batch_size=4, num_workers=workers)
    try:
        for epoch in range(EPOCHS):
            for batch in loader if form == "whole" else fed(loader):
                digest.update(batch.numpy().tobytes())
                time.sleep(busy_ms / 1000)
                loss = model(batch).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        print("cleaned up", queue.Queue.get.__module__)
    print(digest.hexdigest(), loss.item())

if form == "whole":
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
else:
    train()
"""
EPOCHS, BATCHES = 2, 20
FAILURES = {"hook-failed", "hook-missing", "trace-failed", "trace-not-aligned"}


@pytest.mark.parametrize("form", ["queue", "simple-queue", "whole"])
@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_changes_in_them(scripts: Scripts, form: str, workers: int) -> None:
    script = scripts.write(LOOP)
    arguments = (form, "0", "0", str(workers))
    plain, hooked = scripts.both(script, *arguments, trace_steps=3)
    assert (hooked.status, hooked.stdout, hooked.stderr) == (plain.status, plain.stdout, plain.stderr)
    assert plain.status == 0, plain.stderr
    profile = profile_of(hooked.recording)
    requests = profile.spans.of(Kind.NEXT)
    assert len(requests) == EPOCHS * (BATCHES + 1)
    assert {profile.tracks[track].role for track in requests.track} == {Role.THREAD}
    assert not {notice.slug for notice in profile.notices} & FAILURES


def test_a_loop_that_waits_for_a_thread_that_feeds_it_waits_for_input(scripts: Scripts) -> None:
    ended = scripts.hooked(scripts.write(LOOP), "queue", "30", "5", "0", steps=20, trace_steps=4)
    assert ended.status == 0, ended.stderr
    profile = profile_of(ended.recording)
    assert profile.run.ending.reason is ExitReason.STEPS_REACHED
    steps = find_steps(profile)
    assert (steps.handed_over, steps.wait_unseen) == (True, False)
    assert len(steps.measured) >= 15
    # torch.profiler was on in the thread that trains.
    assert steps.traced
    main = [number for number, track in enumerate(profile.tracks) if track.role is Role.MAIN]
    assert np.isin(profile.spans.of(Kind.OPERATOR).track, main).any()
    assert np.isin(profile.spans.of(Kind.QUEUE_GET).track, main).all()
    parts = partition(profile, steps)
    assert parts is not None
    # A batch takes at least 30 ms, and the step 5: what is left is waited for.
    assert parts.mean.share(Cause.INPUT_WAIT) > 0.5
    report = diagnose(profile)
    assert report.verdict.bottleneck is Bottleneck.INPUT_PIPELINE
    assert "fed-by-thread" in {notice.slug for notice in report.notices}


def test_a_loop_that_its_feeding_thread_keeps_up_with_does_not(scripts: Scripts) -> None:
    ended = scripts.hooked(scripts.write(LOOP), "queue", "5", "30", "0", steps=20)
    profile = profile_of(ended.recording)
    steps = find_steps(profile)
    parts = partition(profile, steps)
    assert parts is not None
    # Its requests take as much of the time as before: they overlap the steps.
    assert sum(step.wait_ns for step in steps.measured) < 0.2 * sum(step.duration_ns for step in steps.measured)
    assert diagnose(profile).verdict.bottleneck is not Bottleneck.INPUT_PIPELINE


def test_a_wait_that_cannot_be_seen_is_not_made_up(scripts: Scripts) -> None:
    ended = scripts.hooked(scripts.write(LOOP), "simple-queue", "30", "5", "0", steps=20, trace_steps=4)
    profile = profile_of(ended.recording)
    steps = find_steps(profile)
    assert (steps.handed_over, steps.wait_unseen) == (True, True)
    report = diagnose(profile)
    assert report.verdict.bottleneck is Bottleneck.INCONCLUSIVE
    assert "wait-unseen" in {notice.slug for notice in report.notices}
    shares = {row.cause: row.share for row in report.budget}
    # Sleeping and waiting are not told apart, and none of it is called Python or input.
    assert shares[Cause.INPUT_WAIT] == shares[Cause.PYTHON] == 0
    assert shares[Cause.OTHER] > 0.5
    assert "stop-tuning-input" not in {advice.id for advice in report.advice}


@pytest.mark.parametrize("form", ["queue", "simple-queue", "whole"])
def test_they_are_stopped_after_their_steps_and_clean_up(scripts: Scripts, form: str) -> None:
    ended = scripts.hooked(scripts.write(LOOP), form, "1", "1", "0", steps=5)
    assert (ended.status, ended.stderr) == (0, b"")
    assert ended.stdout == b"cleaned up queue\n"
    profile = profile_of(ended.recording)
    assert profile.run.ending.reason is ExitReason.STEPS_REACHED
    assert len(find_steps(profile).measured) >= 3


def test_a_loop_wholly_in_another_thread_is_measured_as_in_the_main_one(scripts: Scripts) -> None:
    ended = scripts.hooked(scripts.write(LOOP), "whole", "20", "5", "0", steps=20, trace_steps=4)
    profile = profile_of(ended.recording)
    steps = find_steps(profile)
    assert not steps.handed_over
    assert (len(steps.measured), len(steps.traced)) == (20, 4)
    parts = partition(profile, steps)
    assert parts is not None
    assert parts.mean.share(Cause.INPUT_WAIT) > 0.5
    assert parts.mean.ns[Cause.DEVICE_COMPUTE] > 0
