"""What making a batch consisted of."""

from __future__ import annotations

import numpy as np
import pytest
from builders import (
    FIRST_WORKER_PID,
    MAIN_PID,
    Look,
    Span,
    frame,
    looked_at,
    making,
    ms,
    profile,
    recorded,
    shifted,
    spans,
    step,
    us,
)
from hypothesis import given
from hypothesis import strategies as st

from dlprof.analysis.components import PARTS, Fetches, find_fetches, self_time
from dlprof.model.kinds import Component, Doing, Kind, Role
from dlprof.model.profile import Stack, Track


def wall_ms(fetches: Fetches, row: int = 0) -> dict[Component, float]:
    return {part: ns / 1e6 for part, ns in zip(PARTS, fetches.wall_ns[row], strict=True) if ns}


def cpu_ms(fetches: Fetches, row: int = 0) -> dict[Component, float]:
    return {part: ns / 1e6 for part, ns in zip(PARTS, fetches.cpu_ns[row], strict=True) if ns}


def calls(fetches: Fetches, row: int = 0) -> dict[Component, float]:
    return {part: count for part, count in zip(PARTS, fetches.calls[row], strict=True) if count}


def one_fetch(length: int, *inner: Span, on_cpu: int | None = None) -> Fetches:
    whole = Span(Kind.FETCH, 0, length, batch=0, iterator=1, on_cpu_ns=length if on_cpu is None else on_cpu)
    return find_fetches(recorded([*inner, whole]))


# ---- one batch -------------------------------------------------------------------------------------------------------


def test_each_part_is_charged_to_its_component_and_the_rest_is_the_datasets_own_code():
    found = find_fetches(
        profile(step(getitem=ms(5), decode=ms(10), transform=ms(3), tokenizer=ms(8), collate=ms(2)) * 2)
    )
    assert len(found.spans) == 2
    assert wall_ms(found) == {
        Component.DATASET_GETITEM: 5,
        Component.DECODE: 10,
        Component.TRANSFORM: 3,
        Component.TOKENIZER: 8,
        Component.COLLATE_FN: 2,
    }


def test_a_tokenizer_called_in_collate_counts_once_as_tokenizer():
    found = find_fetches(profile(step(getitem=ms(5), collate=ms(2), tokenizer_in_collate=ms(8))))
    assert wall_ms(found) == {
        Component.DATASET_GETITEM: 5,
        Component.TOKENIZER: 8,
        Component.COLLATE_FN: 2,
    }


def test_seams_that_call_each_other_count_once():
    found = one_fetch(
        100,
        Span(Kind.TOKENIZER, 10, 60),
        Span(Kind.TOKENIZER, 20, 50),
        Span(Kind.TRANSFORM, 70, 90),
        Span(Kind.DECODE, 71, 80),
    )
    assert {part: ns * 1e6 for part, ns in wall_ms(found).items()} == pytest.approx(
        {
            Component.TOKENIZER: 50,
            Component.DECODE: 9,
            Component.TRANSFORM: 11,
            Component.DATASET_GETITEM: 30,
        }
    )


def test_user_marked_data_work_is_the_datasets():
    assert wall_ms(one_fetch(ms(10), Span(Kind.USER_DATA, 0, ms(4)))) == {Component.DATASET_GETITEM: 10}


def test_what_lies_outside_all_fetches_belongs_to_no_batch():
    found = one_fetch(ms(10), Span(Kind.TOKENIZER, ms(11), ms(12)), Span(Kind.TOKENIZER, ms(9), ms(12)))
    assert wall_ms(found) == {Component.DATASET_GETITEM: 10}


def test_items_are_counted_and_their_time_is_what_the_parts_leave():
    found = find_fetches(profile(step(getitem=ms(8), decode=ms(8), collate=ms(1), items=4)))
    assert calls(found) == {Component.DATASET_GETITEM: 4, Component.DECODE: 4, Component.COLLATE_FN: 1}
    assert wall_ms(found)[Component.DATASET_GETITEM] == 8


# ---- calls of which one in sixteen is timed --------------------------------------------------------------------------


