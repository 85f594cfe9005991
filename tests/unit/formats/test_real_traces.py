"""What the table of event names makes of traces that real training runs left, against labels made independently.

The traces are not part of this repository: they are looked for beside it, or where DLPROF_TRACES says.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import Span, one_step, recorded, steps_of

from dlprof.analysis import sections
from dlprof.formats.torch_events import RUNTIME_CATEGORIES, kind_of
from dlprof.model.intervals import Intervals, clip, length, subtract, union
from dlprof.model.kinds import Kind

_GIVEN = os.environ.get("DLPROF_TRACES")
PLACES = [Path(_GIVEN)] if _GIVEN else [parent / "shared" / "traces" for parent in Path(__file__).parents]
TRACES = next((place for place in PLACES if (place / "labels.json").exists()), None)
LABELS: dict[str, Any] = json.loads((TRACES / "labels.json").read_text()) if TRACES else {}

pytestmark = pytest.mark.skipif(TRACES is None, reason="no real traces beside the repository, nor in DLPROF_TRACES")

SAYS_NOTHING = re.compile(
    r"Get|IsCapturing|Attribute|Occupancy|PeekAt|Create|Destroy|ElapsedTime|INVALID|SetDevice|Config"
)
"""Calls of the runtime that ask or set something and do no work."""


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0
    dur: float = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def kind(self) -> Kind | None:
        return kind_of(self.cat, self.name)

    @property
    def start_ns(self) -> int:
        return round(self.ts * 1000)

    @property
    def end_ns(self) -> int:
        return self.start_ns + round(self.dur * 1000)


class Document(msgspec.Struct):
    traceEvents: list[Event]  # noqa: N815 - the format's own name


@cache
def complete_events(name: str) -> list[Event]:
    assert TRACES is not None
    path = TRACES / name
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = msgspec.json.decode(data, type=Document | list[Event], strict=False)
    events = document if isinstance(document, list) else document.traceEvents
    # Python frames are most of some traces and of no kind.
    return [event for event in events if event.ph == "X" and event.cat != "python_function"]


def covered(events: list[Event]) -> Intervals:
    return union([event.start_ns for event in events], [event.end_ns for event in events])


@pytest.mark.parametrize("name", LABELS or ["none"])
def test_every_call_of_the_runtime_is_known_or_says_nothing(name):
    calls = {event.name for event in complete_events(name) if event.cat in RUNTIME_CATEGORIES}
    left = {call for call in calls if kind_of("cuda_runtime", call) is None}
    assert {call for call in left if not SAYS_NOTHING.search(call)} == set()


@pytest.mark.parametrize("name", LABELS or ["none"])
def test_copies_are_told_apart_as_the_labels_do(name):
    expected = Counter({kind: n for kind, n in (LABELS[name]["h2d_kinds"] or {}).items() if "HtoD" in kind})
    assert Counter(each.name for each in complete_events(name) if each.kind is Kind.COPY_H2D) == expected


@pytest.mark.parametrize("name", LABELS or ["none"])
def test_compute_and_exposed_copies_of_each_step_are_those_of_the_labels(name):
    events = complete_events(name)
    # The labels count no fill as compute; to us the device is busy with it, which is little.
    compute = covered([each for each in events if each.kind is Kind.KERNEL and "Memset" not in each.name])
    collectives = covered([each for each in events if each.kind is Kind.COLLECTIVE])
    copies = [covered([each for each in events if each.kind is kind]) for kind in (Kind.COPY_H2D, Kind.COPY_D2H)]
    compared = 0
    for label in LABELS[name].get("steps_us") or []:
        found = [each for each in events if each.name == label["name"] and each.cat == "user_annotation"]
        if len(found) != 1 or found[0].dur != pytest.approx(label["wall"], rel=0.01):
            continue
        begin, end = found[0].start_ns, found[0].end_ns
        computing = clip(compute, begin, end)
        # What the labels call exposed lies outside collectives too.
        exposed = [subtract(subtract(clip(each, begin, end), computing), collectives) for each in copies]
        measured = [length(computing), *map(length, exposed)]
        expected = [label[key] for key in ("compute", "h2d_exposed", "d2h_exposed")]
        assert [value / 1000 for value in measured] == pytest.approx(expected, rel=0.01, abs=2)
        compared += 1
    if not compared:
        pytest.skip("no step of this trace is found by its name")


class Copied(msgspec.Struct):
    bytes: int
    gb_per_s: float = msgspec.field(name="memory bandwidth (GB/s)")


@pytest.mark.parametrize(
    ("name", "gb_per_s", "pageable"),
    [
        ("copies-pinned.pt.trace.json", (4.9, 5.2), 0.0),
        ("resnet50-workers0.pt.trace.json.gz", (9, 11), 1.0),
        ("owlv2-inference-h100.pt.trace.json.gz", (1, 30), 1.0),
        ("diff-control.pt.trace.json.gz", (1, 30), 0.0),
    ],
)
def test_speed_and_memory_of_copies_to_the_device(name, gb_per_s, pageable):
    events = [each for each in complete_events(name) if each.kind is Kind.COPY_H2D]
    copied = [msgspec.json.decode(each.args, type=Copied) for each in events]
    rows = [
        Span(Kind.COPY_H2D, event.start_ns, event.end_ns, value=each.bytes, name=event.name)
        for event, each in zip(events, copied, strict=True)
    ]
    begin, end = min(row.start_ns for row in rows), max(row.end_ns for row in rows)
    step = one_step((begin - 1, begin - 1), (begin - 1, end + 1), traced=True)
    found = sections.device(recorded(rows, device="cuda:0"), steps_of(step))
    assert found is not None
    assert gb_per_s[0] < found.h2d_gb_per_s < gb_per_s[1]
    assert found.h2d_pageable_ratio == pytest.approx(pageable, abs=1e-3)
    # Kineto's own figure for each copy, weighted as ours is.
    theirs = sum(each.bytes for each in copied) / sum(each.bytes / each.gb_per_s for each in copied)
    assert found.h2d_gb_per_s == pytest.approx(theirs, rel=0.02)
