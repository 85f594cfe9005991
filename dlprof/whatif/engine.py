"""PyTorch's loader, its workers and the training loop as events on two clocks, for many lanes at once.

A *lane* is one scenario with one sequence of batches. Threads that are on-CPU share the cores equally
(processor sharing): while they want ``n`` cores and there are ``C``, each runs at the rate ``min(1, C/n)``; while other
programs want ``o`` of ``D`` cores too, at ``D/(n + o)`` where that is less.
So every lane has two clocks, real time and a *CPU clock* that runs at that rate: a blocked phase ends at a
known real time, an on-CPU phase at a known reading of the CPU clock, whatever starts or ends meanwhile. Work
is conserved by construction.

Threads of a lane: the main thread (slot 0), one fetching thread per worker (slots ``1 .. W``) and each
worker's feeder thread (slots ``W+1 .. 2W``). Each event ends one thread's phase and may start others. The two
threads of a worker overlap while the first one blocks, but have one GIL: a worker is on-CPU once at most, and
the feeder goes first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dlprof.model.pipeline import ALONE, Competition

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

_NEVER = np.inf
_WAITING, _RECEIVING, _STEPPING = 0, 1, 2
_FILL_IN = 4
"""Steps dropped at the start beyond those fed from the first filling of the queues."""
_COMPACT_EVERY = 64
_SLICE_NS = 2e6
"""How long the main thread waits at most when the worker that it has just given work takes its core.

