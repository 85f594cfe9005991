"""The events of our own in a Chrome trace: names, slices, steps, counters, and the arrows of the batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from dlprof.model.kinds import Flag, Kind, Role
from dlprof.model.profile import Process, Profile, Spans, Track
from dlprof.model.steps import Steps

Event = dict[str, Any]

STEPS_THREAD = 2_000_000_001
"""Number of the track of the steps: above every thread id of Linux, and 32 bits."""
STARVED_THREAD = STEPS_THREAD + 1
"""Number of the track that says when the device had nothing to do while a batch was waited for."""

INNER = (Kind.GETITEM, Kind.TOKENIZER, Kind.DECODE, Kind.TRANSFORM, Kind.SAMPLER, Kind.USER_CALL)
"""Parts of a batch, of which there may be thousands in each."""

_LOOP, _DATA, _TRANSPORT, _WAIT, _USER, _OWN = (
    f"dlprof.{name}" for name in ("loop", "data", "transport", "wait", "user", "own")
)
_STEP = "dlprof.step"
SHOWN = {
    Kind.NEXT: ("next(loader)", _LOOP),
    Kind.ITER: ("iter(loader)", _LOOP),
    Kind.WORKERS_ENDED: ("end workers", _WAIT),
    Kind.OPTIMIZER: ("optimizer.step", _LOOP),
    Kind.CHECKPOINT: ("torch.save", _LOOP),
    Kind.FETCH: ("make a batch", _DATA),
    Kind.GETITEM: ("dataset[...]", _DATA),
    Kind.COLLATE: ("collate_fn", _DATA),
    Kind.TOKENIZER: ("tokenizer", _DATA),
    Kind.DECODE: ("decode", _DATA),
    Kind.TRANSFORM: ("transform", _DATA),
    Kind.SAMPLER: ("sampler", _DATA),
    Kind.PIN_MEMORY: ("pin memory", _TRANSPORT),
    Kind.PROBE_PICKLE: ("dlprof: pickle a copy", _OWN),
    Kind.PROBE_UNPICKLE: ("dlprof: unpickle a copy", _OWN),
    Kind.WAIT_INDEX: ("wait for an index", _WAIT),
    Kind.PUT: ("hand to feeder", _TRANSPORT),
    Kind.PICKLE: ("pickle", _TRANSPORT),
    Kind.SEND: ("write to pipe", _TRANSPORT),
    Kind.RECEIVE: ("read from pipe", _TRANSPORT),
    Kind.UNPICKLE: ("unpickle", _TRANSPORT),
    Kind.WORKER_START: ("worker start", _WAIT),
    Kind.USER_DATA: ("span", _USER),
    Kind.USER_HOST: ("span", _USER),
    Kind.USER_DEVICE: ("span", _USER),
    Kind.USER_CALL: ("span", _USER),
    Kind.QUEUE_GET: ("take from a queue", _WAIT),
    Kind.OWN: ("dlprof", _OWN),
}
"""What is drawn as a slice on the thread that did it, where it has no name of its own: name and category."""

ELSEWHERE = {
    Kind.BODY: "all of it is in the step",
    Kind.STARVED: "is the device's and crosses what the thread does meanwhile: on a track of its own",
    Kind.DEVICE_STEP: "has a length by the device's clock and no place on ours",
    Kind.TASK_SENT: "has no length",
    Kind.TRACED: "is on the track of the steps",
}
"""What is not drawn on a thread, and why. What torch.profiler saw is in its own events."""

_ROLE_NAMES = {
    Role.MAIN: "main",
    Role.WORKER: "DataLoader worker",
    Role.FEEDER: "feeder thread",
    Role.PIN_MEMORY: "pin_memory thread",
    Role.THREAD: "thread",
    Role.DEVICE_STREAM: "stream",
}
_ROLE_ORDER = {role: place for place, role in enumerate(_ROLE_NAMES)}
_VALUE_NAMES = {
    Kind.NEXT: "queue_depth",
    Kind.GETITEM: "sample",
    Kind.FETCH: "samples",
    Kind.SEND: "bytes",
    Kind.RECEIVE: "bytes",
    Kind.PIN_MEMORY: "bytes",
}
_RANKS_APART = 10_000
# The CPU time of threads that are running is brought up to date at the scheduler's ticks: over less time than one it
# may seem to be that of many cores.
_LEAST_NS = 4_000_000
# An arrow has a number for a name: Perfetto takes no text, and JavaScript 53 bits.
_BATCHES_APART = 2**32


def microseconds(time_ns: int) -> msgspec.Raw:
    """A time as the format has it, without the loss of a floating-point number."""
    sign = "-" if time_ns < 0 else ""
    return msgspec.Raw(f"{sign}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03d}")


# ---- names ---------------------------------------------------------------------------------------------------------


def metadata(profile: Profile, with_steps: bool) -> Iterator[Event]:
    """Names and order of processes and threads: training process first, then the workers by their numbers."""
    numbers = _worker_numbers(profile)
    seen = {track.pid for track in profile.tracks} | {profile.main_pid}
    for place, process in enumerate(each for each in profile.processes if each.pid in seen):
        main = process.pid == profile.main_pid
        name = _process_name(process, main, numbers)
        yield _meta(process.pid, 0, "process_name", name=f"{name} (rank {process.rank})")
        order = 0 if main else 1 + numbers[process.pid][1] if process.pid in numbers else 5000 + place
        yield _meta(process.pid, 0, "process_sort_index", sort_index=process.rank * _RANKS_APART + order)
        if process.pid in numbers:
            yield _meta(process.pid, 0, "process_labels", labels=f"iteration {numbers[process.pid][2]}")
        if main and with_steps:
            yield from thread_names(Track(process.pid, STEPS_THREAD, Role.MAIN, process.rank), "steps", -1)
        if main and np.any(profile.spans.kind == int(Kind.STARVED)):
            yield from thread_names(Track(process.pid, STARVED_THREAD, Role.MAIN, process.rank), "device starved", -1)
    for track in profile.tracks:
        if track.role is not Role.DEVICE_STREAM:
            yield from thread_names(track, _ROLE_NAMES[track.role], _ROLE_ORDER[track.role])


def _worker_numbers(profile: Profile) -> dict[int, tuple[int, int, int]]:
    """Of each worker its number among those of its iteration, its place among all, and its first iteration."""
    numbers: dict[int, tuple[int, int, int]] = {}
    for iteration in sorted(profile.iterations, key=lambda each: each.number):
        for number, pid in enumerate(iteration.workers):
            numbers.setdefault(pid, (number, len(numbers), iteration.number))
    return numbers


def _process_name(process: Process, main: bool, numbers: dict[int, tuple[int, int, int]]) -> str:
    if main:
        return "training process"
    if process.pid in numbers:
        return f"{_ROLE_NAMES[Role.WORKER]} {numbers[process.pid][0]}"
    return _ROLE_NAMES[Role.WORKER] if process.role is Role.WORKER else "process"


def thread_names(track: Track, name: str, order: int) -> Iterator[Event]:
    """A thread's name and its place among those of its process."""
    yield _meta(track.pid, track.thread, "thread_name", name=name)
    yield _meta(track.pid, track.thread, "thread_sort_index", sort_index=order)


