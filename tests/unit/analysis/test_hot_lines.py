"""Lines of code that the making of batches spends its time on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import Look, Span, frame, looked_at, making, ms, one_step, recorded, steps_of
from hypothesis import given
from hypothesis import strategies as st

from dlprof.analysis import hot_lines
from dlprof.analysis.components import find_fetches
from dlprof.analysis.hot_lines import find_hot_lines
from dlprof.model.kinds import Doing, Kind
from dlprof.model.profile import Profile, Stack
from dlprof.model.report import HotLine


@pytest.fixture(autouse=True)
def _few_looks_do(monkeypatch):
    monkeypatch.setattr(hot_lines, "FEWEST_LOOKS", 1)


PARSE = frame("train.py:7", "Texts.__getitem__", source="return json.loads(self.texts[i])")
READ = frame("train.py:9", "Texts.__getitem__", source="self.file.read(n)")
JSON = frame("/usr/lib/python3.11/json/decoder.py:355", "JSONDecoder.raw_decode", user=False)
TORCH = frame("/site-packages/torch/utils/data/_utils/fetch.py:52", "fetch", user=False)


def fetch(start: int, end: int, batch: int = 0, track: int = 0) -> Span:
    return Span(Kind.FETCH, start, end, batch=batch, iterator=1, on_cpu_ns=0, track=track)


def hot(found: Profile, batches: list[int] | None = None) -> list[HotLine]:
    """Lines of data work, where steps took these batches; their bodies are long after all looks."""
    fetches = find_fetches(found)
    chosen = range(len(fetches.spans)) if batches is None else batches
    steps = steps_of(*(one_step((ms(9000 + n), ms(9000 + n)), (ms(9000 + n), ms(9001 + n)), index=n) for n in chosen))
    return find_hot_lines(found, steps, fetches).data


def shares(lines: list[HotLine]) -> dict[tuple[str, str], float]:
    assert len({(line.where, line.state) for line in lines}) == len(lines)
    return {(line.where, line.state): line.share for line in lines}


def one_batch(*looks: Look, length: int = ms(100)) -> Profile:
    """One batch, and looks of which the first is at its begin."""
    return looked_at(recorded([fetch(0, length)]), Look(0, Doing.RUNNING), *looks)


def test_the_users_innermost_line_stands_for_the_library_that_it_calls():
    stack = making(JSON, PARSE, frame("train.py:40", "main"), TORCH)
    (line,) = hot(one_batch(Look(ms(10), Doing.RUNNING, stack, on_cpu_ns=ms(10))))
    assert (line.where, line.function, line.source) == ("train.py:7", "Texts.__getitem__", PARSE.source)
    assert (line.share, line.state) == (1.0, "cpu")


def test_different_library_lines_under_one_of_the_users_are_one():
    other = replace(JSON, line=337)
    lines = hot(
        one_batch(
            Look(ms(10), Doing.RUNNING, making(JSON, PARSE), on_cpu_ns=ms(10)),
            Look(ms(20), Doing.RUNNING, making(other, JSON, PARSE), on_cpu_ns=ms(10)),
        )
    )
    assert shares(lines) == {("train.py:7", "cpu"): 1.0}


def test_time_that_is_all_a_librarys_has_no_line_and_its_share():
    lines = hot(
        one_batch(
            Look(ms(10), Doing.RUNNING, making(JSON, TORCH), on_cpu_ns=ms(10)),
            Look(ms(20), Doing.RUNNING, making(JSON, PARSE), on_cpu_ns=ms(10)),
        )
    )
    assert shares(lines) == pytest.approx({("train.py:7", "cpu"): 0.5})


@pytest.mark.parametrize(("looks", "named"), [(4, False), (5, True)])
def test_after_a_few_looks_no_line_is_named(looks, named, monkeypatch):
    monkeypatch.undo()
    rows = [Look(ms(10) * n, Doing.RUNNING, making(PARSE), on_cpu_ns=ms(10)) for n in range(1, looks + 1)]
    assert bool(hot(one_batch(*rows))) is named


@pytest.mark.parametrize(
    ("doing", "state"),
    [
        (Doing.DISK, "storage"),
        (Doing.PAGE_FAULT, "storage"),
        (Doing.SOCKET, "network"),
        (Doing.LOCK, "lock"),
        (Doing.SLEEP, "sleep"),
    ],
)
def test_the_state_is_what_the_line_was_blocked_on(doing, state):
    lines = hot(
        one_batch(
            Look(ms(10), doing, making(READ)),
            Look(ms(20), doing, making(READ)),
            Look(ms(30), Doing.RUNNING, making(PARSE), on_cpu_ns=ms(10)),
        )
    )
    assert shares(lines) == pytest.approx({("train.py:9", state): 2 / 3, ("train.py:7", "cpu"): 1 / 3})
    assert [line.state for line in lines] == [state, "cpu"]


def test_one_line_may_have_several_states():
    lines = hot(
        one_batch(
            Look(ms(10), Doing.DISK, making(READ)),
            Look(ms(20), Doing.LOCK, making(READ)),
            Look(ms(50), Doing.RUNNING, making(READ), on_cpu_ns=ms(30)),
        )
    )
    assert shares(lines) == pytest.approx(
        {("train.py:9", "cpu"): 0.6, ("train.py:9", "storage"): 0.2, ("train.py:9", "lock"): 0.2}
    )


def test_a_look_weighs_the_time_since_the_look_before_it():
    lines = hot(
        one_batch(
            Look(ms(10), Doing.DISK, making(READ)),
            Look(ms(20), Doing.DISK, making(READ)),
            Look(ms(80), Doing.RUNNING, making(PARSE), on_cpu_ns=ms(60)),
        )
    )
    assert shares(lines) == pytest.approx({("train.py:7", "cpu"): 0.75, ("train.py:9", "storage"): 0.25})


def test_time_on_a_core_is_that_of_lines_seen_running_and_blocked_time_of_lines_seen_blocked():
    """A look at the end of a read says where the thread was blocked, not where it computed before."""
    lines = hot(
        one_batch(
            Look(ms(10), Doing.DISK, making(READ), on_cpu_ns=ms(6)),
            Look(ms(20), Doing.RUNNING, making(PARSE), on_cpu_ns=ms(4)),
        )
    )
    assert shares(lines) == pytest.approx({("train.py:7", "cpu"): 0.5, ("train.py:9", "storage"): 0.5})


def test_a_wait_for_a_core_is_no_lines():
    lines = hot(
        one_batch(
            Look(ms(10), Doing.RUNNING, making(PARSE), on_cpu_ns=ms(2), no_core_ns=ms(8)),
            Look(ms(12), Doing.DISK, making(READ)),
        )
    )
    assert shares(lines) == pytest.approx({("train.py:7", "cpu"): 0.5, ("train.py:9", "storage"): 0.5})


# ---- whose time ------------------------------------------------------------------------------------------------------


def test_looks_outside_of_the_batches_that_count_are_left_out():
    batches = recorded([fetch(0, ms(10)), fetch(ms(20), ms(30), batch=1), fetch(ms(40), ms(50), batch=2)])
    found = looked_at(
        batches,
        Look(0, Doing.RUNNING),
        Look(ms(5), Doing.DISK, making(READ)),
        Look(ms(15), Doing.DISK, making(frame("train.py:1"))),
        Look(ms(25), Doing.LOCK, making(PARSE)),
        Look(ms(35), Doing.DISK, making(frame("train.py:2"))),
        Look(ms(45), Doing.DISK, making(frame("train.py:3"))),
        Look(ms(55), Doing.DISK, making(frame("train.py:4"))),
    )
    assert shares(hot(found)) == pytest.approx(
        {("train.py:9", "storage"): 0.2, ("train.py:7", "lock"): 0.4, ("train.py:3", "storage"): 0.4}
    )
    assert shares(hot(found, [1])) == {("train.py:7", "lock"): 1.0}
    assert hot(found, []) == []


def test_what_a_batch_begins_with_counts_as_much_as_what_it_ends_with():
    # Looked at less than once a batch: each waits 15 ms for a lock, then 10 ms for a file.
    batches = [fetch(ms(30 * number), ms(30 * number + 25), batch=number) for number in range(60)]
    looks = [Look(ms(number * 49), Doing.PIPE) for number in range(31)]
    for number, look in enumerate(looks):
        into = look.at_ns % ms(30)
        if into < ms(25):
            doing, line = (Doing.LOCK, PARSE) if into < ms(15) else (Doing.DISK, READ)
            looks[number] = replace(look, doing=doing, stack=making(line))
    lines = hot(looked_at(recorded(batches), *looks))
    assert shares(lines) == pytest.approx({("train.py:7", "lock"): 0.6, ("train.py:9", "storage"): 0.4}, abs=0.02)


def test_of_the_time_before_a_batch_nothing_is_charged_to_it():
    found = looked_at(
        replace(recorded([fetch(ms(40), ms(50)), Span(Kind.NEXT, ms(40), ms(50), batch=0, iterator=1)]), device="cuda"),
        Look(0, Doing.PIPE),
        # Forty of these forty-two milliseconds it waited for work.
        Look(ms(42), Doing.DISK, making(READ)),
        Look(ms(50), Doing.PIPE),
        Look(ms(80), Doing.RUNNING, Stack((frame("train.py:50", "main"),), in_fetch=False), on_cpu_ns=ms(30)),
    )
    lines = find_hot_lines(found, steps_of(one_step((ms(40), ms(50)), (ms(50), ms(90)))), find_fetches(found))
    assert shares(lines.all()) == pytest.approx({("train.py:50", "cpu"): 0.75, ("train.py:9", "storage"): 0.25})


def test_a_look_in_a_batch_at_something_else_takes_its_share_and_is_no_line():
    found = one_batch(
        Look(ms(10), Doing.DISK, making(READ)),
        Look(ms(20), Doing.DISK, Stack((frame("train.py:99"),), in_fetch=False)),
        Look(ms(40), Doing.DISK),
    )
    assert shares(hot(found)) == pytest.approx({("train.py:9", "storage"): 0.25})


def test_other_threads_are_not_looked_at():
    found = looked_at(
        recorded([fetch(0, ms(100))]),
        Look(0, Doing.RUNNING, track=1),
        Look(ms(10), Doing.DISK, making(READ), track=1),
    )
    assert hot(found) == []


def test_a_run_without_looks_has_no_hot_lines():
    assert hot(recorded([fetch(0, ms(100))])) == []


# ---- how many --------------------------------------------------------------------------------------------------------


def test_lines_below_one_percent_are_left_out_and_ten_are_shown():
    looks, now = [], 0
    for number in range(1, 16):
        now += ms(1) * number
        looks.append(Look(now, Doing.DISK, making(frame(f"train.py:{number}"))))
    lines = hot(one_batch(*looks, length=now + 1))
    assert [line.where for line in lines] == [f"train.py:{number}" for number in range(15, 5, -1)]
    few = hot(
        one_batch(
            Look(ms(99), Doing.DISK, making(READ)), Look(ms(99) + ms(0.9), Doing.DISK, making(PARSE)), length=ms(200)
        )
    )
    assert [line.where for line in few] == ["train.py:9"]


@given(
    st.lists(
        st.tuples(
            st.integers(1, ms(20)),
            st.sampled_from(list(Doing)),
            st.sampled_from([making(READ), making(JSON, PARSE), making(TORCH), Stack((), False)]),
            st.floats(0, 1),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_shares_are_positive_in_order_and_no_more_than_all(rows):
    now, looks = 0, []
    for gap, doing, stack, busy in rows:
        now += gap
        looks.append(Look(now, doing, stack, on_cpu_ns=int(busy * gap)))
    lines = hot(one_batch(*looks, length=now + 1))
    assert [line.share for line in lines] == sorted((line.share for line in lines), reverse=True)
    assert all(line.share > 0 for line in lines)
    assert sum(line.share for line in lines) <= 1 + 1e-9


# ---- the training loop's own Python ----------------------------------------------------------------------------------


def test_a_line_of_the_loop_is_apart_from_data_work_and_both_share_the_whole():
    loop = Stack((frame("train.py:50", "main"),), in_fetch=False)
    found = looked_at(
        replace(recorded([fetch(0, ms(10)), Span(Kind.NEXT, 0, ms(10), batch=0, iterator=1)]), device="cuda"),
        Look(0, Doing.RUNNING),
        Look(ms(5), Doing.DISK, making(READ)),
        Look(ms(10), Doing.RUNNING, loop),
        Look(ms(25), Doing.RUNNING, loop, on_cpu_ns=ms(15)),
    )
    lines = find_hot_lines(found, steps_of(one_step((0, ms(10)), (ms(10), ms(40)))), find_fetches(found))
    assert shares(lines.data) == pytest.approx({("train.py:9", "storage"): 0.4})
    assert shares(lines.loop) == pytest.approx({("train.py:50", "cpu"): 0.6})
    assert [line.where for line in lines.all()] == ["train.py:50", "train.py:9"]


def test_on_a_cpu_a_line_of_the_loop_counts_for_what_of_it_is_in_no_operator():
    """``model(x)`` computes; ``log(x)`` does not: known from a traced step, counted in the measured one."""
    model, log = (Stack((frame(f"train.py:{line}", "main"),), in_fetch=False) for line in (60, 61))
    spans = [
        Span(Kind.NEXT, 0, ms(10), batch=0, iterator=1),
        Span(Kind.NEXT, ms(100), ms(110), batch=1, iterator=1),
        Span(Kind.OPERATOR, ms(110), ms(130)),
    ]
    found = looked_at(
        recorded(spans),
        Look(0, Doing.RUNNING),
        Look(ms(10), Doing.RUNNING, model, on_cpu_ns=ms(10)),
        Look(ms(30), Doing.RUNNING, model, on_cpu_ns=ms(20)),
        Look(ms(50), Doing.RUNNING, log, on_cpu_ns=ms(20)),
        Look(ms(110), Doing.RUNNING, model, on_cpu_ns=ms(60)),
        Look(ms(120), Doing.RUNNING, model, on_cpu_ns=ms(10)),
        Look(ms(140), Doing.RUNNING, log, on_cpu_ns=ms(20)),
    )
    measured = one_step((0, ms(10)), (ms(10), ms(60)))
    traced = one_step((ms(100), ms(110)), (ms(110), ms(150)), index=1, traced=True)
    steps = steps_of(measured, traced)
    lines = find_hot_lines(found, steps, find_fetches(found))
    assert shares(lines.loop) == pytest.approx({("train.py:61", "cpu"): 1.0})
    assert lines.data == []


def test_on_a_cpu_without_traced_steps_no_line_of_the_loop_is_named():
    loop = Stack((frame("train.py:50", "main"),), in_fetch=False)
    found = looked_at(
        recorded([Span(Kind.NEXT, 0, ms(10), batch=0, iterator=1)]),
        Look(0, Doing.RUNNING),
        Look(ms(25), Doing.RUNNING, loop, on_cpu_ns=ms(25)),
    )
    steps = steps_of(one_step((0, ms(10)), (ms(10), ms(40))))
    assert find_hot_lines(found, steps, find_fetches(found)).loop == []