def test_one_timed_call_in_sixteen_stands_for_sixteen():
    found = one_fetch(us(1000), Span(Kind.TOKENIZER, us(100), us(110), on_cpu_ns=us(10), weight=16))
    assert wall_ms(found) == {Component.TOKENIZER: 0.16, Component.DATASET_GETITEM: pytest.approx(0.84)}
    assert calls(found) == {Component.TOKENIZER: 16}


def test_items_that_were_not_timed_are_counted_too():
    found = one_fetch(us(100), Span(Kind.GETITEM, 0, us(5), weight=16))
    assert calls(found) == {Component.DATASET_GETITEM: 16}
    assert wall_ms(found) == {Component.DATASET_GETITEM: 0.1}


def test_the_number_of_items_is_estimated_and_their_time_is_not():
    found = one_fetch(us(100), Span(Kind.GETITEM, 0, us(10), weight=16), Span(Kind.COLLATE, us(60), us(100)))
    assert wall_ms(found) == {
        Component.DATASET_GETITEM: pytest.approx(0.06),
        Component.COLLATE_FN: pytest.approx(0.04),
    }


def test_an_estimate_never_exceeds_the_whole():
    found = one_fetch(us(100), Span(Kind.TOKENIZER, 0, us(10), weight=16), Span(Kind.COLLATE, us(60), us(100)))
    assert wall_ms(found) == {
        Component.TOKENIZER: pytest.approx(0.08),
        Component.COLLATE_FN: pytest.approx(0.02),
    }


def test_a_fast_call_inside_a_fast_call_leaves_the_outer_one_its_own_time():
    outer = Span(Kind.TRANSFORM, us(0), us(10), weight=16)
    inner = Span(Kind.DECODE, us(2), us(6), weight=16)
    assert self_time(spans(outer, inner))[0].tolist() == [16 * us(6), 16 * us(4)]


# ---- self time -------------------------------------------------------------------------------------------------------


def test_self_time_is_what_the_inner_spans_leave():
    wall, cpu = self_time(
        spans(
            Span(Kind.COLLATE, 0, 100, on_cpu_ns=80),
            Span(Kind.TOKENIZER, 10, 40, on_cpu_ns=30),
            Span(Kind.TOKENIZER, 50, 90, on_cpu_ns=10),
            Span(Kind.DECODE, 55, 65, on_cpu_ns=5),
        )
    )
    assert wall.tolist() == [30, 30, 30, 10]
    assert cpu.tolist() == [40, 30, 5, 5]


def test_only_the_direct_parent_loses_what_is_inside():
    wall, _ = self_time(spans(Span(Kind.COLLATE, 0, 100), Span(Kind.TOKENIZER, 0, 90), Span(Kind.DECODE, 0, 80)))
    assert wall.tolist() == [10, 10, 80]


def test_spans_that_follow_each_other_are_not_inside_each_other():
    wall, _ = self_time(spans(Span(Kind.COLLATE, 0, 50), Span(Kind.TOKENIZER, 50, 70), Span(Kind.DECODE, 70, 70)))
    assert wall.tolist() == [50, 20, 0]


def test_of_two_spans_with_the_same_ends_the_one_that_was_written_last_is_outside():
    wall, _ = self_time(spans(Span(Kind.TOKENIZER, 0, 50), Span(Kind.COLLATE, 0, 50)))
    assert wall.tolist() == [50, 0]


@st.composite
def nested(draw, low: int = 0, high: int = 60, depth: int = 3) -> list[Span]:
    cuts = sorted(draw(st.lists(st.integers(low, high), max_size=4).filter(lambda cuts: len(cuts) % 2 == 0)))
    found = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=True):
        kind = draw(st.sampled_from([Kind.COLLATE, Kind.TOKENIZER, Kind.DECODE, Kind.TRANSFORM, Kind.USER_DATA]))
        found.append(Span(kind, start, end, on_cpu_ns=draw(st.integers(0, end - start))))
        if depth:
            found += draw(nested(start, end, depth - 1))
    return found


