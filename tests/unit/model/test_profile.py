from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import Span, spans

from dlprof.model.kinds import Cause, Kind
from dlprof.model.profile import Spans


def test_columns_of_different_lengths_are_refused():
    good = spans(Span(Kind.NEXT, 0, 1), Span(Kind.NEXT, 1, 2))
    with pytest.raises(ValueError, match="different lengths"):
        replace(good, kind=good.kind[:1])


def test_spans_of_some_kinds_come_in_the_order_of_their_start():
    found = spans(Span(Kind.NEXT, 30, 31), Span(Kind.BODY, 5, 9), Span(Kind.FETCH, 20, 21), Span(Kind.NEXT, 10, 11)).of(
        Kind.NEXT, Kind.FETCH
    )
    assert found.start_ns.tolist() == [10, 20, 30]
    assert found.kind.tolist() == [Kind.NEXT, Kind.FETCH, Kind.NEXT]


def test_spans_that_start_together_keep_the_order_in_which_they_were_recorded():
    found = spans(Span(Kind.NEXT, 5, 6, value=1), Span(Kind.NEXT, 5, 9, value=2), Span(Kind.NEXT, 5, 7, value=3))
    assert found.of(Kind.NEXT).value.tolist() == [1, 2, 3]


def test_a_selection_keeps_all_columns_together_with_their_names():
    found = spans(Span(Kind.NEXT, 1, 2, name="a", batch=7), Span(Kind.NEXT, 3, 9, name="b", batch=8, flags=2))
    chosen = found.where(found.start_ns > 2)
    assert {name: getattr(chosen, name).tolist() for name in Spans.COLUMNS} == {
        "start_ns": [3],
        "end_ns": [9],
        "kind": [Kind.NEXT],
        "track": [0],
        "name_id": [2],
        "batch": [8],
        "iterator": [-1],
        "on_cpu_ns": [-1],
        "runnable_ns": [-1],
        "process_cpu_ns": [-1],
        "value": [-1],
        "weight": [1],
        "flags": [2],
    }
    assert chosen.names[chosen.name_id[0]] == "b"


def test_covered_counts_overlapping_spans_once():
    assert spans(Span(Kind.NEXT, 0, 10), Span(Kind.NEXT, 5, 12)).covered().tolist() == [[0, 12]]
    assert spans().covered().shape == (0, 2)


def test_no_two_kinds_share_a_number_and_all_fit_one_byte():
    assert len({int(kind) for kind in Kind}) == len(Kind.__members__)
    assert all(0 < kind < 256 for kind in Kind)


def test_causes_stand_in_the_order_of_precedence():
    assert [str(cause) for cause in Cause] == [
        "device_compute",
        "h2d_copy",
        "input_wait",
        "communication",
        "synchronization",
        "kernel_launch",
        "checkpoint",
        "python",
        "other",
    ]


def test_durations_are_end_minus_start():
    found = spans(Span(Kind.NEXT, 3, 10), Span(Kind.NEXT, 4, 4))
    assert np.array_equal(found.duration_ns(), [7, 0])
