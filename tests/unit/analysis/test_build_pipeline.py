"""What the simulator is given of a measured run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import MAIN_PID, Span, end_of_epoch, leave_loop, ms, profile, recorded, step, validation

from dlprof.analysis.components import find_fetches
from dlprof.analysis.pipeline import build_pipeline, training_loader
from dlprof.analysis.steps import find_steps
from dlprof.model.kinds import Component, Kind
from dlprof.model.machine import Machine
from dlprof.model.pipeline import ALONE, Competition, Pipeline
from dlprof.model.profile import Handover, Iteration, Loader, Profile

PLAIN = step(getitem=ms(10), tokenizer=ms(20), compute=ms(10))


def built(found: Profile) -> Pipeline | None:
    return build_pipeline(found, find_steps(found), find_fetches(found))


def test_without_workers_the_wait_is_the_fetch():
    found = built(profile(PLAIN * 6, cores=3, warmup=2))
    assert (found.workers, found.prefetch_factor, found.in_order, found.cores) == (0, 0, True, 3)
    assert found.wait_ns.tolist() == [ms(30)] * 4
    assert found.step_ns.tolist() == [ms(40)] * 4
    assert found.main_wall_ns.tolist() == found.main_cpu_ns.tolist() == [ms(10)] * 4
    assert found.parts[Component.TOKENIZER].cpu_ns.tolist() == [ms(20)] * 4
    assert set(found.parts) == {Component.TOKENIZER, Component.DATASET_GETITEM}


def test_a_part_that_takes_no_time_is_left_out():
    assert Component.DECODE not in built(profile(PLAIN * 4)).parts


def test_without_workers_helper_threads_are_work_that_a_worker_would_do_alone():
    found = built(profile(step(tokenizer=ms(20), helpers=ms(30), compute=ms(10)) * 4))
    assert found.parts[Component.TOKENIZER].cpu_ns.tolist() == [ms(50)] * 4


def test_helper_threads_worked_where_the_calling_thread_waited_for_them():
    # Measured: of tokenizers' encode_batch the calling thread spends a fiftieth on a core; rayon's threads do the work.
    found = recorded(
        [
            Span(Kind.NEXT, 0, ms(34), batch=0, iterator=1),
            Span(Kind.FETCH, 0, ms(34), 0, 0, 1, on_cpu_ns=ms(4), runnable_ns=0, process_cpu_ns=ms(60)),
            Span(Kind.TOKENIZER, 0, ms(31), on_cpu_ns=ms(1)),
            Span(Kind.COLLATE, ms(31), ms(34), on_cpu_ns=ms(3)),
            Span(Kind.BODY, ms(34), ms(40), batch=0, iterator=1),
            Span(Kind.OPTIMIZER, ms(39), ms(40)),
        ],
        iterations=[Iteration(1, MAIN_PID, 1, ())],
        loaders=[Loader(1, MAIN_PID, {"num_workers": 0})],
    )
    parts = built(found).parts
    assert parts[Component.COLLATE_FN].cpu_ns[0] == pytest.approx(ms(3))
    assert parts[Component.TOKENIZER].cpu_ns[0] == pytest.approx(ms(57))
    assert parts[Component.TOKENIZER].blocked_ns[0] == pytest.approx(0)


def test_a_moments_wait_elsewhere_does_not_draw_the_helpers_time_to_it():
    # As a resize whose calling thread works with its helpers, and a file that took a moment to open.
    found = recorded(
        [
            Span(Kind.NEXT, 0, ms(21), batch=0, iterator=1),
            Span(Kind.FETCH, 0, ms(21), 0, 0, 1, on_cpu_ns=ms(20.9), runnable_ns=0, process_cpu_ns=ms(40.9)),
            Span(Kind.TRANSFORM, ms(1), ms(21), on_cpu_ns=ms(20)),
            Span(Kind.BODY, ms(21), ms(30), batch=0, iterator=1),
            Span(Kind.OPTIMIZER, ms(29), ms(30)),
        ],
        iterations=[Iteration(1, MAIN_PID, 1, ())],
        loaders=[Loader(1, MAIN_PID, {"num_workers": 0})],
    )
    parts = built(found).parts
    assert parts[Component.TRANSFORM].cpu_ns[0] > ms(35)
    assert parts[Component.DATASET_GETITEM].cpu_ns[0] < ms(3)


def test_with_workers_helper_threads_of_others_are_not_counted():
    found = built(profile(step(tokenizer=ms(20), helpers=ms(30), compute=ms(10)) * 4, workers=2))
    assert found.parts[Component.TOKENIZER].cpu_ns.tolist() == [ms(20)] * 4


def test_blocked_time_stays_blocked_and_waiting_for_a_core_is_left_to_the_simulator():
    found = built(profile(step(getitem=ms(30), blocked=ms(15), no_core=ms(5), compute=ms(10)) * 4))
    part = found.parts[Component.DATASET_GETITEM]
    assert part.cpu_ns == pytest.approx([ms(10)] * 4)
    assert part.blocked_ns == pytest.approx([ms(15)] * 4)


def test_with_workers_the_hand_over_is_what_was_measured():
    plan = step(getitem=ms(30), pickle=ms(4), send=ms(2), receive=ms(1), unpickle=ms(3), compute=ms(10)) * 5
    found = built(profile(plan, workers=2, prefetch=3))
    assert (found.workers, found.prefetch_factor) == (2, 3)
    assert found.handover_known
    assert found.handover_cpu_ns.tolist() == [ms(6)] * 5
    assert found.receive_cpu_ns.tolist() == [ms(4)] * 5


def test_without_workers_the_hand_over_is_what_was_probed():
    found = built(profile(PLAIN * 3, handover=Handover(ms(2), ms(3))))
    assert (found.handover_known, found.handover_cpu_ns.tolist()) == (True, [ms(2)] * 3)
    assert found.receive_cpu_ns.tolist() == [ms(3)] * 3


def test_a_hand_over_that_could_not_be_probed_is_not_known():
    found = built(profile(PLAIN * 3))
    assert (found.handover_known, found.handover_cpu_ns.tolist()) == (False, [0] * 3)


def test_batches_are_those_of_the_measured_steps_in_their_order():
    plan = [each for wait in (10, 20, 30, 40) for each in step(getitem=ms(wait), compute=ms(5))]
    traced = step(getitem=ms(99), compute=ms(5), traced=True)
    found = built(profile(plan + traced * 2, workers=2, warmup=1))
    assert (found.parts[Component.DATASET_GETITEM].cpu_ns / ms(1)).tolist() == [20, 30, 40]


def test_validation_batches_are_not_the_training_pipelines():
    slow = validation(step(getitem=ms(500)) * 10)
    found = built(profile((PLAIN * 4 + end_of_epoch() + slow) * 2))
    assert found.parts[Component.DATASET_GETITEM].cpu_ns.tolist() == [ms(10)] * 8


def test_the_batches_size_and_the_shared_memory_come_along():
    found = built(profile(PLAIN * 3, batch_size=16))
    assert (found.batch_bytes, found.shm_free_bytes) == (16 * 64, 1 << 30)


def test_a_slow_sampler_is_a_part_of_its_own():
    found = built(profile(step(getitem=ms(10), sampler=ms(20), compute=ms(10)) * 5))
    assert found.parts[Component.DATASET_GETITEM].cpu_ns.tolist() == [ms(10)] * 5
    assert found.parts[Component.SAMPLER].cpu_ns.tolist() == [ms(20)] * 5


def test_what_another_rank_did_with_its_batches_of_the_same_number_is_not_ours():
    found = profile(PLAIN * 5)
    bodies = found.spans.of(Kind.BODY)
    theirs = replace(bodies, track=bodies.track + len(found.tracks), process_cpu_ns=bodies.process_cpu_ns * 7)
    columns = {
        name: np.concatenate([getattr(found.spans, name), getattr(theirs, name)]) for name in type(theirs).COLUMNS
    }
    both = replace(
        found,
        spans=type(theirs)(**columns, names=theirs.names),
        tracks=(*found.tracks, *(replace(track, pid=999) for track in found.tracks)),
    )
    assert built(both).main_cpu_ns.tolist() == built(found).main_cpu_ns.tolist()


def test_a_batch_that_was_not_described_has_no_size():
    assert built(replace(profile(PLAIN * 3), batches=())).batch_bytes == -1


def test_without_a_loader_or_without_its_batches_there_is_no_pipeline():
    assert built(replace(profile(PLAIN * 3), loaders=())) is None
    assert built(profile(leave_loop())) is None
    made = profile(PLAIN * 3, workers=1)
    unseen = replace(made, tracks=tuple(replace(each, pid=1 + each.pid // 100) for each in made.tracks))
    assert built(replace(unseen, main_pid=2)) is None


def test_the_training_loader_is_that_of_the_steps():
    found = profile(PLAIN * 3)
    assert training_loader(found, find_steps(found)).number == 1
    assert training_loader(replace(found, main_pid=1), find_steps(found)) is None


def test_all_arrays_have_one_number_a_batch():
    found = built(profile(PLAIN * 7, workers=2))
    sizes = {len(value) for value in vars_of(found)} | {len(p.cpu_ns) for p in found.parts.values()}
    assert sizes == {7}


def vars_of(found: Pipeline) -> list[np.ndarray]:
    values = [getattr(found, name) for name in found.__slots__]
    return [value for value in values if isinstance(value, np.ndarray)]


def looked_at_from_outside(found: Profile, busy: float, used: float, cores: int) -> Profile:
    """Four looks over all steps: what was busy of the cores that the process may use, and what the run used of it."""
    steps = find_steps(found).all
    begin, end = steps[0].wait_start_ns, steps[-1].body_end_ns
    at = [begin + (end - begin) * look // 3 for look in range(4)]
    busy_ns, used_ns = (tuple(round((moment - begin) * rate) for moment in at) for rate in (busy, used))
    return replace(found, machine=Machine(cores, None, tuple(at), busy_ns, used_ns, (0,) * 4, (), ()))


def test_other_programs_compete_for_the_cores():
    found = looked_at_from_outside(profile(PLAIN * 6), busy=1.9, used=1.1, cores=2)
    assert built(found).competition == Competition(pytest.approx(0.8), 2)


def test_others_waited_for_a_core_as_much_as_the_run_did():
    # For 20 ms on-CPU it waited 10 for a core.
    found = profile(step(getitem=ms(30), no_core=ms(10), compute=ms(10)) * 6)
    assert built(looked_at_from_outside(found, 2, 1, 2)).competition.threads == pytest.approx(30 / 20, rel=0.01)


def test_where_nobody_looked_nobody_competes():
    assert built(profile(PLAIN * 6)).competition == ALONE