@given(nested())
def test_self_times_of_nested_spans_sum_to_what_they_cover(rows):
    wall, cpu = self_time(spans(*rows))
    assert wall.sum() == sum(end - start for start, end in spans(*rows).covered().tolist())
    assert (wall >= 0).all()
    assert (cpu >= 0).all()


# ---- CPU, no core, blocked -------------------------------------------------------------------------------------------


def test_what_is_neither_on_a_core_nor_waiting_for_one_is_blocked():
    found = find_fetches(profile(step(getitem=ms(10), blocked=ms(6), no_core=ms(1))))
    assert cpu_ms(found) == {Component.DATASET_GETITEM: 3}
    assert found.no_core_ns.sum() == pytest.approx(ms(1))
    assert found.blocked_ns().sum() == pytest.approx(ms(6))


def test_waiting_for_a_core_is_shared_out_over_what_was_not_on_one():
    busy = Span(Kind.TOKENIZER, 0, 40, on_cpu_ns=40)
    idle = Span(Kind.DECODE, 40, 100, on_cpu_ns=0)
    whole = Span(Kind.FETCH, 0, 100, batch=0, iterator=1, on_cpu_ns=40, runnable_ns=30)
    found = find_fetches(recorded([busy, idle, whole]))
    shares = dict(zip(PARTS, found.no_core_ns[0], strict=True))
    assert (shares[Component.TOKENIZER], shares[Component.DECODE]) == (0, 30)


def test_cpu_time_that_was_not_known_counts_as_none():
    found = find_fetches(recorded([Span(Kind.FETCH, 0, 100, batch=0, iterator=1)]))
    assert (found.cpu_ns.sum(), found.no_core_ns.sum(), found.blocked_ns().sum()) == (0, 0, 100)


# ---- what it was blocked on ------------------------------------------------------------------------------------------


def one_seen(length: int, *inner: Span, looks: list[Look], on_cpu: int = 0, helpers: int = 0) -> Fetches:
    whole = Span(
        Kind.FETCH, 0, length, batch=0, iterator=1, on_cpu_ns=on_cpu, runnable_ns=0, process_cpu_ns=on_cpu + helpers
    )
    return find_fetches(looked_at(recorded([*inner, whole]), *looks))


def seen(*doings: Doing, every: int = ms(10)) -> list[Look]:
    """Looks at equal distances, the first at the begin of the fetch and not counted."""
    return [Look(0, Doing.RUNNING), *(Look((place + 1) * every, doing) for place, doing in enumerate(doings))]


@pytest.mark.parametrize(
    ("doing", "component"),
    [
        (Doing.DISK, Component.STORAGE_IO),
        (Doing.SOCKET, Component.STORAGE_IO),
        (Doing.PAGE_FAULT, Component.STORAGE_IO),
        (Doing.LOCK, Component.LOCK_WAIT),
        (Doing.SLEEP, Component.SLEEP),
        (Doing.PIPE, Component.DATASET_GETITEM),
        (Doing.OTHER, Component.DATASET_GETITEM),
    ],
)
def test_blocked_time_goes_to_what_the_thread_was_seen_blocked_on(doing, component):
    found = one_seen(ms(100), looks=seen(doing, doing, doing), on_cpu=ms(30))
    expected = {Component.DATASET_GETITEM: 30.0, component: 70.0}
    expected = {Component.DATASET_GETITEM: 100.0} if component is Component.DATASET_GETITEM else expected
    assert wall_ms(found) == pytest.approx(expected)
    assert cpu_ms(found) == {Component.DATASET_GETITEM: 30}


def test_blocked_time_is_divided_as_it_was_seen():
    found = one_seen(ms(100), looks=seen(Doing.DISK, Doing.DISK, Doing.LOCK, Doing.SLEEP, Doing.OTHER))
    assert wall_ms(found) == pytest.approx(
        {
            Component.STORAGE_IO: 40,
            Component.LOCK_WAIT: 20,
            Component.SLEEP: 20,
            Component.DATASET_GETITEM: 20,
        }
    )


