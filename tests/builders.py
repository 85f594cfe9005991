"""Profiles made from a readable description of a training loop.

    profile(step(input_wait=ms(30), compute=ms(10)) * 20)
    profile(step(tokenizer=ms(40), compute=ms(10)) * 10 + end_of_epoch() + step(...) * 10, workers=2)

Every part of a description is a list, so ``*`` repeats and ``+`` continues. All times are nanoseconds. Without workers
a request lasts as long as the batch takes to make; with workers the batches are made by a small model of torch's
loader, and the waits are what comes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dlprof.model.kinds import Doing, ExitReason, Flag, Kind, Role
from dlprof.model.profile import (
    BatchShape,
    Ending,
    Frame,
    Handover,
    Iteration,
    Loader,
    Notice,
    Process,
    Profile,
    RunFacts,
    Samples,
    Spans,
    Stack,
    Track,
)
from dlprof.model.steps import Step, Steps

MAIN_PID = 100
FIRST_WORKER_PID = 200
TRAINING, VALIDATION = 1, 2
"""Numbers of the two loaders."""
BEGAN_NS = 1_000_000_000_000
"""Where the clock stands when the described loop begins."""


def us(value: float) -> int:
    """Microseconds as nanoseconds."""
    return round(value * 1e3)


def ms(value: float) -> int:
    """Milliseconds as nanoseconds."""
    return round(value * 1e6)


# ---- single spans ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """One row of ``Spans``, in the order of its columns; what is not said is not known."""

    kind: Kind
    start_ns: int
    end_ns: int
    track: int = 0
    batch: int = -1
    iterator: int = -1
    on_cpu_ns: int = -1
    runnable_ns: int = -1
    process_cpu_ns: int = -1
    value: int = -1
    weight: int = 1
    flags: int = 0
    name: str = ""


def spans(*rows: Span) -> Spans:
    """Spans as columns, in the order given."""
    names = {"": 0}
    ids = [names.setdefault(row.name, len(names)) for row in rows]
    columns = {
        name: np.array([int(getattr(row, name)) for row in rows], dtype=np.int64)
        for name in Spans.COLUMNS
        if name != "name_id"
    }
    return Spans(**columns, name_id=np.array(ids, dtype=np.int64), names=tuple(names))


# ---- looks at threads ------------------------------------------------------------------------------------------------


def frame(where: str = "train.py:1", function: str = "f", *, source: str = "", user: bool = True) -> Frame:
    """A frame at ``file:line``."""
    file, _, line = where.rpartition(":")
    return Frame(file, int(line), function, source, user)


def making(*frames: Frame) -> Stack:
    """Where a thread is that makes a batch, the innermost frame first."""
    return Stack(frames or (frame(),), in_fetch=True)


UNKNOWN_STACK = Stack((), in_fetch=False)


@dataclass(frozen=True)
class Look:
    """One look at a thread; the times are since the look before it at the same thread."""

    at_ns: int
    doing: Doing
    stack: Stack = UNKNOWN_STACK
    track: int = 0
    on_cpu_ns: int = 0
    no_core_ns: int = 0
    kernel_ns: int = 0


def samples(*looks: Look) -> Samples:
    """Looks as columns, by track in the order of time."""
    rows = sorted(looks, key=lambda look: (look.track, look.at_ns))
    stacks = {UNKNOWN_STACK: 0}
    used: dict[int, list[int]] = {}
    table = []
    for row in rows:
        sums = used.setdefault(row.track, [ms(500), ms(20), ms(90)])
        sums[0] += row.on_cpu_ns
        sums[1] += row.no_core_ns
        sums[2] += row.kernel_ns
        stack = stacks.setdefault(row.stack, len(stacks))
        table.append((row.at_ns, row.track, *sums, int(row.doing), stack))
    columns = np.array(table, dtype=np.int64).reshape(len(table), len(Samples.COLUMNS))
    return Samples(*(columns[:, place] for place in range(len(Samples.COLUMNS))), stacks=tuple(stacks))


def looked_at(found: Profile, *looks: Look) -> Profile:
    """The same run with looks at its threads."""
    return replace(found, samples=samples(*looks))


def shifted(found: Profile, by_ns: int) -> Profile:
    """The same run at another time of the clock."""
    moved = replace(found.spans, start_ns=found.spans.start_ns + by_ns, end_ns=found.spans.end_ns + by_ns)
    looks = replace(found.samples, at_ns=found.samples.at_ns + by_ns)
    run = replace(found.run, monotonic_ns=found.run.monotonic_ns + by_ns)
    processes = tuple(replace(each, began_ns=each.began_ns + by_ns) for each in found.processes)
    return replace(found, spans=moved, samples=looks, run=run, processes=processes)


def reordered(found: Profile, seed: int = 0) -> Profile:
    """The same run with its spans in another order."""
    order = np.random.default_rng(seed).permutation(len(found.spans))
    return replace(found, spans=found.spans.where(order))


# ---- what a loop does ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepPlan:
    """One step: how its batch is made, and what the loop does with it."""

    input_wait: int | None = None
    getitem: int = 0
    decode: int = 0
    transform: int = 0
    tokenizer: int = 0
    collate: int = 0
    tokenizer_in_collate: int = 0
    sampler: int = 0
    blocked: int = 0
    no_core: int = 0
    helpers: int = 0
    items: int = 1
    pickle: int = 0
    send: int = 0
    receive: int = 0
    unpickle: int = 0
    device: int = 0
    compute: int = 0
    kernel: int = 0
    copy: int = 0
    collective: int = 0
    synchronize: int = 0
    launch: int = 0
    checkpoint: int = 0
    python: int = 0
    optimizer_steps: int = 1
    traced: bool = False

    def parts(self) -> list[tuple[Kind | None, int]]:
        """What the dataset's items consist of, then ``collate_fn``, in the order in which they happen."""
        return [
            (None, self.own_code()),
            (Kind.DECODE, self.decode),
            (Kind.TRANSFORM, self.transform),
            (Kind.TOKENIZER, self.tokenizer),
        ]

    def own_code(self) -> int:
        """Time in the dataset's own code: as given, or what is left of ``input_wait``."""
        if self.input_wait is None:
            return self.getitem
        known = self.decode + self.transform + self.tokenizer + self.whole_collate() + self.sampler
        if self.getitem or known > self.input_wait:
            raise ValueError("say either how long the wait is or how long the dataset's own code takes")
        return self.input_wait - known

    def whole_collate(self) -> int:
        """``collate_fn`` with the tokenizer calls in it."""
        return self.collate + self.tokenizer_in_collate

    def fetch(self) -> int:
        """How long it takes to make the batch."""
        return sum(length for _, length in self.parts()) + self.whole_collate()

    def body(self) -> list[tuple[Kind | None, int]]:
        """What the loop does with the batch, in this order."""
        return [
            (Kind.USER_DEVICE, self.device),
            (Kind.OPERATOR, self.compute),
            (Kind.KERNEL, self.kernel),
            (Kind.COPY_H2D, self.copy),
            (Kind.COLLECTIVE, self.collective),
            (Kind.SYNCHRONIZE, self.synchronize),
            (Kind.LAUNCH, self.launch),
            (Kind.CHECKPOINT, self.checkpoint),
            (None, self.python),
        ]


