"""The input pipeline under other settings, or with a cause removed: how long would the step be?

The model is that of PyTorch's loader (``torch/utils/data/dataloader.py``): every worker has
``prefetch_factor`` batches requested ahead, a returned batch makes room for one more request to the worker
that made it, batches go round the workers in turn, and with ``in_order`` the main thread takes them in the
order of their indices::

    send_k  = return_{k - prefetch * W}        start_k = max(send_k, worker free)
    ready_k = start_k + fetch_k + handover_k   return_k = max(call_k, ready_k) + receive_k
    call_{k+1} = return_k + main_k             W = 0: step_k = fetch_k + main_k

Whatever is on-CPU shares the cores equally, with other programs too (``whatif/engine.py``), so neither the total
demand nor what happens to run at the same moment can use more than there is. Hand-over happens in a worker's feeder
thread: beside a next fetch that blocks, before one that computes, since both need the worker's GIL.

From a run without workers the cost of a fetch in a worker is its CPU time, helper threads included, and its
blocked time, since PyTorch gives workers one thread. From a run with workers the measured main part contains
the main process's waiting for a core; what the simulated competition at the settings in force explains of it
is taken out before other settings are simulated.

Not modelled: drift, a limit on the concurrency of what blocks (a disk's or server's), the wait of a descriptor
exchange for the GIL of a worker that computes (long, but the worker is not idle meanwhile: *measured* up to
33 ms a batch with next to no effect on the step), memory bandwidth, a busy sibling hyperthread, epoch borders,
and that one thread pins memory for all workers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dlprof.model.kinds import Component
from dlprof.model.pipeline import Nanoseconds, Part, Pipeline
from dlprof.whatif.engine import Floats, Ints, Jobs, Lanes, run

REPLICAS = 100
"""Bootstrap replicas, unless the caller wants others."""

DEFAULT_PREFETCH = 2
"""What PyTorch takes for ``prefetch_factor`` with workers where none is given (``DataLoader.__init__``)."""

_MAIN_BOUND = 0.95
"""Part of the step spent in the main thread above which what is unexplained is put there."""
SEVERAL_THREADS = 1.2
"""CPU time over wall time of the step, from which more than one thread is at work there."""
_MIN_STEPS = 80
_MAX_RESAMPLE = 160
"""Batches drawn per replica at most: more would only make the intervals of very long runs narrower."""
_FIT_ROUNDS, _FIT_TOLERANCE = 4, 0.005
_FIT_REPLICAS, _FIT_STEPS = 48, 40
"""About as many draws as 16 replicas of a run of 50 steps: many short ones are simulated side by side."""

_IN_MAIN = frozenset({Component.SAMPLER})
"""Done in the main process also where there are workers: it makes the indices when it requests a batch."""
_IN_MAIN_THREADS = frozenset({Component.PIN_MEMORY})
"""Done by a thread of the main process where there are workers, between hand-over and the request."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Settings to simulate. Hashable only where ``scale`` is.

    Attributes:
        workers: ``num_workers``.
        prefetch_factor: Batches requested ahead per worker; without meaning for 0 workers.
        in_order: Whether batches are returned in the order of their indices.
        scale: Factor on the time of a component, from 0 (removed); 1 where it is not named. ``PICKLE`` stands
            for the worker's side of the hand-over, ``UNPICKLE`` for the main process's.
        without_input: The training loop gets its batches at no cost; the attributes before this one have no meaning
            then.
        main: Factor on the step outside the request for a batch.
    """

    workers: int
    prefetch_factor: int = DEFAULT_PREFETCH
    in_order: bool = True
    scale: Mapping[Component, float] = field(default_factory=dict)
    without_input: bool = False
    main: float = 1.0

    def without(self, components: Collection[Component]) -> Scenario:
        """The same settings with these components taking no time."""
        return replace(self, scale={**self.scale, **dict.fromkeys(components, 0.0)})


@dataclass(frozen=True, slots=True)
class Simulated:
    """Simulated mean steps, as a share of what the settings in force give.

    Attributes:
        ratio: Simulated step over simulated baseline of the same replica; shape ``(scenarios, replicas)``.
        baseline_ns: Baselines scaled so that their mean is the measured mean step; shape ``(replicas,)``.
        error_ratio: Simulated over measured mean step at the settings in force, minus 1.
    """

    ratio: Floats
    baseline_ns: Floats
    error_ratio: float

    @property
    def step_ns(self) -> Floats:
        """Calibrated mean step in ns; shape ``(scenarios, replicas)``."""
        return self.ratio * self.baseline_ns


def in_force(pipeline: Pipeline) -> Scenario:
    """The scenario that was measured."""
    return Scenario(pipeline.workers, max(pipeline.prefetch_factor, 1), pipeline.in_order)


class Simulator:
    """One measured pipeline, fitted once to the settings in force, whose step is known.

    What the simulated baseline lacks of the measured step is taken for blocked time in receiving a batch
    where the main thread is what bounds it (the descriptor exchange with a busy worker, a scheduler's slice),
    else it scales all steps with workers in proportion. Steps without queues are sums of what was measured:
    not scaled. What was simulated is kept: asking for the same scenario again costs nothing.

    Args:
        pipeline: What was measured.
        replicas: Bootstrap replicas, at least 1.
        seed: Of the draws; the same seed draws the same batches for whatever scenarios.

    Raises:
        ValueError: If no batch was measured.
    """

    def __init__(self, pipeline: Pipeline, *, replicas: int = REPLICAS, seed: int = 0) -> None:
        self.pipeline = pipeline
        self._draws = _draw(pipeline.step_ns.size, replicas, seed)
        self._fit = _fit(pipeline, self._draws)
        self._steps: dict[_Key, Floats] = {}

    def run(self, scenarios: Sequence[Scenario]) -> Simulated:
        """Simulate relative to the settings in force.

        Args:
            scenarios: What to simulate; many at once take little longer than one.

        Returns:
            The ratios to the baseline and how far the simulated baseline is off.
        """
        now = in_force(self.pipeline)
        floor = replace(now, without_input=True)
        self._simulate([now, floor, *scenarios])
        to_measured = float(self.pipeline.step_ns.mean() / self._steps[_key(now)].mean())
        baseline = self._steps[_key(now)] * to_measured
        steps = np.empty((len(scenarios), baseline.size))
        for row, scenario in enumerate(scenarios):
            steps[row] = self._steps[_key(scenario)]
            if _queued(scenario) or not self.pipeline.workers:
                steps[row] *= to_measured
            if _queued(scenario) and scenario != now:
                steps[row] = np.maximum(steps[row], self._steps[_key(floor)] * scenario.main)
        return Simulated(steps / baseline, baseline, self._fit.error_ratio)

    def _simulate(self, scenarios: Sequence[Scenario]) -> None:
        unknown = {_key(it): it for it in scenarios if _key(it) not in self._steps}
        if unknown:
            steps, _ = _simulate(self._fit.alone, [*unknown.values()], self._draws, late_ns=self._fit.late_ns)
            self._steps.update(zip(unknown, steps, strict=True))


_Key = tuple[int, int, bool, frozenset[tuple[Component, float]], bool, float]


def _key(it: Scenario) -> _Key:
    scale = frozenset((component, factor) for component, factor in it.scale.items() if factor != 1)
    return it.workers, it.prefetch_factor, it.in_order, scale, it.without_input, it.main


def simulate(pipeline: Pipeline, scenarios: Sequence[Scenario], *, replicas: int = REPLICAS, seed: int = 0) -> Floats:
    """Mean step time in ns under each scenario, as simulated from first principles (not calibrated).

    Each replica resamples whole batches with replacement, so that what belongs together stays together, and
    serves them in random order, each equally often, for at least 80 steps. The first ``prefetch * workers``
    steps and a few more come before those and do not count.

    Args:
        pipeline: What was measured; at least one batch.
        scenarios: What to simulate.
        replicas: Bootstrap replicas, at least 1.
        seed: Of the draws; the same seed draws the same batches for whatever scenarios.

    Returns:
        Shape ``(scenarios, replicas)``.

    Raises:
        ValueError: If no batch was measured.
    """
    draws = _draw(pipeline.step_ns.size, replicas, seed)
    return _simulate(_fit(pipeline, draws).alone, scenarios, draws)[0]


def _queued(scenario: Scenario) -> bool:
    """Whether workers make the batches."""
    return scenario.workers > 0 and not scenario.without_input


def _simulate(
    pipeline: Pipeline, scenarios: Sequence[Scenario], draws: Ints, *, late_ns: Nanoseconds | None = None
) -> tuple[Floats, Floats]:
    """The step and its main part, shape ``(scenarios, replicas)``; ``late_ns``: blocked in receiving each batch."""
    main = pipeline.main_wall_ns[draws].mean(axis=1) * np.array([[it.main] for it in scenarios])
    step = main.copy()
    queued = [row for row, it in enumerate(scenarios) if _queued(it)]
    for row, scenario in enumerate(scenarios):
        if not scenario.workers and not scenario.without_input:
            step[row] += _inline_ns(pipeline, scenario)[draws].mean(axis=1)
    if queued:
        chosen = [scenarios[row] for row in queued]
        shape = len(queued), draws.shape[0]
        results = run(_jobs(pipeline, chosen, late_ns), _lanes(chosen, draws, pipeline))
        step[queued], main[queued] = (result.reshape(shape) for result in results)
    return step, main


def _draw(batches: int, replicas: int, seed: int) -> Ints:
    """Rows of measured batches to serve, per replica; shape ``(replicas, steps)``."""
    if not batches:
        raise ValueError("no measured batch to draw from")
    rng = np.random.default_rng(seed)
    size = min(batches, _MAX_RESAMPLE)
    resampled = rng.integers(batches, size=(replicas, size))
    return rng.permuted(np.tile(resampled, -(-_MIN_STEPS // size)), axis=1)


@dataclass(frozen=True, slots=True)
class _Fit:
    """What comparing the simulated with the measured settings in force taught.

    Attributes:
        alone: The pipeline, its main part as it would be without competition for the cores.
        error_ratio: Simulated over measured mean step, minus 1.
        late_ns: Blocked time in receiving each batch that explains the difference, zeros where it need not be there;
            shape ``(batches,)``.
    """

    alone: Pipeline
    error_ratio: float
    late_ns: Nanoseconds


def _fit(pipeline: Pipeline, draws: Ints) -> _Fit:
    """Simulate the settings in force, and take out of the main part what competition explains of it."""
    few = draws[:_FIT_REPLICAS, :_FIT_STEPS]
    measured = pipeline.main_wall_ns
    cpu = pipeline.main_cpu_ns
    # The clocks of process and thread differ a little: a step of one thread, too, can have more CPU than wall time.
    several = float(cpu.sum()) > SEVERAL_THREADS * float(measured.sum())
    floor = np.minimum(np.where(cpu > measured, cpu / pipeline.cores, cpu) if several else cpu, measured)
    # Its wait for a core is what the workers cost it: without them it would not be.
    waited = pipeline.main_no_core_ns if pipeline.workers else np.zeros(1)
    most = np.maximum(measured - waited, floor)
    alone = replace(pipeline, main_wall_ns=most)
    for _ in range(_FIT_ROUNDS):
        step, main = (float(it.mean()) for it in _simulate(alone, [in_force(pipeline)], few))
        excess_ns = main - float(measured[few].mean())
        if abs(excess_ns) <= _FIT_TOLERANCE * main:
            break
        shrunk = alone.main_wall_ns * (1 - excess_ns / alone.main_wall_ns[few].mean())
        alone = replace(alone, main_wall_ns=np.clip(shrunk, floor, most))
    step_ns = float(pipeline.step_ns[few].mean())
    main_bound = main + float(pipeline.receive_cpu_ns.mean()) > _MAIN_BOUND * step
    late_ns = max(step_ns - step, 0.0) if pipeline.workers and main_bound else 0.0
    # Where the main thread bounds the step, the request takes no longer than receiving does.
    waited_ns = np.maximum(pipeline.wait_ns - pipeline.receive_cpu_ns, 0.0)
    mean_ns = float(waited_ns.mean())
    late = waited_ns * (late_ns / mean_ns) if mean_ns > 0 else np.full(waited_ns.size, late_ns)
    return _Fit(alone, step / step_ns - 1, late)


def _inline_ns(pipeline: Pipeline, scenario: Scenario) -> Nanoseconds:
    """Time per batch inside the request with 0 workers; shape ``(batches,)``.

    Measured with 0 workers, it is the measured wait less the parts' share of it. What is not blocked there is
    on-CPU or waiting for a core: the CPU times divide it among the parts (helper threads make their sum
    exceed it).
    """
    cpu, blocked = _total(pipeline.parts)
    kept_cpu, kept_blocked = _total(pipeline.parts, scenario.scale)
    if pipeline.workers:
        return kept_blocked + kept_cpu * max(1.0, 1 / pipeline.cores)
    wall_per_cpu = np.divide(np.maximum(pipeline.wait_ns - blocked, 0), cpu, out=np.zeros_like(cpu), where=cpu > 0)
    return np.maximum(pipeline.wait_ns - (blocked - kept_blocked) - (cpu - kept_cpu) * wall_per_cpu, 0)


def _total(
    parts: Mapping[Component, Part], scale: Mapping[Component, float] | None = None
) -> tuple[Nanoseconds, Nanoseconds]:
    """CPU and blocked time of these parts together, scaled."""
    factors = [(part, (scale or {}).get(component, 1.0)) for component, part in parts.items()]
    cpu = sum((part.cpu_ns * factor for part, factor in factors), start=np.zeros(1))
    blocked = sum((part.blocked_ns * factor for part, factor in factors), start=np.zeros(1))
    return cpu, blocked


def _jobs(pipeline: Pipeline, scenarios: Sequence[Scenario], late_ns: Nanoseconds | None) -> Jobs:
    """What each batch costs with workers, in each scenario.

    With a phase's CPU time goes the same share of the hand-over on both sides: measured on CPU-bound loaders,
    a removal's saving is 10 % off with this and 38 % without (method.md, section 7). But no more than was removed: to
    hand over thousands of small tensors costs as much however little it took to make them.
    """
    made, main, threads = _by_place(pipeline.parts)
    batches = pipeline.step_ns.size
    late_ns = np.zeros(batches) if late_ns is None else late_ns
    columns: list[list[Nanoseconds]] = []
    for scenario in scenarios:
        scale = scenario.scale
        all_cpu, all_blocked = _total(made)
        cpu, still_blocked = _total(made, scale)
        _, blocked = _total(_blocking(made, pipeline.workers, scenario), scale)
        kept, removed = _kept(cpu, all_cpu), all_cpu - cpu
        kept_busy = _kept(cpu + still_blocked, all_cpu + all_blocked)
        removed_busy = removed + all_blocked - still_blocked
        handover = _less(pipeline.handover_cpu_ns, kept, removed) * scale.get(Component.PICKLE, 1.0)
        receive = _less(pipeline.receive_cpu_ns, kept, removed) * scale.get(Component.UNPICKLE, 1.0)
        handover = handover + _sum(_total(threads, scale))
        receive = receive + _sum(_total(main, scale))
        # A worker that does less keeps its GIL and its core from the exchange less; but by no more than that.
        late = _less(late_ns, kept_busy, removed_busy) * scale.get(Component.UNPICKLE, 1.0)
        columns.append([np.broadcast_to(it, (batches,)) for it in (blocked, cpu, handover, late, receive)])
    shape = (len(scenarios), batches)
    factor = np.array([[scenario.main] for scenario in scenarios])
    blocked, on_cpu, width = _main_phases(pipeline)
    step = [blocked * factor, on_cpu * factor, np.ascontiguousarray(np.broadcast_to(width, shape))]
    return Jobs(*(np.stack(it) for it in zip(*columns, strict=True)), *step)


def _blocking(made: Mapping[Component, Part], measured_workers: int, scenario: Scenario) -> dict[Component, Part]:
    """The parts with the blocked time that they have with so many workers.

    Workers that wait for a lock wait for one another: each for all the others.
    """
    turns = (scenario.workers - 1) / (measured_workers - 1) if measured_workers > 1 else 1.0
    lock = made.get(Component.LOCK_WAIT)
    slower = {} if lock is None else {Component.LOCK_WAIT: replace(lock, blocked_ns=lock.blocked_ns * turns)}
    return {**made, **slower}


def _kept(part: Nanoseconds, whole: Nanoseconds) -> Nanoseconds:
    kept: Nanoseconds = np.divide(part, whole, out=np.ones_like(whole), where=whole > 0)
    return kept


def _less(cost: Nanoseconds, kept: Nanoseconds, removed: Nanoseconds) -> Nanoseconds:
    shorter: Nanoseconds = np.maximum(cost * kept, cost - removed)
    return shorter


def _main_phases(pipeline: Pipeline) -> tuple[Nanoseconds, Nanoseconds, Nanoseconds]:
    """The step's blocked time, the duration of its on-CPU phase, and the cores this keeps busy."""
    wall, cpu = pipeline.main_wall_ns, pipeline.main_cpu_ns
    threads = np.divide(cpu, wall, out=np.ones_like(wall), where=wall > 0)
    width = np.clip(threads, 1.0, max(1.0, pipeline.cores))
    wall_per_cpu = max(1.0, 1 / pipeline.cores)
    on_cpu = np.minimum(wall / wall_per_cpu, cpu)
    return wall - on_cpu * wall_per_cpu, on_cpu, width


def _by_place(
    parts: Mapping[Component, Part],
) -> tuple[dict[Component, Part], dict[Component, Part], dict[Component, Part]]:
    """Parts by where they are done with workers: in the workers, in the main thread, in the pin thread."""
    main = {it: part for it, part in parts.items() if it in _IN_MAIN}
    threads = {it: part for it, part in parts.items() if it in _IN_MAIN_THREADS}
    made = {it: part for it, part in parts.items() if it not in _IN_MAIN | _IN_MAIN_THREADS}
    return made, main, threads


def _sum(times: tuple[Nanoseconds, Nanoseconds]) -> Nanoseconds:
    return times[0] + times[1]


def _lanes(scenarios: Sequence[Scenario], draws: Ints, pipeline: Pipeline) -> Lanes:
    """One lane per scenario and replica, the replicas of a scenario side by side."""
    replicas = draws.shape[0]
    return Lanes(
        scenario=np.repeat(np.arange(len(scenarios)), replicas),
        replica=np.tile(np.arange(replicas), len(scenarios)),
        workers=np.repeat([it.workers for it in scenarios], replicas),
        prefetch=np.repeat([max(it.prefetch_factor, 1) for it in scenarios], replicas),
        in_order=np.repeat([it.in_order for it in scenarios], replicas),
        draws=draws,
        cores=pipeline.cores,
        competition=pipeline.competition,
    )