def test_looks_at_a_running_thread_say_nothing_of_what_it_is_blocked_on():
    looks = seen(Doing.RUNNING, Doing.RUNNING, Doing.DISK, Doing.DISK, Doing.DISK, Doing.RUNNING)
    assert wall_ms(one_seen(ms(100), looks=looks)) == pytest.approx({Component.STORAGE_IO: 100})


def test_few_looks_tell_nothing():
    whole = {Component.DATASET_GETITEM: 100.0}
    assert wall_ms(one_seen(ms(100), looks=seen(Doing.DISK, Doing.DISK))) == pytest.approx(whole)
    assert wall_ms(one_seen(ms(100), looks=[])) == pytest.approx(whole)
    assert wall_ms(one_seen(ms(100), looks=seen(*[Doing.RUNNING] * 9))) == pytest.approx(whole)


def test_looks_outside_of_batches_tell_nothing():
    looks = [Look(ms(100) + place * ms(1), Doing.DISK) for place in range(9)]
    assert wall_ms(one_seen(ms(100), looks=looks)) == pytest.approx({Component.DATASET_GETITEM: 100})


def test_looks_at_another_thread_tell_nothing():
    looks = [Look(place * ms(1), Doing.DISK, track=1) for place in range(9)]
    assert wall_ms(one_seen(ms(100), looks=looks)) == pytest.approx({Component.DATASET_GETITEM: 100})


def test_a_component_is_blocked_on_what_was_seen_within_it():
    found = one_seen(
        ms(120),
        Span(Kind.TOKENIZER, ms(25), ms(65), on_cpu_ns=ms(10)),
        Span(Kind.COLLATE, ms(15), ms(75), on_cpu_ns=ms(10)),
        looks=seen(
            Doing.SLEEP,
            Doing.LOCK,
            *[Doing.DISK] * 4,
            Doing.LOCK,
            *[Doing.SLEEP] * 4,
        ),
        on_cpu=ms(10),
    )
    # Of collate_fn's own twenty milliseconds two looks are not enough to tell.
    assert wall_ms(found) == pytest.approx(
        {
            Component.TOKENIZER: 10,
            Component.STORAGE_IO: 30,
            Component.COLLATE_FN: 20,
            Component.SLEEP: 60,
        }
    )


def test_what_is_inside_has_the_last_word_whatever_the_order():
    outer = Span(Kind.GETITEM, 0, ms(80))
    middle = Span(Kind.TRANSFORM, ms(5), ms(75), on_cpu_ns=0)
    inner = Span(Kind.DECODE, ms(8), ms(42), on_cpu_ns=0)
    found = one_seen(ms(80), inner, middle, outer, looks=seen(*[Doing.DISK] * 4, *[Doing.SLEEP] * 3))
    assert wall_ms(found) == pytest.approx(
        {Component.STORAGE_IO: 34, Component.SLEEP: 36, Component.DATASET_GETITEM: 10}
    )


def test_a_tokenizer_in_collate_that_fills_it_is_what_is_blocked():
    tokenizer, collate = Span(Kind.TOKENIZER, 0, ms(50), on_cpu_ns=0), Span(Kind.COLLATE, 0, ms(50), on_cpu_ns=0)
    found = one_seen(ms(50), tokenizer, collate, looks=seen(*[Doing.DISK] * 4))
    assert wall_ms(found) == pytest.approx({Component.STORAGE_IO: 50})


def test_a_thread_that_waits_for_its_own_helpers_waits_for_no_lock():
    for helpers, lock in ((0, 90), (30, 60), (90, 0), (400, 0)):
        found = one_seen(ms(100), looks=seen(*[Doing.LOCK] * 9), on_cpu=ms(10), helpers=ms(helpers))
        assert wall_ms(found).get(Component.LOCK_WAIT, 0) == pytest.approx(lock)
        assert found.wall_ns.sum() == pytest.approx(ms(100))