def _meta(pid: int, thread: int, kind: str, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": thread, "ts": 0, "args": args}


# ---- slices --------------------------------------------------------------------------------------------------------


def slice_of(profile: Profile, spans: Spans, row: int, start_ns: int, end_ns: int) -> Event:
    """A span's slice.

    Args:
        profile: The run.
        spans: Some of its spans.
        row: Which of them.
        start_ns: Where the slice begins on the trace's clock,
        end_ns: and ends.
    """
    kind = Kind(int(spans.kind[row]))
    label, category = SHOWN[kind]
    name = spans.names[int(spans.name_id[row])]
    track = profile.tracks[int(spans.track[row])]
    return {
        "ph": "X",
        "cat": category,
        "name": name.encode(errors="replace").decode() if name else label,
        "pid": track.pid,
        "tid": track.thread,
        "ts": microseconds(start_ns),
        "dur": microseconds(end_ns - start_ns),
        "args": _args(kind, spans, row),
    }


def _args(kind: Kind, spans: Spans, row: int) -> dict[str, Any]:
    args: dict[str, Any] = {}
    batch = int(spans.batch[row])
    if batch >= 0:
        args = {"iteration": int(spans.iterator[row]), "batch": batch}
    value = int(spans.value[row])
    if value >= 0 and kind in _VALUE_NAMES:
        args[_VALUE_NAMES[kind]] = value
    if (weight := int(spans.weight[row])) > 1:
        args["stands_for"] = weight
    for column, name in (("on_cpu_ns", "on_cpu_ms"), ("runnable_ns", "no_core_ms")):
        time_ns = int(getattr(spans, column)[row])
        if time_ns >= 0:
            args[name] = round(time_ns / 1e6, 3)
    return args


def step_slices(profile: Profile, steps: Steps | None, since_ns: int, offset_ns: int) -> Iterator[Event]:
    """One slice a step, on a track of its own.

    Args:
        profile: The run.
        steps: Its steps, None for no slices.
        since_ns: Steps that began before this, on the trace's clock, are left out.
        offset_ns: What to add to get the trace's clock.
    """
    traced = profile.spans.of(Kind.TRACED)
    for start, end in zip(traced.start_ns.tolist(), traced.end_ns.tolist(), strict=True):
        if steps is not None and end + offset_ns >= since_ns:
            yield _on_steps(profile, "torch.profiler is on", start + offset_ns, end + offset_ns, {})
    for step in steps.all if steps is not None else ():
        start, end = step.wait_start_ns + offset_ns, step.body_end_ns + offset_ns
        if start < since_ns:
            continue
        warm_up = step.index < profile.run.warmup
        kind = "traced step" if step.traced else "warm-up step" if warm_up else "step"
        args = {
            "iteration": step.iterator,
            "batch": step.batch,
            "input_wait_ms": round(step.wait_ns / 1e6, 3),
            "measured": step.measured,
        }
        yield _on_steps(profile, f"{kind} {step.index}", start, end, args)


def _on_steps(profile: Profile, name: str, start_ns: int, end_ns: int, args: dict[str, Any]) -> Event:
    times = {"ts": microseconds(start_ns), "dur": microseconds(end_ns - start_ns)}
    return {"ph": "X", "cat": _STEP, "name": name, "pid": profile.main_pid, "tid": STEPS_THREAD, **times, "args": args}


def starved_slices(profile: Profile, since_ns: int, offset_ns: int) -> Iterator[Event]:
    """When the device of the training process had nothing to do while a batch was waited for.

    Args:
        profile: The run.
        since_ns: What began before this, on the trace's clock, is left out.
        offset_ns: What to add to get the trace's clock.
    """
    own = [number for number, track in enumerate(profile.tracks) if track.pid == profile.main_pid]
    spans = profile.spans.of(Kind.STARVED)
    reach = since_ns
    rows = zip(spans.track.tolist(), spans.start_ns.tolist(), spans.end_ns.tolist(), spans.value.tolist(), strict=True)
    for track, start, end, by_device in rows:
        begin, until = start + offset_ns, end + offset_ns
        # A request inside a request is the same time again.
        if track in own and reach <= begin < until:
            reach = until
            yield {
                "ph": "X",
                "cat": _WAIT,
                "name": "nothing to do: waiting for a batch",
                "pid": profile.main_pid,
                "tid": STARVED_THREAD,
                "ts": microseconds(begin),
                "dur": microseconds(until - begin),
                "args": {"by_its_own_clock_ms": round(by_device / 1e6, 3)},
            }


# ---- counters ------------------------------------------------------------------------------------------------------


def counters(profile: Profile, since_ns: int, offset_ns: int) -> Iterator[Event]:
    """Batches that lay ready at each request, and the cores that each process used.

    Of a worker only the making of batches is known: in between it counts as 0.

    Args:
        profile: The run.
        since_ns: What was before this, on the trace's clock, is left out.
        offset_ns: What to add to get the trace's clock.
    """
    spans = profile.spans
    spans = spans.where(spans.start_ns + offset_ns >= since_ns)
    loader_of = {(each.pid, each.number): each.loader for each in profile.iterations}
    requests = spans.of(Kind.NEXT)
    for track, iterator, start, ready in zip(
        requests.track.tolist(),
        requests.iterator.tolist(),
        requests.start_ns.tolist(),
        requests.value.tolist(),
        strict=True,
    ):
        if ready >= 0:
            pid = profile.tracks[track].pid
            name = f"batches ready (loader {loader_of.get((pid, iterator), '?')})"
            yield _counter(pid, name, start + offset_ns, "batches", ready)
    main = spans.where(np.isin(spans.kind, [Kind.NEXT, Kind.BODY]) & ((spans.flags & int(Flag.NESTED)) == 0))
    # Where another thread hands the batches over, nothing says what the process used between its requests.
    if len(main.of(Kind.BODY)) * 4 >= len(main.of(Kind.NEXT)):
        yield from _cores(profile, main, "cores used", offset_ns, _LEAST_NS)
    workers = [number for number, track in enumerate(profile.tracks) if track.role is Role.WORKER]
    made = spans.where((spans.kind == int(Kind.FETCH)) & np.isin(spans.track, workers))
    yield from _cores(profile, made, "cores used (making batches)", offset_ns, 0)


def _cores(profile: Profile, spans: Spans, name: str, offset_ns: int, least_ns: int) -> Iterator[Event]:
    known = spans.where((spans.process_cpu_ns >= 0) & (spans.end_ns > spans.start_ns))
    pids = np.array([track.pid for track in profile.tracks], dtype=np.int64)[known.track]
    for pid in np.unique(pids).tolist():
        own = known.where(pids == pid)
        own = own.where(np.argsort(own.start_ns, kind="stable"))
        end = -1
        for begin, until, cpu in _windows(own, least_ns):
            if 0 <= end < begin:
                yield _counter(pid, name, end + offset_ns, "cores", 0)
            yield _counter(pid, name, begin + offset_ns, "cores", round(cpu / (until - begin), 3))
            end = until
        if end >= 0:
            yield _counter(pid, name, end + offset_ns, "cores", 0)


def _windows(spans: Spans, least_ns: int) -> Iterator[tuple[int, int, int]]:
    """Start, end and CPU time of one span after the other, those shorter than ``least_ns`` with those that follow."""
    began, ended, used = -1, -1, 0
    for start, end, cpu in zip(
        spans.start_ns.tolist(), spans.end_ns.tolist(), spans.process_cpu_ns.tolist(), strict=True
    ):
        if start < ended:
            continue
        if ended - began >= least_ns and began >= 0:
            yield began, ended, used
            began, used = -1, 0
        began = start if began < 0 else began
        ended, used = end, used + cpu
    if began >= 0:
        yield began, ended, used


def _counter(pid: int, name: str, time_ns: int, unit: str, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": microseconds(time_ns), "args": {unit: value}}


# ---- arrows --------------------------------------------------------------------------------------------------------


def batch_arrows(profile: Profile, spans: Spans, starts_ns: Any, ends_ns: Any) -> Iterator[Event]:
    """An arrow for each batch: from the worker that made it, by way of the feeder thread, into the request it answered.

    Args:
        profile: The run.
        spans: What is shown of it.
        starts_ns: Where each slice begins on the trace's clock, shape ``(n,)``,
        ends_ns: and ends.
    """
    roles = [track.role for track in profile.tracks]
    ways: dict[tuple[int, int], dict[Kind, int]] = {}
    passed = np.isin(spans.kind, [Kind.FETCH, Kind.SEND, Kind.UNPICKLE, Kind.NEXT]) & (spans.batch >= 0)
    for row in np.flatnonzero(passed & ((spans.flags & int(Flag.ENDED)) == 0)).tolist():
        kind = Kind(int(spans.kind[row]))
        if kind is not Kind.FETCH or roles[int(spans.track[row])] is Role.WORKER:
            ways.setdefault((int(spans.iterator[row]), int(spans.batch[row])), {})[kind] = row
    for (iterator, batch), way in ways.items():
        stops = _stops(way, starts_ns, ends_ns)
        times = [time_ns for _, time_ns in stops]
        if len(stops) > 1 and times == sorted(times):
            yield from _arrow(profile, spans, iterator * _BATCHES_APART + batch, stops)


def _stops(way: dict[Kind, int], starts_ns: Any, ends_ns: Any) -> list[tuple[int, int]]:
    """The slices that an arrow passes and when: at their starts, where Perfetto takes no inner slice for them."""
    stops = [(way[kind], int(starts_ns[way[kind]])) for kind in (Kind.FETCH, Kind.SEND) if kind in way]
    if Kind.NEXT not in way or not stops:
        return []
    request, unpickled = way[Kind.NEXT], way.get(Kind.UNPICKLE)
    begin, end = int(starts_ns[request]), int(ends_ns[request])
    if unpickled is not None:
        stops.append((unpickled, int(starts_ns[unpickled])))
        if begin <= stops[-1][1] < end:
            return stops
    # It came before it was asked for, or another thread took it from the pipe.
    return [*stops, (request, begin if stops[-1][1] <= begin else end - 1)]


def _arrow(profile: Profile, spans: Spans, number: int, stops: list[tuple[int, int]]) -> Iterable[Event]:
    for place, (row, time_ns) in enumerate(stops):
        track = profile.tracks[int(spans.track[row])]
        last = place == len(stops) - 1
        event: Event = {
            "ph": "s" if place == 0 else "f" if last else "t",
            "cat": "dlprof.batch",
            "name": "batch",
            "id": number,
            "pid": track.pid,
            "tid": track.thread,
            "ts": microseconds(time_ns),
        }
        yield event | {"bp": "e"} if last else event
