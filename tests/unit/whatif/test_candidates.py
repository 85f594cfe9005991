"""Settings that could be tried, from pipelines known by construction."""

from __future__ import annotations

import pytest
from known_pipelines import measured, part

from dlprof.model.kinds import Component, Confidence
from dlprof.model.tune import Candidate
from dlprof.whatif.candidates import candidates, less_sure, most_to_gain
from dlprof.whatif.pipeline import Simulator

STORAGE, GETITEM = Component.STORAGE_IO, Component.DATASET_GETITEM


def settings(found: list[Candidate]) -> list[dict]:
    return [it.settings for it in found]


def blocking(**more):
    return measured(0, **{"parts": {STORAGE: part(blocked=40)}, "main": 9, "cores": 2, **more})


def test_workers_beyond_the_cores_where_the_work_is_blocked():
    found = settings(candidates(Simulator(blocking()), keep_alive=False))
    # Ascending; of larger numbers those worth telling apart, and the knee of the curve.
    assert [it["num_workers"] for it in found] == [1, 2, 3, 4, 5, 6]


def test_no_more_workers_than_cores_where_the_work_computes():
    found = candidates(Simulator(measured(0, parts={GETITEM: part(cpu=40)}, main=9, cores=2)), keep_alive=False)
    assert max(it.settings["num_workers"] for it in found) <= 3
    assert all((it.doubt > 1) == (it.settings["num_workers"] > 2) for it in found)


def test_batches_that_do_not_fit_shared_memory_are_left_out():
    found = candidates(Simulator(blocking(batch_bytes=10, shm_free_bytes=60)), keep_alive=False)
    assert settings(found) == [{"num_workers": 1}, {"num_workers": 2}]


def test_workers_are_kept_alive_where_epochs_would_start_them_again():
    found = settings(candidates(Simulator(blocking()), keep_alive=True))
    assert all(it["persistent_workers"] is True for it in found)


def test_a_longer_queue_only_where_it_gains():
    steady = measured(2, parts={STORAGE: part(blocked=40)}, main=9, step=20, cores=2)
    assert not any("prefetch_factor" in it for it in settings(candidates(Simulator(steady), keep_alive=False)))
    slow_ones = part(blocked=[150.0 if index % 10 == 0 else 4.0 for index in range(40)])
    bursty = measured(1, parts={STORAGE: slow_ones}, main=18, step=24, cores=2)
    found = settings(candidates(Simulator(bursty), keep_alive=False))
    assert any(it.get("prefetch_factor", 0) > 2 for it in found)


def test_no_setting_can_gain_more_than_the_wait_that_was_measured():
    pipeline = measured(0, parts={STORAGE: part(blocked=10)}, main=90, cores=2)
    assert most_to_gain(pipeline) == pytest.approx(100 / 90)
    for each in candidates(Simulator(pipeline), keep_alive=False):
        assert each.promise is not None
        assert each.promise.speedup[2] <= 100 / 90 + 1e-9 or each.promise.speedup[1] == each.promise.speedup[2]
    assert (
        candidates(Simulator(measured(0, parts={STORAGE: part(blocked=2)}, main=98, cores=2)), keep_alive=False) == []
    )


def test_less_sure():
    found = less_sure([*candidates(Simulator(blocking()), keep_alive=False), Candidate({"pin_memory": True}, None)])
    assert {it.promise.confidence for it in found if it.promise} == {Confidence.LOW}
    assert found[-1].promise is None
