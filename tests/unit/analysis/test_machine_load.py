"""What the looks from outside say of the measured steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import FIRST_WORKER_PID, MAIN_PID, ms, profile, step

from dlprof.analysis.machine import load_during, load_facts, load_notices, private_memory_mb
from dlprof.analysis.steps import find_steps
from dlprof.model.machine import Machine, ProcessMemory, ProcessReadings
from dlprof.model.profile import Profile

STEPS = 60
LOOKS = 25
MB = 10**6


def run(workers: int = 0) -> Profile:
    return profile(step(input_wait=ms(20), python=ms(80)) * STEPS, workers=workers)


def watched(
    found: Profile,
    *,
    busy: float = 1.0,
    used: float = 1.0,
    throttled: float = 0.0,
    cores: int = 2,
    disk=lambda done: 0,
    asked=lambda done: 0,
    quota: float | None = None,
    memory: tuple[ProcessMemory, ...] = (),
) -> Profile:
    """The run with looks over all its steps: rates in cores, and bytes by the part of the run that is done."""
    measured = find_steps(found).measured
    begin, end = measured[0].wait_start_ns - ms(1), measured[-1].body_end_ns + ms(1)
    at = [begin + (end - begin) * look // (LOOKS - 1) for look in range(LOOKS)]
    past = [moment - begin for moment in at]
    done = [each / (end - begin) for each in past]
    own = ProcessReadings(
        MAIN_PID,
        1,
        tuple(range(LOOKS)),
        tuple(round(each * used) for each in past),
        (0,) * LOOKS,
        tuple(round(disk(each)) for each in done),
        tuple(round(asked(each)) for each in done),
    )
    machine = Machine(
        cores,
        quota,
        tuple(at),
        *(tuple(round(each * rate) for each in past) for rate in (busy, used, throttled)),
        (own,),
        memory,
    )
    return replace(found, machine=machine)


def slugs(found: Profile) -> list[str]:
    return [notice.slug for notice in load_notices(found, find_steps(found))]


def test_an_ordinary_run_has_nothing_to_say():
    found = watched(run(), busy=1.1, disk=lambda done: 60_000 * done, asked=lambda done: 10**9 * done)
    assert slugs(found) == []
    facts = load_facts(found, find_steps(found))["during_the_steps"]
    assert facts["cores_used"] == pytest.approx(1.0, abs=0.01)
    assert facts["cores_used_by_others"] == pytest.approx(0.1, abs=0.01)
    assert facts["read_from_disk_per_step_bytes"] == pytest.approx(1000, rel=0.05)
    assert facts["read_by_calls_per_step_bytes"] == pytest.approx(10**9 / STEPS, rel=0.05)
    assert facts["throttled_ratio"] == 0


def test_a_run_that_nobody_watched_from_outside():
    found = run()
    assert load_facts(found, find_steps(found)) == {}
    assert slugs(found) == []
    assert private_memory_mb(found) == {}


def test_too_few_looks_say_nothing():
    found = watched(run(), throttled=1)
    machine = found.machine
    assert machine is not None
    columns = ("at_ns", "busy_ns", "run_cpu_ns", "throttled_ns")
    few = replace(machine, processes=(), **{name: getattr(machine, name)[:2] for name in columns})
    assert load_during(replace(found, machine=few), find_steps(found).measured) is None
    assert slugs(replace(found, machine=few)) == []


def test_what_may_not_be_read_is_not_known():
    found = watched(run(), disk=lambda done: -1, asked=lambda done: -1)
    load = load_during(found, find_steps(found).measured)
    assert load is not None
    assert (load.disk_bytes, load.asked_bytes) == (None, None)


def test_a_sum_never_falls():
    # A worker that was killed: what it has read is nobody's.
    found = watched(run(), disk=lambda done: 10 * MB * done if done < 0.5 else 0)
    load = load_during(found, find_steps(found).measured)
    assert load is not None
    assert load.disk_bytes == pytest.approx(5 * MB, rel=0.1)


# ---- throttling and other programs ---------------------------------------------------------------------------------


def test_throttling_is_a_share_of_the_time_in_which_the_run_wanted_to_run():
    found = watched(run(), used=0.5, busy=0.5, throttled=0.5, quota=0.5)
    (notice,) = load_notices(found, find_steps(found))
    assert notice.slug == "cpu-throttled"
    assert notice.values == {"share": pytest.approx(0.5), "cores": 0.5}


def test_a_little_throttling_is_no_matter():
    assert slugs(watched(run(), throttled=0.02)) == []


def test_other_programs_that_leave_few_cores():
    found = watched(run(), used=1.0, busy=2.0)
    (notice,) = load_notices(found, find_steps(found))
    assert (notice.slug, notice.values) == ("machine-busy", {"busy": 1.0, "cores": 2})


@pytest.mark.parametrize(("busy", "used", "cores"), [(1.3, 0.3, 2), (20.0, 2.0, 64), (1.95, 1.8, 2), (60.0, 58.0, 64)])
def test_other_programs_that_disturb_nobody(busy, used, cores):
    assert slugs(watched(run(), busy=busy, used=used, cores=cores)) == []


# ---- reads ---------------------------------------------------------------------------------------------------------


def test_reads_that_were_cold_at_first():
    found = watched(run(), disk=lambda done: 60 * MB * min(done, 0.5))
    (notice,) = load_notices(found, find_steps(found))
    assert notice.slug == "reads-cold-then-warm"
    assert notice.values["cold_bytes"] == pytest.approx(MB, rel=0.1)
    assert notice.values["warm_bytes"] == 0


@pytest.mark.parametrize("disk", [lambda done: 60 * MB * done, lambda done: 0, lambda done: MB * min(done, 0.3)])
def test_reads_that_stay_as_they_were(disk):
    assert slugs(watched(run(), disk=disk)) == []


# ---- memory of workers ---------------------------------------------------------------------------------------------


def with_memory(*megabytes: float, length: int | None = 100_000) -> Profile:
    found = run(workers=1)
    found = replace(found, loaders=tuple(replace(e, settings=e.settings | {"length": length}) for e in found.loaders))
    measured = find_steps(found).measured
    begin, end = measured[0].wait_start_ns, measured[-1].body_end_ns
    at = tuple(begin + (end - begin) * n // max(len(megabytes) - 1, 1) for n in range(len(megabytes)))
    before = ProcessMemory(FIRST_WORKER_PID, (begin - 10**9, *at), (1, *(round(each * MB) for each in megabytes)))
    found = watched(found, memory=(before, ProcessMemory(MAIN_PID, (begin,), (9,))))
    return replace(found, environment=found.environment | {"memory_bytes": 16 * 10**9})


def test_the_first_and_the_last_of_a_workers_memory_since_it_was_ready():
    assert private_memory_mb(with_memory(100, 120, 130)) == {FIRST_WORKER_PID: (100.0, 130.0)}


def test_one_look_is_no_beginning():
    assert private_memory_mb(with_memory(100)) == {FIRST_WORKER_PID: (None, 100.0)}


def test_memory_that_grows_steadily_beyond_what_there_is():
    found = with_memory(100, 150, 200, 250, 300)
    (notice,) = load_notices(found, find_steps(found))
    assert notice.slug == "worker-memory-grows"
    assert notice.values["batch_bytes"] == pytest.approx(200 * MB / STEPS, rel=0.1)
    assert notice.values["then_bytes"] > notice.values["limit_bytes"] == 16 * 10**9


@pytest.mark.parametrize(
    "found",
    [
        with_memory(100, 101, 100, 101, 102),
        with_memory(100, 250, 280, 290, 300),
        with_memory(100, 300),
        with_memory(100, 150, 200, 250, 300, length=100),
        with_memory(100, 150, 200, 250, 300, length=None),
    ],
    ids=["hardly", "less and less", "two looks", "a short epoch", "an epoch of unknown length"],
)
def test_memory_that_is_no_danger_as_far_as_is_known(found):
    assert slugs(found) == []