def test_helpers_leave_reads_and_sleep_what_they_are():
    found = one_seen(ms(100), looks=seen(*[Doing.DISK] * 4, *[Doing.SLEEP] * 4), helpers=ms(500))
    assert wall_ms(found) == pytest.approx({Component.STORAGE_IO: 50, Component.SLEEP: 50})


def test_of_each_batch_as_much_is_moved_as_it_was_blocked():
    rows = [
        Span(Kind.FETCH, 0, ms(40), batch=0, iterator=1, on_cpu_ns=ms(40)),
        Span(Kind.FETCH, ms(40), ms(80), batch=1, iterator=1, on_cpu_ns=ms(10), runnable_ns=ms(5)),
    ]
    looks = [Look(ms(40), Doing.RUNNING), *(Look(ms(40 + 10 * place), Doing.DISK) for place in (1, 2, 3))]
    found = find_fetches(looked_at(recorded(rows), *looks))
    assert wall_ms(found, 0) == {Component.DATASET_GETITEM: 40}
    assert wall_ms(found, 1) == pytest.approx({Component.DATASET_GETITEM: 15, Component.STORAGE_IO: 25})


def test_blocked_time_is_still_blocked_where_it_has_been_moved_to():
    made = profile(step(getitem=ms(10), tokenizer=ms(10), blocked=ms(8), no_core=ms(2)) * 3)
    start = int(made.spans.of(Kind.FETCH).start_ns[0])
    looks = [Look(start + place * ms(1), Doing.DISK) for place in range(1, 20)]
    before, after = find_fetches(made), find_fetches(looked_at(made, *looks))
    assert after.blocked_ns().sum() == pytest.approx(before.blocked_ns().sum())
    assert (after.cpu_ns == before.cpu_ns).all()
    assert (after.no_core_ns == before.no_core_ns).all()
    assert wall_ms(after)[Component.STORAGE_IO] == pytest.approx(8)


# ---- whose fetches ---------------------------------------------------------------------------------------------------


def test_fetches_in_workers_are_found_by_iteration_and_batch():
    found = find_fetches(profile(step(getitem=ms(4)) * 5, workers=2))
    assert sorted(found.index()) == [(1, batch) for batch in range(5)]
    assert wall_ms(found, found.index()[1, 3]) == {Component.DATASET_GETITEM: 4}


def test_spans_of_one_worker_are_not_charged_to_a_batch_of_another():
    tracks = [Track(MAIN_PID, 1, Role.MAIN, 0)]
    tracks += [Track(FIRST_WORKER_PID + n, n, Role.WORKER, 0) for n in range(2)]
    from dlprof.model.profile import Iteration

    found = find_fetches(
        recorded(
            [
                Span(Kind.FETCH, 0, 100, track=1, batch=0, iterator=1),
                Span(Kind.FETCH, 0, 100, track=2, batch=1, iterator=1),
                Span(Kind.DECODE, 10, 60, track=2),
            ],
            tracks=tracks,
            iterations=[Iteration(1, MAIN_PID, 1, (FIRST_WORKER_PID, FIRST_WORKER_PID + 1))],
        )
    )
    assert Component.DECODE not in wall_ms(found, found.index()[1, 0])
    assert wall_ms(found, found.index()[1, 1])[Component.DECODE] == pytest.approx(50e-6)


def test_other_processes_fetches_are_left_out():
    tracks = [Track(MAIN_PID, 1, Role.MAIN, 0), Track(999, 2, Role.MAIN, 0)]
    found = find_fetches(recorded([Span(Kind.FETCH, 0, 9, track=1, batch=0, iterator=1)], tracks=tracks))
    assert len(found.spans) == 0


def test_a_run_without_batches_has_an_empty_table():
    assert find_fetches(recorded([])).wall_ns.shape == (0, len(PARTS))


def test_a_loader_inside_a_dataset_does_not_take_the_rest_of_the_outer_batch():
    found = find_fetches(
        recorded(
            [
                Span(Kind.FETCH, 0, 100, batch=0, iterator=1),
                Span(Kind.FETCH, 10, 20, batch=0, iterator=2),
                Span(Kind.TOKENIZER, 30, 80),
            ]
        )
    )
    assert wall_ms(found, found.index()[1, 0])[Component.TOKENIZER] == pytest.approx(50e-6)