@dataclass(frozen=True)
class _EndOfEpoch:
    pass


@dataclass(frozen=True)
class _Break:
    pass


@dataclass(frozen=True)
class _Validation:
    batches: tuple[StepPlan, ...]
    left: int | None


Event = StepPlan | _EndOfEpoch | _Break | _Validation
Plan = list[Event]


def step(**parts: Any) -> Plan:
    """One step, as a list. ``traced=True``: under torch.profiler, whose spans are there then.

    Args:
        parts: Fields of ``StepPlan``. Without workers either ``input_wait`` (the whole request; what its parts leave
            is the dataset's own code) or the parts alone; with workers the parts, and ``pickle``, ``send``,
            ``receive``, ``unpickle``.
    """
    return [StepPlan(**parts)]


def joined(plans: Iterable[Plan]) -> Plan:
    """Plans that follow each other, as one."""
    return [event for plan in plans for event in plan]


def end_of_epoch() -> Plan:
    """The request that ends an iteration, with ``StopIteration``."""
    return [_EndOfEpoch()]


def leave_loop() -> Plan:
    """The loop is left with ``break``."""
    return [_Break()]


def validation(batches: Plan, *, left: int | None = None) -> Plan:
    """An iteration over the second loader.

    Args:
        batches: What it gives.
        left: Nanoseconds that it takes to end its workers where it is left with ``break``; None for a whole iteration.
    """
    return [_Validation(tuple(each for each in batches if isinstance(each, StepPlan)), left)]


