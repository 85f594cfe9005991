"""Budgets of traces made from a schedule, and of random ones against a reference that looks at every nanosecond."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from builders import ms, us
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import CAUSE_OF, Mark, Part, budget_ns, step, text, trace

from dlprof.analysis.partition import CAUSES
from dlprof.analysis.trace_budget import Budget, cut
from dlprof.analysis.trace_rank import Rank, analyse
from dlprof.analysis.trace_scope import Scope
from dlprof.analysis.trace_steps import CutBy, LeftOut, TraceStep
from dlprof.formats.torch_trace import read_trace
from dlprof.model.kinds import Cause
from dlprof.model.trace import ON_DEVICE, Activity, Events


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


def ranks_of(folder, document: Any, **options: Any) -> list[Rank]:
    path = folder / "a.pt.trace.json"
    path.write_bytes(text(document))
    return analyse(read_trace(path), **options)


def rank_of(folder, document: Any, **options: Any) -> Rank:
    (rank,) = ranks_of(folder, document, **options)
    return rank


def mean(rank: Rank) -> dict[Cause, float]:
    return dict(zip(CAUSES, rank.table.causes.mean(axis=0).tolist(), strict=True))


# ---- schedules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", CAUSE_OF)
def test_each_part_counts_as_what_it_is(folder, what):
    rank = rank_of(folder, trace(step(compute=us(30), **{} if what == "compute" else {what: us(70)}) * 3))
    expected = dict.fromkeys(Cause, 0.0)
    expected[Cause.DEVICE_COMPUTE] = us(30)
    if what != "compute":
        expected[CAUSE_OF[what]] += us(70)
    assert mean(rank) == expected


@pytest.mark.parametrize(
    ("what", "hidden"),
    [
        ("compute", ("input", "all_reduce", "h2d", "synchronize", "operator", "python")),
        ("h2d", ("input", "all_reduce", "synchronize", "launch")),
        ("input", ("all_reduce", "synchronize", "operator", "python")),
        ("all_reduce", ("synchronize", "launch", "python")),
        ("synchronize", ("launch", "operator", "python")),
    ],
)
def test_the_first_cause_that_holds_takes_it(folder, what, hidden):
    marks = step(hidden={what: hidden}, **{what: us(50)}, python=us(10)) * 3
    assert mean(rank_of(folder, trace(marks))) == budget_ns(marks)


lengths = st.integers(1, 10**7)
parts = st.lists(
    st.builds(Part, st.sampled_from(sorted(CAUSE_OF)), lengths),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.builds(lambda each: Mark(tuple(each)), parts), min_size=1, max_size=6))
def test_the_budget_is_that_of_the_schedule(folder, marks):
    rank = rank_of(folder, trace(marks))
    everything = rank.everything.causes.mean(axis=0).tolist()
    assert dict(zip(CAUSES, everything, strict=True)) == pytest.approx(budget_ns(marks))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.builds(lambda each: Mark(tuple(each)), parts), min_size=1, max_size=4),
    st.integers(-(10**9), 10**9),
    st.randoms(use_true_random=False),
)
def test_order_of_events_and_a_shift_of_all_times_change_nothing(folder, marks, shift_us, shuffled):
    document = trace(marks)
    before = rank_of(folder, document)
    document["traceEvents"] = [each | {"ts": each["ts"] + shift_us} for each in document["traceEvents"]]
    shuffled.shuffle(document["traceEvents"])
    after = rank_of(folder, document)
    assert after.everything.causes.tolist() == pytest.approx(before.everything.causes, abs=2)
    assert [step.left_out for step in after.steps.all] == [step.left_out for step in before.steps.all]


# ---- random events -------------------------------------------------------------------------------------------------

_PRECEDENCE: list[tuple[Cause, tuple[Activity, ...]]] = [
    (Cause.DEVICE_COMPUTE, (Activity.KERNEL, Activity.COPY_OTHER, Activity.FILL)),
    (Cause.H2D_COPY, (Activity.COPY_H2D, Activity.COPY_D2H)),
    (Cause.INPUT_WAIT, (Activity.NEXT,)),
    (Cause.COMMUNICATION, (Activity.COLLECTIVE,)),
    (Cause.SYNCHRONIZATION, (Activity.SYNCHRONIZE,)),
    (Cause.KERNEL_LAUNCH, (Activity.OPERATOR, Activity.LAUNCH, Activity.ALLOCATOR)),
    (Cause.CHECKPOINT, (Activity.CHECKPOINT,)),
]
WINDOW = 120
spans = st.tuples(st.sampled_from(sorted(Activity)), st.integers(0, WINDOW), st.integers(0, 60), st.integers(0, 2))


def as_events(rows) -> Events:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    activity, start, length, lane = (np.array(each, dtype=np.int64) for each in columns)
    nothing = np.full(len(rows), -1)
    return Events(start, start + length, activity.astype(np.int8), np.zeros(len(rows), int), lane, nothing, nothing)


def as_scope(rows) -> Scope:
    on_device = [row for row in rows if row[0] in ON_DEVICE]
    # The reference knows no requests within requests.
    host = [row for row in rows if row[0] not in (*ON_DEVICE, Activity.STEP, Activity.FRAME)]
    return Scope(1, as_events(host), as_events(host), as_events(on_device), ("x",))


def slow_budget(rows, steps) -> list[dict[Cause, int]]:
    device = any(row[0] in ON_DEVICE for row in rows)
    seen = any(row[0] in (Activity.OPERATOR, Activity.LAUNCH) for row in rows)
    found = []
    for each in steps:
        causes = dict.fromkeys(Cause, 0)
        for moment in range(each.start_ns, each.end_ns):
            now = {what for what, start, length, _ in rows if start <= moment < start + length}
            if device:
                first = next((cause for cause, what in _PRECEDENCE if now & set(what)), None)
            elif Activity.NEXT in now:
                first = Cause.INPUT_WAIT
            elif Activity.OPERATOR in now:
                first = Cause.DEVICE_COMPUTE
            else:
                first = Cause.CHECKPOINT if Activity.CHECKPOINT in now else None
            causes[first or (Cause.PYTHON if seen else Cause.OTHER)] += 1
        found.append(causes)
    return found


def cut_at(*borders: int) -> tuple[TraceStep, ...]:
    return tuple(TraceStep(number, *ends) for number, ends in enumerate(pairwise(borders)))


@settings(deadline=None, max_examples=150)
@given(st.lists(spans, max_size=25), st.sets(st.integers(0, WINDOW + 70), min_size=2, max_size=5))
def test_a_random_trace_is_cut_as_by_looking_at_every_nanosecond(rows, borders):
    steps = cut_at(*sorted(borders))
    budget = cut(as_scope(rows), steps)
    assert [dict(zip(CAUSES, row, strict=True)) for row in budget.causes.tolist()] == slow_budget(rows, steps)
    check_measures(budget, rows, steps)


def check_measures(budget: Budget, rows, steps) -> None:
    def measured(at_least_one_of, none_of=()):
        def holds(moment):
            now = {what for what, start, length, _ in rows if start <= moment < start + length}
            return bool(now & set(at_least_one_of)) and not now & set(none_of)

        return [sum(map(holds, range(each.start_ns, each.end_ns))) for each in steps]

    found = budget.measures
    kernel, collective = (Activity.KERNEL,), (Activity.COLLECTIVE,)
    assert found.compute.tolist() == measured(kernel)
    assert found.busy.tolist() == measured(ON_DEVICE)
    assert found.communication_exposed.tolist() == measured(collective, kernel)
    assert found.h2d_exposed.tolist() == measured((Activity.COPY_H2D,), kernel + collective)
    assert found.request_idle.tolist() == measured((Activity.NEXT,), ON_DEVICE)
    idle = np.sum(list(found.idle.values()), axis=0)
    assert idle.tolist() == (found.wall - found.busy).tolist()


# ---- steps ---------------------------------------------------------------------------------------------------------


def without(document, *names):
    kept = [each for each in document["traceEvents"] if not any(name in each["name"] for name in names)]
    return document | {"traceEvents": kept}


@pytest.mark.parametrize(
    ("parts", "missing", "cut_by"),
    [
        ({"input": us(20), "compute": us(80)}, ("ProfilerStep",), CutBy.LOADER),
        ({"compute": us(80), "all_reduce": us(20)}, ("ProfilerStep", "DataLoader"), CutBy.KERNELS),
        ({"python": us(100)}, ("ProfilerStep",), CutBy.NOTHING),
    ],
)
def test_without_marks_something_else_tells_the_steps(folder, parts, missing, cut_by):
    rank = rank_of(folder, without(trace(step(**parts) * 12), *missing))
    assert rank.steps.cut_by is cut_by
    if cut_by is not CutBy.NOTHING:
        assert {each.duration_ns for each in rank.steps.used} == {us(100)}
    assert f"trace-cut-by-{cut_by}" in {notice.slug for notice in rank.notices}


def test_optimizer_steps_tell_the_steps_where_nothing_else_does(folder):
    document = trace(step(compute=us(90), python=us(10)) * 6, marked=False)
    ends = [each["ts"] + each["dur"] for each in document["traceEvents"] if each["cat"] == "python_function"]
    document["traceEvents"] += [
        document["traceEvents"][0]
        | {"name": "Optimizer.step#SGD.step", "cat": "user_annotation", "ts": end - 5, "dur": 5}
        for end in ends
    ]
    rank = rank_of(folder, document)
    assert rank.steps.cut_by is CutBy.OPTIMIZER
    assert [each.duration_ns for each in rank.steps.all] == [us(100)] * 5


def test_marks_on_the_device_and_twice_the_same_mark_count_once(folder):
    document = trace(step(compute=us(100)) * 4)
    marks = [each for each in document["traceEvents"] if "ProfilerStep" in each["name"]]
    document["traceEvents"] += [each | {"cat": "gpu_user_annotation", "pid": 0, "tid": 7} for each in marks] + marks
    assert [each.index for each in rank_of(folder, document).steps.all] == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [0, 5])
def test_a_stub_at_either_end_is_left_out(folder, number):
    marks = step(compute=ms(10)) * 5
    marks.insert(number, *step(python=us(49)))
    rank = rank_of(folder, trace(marks))
    assert [each.index for each in rank.steps.all if each.left_out is LeftOut.STUB] == [number]
    assert {each.duration_ns for each in rank.steps.used} == {ms(10)}


def test_a_long_first_step_is_warm_up_and_a_long_last_one_is_not(folder):
    marks = [*step(compute=ms(90)), *step(compute=ms(10)) * 5, *step(compute=ms(90))]
    rank = rank_of(folder, trace(marks))
    assert [each.left_out for each in rank.steps.all] == [LeftOut.WARM_UP, *[None] * 6]


def test_only_the_steps_that_were_asked_for_count(folder):
    rank = rank_of(folder, trace(step(compute=ms(1)) * 10), only=(3, 5))
    assert [each.index for each in rank.steps.used] == [3, 4]
    assert "trace-only-steps" in {notice.slug for notice in rank.notices}


def test_a_queue_that_drains_is_told_from_one_that_is_always_empty(folder):
    fed, waiting = step(compute=ms(10), input=us(1)), step(compute=ms(10), input=ms(20))
    drained, empty = (rank_of(folder, trace(marks)) for marks in (fed * 4 + waiting * 4, waiting * 8))
    assert "trace-queue-drained" in {notice.slug for notice in drained.notices}
    assert "trace-queue-drained" not in {notice.slug for notice in empty.notices}


# ---- devices and processes -----------------------------------------------------------------------------------------


def test_launches_without_a_record_of_kernels_are_said(folder):
    document = trace(step(launch=us(50), python=us(50)) * 100)
    document["traceEvents"] = [each for each in document["traceEvents"] if each["cat"] != "kernel"]
    assert rank_of(folder, document).unrecorded == "kernels-missing"


@pytest.mark.parametrize(("lost", "unrecorded"), [(20, ""), (3, "kernels-missing"), (1, "kernels-missing")])
def test_kernels_that_are_missing_in_part_leave_the_gaps_unexplained(folder, lost, unrecorded):
    """One of so many is gone, though its launch is there."""
    document = trace(step(compute=us(50), python=us(50)) * 200)
    kernels = [each for each in document["traceEvents"] if each["cat"] == "kernel"]
    gone = {id(each) for each in kernels[::lost]}
    document["traceEvents"] = [each for each in document["traceEvents"] if id(each) not in gone]
    assert rank_of(folder, document).unrecorded == unrecorded


@pytest.mark.parametrize(
    ("top", "unrecorded"),
    [
        ({}, "kernels-cut-off"),
        ({"deviceProperties": [{"name": "A100"}]}, "kernels-cut-off"),
        ({"deviceProperties": []}, ""),
    ],
)
def test_a_trace_that_ends_before_its_first_kernel_is_not_taken_for_one_of_a_cpu(folder, top, unrecorded):
    document = trace(step(operator=us(50), python=us(50)) * 20)
    host = [each for each in document["traceEvents"] if each["cat"] not in ("kernel", "cuda_runtime")]
    whole = text({**top, "traceEvents": host})
    path = folder / "cut.pt.trace.json"
    path.write_bytes(whole[: whole.rindex(b"}", 0, whole.rindex(b"]")) + 1])
    (found,) = analyse(read_trace(path))
    assert "trace-truncated" in {notice.slug for notice in found.notices}
    assert found.unrecorded == unrecorded


@pytest.mark.parametrize(("kept", "used", "unrecorded"), [(12, 10, ""), (1, 3, "kernels-cut-off")])
def test_of_a_trace_that_ends_early_steps_whose_kernels_are_missing_say_nothing_of_gaps(folder, kept, used, unrecorded):
    """Kernels are listed after what the host did. With all steps cut off there are none to prefer."""
    document = trace(step(compute=us(50), python=us(50)) * (20 if kept > 1 else 3))
    host = [each for each in document["traceEvents"] if each["cat"] != "kernel"]
    kernels = [each for each in document["traceEvents"] if each["cat"] == "kernel"]
    document["traceEvents"] = [*host, *kernels[:kept]]
    path = folder / "cut.pt.trace.json"
    whole = text(document)
    path.write_bytes(whole[: whole.rindex(b"}", 0, whole.rindex(b"]")) + 1])
    (found,) = analyse(read_trace(path))
    assert "trace-truncated" in {notice.slug for notice in found.notices}
    assert (len(found.steps.used), found.unrecorded) == (used, unrecorded)


def test_on_a_cpu_operators_outside_the_request_are_compute(folder):
    document = trace(step(input=us(30), operator=us(60), python=us(10)) * 3)
    document["traceEvents"] = [
        each for each in document["traceEvents"] if each["cat"] not in ("kernel", "cuda_runtime")
    ]
    found = mean(rank_of(folder, document))
    assert found[Cause.DEVICE_COMPUTE] == us(60)
    assert found[Cause.INPUT_WAIT] == us(30)
    assert found[Cause.PYTHON] == us(10)


def test_two_processes_of_one_file_are_told_apart_with_their_devices(folder):
    first, second = trace(step(compute=us(60), python=us(40)) * 3), trace(step(compute=us(20), python=us(80)) * 3)
    moved = [
        each | {"pid": 200 if each["pid"] == 100 else 1, "args": each["args"] | {"correlation": number + 10_000}}
        for number, each in enumerate(second["traceEvents"])
    ]
    # Launch and kernel are made one behind the other.
    for before, after in pairwise(moved):
        if after["cat"] == "kernel":
            before["args"] = after["args"]
    ranks = ranks_of(folder, first | {"traceEvents": first["traceEvents"] + moved})
    assert [mean(rank)[Cause.DEVICE_COMPUTE] for rank in ranks] == [us(60), us(20)]


def test_the_line_of_a_call_that_waits_is_named(folder):
    document = trace(step(compute=us(50), synchronize=us(50)) * 3)
    waits = [each for each in document["traceEvents"] if "Synchronize" in each["name"]]
    for wait in waits:
        for name, around in (("train.py(12): main", 3), ("torch/_tensor.py(99): item", 2)):
            frame = wait | {
                "name": name,
                "cat": "python_function",
                "ts": wait["ts"] - around,
                "dur": wait["dur"] + 2 * around,
            }
            document["traceEvents"].append(frame)
    (row,) = rank_of(folder, document).facts["synchronizing_calls"]
    assert row["where"] == "train.py(12): main"
    assert row["ms_per_step"] == pytest.approx(0.05)


def test_operators_are_listed_by_the_time_they_take_themselves(folder):
    document = trace(step(operator=us(100)) * 2)
    outer = [each for each in document["traceEvents"] if each["name"] == "aten::add"]
    document["traceEvents"] += [each | {"name": "aten::mul", "dur": 70} for each in outer]
    random.Random(1).shuffle(document["traceEvents"])
    rows = {row["name"]: row["self_ms_per_step"] for row in rank_of(folder, document).facts["operators"]}
    assert rows["aten::mul"] == pytest.approx(0.07)
    assert rows["aten::add"] == pytest.approx(0.03)