def test_a_batch_that_took_no_time_is_a_batch():
    found = find_fetches(
        recorded([Span(Kind.FETCH, 0, 100, batch=0, iterator=1), Span(Kind.FETCH, 100, 100, batch=1, iterator=1)])
    )
    assert sorted(found.index()) == [(1, 0), (1, 1)]


# ---- whatever the batch ----------------------------------------------------------------------------------------------

lengths = st.integers(0, ms(30))


@given(
    parts=st.fixed_dictionaries(
        dict.fromkeys(("getitem", "decode", "transform", "tokenizer", "collate", "tokenizer_in_collate"), lengths)
    ),
    idle=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)),
    items=st.integers(1, 5),
    weights=st.lists(st.sampled_from([1, 16]), min_size=40, max_size=40),
    workers=st.integers(0, 2),
    helpers=lengths,
    doings=st.lists(st.sampled_from(Doing), max_size=30),
)
def test_every_row_sums_to_its_fetch_and_nothing_is_negative(parts, idle, items, weights, workers, helpers, doings):
    total = sum(parts.values())
    idle_ns = {"blocked": int(total * idle[0]), "no_core": int(total * idle[1])}
    made = profile(step(**parts, **idle_ns, items=items, helpers=helpers) * 2, workers=workers)
    fetches = made.spans.of(Kind.FETCH)
    looks = [
        Look(int(start) + place * ms(3), doing, track=int(track), on_cpu_ns=ms(1))
        for start, track in zip(fetches.start_ns[:1], fetches.track[:1], strict=True)
        for place, doing in enumerate(doings)
    ]
    made = looked_at(made, *looks)
    inside = np.flatnonzero(np.isin(made.spans.kind, [Kind.TOKENIZER, Kind.DECODE, Kind.TRANSFORM]))
    made.spans.weight[inside] = np.resize(weights, len(inside))
    found = find_fetches(made)
    duration = found.spans.duration_ns()
    assert found.wall_ns.sum(axis=1) == pytest.approx(duration)
    for table in (found.wall_ns, found.cpu_ns, found.no_core_ns, found.blocked_ns()):
        assert (table >= 0).all()
    assert (found.cpu_ns <= found.wall_ns * (1 + 1e-9) + 1e-6).all()
    assert (found.cpu_ns + found.no_core_ns <= found.wall_ns * (1 + 1e-9) + 1e-6).all()
    assert (found.cpu_ns.sum(axis=1) <= np.maximum(found.spans.on_cpu_ns, 0) + 1e-3).all()


@given(st.integers(-(1 << 39), 1 << 50))
def test_the_clock_does_not_matter(by_ns):
    made = profile(step(getitem=ms(3), tokenizer=ms(5), collate=ms(2), blocked=ms(4)) * 3)
    start = int(made.spans.of(Kind.FETCH).start_ns[0])
    made = looked_at(made, *(Look(start + place * us(700), Doing.LOCK, on_cpu_ns=us(20)) for place in range(1, 40)))
    assert (find_fetches(shifted(made, by_ns)).wall_ns == find_fetches(made).wall_ns).all()


# ---- the kernel's part of reading ------------------------------------------------------------------------------------


def test_time_in_the_kernel_at_a_line_that_waits_for_storage_is_reading():
    """Half of the time at ``read`` it is blocked, half of it the kernel works for it; ``parse`` is the user's own."""
    read, parse = making(frame("train.py:7")), making(frame("train.py:8"))
    looks = [Look(0, Doing.RUNNING)]
    for number in range(4):
        start = number * ms(20)
        looks.append(Look(start + ms(5), Doing.DISK, read))
        looks.append(Look(start + ms(10), Doing.RUNNING, read, on_cpu_ns=ms(5), kernel_ns=ms(5)))
        looks.append(Look(start + ms(19), Doing.RUNNING, parse, on_cpu_ns=ms(9), kernel_ns=ms(1)))
    found = find_fetches(
        looked_at(recorded([Span(Kind.FETCH, 0, ms(80), batch=0, iterator=1, on_cpu_ns=ms(56))]), *looks)
    )
    wall, cpu = wall_ms(found), cpu_ms(found)
    assert wall[Component.STORAGE_IO] == pytest.approx(24 + 56 * 5 / 14)
    assert cpu[Component.STORAGE_IO] == pytest.approx(56 * 5 / 14)
    assert wall[Component.DATASET_GETITEM] == pytest.approx(56 * 9 / 14)