# ---- from a description to a profile ---------------------------------------------------------------------------------

_DEVICE_KINDS = (Kind.KERNEL, Kind.COPY_H2D, Kind.COLLECTIVE)
_ONLY_TRACED = (*_DEVICE_KINDS, Kind.OPERATOR, Kind.SYNCHRONIZE, Kind.LAUNCH)
_OPTIMIZER_NS = 100


@dataclass
class _Queue:
    """The workers of one iteration."""

    pids: list[int]
    tracks: list[tuple[int, int]]
    free: list[int]
    feeder_free: list[int]
    sent: dict[int, int]
    served: dict[int, int] = field(default_factory=dict)


class _Loop:
    """Plays a description and writes down the spans."""

    def __init__(self, workers: int, prefetch: int, persistent: bool, startup: int, stop_profiler: int) -> None:
        self.workers, self.prefetch, self.persistent = workers, prefetch, persistent
        self.startup, self.stop_profiler = startup, stop_profiler
        self.now = BEGAN_NS
        self.rows: list[Span] = []
        self.tracks = [Track(MAIN_PID, MAIN_PID, Role.MAIN, 0)]
        self.iterations: list[Iteration] = []
        self.queue: _Queue | None = None
        self.iterator = 0
        self.batch = 0
        self.window_began: int | None = None
        self.open_body: tuple[int, int, int] | None = None

    def play(self, plan: Sequence[Event]) -> None:
        """Play all of it; what the last step was asked for ends it."""
        inside = False
        for event in plan:
            if isinstance(event, StepPlan):
                if not inside:
                    self._iterate(TRAINING)
                    inside = True
                self._window(event.traced)
                self._step(event)
                continue
            self._window(False)
            if isinstance(event, _EndOfEpoch):
                self._request_nothing()
                inside = False
            elif isinstance(event, _Break):
                inside = False
            else:
                self._validate(event.batches, event.left)
        self._window(False)
        if inside:
            self._close_body()

    # -- the loop

    def _iterate(self, loader: int) -> None:
        self.iterator = len(self.iterations) + 1
        self.batch = 0
        began = self.now
        workers = self.workers if loader == TRAINING else 0
        if workers:
            self.queue = self._begin_workers()
        self.now += us(100)
        self._add(Kind.ITER, began, self.now, iterator=self.iterator, value=loader)
        pids = tuple(self.queue.pids) if workers and self.queue else ()
        self.iterations.append(Iteration(self.iterator, MAIN_PID, loader, pids))
        if workers and self.queue:
            self.queue.sent = dict.fromkeys(range(self.prefetch * workers), self.now)

    def _step(self, plan: StepPlan) -> None:
        self._close_body()
        request, batch = self.now, self.batch
        self._get_batch(plan, request)
        self._add(Kind.NEXT, request, self.now, batch=batch, iterator=self.iterator)
        self.batch += 1
        self.open_body = (self.now, batch, self.iterator)
        self._body(plan)

    def _get_batch(self, plan: StepPlan, request: int) -> None:
        if self.queue is not None:
            self._take(plan, request)
            return
        if plan.sampler:
            self._add(Kind.SAMPLER, self.now, self.now + plan.sampler)
        self._fetch(plan, request + plan.sampler, 0)
        self.now = request + plan.sampler + plan.fetch()

    def _body(self, plan: StepPlan) -> None:
        began = self.now
        for kind, length in plan.body():
            shown = kind is not None and (plan.traced or kind not in _ONLY_TRACED)
            if length and shown and kind is not None:
                track = self._stream() if kind in _DEVICE_KINDS else 0
                self._add(kind, self.now, self.now + length, track=track, name=f"a {kind.name.lower()}")
            self.now += length
        # Optimizer steps are the last part of it.
        self.now = max(self.now, began + max(1, plan.optimizer_steps) * _OPTIMIZER_NS)
        for number in range(plan.optimizer_steps):
            end = self.now - number * _OPTIMIZER_NS
            self._add(Kind.OPTIMIZER, end - _OPTIMIZER_NS, end)

    def _close_body(self) -> None:
        if self.open_body is not None:
            began, batch, iterator = self.open_body
            self.open_body = None
            self._add(Kind.BODY, began, self.now, batch=batch, iterator=iterator, process_cpu_ns=self.now - began)

    def _request_nothing(self) -> None:
        self._close_body()
        end = self.now + us(50)
        self._add(Kind.NEXT, self.now, end, iterator=self.iterator, flags=int(Flag.ENDED))
        self.now = end

    def _validate(self, batches: Iterable[StepPlan], left: int | None) -> None:
        # As in capture: another loader's requests end a body only where the training loop is not known yet.
        outer = (self.queue, self.iterator, self.batch, self.open_body)
        self.queue, self.open_body = None, None
        self._iterate(VALIDATION)
        for plan in batches:
            request, batch = self.now, self.batch
            self._get_batch(plan, request)
            self._add(Kind.NEXT, request, self.now, batch=batch, iterator=self.iterator)
            self.batch += 1
            began = self.now
            self._body(replace(plan, optimizer_steps=0))
            self._add(Kind.BODY, began, self.now, batch=batch, iterator=self.iterator)
        end = self.now + (us(50) if left is None else left)
        if left is None:
            self._add(Kind.NEXT, self.now, end, iterator=self.iterator, flags=int(Flag.ENDED))
        else:
            self._add(Kind.WORKERS_ENDED, self.now, end, iterator=self.iterator, value=VALIDATION)
        self.now = end
        self.queue, self.iterator, self.batch, self.open_body = outer

    def _window(self, wanted: bool) -> None:
        if wanted and self.window_began is None:
            self._close_body()
            self._add(Kind.OWN, self.now, self.now + ms(1), name="start-profiler")
            self.now += ms(1)
            self.window_began = self.now
        elif not wanted and self.window_began is not None:
            self._close_body()
            self._add(Kind.TRACED, self.window_began, self.now)
            self._add(Kind.OWN, self.now, self.now + self.stop_profiler, name="stop-profiler")
            self.now += self.stop_profiler
            self.window_began = None

    # -- making a batch

    def _fetch(self, plan: StepPlan, start: int, track: int, batch: int = -1) -> None:
        # A span is written when it ends, so an outer one comes after those inside it.
        end = start + plan.fetch()
        busy = plan.fetch() - plan.blocked - plan.no_core
        share = busy / plan.fetch() if plan.fetch() else 0
        now = start
        for number in range(plan.items):
            began = now
            for kind, length in plan.parts():
                until = now + length // plan.items
                if kind is not None and length:
                    self._add(kind, now, until, track=track, on_cpu_ns=round(share * (until - now)))
                now = until
            self._add(Kind.GETITEM, began, now, track=track, value=self.batch * plan.items + number)
        if plan.whole_collate():
            began = end - plan.whole_collate()
            if plan.tokenizer_in_collate:
                until = began + plan.tokenizer_in_collate
                self._add(Kind.TOKENIZER, began, until, track=track, on_cpu_ns=round(share * (until - began)))
            self._add(Kind.COLLATE, began, end, track=track, on_cpu_ns=round(share * (end - began)))
        self._add(
            Kind.FETCH,
            start,
            end,
            track=track,
            batch=self.batch if batch < 0 else batch,
            iterator=self.iterator,
            on_cpu_ns=busy,
            runnable_ns=plan.no_core,
            process_cpu_ns=busy + plan.helpers,
            value=plan.items,
        )

    # -- workers

    def _begin_workers(self) -> _Queue:
        previous = self.queue if self.persistent else None
        if previous is not None:
            return replace(previous, sent={})
        first = FIRST_WORKER_PID + (self.queue.pids[-1] + 1 - FIRST_WORKER_PID if self.queue else 0)
        pids = [first + number for number in range(self.workers)]
        tracks = []
        for pid in pids:
            tracks.append((len(self.tracks), len(self.tracks) + 1))
            self.tracks += [Track(pid, pid, Role.WORKER, 0), Track(pid, pid + 5000, Role.FEEDER, 0)]
        ready = self.now + self.startup
        for worker, _ in tracks:
            self._add(Kind.WORKER_START, self.now, ready, track=worker)
        return _Queue(pids, tracks, [ready] * self.workers, [0] * self.workers, {})

    def _take(self, plan: StepPlan, request: int) -> None:
        queue, batch = self.queue, self.batch
        assert queue is not None
        number = batch % self.workers
        worker, feeder = queue.tracks[number]
        at = {"batch": batch, "iterator": self.iterator}
        start = max(queue.sent[batch], queue.free[number])
        self._add(Kind.WAIT_INDEX, queue.free[number], start, track=worker, **at)
        self._fetch(plan, start, worker, batch)
        finished = start + plan.fetch()
        self._add(Kind.PUT, finished, finished, track=worker, **at)
        queue.free[number] = finished
        pickling = max(finished, queue.feeder_free[number])
        pickled = pickling + plan.pickle
        sent = pickled + plan.send
        self._add(Kind.PICKLE, pickling, pickled, track=feeder, on_cpu_ns=plan.pickle, **at)
        self._add(Kind.SEND, pickled, sent, track=feeder, value=1000, **at)
        queue.feeder_free[number] = sent
        reading = max(request, sent)
        read = reading + plan.receive
        self.now = read + plan.unpickle
        self._add(Kind.RECEIVE, reading, read, on_cpu_ns=read - reading, value=1000, **at)
        self._add(Kind.UNPICKLE, read, self.now, on_cpu_ns=self.now - read, **at)
        queue.sent[batch + self.prefetch * self.workers] = self.now

    # -- writing down

    def _stream(self) -> int:
        found = [i for i, track in enumerate(self.tracks) if track.role is Role.DEVICE_STREAM]
        if not found:
            self.tracks.append(Track(MAIN_PID, 7, Role.DEVICE_STREAM, 0))
        return found[0] if found else len(self.tracks) - 1

    def _add(self, kind: Kind, start: int, end: int, **columns: Any) -> None:
        self.rows.append(Span(kind, start, end, **columns))


