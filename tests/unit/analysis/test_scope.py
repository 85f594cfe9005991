from __future__ import annotations

from builders import FIRST_WORKER_PID, MAIN_PID, Span, recorded

from dlprof.analysis.scope import own_spans, process_spans
from dlprof.model.kinds import Kind, Role
from dlprof.model.profile import Iteration, Profile, Track

TRACKS = (
    Track(MAIN_PID, 1, Role.MAIN, 0),
    Track(MAIN_PID, 2, Role.THREAD, 0),
    Track(MAIN_PID, 7, Role.DEVICE_STREAM, 0),
    Track(FIRST_WORKER_PID, 3, Role.WORKER, 0),
    Track(FIRST_WORKER_PID, 4, Role.FEEDER, 0),
    Track(900, 5, Role.MAIN, 1),
    Track(901, 6, Role.WORKER, 1),
)


def run() -> Profile:
    """Two ranks with a worker each; a span on every track whose value is the track's number."""
    iterations = [Iteration(1, MAIN_PID, 1, (FIRST_WORKER_PID,)), Iteration(1, 900, 1, (901,))]
    rows = [Span(Kind.BODY, 0, 9, track, value=track) for track in range(len(TRACKS))]
    return recorded(rows, tracks=TRACKS, iterations=iterations)


def test_the_training_process_and_its_workers_are_its_own():
    assert own_spans(run()).value.tolist() == [0, 1, 2, 3, 4]


def test_the_training_process_alone_is_its_threads():
    assert process_spans(run()).value.tolist() == [0, 1]
    assert process_spans(run(), Role.MAIN).value.tolist() == [0]
