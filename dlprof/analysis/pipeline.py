"""What the simulator is given: service times of the measured batches, from where they were made."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dlprof.analysis.components import MAKING, PARTS, Fetches
from dlprof.analysis.machine import load_during
from dlprof.analysis.partition import starvation
from dlprof.analysis.scope import own_spans, process_spans
from dlprof.model.intervals import overlap
from dlprof.model.kinds import Component, Kind
from dlprof.model.pipeline import ALONE, Competition, Part, Pipeline
from dlprof.model.profile import Loader, Profile
from dlprof.model.steps import Step, Steps

Row = npt.NDArray[np.float64]


def training_loader(profile: Profile, steps: Steps) -> Loader | None:
    """The training loop's loader, None where there is none."""
    found = (each for each in profile.loaders if each.pid == profile.main_pid and each.number == steps.loader)
    return next(found, None)


def build_pipeline(profile: Profile, steps: Steps, fetches: Fetches) -> Pipeline | None:
    """Describe the measured input pipeline to the simulator.

    Args:
        profile: The run.
        steps: Its steps.
        fetches: Every batch made, divided into components.

    Returns:
        None where there is no loader, or the making of its batches was not recorded.
    """
    loader = training_loader(profile, steps)
    rows = fetches.index()
    # A step with another loader's phase within it has CPU time of that phase in its body.
    known = [step for step in steps.measured if (step.iterator, step.batch) in rows and not step.phases_ns]
    if loader is None or not known:
        return None
    made = np.array([rows[step.iterator, step.batch] for step in known], dtype=np.int64)
    workers = int(loader.settings.get("num_workers") or 0)
    cores = float(profile.environment.get("cores") or 1)
    worker_cost, main_cost, handover_known = _handover(profile, known, workers)
    body_cpu = _body(profile, known, "process_cpu_ns")
    step_ns = np.array([step.duration_ns for step in known], dtype=np.float64)
    waits = _waits(profile, known)
    # What the device still worked off during a wait belongs to the step, not to the wait.
    body_wall = step_ns - waits
    shape = next((batch for batch in profile.batches if batch.loader == loader.number), None)
    return Pipeline(
        workers=workers,
        prefetch_factor=int(loader.settings.get("prefetch_factor") or 0),
        in_order=bool(loader.settings.get("in_order", True)),
        cores=cores,
        parts=_parts(fetches, made, workers, cores) | _sampler(profile, known),
        handover_cpu_ns=worker_cost,
        receive_cpu_ns=main_cost,
        main_wall_ns=body_wall,
        main_cpu_ns=body_cpu,
        main_no_core_ns=_body(profile, known, "runnable_ns"),
        step_ns=step_ns,
        wait_ns=waits,
        handover_known=handover_known,
        batch_bytes=shape.size_bytes if shape else -1,
        shm_free_bytes=int(profile.environment.get("shm_free_bytes", -1)),
        competition=_competition(profile, steps, known, fetches, made),
    )


def _competition(
    profile: Profile, steps: Steps, known: list[Step], fetches: Fetches, made: npt.NDArray[np.int64]
) -> Competition:
    # What others did in the few steps of a short run is what they did before and after.
    load = load_during(profile, steps.measured) or load_during(profile, steps.all)
    if load is None:
        return ALONE
    on_cpu = float(fetches.cpu_ns[made].sum() + _body(profile, known, "on_cpu_ns").sum())
    no_core = float(fetches.no_core_ns[made].sum() + _body(profile, known, "runnable_ns").sum())
    # They wait for cores as much as ours do.
    return Competition(load.cores_others * (1 + no_core / on_cpu if on_cpu else 1), load.cores)