def profile(
    plan: Plan,
    *,
    workers: int = 0,
    prefetch: int = 2,
    persistent: bool = False,
    startup: int = 0,
    stop_profiler: int = ms(100),
    warmup: int = 0,
    steps: int | None = None,
    trace_steps: int = 0,
    device: str = "cpu",
    cores: float = 4,
    batch_size: int = 8,
    handover: Handover | None = None,
    notices: tuple[Notice, ...] = (),
) -> Profile:
    """The profile of a training loop.

    Args:
        plan: What the loop does: ``step``, ``end_of_epoch``, ``leave_loop``, ``validation``, added up.
        workers: ``num_workers`` of the training loader; the validation loader has none.
        prefetch: Its ``prefetch_factor``.
        persistent: Its ``persistent_workers``.
        startup: How long a worker takes until it first waits for an index.
        stop_profiler: How long it takes to stop torch.profiler.
        warmup: Steps that do not count.
        steps: Measured steps asked for, None for all.
        trace_steps: Traced steps asked for.
        device: As torch names it.
        cores: What affinity and quota leave.
        batch_size: Samples in a batch, float32 of length 16 each.
        handover: As probed after the run.
        notices: What capture left.
    """
    loop = _Loop(workers, prefetch, persistent, startup, stop_profiler)
    loop.play(plan)
    settings = {
        "num_workers": workers,
        "batch_size": batch_size,
        "prefetch_factor": prefetch if workers else None,
        "persistent_workers": persistent,
        "pin_memory": False,
        "in_order": True,
        "dataset": "train.Texts",
        "collate_fn": "train.collate",
        "length": None,
    }
    found = recorded(loop.rows, tracks=loop.tracks, iterations=loop.iterations, warmup=warmup, device=device)
    shape = (((batch_size, 16), "float32"),)
    return replace(
        found,
        run=replace(found.run, steps=steps, trace_steps=trace_steps),
        environment={"cores": cores, "shm_free_bytes": 1 << 30},
        loaders=(
            Loader(TRAINING, MAIN_PID, settings),
            Loader(VALIDATION, MAIN_PID, settings | {"num_workers": 0, "prefetch_factor": None}),
        ),
        batches=(BatchShape(TRAINING, shape, batch_size * 64, batch_size, 0),),
        handover=handover,
        notices=notices,
    )