Linux lets the woken thread run for a slice: 0.7 ms * (1 + log2(CPUs)) or to the next tick (kernel/sched/fair.c).
*Measured* on 2 cores, Linux 6.18, with 2 and 4 computing workers and a step that sleeps: 2 to 3 ms per step.
"""


@dataclass(frozen=True, slots=True)
class Jobs:
    """What each batch costs in each scenario. Arrays have shape ``(scenarios, batches)``, in ns.

    Attributes:
        fetch_blocked_ns: Blocked time of the fetching thread; comes before its CPU time.
        fetch_cpu_ns: CPU time of the fetching thread.
        handover_cpu_ns: CPU time of the feeder thread.
        receive_blocked_ns: Blocked time of the main thread from taking a batch until it is returned; comes
            before its CPU time.
        receive_cpu_ns: CPU time of the main thread until the batch is returned.
        main_blocked_ns: Blocked time of the main thread in the step; comes before its CPU time.
        main_cpu_ns: Duration of the step's on-CPU phase when nothing competes.
        main_width: Cores that the main process keeps busy in that phase.

    Raises:
        ValueError: If a cost is negative or not finite: the simulation would not end.
    """

    fetch_blocked_ns: Floats
    fetch_cpu_ns: Floats
    handover_cpu_ns: Floats
    receive_blocked_ns: Floats
    receive_cpu_ns: Floats
    main_blocked_ns: Floats
    main_cpu_ns: Floats
    main_width: Floats

    def __post_init__(self) -> None:
        for field in fields(self):
            column = getattr(self, field.name)
            if not (np.isfinite(column) & (column >= 0)).all():
                raise ValueError(f"{field.name}: a cost is negative or not finite")


@dataclass(frozen=True, slots=True)
class Lanes:
    """Settings and draws of each lane; arrays have shape ``(lanes,)`` unless said otherwise.

    Attributes:
        scenario: Row of `Jobs`.
        replica: Row of ``draws``.
        workers: ``num_workers``, at least 1.
        prefetch: Batches requested ahead per worker, at least 1.
        in_order: Whether batches are returned in the order of their indices.
        draws: Columns of `Jobs`, one per step; shape ``(replicas, steps)``. They are repeated without end.
        cores: Cores that all threads of one lane share.
        competition: Other programs.
    """

    scenario: Ints
    replica: Ints
    workers: Ints
    prefetch: Ints
    in_order: Bools
    draws: Ints
    cores: float
    competition: Competition = ALONE


@dataclass(slots=True)
class _State:
    """Where each lane is. All arrays have the lanes as first axis, so that finished lanes can be dropped."""

    lane: Ints
    scenario: Ints
    replica: Ints
    workers: Ints
    prefetch: Ints
    in_order: Bools
    drop: Ints
    clock: Floats
    cpu_clock: Floats
    load: Floats
    """Cores wanted by the threads that are on-CPU."""
    cpu_end: Floats
    blocked_end: Floats
    cpu_after: Floats
    """The on-CPU phase that follows a blocked one; shape ``(lanes, 1 + workers)``."""
    main_width: Floats
    phase: Ints
    steps: Ints
    source: Ints
    """The worker whose batch the main thread is receiving."""
    step_began: Floats
    started: Ints
    fetched: Ints
    finished: Ints
    received: Ints
    arrivals: Ints
    """Workers in the order their batches became ready; a ring."""
    arrived: Ints


def run(jobs: Jobs, lanes: Lanes) -> tuple[Floats, Floats]:
    """Mean step time, and in it the main thread's own part, in ns.

    Each lane runs for ``draws.shape[1]`` steps after its fill-in (the first ``prefetch * workers`` steps and
    a few more, whose batches were all requested at once). These steps hold every draw exactly once. Batches of workers
    that block come in volleys, one of each: the mean is that of ``workers`` windows, each a step after the one before,
    so that it does not depend on how many volleys a window happens to hold.

    Args:
        jobs: Costs of the batches.
        lanes: Settings and draws.

    Returns:
        Two arrays of shape ``(lanes,)``: the step, and its part outside the request for a batch.
    """
    simulation = _Simulation(jobs, lanes)
    while simulation.state.lane.size:
        for _ in range(_COMPACT_EVERY):
            simulation.advance()
        simulation.drop_finished()
    period = lanes.draws.shape[1]
    return simulation.total_ns / period, simulation.main_ns / period


class _Simulation:
    """The events. Methods take ``at``: the rows of the lanes concerned, each at most once."""

    def __init__(self, jobs: Jobs, lanes: Lanes) -> None:
        self.jobs = jobs
        self.draws = lanes.draws
        self.batches = jobs.fetch_cpu_ns.shape[1]
        self.period = lanes.draws.shape[1]
        self.cores = lanes.cores
        self.others, self.shared = lanes.competition.threads, lanes.competition.cores
        self.width = int(lanes.workers.max(initial=0))
        self.state = _initial(lanes, self.width)
        self.total_ns = np.zeros(lanes.scenario.size)
        self.main_ns = np.zeros(lanes.scenario.size)
        for worker in range(self.width):
            at = np.flatnonzero(lanes.workers > worker)
            self._fetch(at, np.full(at.size, worker))

    def advance(self) -> None:
        """Move every lane to its next event and carry that out."""
        s = self.state
        every = np.arange(s.lane.size)
        slot, blocked_slot = s.cpu_end.argmin(axis=1), s.blocked_end.argmin(axis=1)
        cpu_end, blocked_end = s.cpu_end[every, slot], s.blocked_end[every, blocked_slot]
        rate = self._rate(s.load)
        until_cpu = (cpu_end - s.cpu_clock) / rate
        until_blocked = blocked_end - s.clock
        cpu_first = until_cpu <= until_blocked
        elapsed = np.maximum(np.where(cpu_first, until_cpu, until_blocked), 0.0)
        s.clock += elapsed
        s.cpu_clock = np.where(cpu_first, cpu_end, s.cpu_clock + elapsed * rate)
        at = np.flatnonzero(~cpu_first)
        s.blocked_end[at, blocked_slot[at]] = _NEVER
        self._compute(at, blocked_slot[at])
        at = np.flatnonzero(cpu_first)
        slot = slot[at]
        s.cpu_end[at, slot] = _NEVER
        self._main_ended(at[slot == 0])
        fetching = (slot > 0) & (slot <= self.width)
        self._fetch_ended(at[fetching], slot[fetching] - 1)
        feeding = slot > self.width
        self._handover_ended(at[feeding], slot[feeding] - 1 - self.width)

    def _rate(self, load: Floats) -> Floats:
        """How fast the CPU clock of lanes runs that want so many cores."""
        of_own = self.cores / np.maximum(load, 1e-9)
        of_all = self.shared / np.maximum(load + self.others, 1e-9)
        return np.minimum(1.0, np.minimum(of_own, of_all))

    def _without_core(self, load: Floats) -> Floats:
        """How probable it is that of so many threads one finds no core: others want one for a part of the time."""
        crowded: Floats = np.where(load > self.cores, 1.0, np.clip(load + self.others - self.shared, 0.0, 1.0))
        return crowded

    def drop_finished(self) -> None:
        """Forget the lanes whose steps have all been taken, when that is worth the copying."""
        s = self.state
        keep = s.steps < s.drop + self.period + s.workers - 1
        if 4 * np.count_nonzero(keep) < 3 * keep.size or not keep.any():
            for field in fields(s):
                setattr(s, field.name, getattr(s, field.name)[keep])

    def _row(self, at: Ints, batch: Ints) -> Ints:
        """Where the jobs' columns, flattened, hold the given batches of the lanes ``at``."""
        s = self.state
        drawn = (batch - s.drop[at]) % self.period
        row: Ints = s.scenario[at] * self.batches + self.draws.take(s.replica[at] * self.period + drawn)
        return row

    def _begin(self, at: Ints, slot: Ints, blocked: Floats, cpu: Floats) -> None:
        """Start a blocked phase that an on-CPU phase follows, or the latter at once where nothing blocks."""
        s = self.state
        blocks = blocked > 0
        s.cpu_after[at, slot] = cpu
        waiting = at[blocks]
        s.blocked_end[waiting, slot[blocks]] = s.clock[waiting] + blocked[blocks]
        self._compute(at[~blocks], slot[~blocks])

    def _compute(self, at: Ints, slot: Ints) -> None:
        """Start the on-CPU phase of a main or fetching thread; the latter waits for its feeder to end."""
        s = self.state
        fetches = slot > 0
        feeder_end = s.cpu_end[at, slot + self.width * fetches]
        waits = feeder_end < _NEVER
        s.cpu_end[at, slot] = np.where(waits, feeder_end, s.cpu_clock[at]) + s.cpu_after[at, slot]
        s.load[at] += np.where(fetches, ~waits, s.main_width[at])

    def _fetch(self, at: Ints, worker: Ints) -> None:
        """Let idle workers start the next batch, where one is requested of them."""
        s = self.state
        started = s.started[at, worker]
        free = (started == s.fetched[at, worker]) & (started < s.received[at, worker] + s.prefetch[at])
        at, worker, started = at[free], worker[free], started[free]
        batch = started * s.workers[at] + worker
        s.started[at, worker] += 1
        row = self._row(at, batch)
        blocked, cpu = self.jobs.fetch_blocked_ns.take(row), self.jobs.fetch_cpu_ns.take(row)
        self._begin(at, worker + 1, blocked, cpu)

    def _fetch_ended(self, at: Ints, worker: Ints) -> None:
        s = self.state
        s.fetched[at, worker] += 1
        idle = s.cpu_end[at, 1 + self.width + worker] == _NEVER
        s.load[at] -= idle
        self._hand_over(at[idle], worker[idle])
        self._fetch(at, worker)

    def _hand_over(self, at: Ints, worker: Ints) -> None:
        """Let the feeder threads take the oldest fetched batch."""
        s = self.state
        cpu = self.jobs.handover_cpu_ns.take(self._row(at, s.finished[at, worker] * s.workers[at] + worker))
        s.cpu_end[at, 1 + self.width + worker] = s.cpu_clock[at] + cpu
        s.load[at] += s.cpu_end[at, 1 + worker] == _NEVER
        s.cpu_end[at, 1 + worker] += cpu

    def _handover_ended(self, at: Ints, worker: Ints) -> None:
        s = self.state
        s.finished[at, worker] += 1
        s.load[at] -= s.cpu_end[at, 1 + worker] == _NEVER
        s.arrivals[at, s.arrived[at] % s.arrivals.shape[1]] = worker
        s.arrived[at] += 1
        more = s.fetched[at, worker] > s.finished[at, worker]
        self._hand_over(at[more], worker[more])
        self._receive(at[s.phase[at] == _WAITING])

    def _receive(self, at: Ints) -> None:
        """Let the main thread take the batch that it waits for, where that is ready."""
        s = self.state
        steps = s.steps[at]
        earliest = s.arrivals[at, steps % s.arrivals.shape[1]]
        worker = np.where(s.in_order[at], steps % s.workers[at], earliest)
        ready = s.finished[at, worker] > s.received[at, worker]
        at, worker = at[ready], worker[ready]
        s.source[at] = worker
        s.phase[at] = _RECEIVING
        s.main_width[at] = 1.0
        row = self._row(at, steps[ready])
        blocked, cpu = self.jobs.receive_blocked_ns.take(row), self.jobs.receive_cpu_ns.take(row)
        self._begin(at, np.zeros_like(at), blocked, cpu)

    def _main_ended(self, at: Ints) -> None:
        stepping = self.state.phase[at] == _STEPPING
        self._step_ended(at[stepping])
        self._returned(at[~stepping])

    def _returned(self, at: Ints) -> None:
        """The batch is received: request the next one of the same worker, and do the step."""
        s = self.state
        worker = s.source[at]
        s.received[at, worker] += 1
        s.load[at] -= 1.0
        others = s.load[at]
        self._fetch(at, worker)
        woken = s.load[at] > others
        takes = np.minimum(s.cpu_end[at, 1 + worker] - s.cpu_clock[at], _SLICE_NS)
        late = np.where(woken, takes * self._without_core(s.load[at] + 1), 0.0)
        s.phase[at] = _STEPPING
        s.step_began[at] = s.clock[at] + late
        row = self._row(at, s.steps[at])
        s.main_width[at] = self.jobs.main_width.take(row)
        blocked, cpu = self.jobs.main_blocked_ns.take(row) + late, self.jobs.main_cpu_ns.take(row)
        self._begin(at, np.zeros_like(at), blocked, cpu)

    def _step_ended(self, at: Ints) -> None:
        """Count the step, read the clock at both ends of the measured steps, and ask for the next batch."""
        s = self.state
        done = s.steps[at] - s.drop[at]
        counted = at[(done >= 0) & (done < self.period)]
        self.main_ns[s.lane[counted]] += s.clock[counted] - s.step_began[counted]
        s.steps[at] += 1
        done, volley = done + 1, s.workers[at]
        first = (done >= 0) & (done < volley)
        last = (done >= self.period) & (done < self.period + volley)
        self.total_ns[s.lane[at]] += (last.astype(float) - first) * s.clock[at] / volley
        s.load[at] -= s.main_width[at]
        s.phase[at] = _WAITING
        self._receive(at)


