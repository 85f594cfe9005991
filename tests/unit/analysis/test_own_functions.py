"""What the user has named, by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from builders import Span, ms, profile, recorded, spans, step

from dlprof.analysis.components import PARTS, find_fetches
from dlprof.analysis.own_functions import named_parts
from dlprof.analysis.steps import find_steps
from dlprof.model.kinds import Component, Kind
from dlprof.model.profile import Profile, Spans

STEPS = 10


def with_calls(*calls: Span) -> Profile:
    """Ten steps of 100 ms without workers; the calls are in every one, times from the step's request on."""
    found = profile(step(collate=ms(40), python=ms(60)) * STEPS)
    rows = []
    for each in find_steps(found).all:
        at = each.wait_start_ns
        rows += [replace(call, start_ns=call.start_ns + at, end_ns=call.end_ns + at) for call in calls]
    more = spans(*rows)
    names = (*found.spans.names, *more.names[1:])
    shift = len(found.spans.names) - 1
    columns = {n: np.concatenate([getattr(more, n), getattr(found.spans, n)]) for n in Spans.COLUMNS}
    columns["name_id"][: len(more)] += np.where(more.name_id > 0, shift, 0)
    return replace(found, spans=Spans(**columns, names=names))


def named(found: Profile) -> dict[tuple[str, str], tuple[float, float, int]]:
    steps = find_steps(found)
    rows = named_parts(found, steps, find_fetches(found))
    return {(r["name"], r["where"]): (r["ms_per_batch"], r["self_ms_per_batch"], r["calls"]) for r in rows}


def test_nothing_named():
    assert named(profile(step(collate=ms(4)) * STEPS)) == {}
    assert named(recorded([])) == {}


def test_a_function_called_while_batches_are_made():
    found = with_calls(Span(Kind.USER_CALL, ms(5), ms(15), name="train:augment"))
    assert named(found) == {("train:augment", "data"): (10, 10, len(find_steps(found).measured))}


def test_it_leaves_the_parts_of_a_batch_as_they_are():
    found = with_calls(Span(Kind.USER_CALL, ms(5), ms(35), name="train:collate"))
    plain = profile(step(collate=ms(40), python=ms(60)) * STEPS)
    place = PARTS.index(Component.COLLATE_FN)
    assert (find_fetches(found).wall_ns == find_fetches(plain).wall_ns).all()
    assert find_fetches(found).wall_ns[0, place] == ms(40)


def test_a_function_called_by_the_training_loop():
    found = with_calls(Span(Kind.USER_HOST, ms(50), ms(53), name="train:log"))
    assert named(found)["train:log", "host"][:2] == (3, 3)


def test_a_call_within_a_call_counts_once():
    inner = Span(Kind.USER_CALL, ms(5), ms(10), name="f")
    outer = Span(Kind.USER_CALL, ms(5), ms(20), name="f")
    assert named(with_calls(inner, outer))["f", "data"][:2] == (15, 15)


def test_another_named_function_within_is_not_of_it_itself():
    inner = Span(Kind.USER_CALL, ms(6), ms(10), name="g")
    outer = Span(Kind.USER_CALL, ms(5), ms(20), name="f")
    assert named(with_calls(inner, outer)) == {
        ("f", "data"): (15, 11, STEPS),
        ("g", "data"): (4, 4, STEPS),
    }