def test_time_in_the_kernel_where_nothing_was_waited_for_is_the_datasets_own():
    """As with a file that is in the page cache."""
    read = making(frame("train.py:7"))
    looks = [Look(n * ms(5), Doing.RUNNING, read, on_cpu_ns=ms(5), kernel_ns=ms(5)) for n in range(15)]
    found = find_fetches(
        looked_at(recorded([Span(Kind.FETCH, 0, ms(80), batch=0, iterator=1, on_cpu_ns=ms(80))]), *looks)
    )
    assert wall_ms(found) == {Component.DATASET_GETITEM: 80}


# ---- tokenizers without a span ---------------------------------------------------------------------------------------

ENCODE = (frame("tok.py:5", "Tokenizer.encode"), frame("tok.py:6", "Tokenizer.encode"))
PAD = frame("train.py:9", "collate")


def tokenizing(
    *, looks: int, others: int, without_line: int = 0, inner: Kind = Kind.COLLATE, no_core: int = 0
) -> Fetches:
    """A batch of 100 ms within ``inner``, at which a thread was seen in a tokenizer in Python, or not."""
    seen = [making(ENCODE[n % 2], PAD) for n in range(looks)] + [making(PAD)] * others
    seen += [Stack((), in_fetch=False)] * without_line
    rows = [Look(ms(10 * (n + 1)), Doing.RUNNING, stack, on_cpu_ns=ms(10)) for n, stack in enumerate(seen)]
    counted = {"on_cpu_ns": ms(100 - no_core), "runnable_ns": ms(no_core)}
    whole = Span(Kind.FETCH, 0, ms(100), batch=0, iterator=1, **counted)
    within = Span(inner, 0, ms(100), on_cpu_ns=ms(100 - no_core), name="a")
    return find_fetches(looked_at(recorded([within, whole]), Look(0, Doing.RUNNING), *rows))


def test_a_tokenizer_of_the_users_own_in_collate_is_the_tokenizer():
    found = tokenizing(looks=6, others=2)
    assert wall_ms(found) == pytest.approx({Component.TOKENIZER: 75, Component.COLLATE_FN: 25})
    assert cpu_ms(found) == pytest.approx({Component.TOKENIZER: 75, Component.COLLATE_FN: 25})
    # How often it was called nobody has counted.
    assert Component.TOKENIZER not in calls(found)


def test_looks_that_found_no_line_are_shared_out_as_the_others():
    found = tokenizing(looks=6, others=2, without_line=2)
    assert wall_ms(found) == pytest.approx({Component.TOKENIZER: 75, Component.COLLATE_FN: 25})


def test_its_wait_for_a_core_goes_with_it():
    found = tokenizing(looks=6, others=2, no_core=20)
    assert found.no_core_ns[0, PARTS.index(Component.TOKENIZER)] == pytest.approx(ms(15))
    assert wall_ms(found) == pytest.approx({Component.TOKENIZER: 75, Component.COLLATE_FN: 25})


def test_a_tokenizer_that_was_seen_seldom_stays_where_it_was_called():
    assert wall_ms(tokenizing(looks=4, others=4)) == {Component.COLLATE_FN: 100}
    assert wall_ms(tokenizing(looks=5, others=3))[Component.TOKENIZER] == pytest.approx(62.5)


def test_a_tokenizer_with_a_span_is_not_counted_again():
    assert wall_ms(tokenizing(looks=6, others=2, inner=Kind.TOKENIZER)) == {Component.TOKENIZER: 100}