def _shares(table: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shares: npt.NDArray[np.float64] = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    return shares


def _parts(fetches: Fetches, made: npt.NDArray[np.int64], workers: int, cores: float) -> dict[Component, Part]:
    cpu, blocked = fetches.cpu_ns[made], fetches.blocked_ns()[made]
    # In the main process helper threads (rayon, OpenMP) share the work, while the calling thread waits for them; a
    # worker runs one thread, which then does all of it. Where workers have helpers all the same, those want the cores
    # too: but of what they did beside the worker's own thread only what kept that from a core makes a batch later.
    helped = fetches.helper_ns[made]
    # While it waits they can have worked on every core at most; the rest they did beside its own work.
    possible = blocked * cores
    # Who is seen to wait for storage, a lock or a timer waits for no helper.
    possible[:, len(MAKING) :] = 0
    waited_for = np.minimum(helped, possible.sum(axis=1))
    beside = helped - waited_for
    if workers:
        beside = np.minimum(beside, fetches.no_core_ns[made].sum(axis=1))
    by_helpers = _shares(possible) * waited_for[:, None]
    cpu = cpu + by_helpers + _shares(cpu) * beside[:, None]
    blocked = np.maximum(blocked - by_helpers, 0)
    return {
        component: Part(cpu[:, place], blocked[:, place])
        for place, component in enumerate(PARTS)
        if cpu[:, place].any() or blocked[:, place].any()
    }


def _sampler(profile: Profile, steps: list[Step]) -> dict[Component, Part]:
    spans = process_spans(profile).of(Kind.SAMPLER)
    spent = overlap(
        spans.covered(), [step.wait_start_ns for step in steps], [step.wait_end_ns for step in steps]
    ).astype(np.float64)
    return {Component.SAMPLER: Part(spent, np.zeros_like(spent))} if spent.any() else {}


def _waits(profile: Profile, steps: list[Step]) -> Row:
    """How long each step's wait kept the device, or the process where there is none, from working."""
    starved = starvation(profile)
    if starved is None:
        return np.array([step.wait_ns for step in steps], dtype=np.float64)
    begins, ends = [step.wait_start_ns for step in steps], [step.wait_end_ns for step in steps]
    return overlap(starved, begins, ends).astype(np.float64)


def _handover(profile: Profile, steps: list[Step], workers: int) -> tuple[Row, Row, bool]:
    if not workers:
        if profile.handover is None:
            return np.zeros(len(steps)), np.zeros(len(steps)), False
        worker, main = profile.handover.worker_cpu_ns, profile.handover.main_cpu_ns
        return np.full(len(steps), float(worker)), np.full(len(steps), float(main)), True
    pickling = _per_batch(profile, Kind.PICKLE, on_cpu=True)
    sending = _per_batch(profile, Kind.SEND, on_cpu=False)
    # On a core only: while it unpickles, the main thread waits for the worker, whose descriptors it fetches and which
    # may be computing. That wait was measured to change the step by next to nothing.
    receiving = _per_batch(profile, Kind.RECEIVE, on_cpu=True)
    unpickling = _per_batch(profile, Kind.UNPICKLE, on_cpu=True)
    keys = [(step.iterator, step.batch) for step in steps]
    worker_cost = np.array([pickling.get(key, 0.0) + sending.get(key, 0.0) for key in keys])
    main_cost = np.array([receiving.get(key, 0.0) + unpickling.get(key, 0.0) for key in keys])
    return worker_cost, main_cost, any(key in unpickling for key in keys)


def _per_batch(profile: Profile, kind: Kind, *, on_cpu: bool) -> dict[tuple[int, int], float]:
    spans = own_spans(profile).of(kind)
    values = spans.on_cpu_ns if on_cpu else spans.duration_ns()
    keys = zip(spans.iterator.tolist(), spans.batch.tolist(), strict=True)
    return dict(zip(keys, np.maximum(values, 0).astype(np.float64).tolist(), strict=True))


def _body(profile: Profile, steps: list[Step], column: str) -> Row:
    """A column of what each step did outside its request, 0 where it is not known."""
    bodies = process_spans(profile).of(Kind.BODY)
    keys = zip(bodies.iterator.tolist(), bodies.batch.tolist(), strict=True)
    found = dict(zip(keys, np.maximum(getattr(bodies, column), 0).tolist(), strict=True))
    return np.array([float(found.get((step.iterator, step.batch), 0.0)) for step in steps])