def _initial(lanes: Lanes, width: int) -> _State:
    """All threads idle, the queues empty, every worker's first batches requested."""
    count = lanes.scenario.size
    drop = lanes.prefetch * lanes.workers + _FILL_IN
    per_worker = (count, width)
    return _State(
        lane=np.arange(count),
        scenario=lanes.scenario,
        replica=lanes.replica,
        workers=lanes.workers,
        prefetch=lanes.prefetch,
        in_order=lanes.in_order,
        drop=drop,
        clock=np.zeros(count),
        cpu_clock=np.zeros(count),
        load=np.zeros(count),
        cpu_end=np.full((count, 1 + 2 * width), _NEVER),
        blocked_end=np.full((count, 1 + width), _NEVER),
        cpu_after=np.zeros((count, 1 + width)),
        main_width=np.ones(count),
        phase=np.full(count, _WAITING),
        steps=np.zeros(count, np.intp),
        source=np.zeros(count, np.intp),
        step_began=np.zeros(count),
        started=np.zeros(per_worker, np.int32),
        fetched=np.zeros(per_worker, np.int32),
        finished=np.zeros(per_worker, np.int32),
        received=np.zeros(per_worker, np.int32),
        arrivals=np.zeros((count, int(drop.max(initial=1))), np.int16),
        arrived=np.zeros(count, np.intp),
    )