def recorded(
    rows: Iterable[Span],
    *,
    tracks: Sequence[Track] = (Track(MAIN_PID, MAIN_PID, Role.MAIN, 0),),
    iterations: Sequence[Iteration] = (),
    loaders: Sequence[Loader] = (),
    warmup: int = 0,
    device: str = "cpu",
) -> Profile:
    """A profile of spans given one by one."""
    pids = dict.fromkeys([MAIN_PID, *(track.pid for track in tracks)])
    return Profile(
        run=RunFacts(
            command=("python", "train.py"),
            created="2026-01-02T03:04:05+00:00",
            host="bench",
            steps=None,
            warmup=warmup,
            trace_steps=0,
            ending=Ending(0, ExitReason.SCRIPT_ENDED, None),
            monotonic_ns=BEGAN_NS - ms(2000),
            wall_ns=1_700_000_000_000_000_000,
        ),
        environment={"cores": 4},
        processes=tuple(
            Process(
                pid=pid,
                parent=1 if pid == MAIN_PID else MAIN_PID,
                role=Role.MAIN if pid == MAIN_PID else Role.WORKER,
                rank=0,
                argv=("python", "train.py"),
                executable="/usr/bin/python",
                python="3.11.7",
                began_ns=BEGAN_NS - ms(1500),
                span_cost_ns=1000,
            )
            for pid in pids
        ),
        main_pid=MAIN_PID,
        loaders=tuple(loaders),
        iterations=tuple(iterations),
        batches=(),
        handover=None,
        tracks=tuple(tracks),
        spans=spans(*rows),
        device=device,
        device_name=None if device == "cpu" else "Accelerator",
        lost_spans=0,
        notices=(),
    )


def one_step(
    wait: tuple[int, int],
    body: tuple[int, int],
    *,
    index: int = 0,
    iterator: int = 1,
    traced: bool = False,
) -> Step:
    """A step that stands for itself, measured unless traced."""
    return Step(index, iterator, index, *wait, *body, 0, 1, traced, not traced)


def steps_of(*found: Step, loader: int = TRAINING) -> Steps:
    """These steps and no others."""
    return Steps(found, loader, False, 0)
