"""What is timed where batches are made, tried in this process; real workers: tests/process/test_fallback.py."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytest
from recordings import Row, asked, events, rows
from torch.utils.data import DataLoader

from dlprof.capture import fetching
from dlprof.capture.fetching import Fetching, TimedCollate, TimedInit, timed_items
from dlprof.capture.recorder import Recorder
from dlprof.model.kinds import Flag, Kind, Role


@runtime_checkable
class Stateful(Protocol):
    """As torchdata's."""

    def state_dict(self) -> dict[str, Any]: ...


class Items:
    def __init__(self) -> None:
        self.left = 3
        self._given = "the script's own"

    def __iter__(self) -> Items:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}


class WorkerInfo:
    id = 1


@pytest.fixture
def here(tmp_path):
    found = Fetching(Recorder(str(tmp_path), asked()))
    yield found
    found.forget()
    assert fetching._here is None


@pytest.fixture
def in_worker(monkeypatch):
    monkeypatch.setattr(fetching, "_worker_info", WorkerInfo)


def fetcher(dataset_iter: Any) -> Any:
    class Fetcher:
        def __init__(self) -> None:
            self.dataset = self.dataset_iter = dataset_iter
            self.collate_fn = list

        def fetch(self, index: list[None]) -> list[int]:
            return self.collate_fn([item for _, item in zip(index, self.dataset_iter, strict=False)])

    return Fetcher()


def written(here: Fetching, *kinds: Kind) -> list[Row]:
    here.recorder.flush_all()
    return rows(Path(here.recorder.folder), *kinds)


def double(samples: list[int]) -> list[int]:
    return [2 * sample for sample in samples]


def test_an_iterator_with_a_state_still_has_one(here):
    timed = timed_items(here.recorder, Items())
    assert isinstance(timed, Stateful)
    assert [next(timed), timed.state_dict(), timed.left] == [2, {"left": 2}, 2]
    assert not isinstance(timed_items(here.recorder, iter([1])), Stateful)


def test_a_dataset_that_is_its_own_iterator_stays_so(here):
    made = here.timing_fetcher(fetcher)(Items())
    assert made.dataset is made.dataset_iter


def test_what_an_iterable_dataset_gave_is_counted_not_what_it_was_asked_for(here):
    made = here.timing_fetcher(fetcher)(Items())
    here.recorder.thread()
    assert made.fetch([None] * 5) == [2, 1, 0]
    assert [row.value for row in written(here, Kind.FETCH)] == [3]


def test_a_worker_knows_itself(here, in_worker, tmp_path):
    made = here.timing_fetcher(fetcher)(Items())
    made.fetch([None])
    (found,) = written(here, Kind.FETCH)
    assert (found.role, found.batch, found.iterator, found.flags) == (str(Role.WORKER), -1, 0, 0)
    assert [event["number"] for event in events(tmp_path, "worker")] == [1]


def test_each_new_fetcher_of_a_worker_is_of_its_next_iteration(here, in_worker):
    create = here.timing_fetcher(fetcher)
    for _ in range(2):
        create(Items()).fetch([None])
    assert [row.iterator for row in written(here, Kind.FETCH)] == [0, 1]


def test_a_loader_inside_the_dataset_of_a_worker_is_apart(here):
    position = here.enter_worker()
    position.batch = 4
    create = here.timing_fetcher(fetcher)

    class Outer(Items):
        def __next__(self) -> int:
            return create(Items()).fetch([None])[0]

    create(Outer()).fetch([None])
    inner, outer = sorted(written(here, Kind.FETCH), key=lambda row: row.end_ns - row.start_ns)
    assert (inner.batch, inner.iterator, inner.flags) == (-1, -1, Flag.NESTED)
    assert (outer.batch, outer.iterator, outer.flags) == (4, 0, 0)


def test_wrappers_are_given_to_the_workers_and_the_loader_gets_its_own_back(here):
    called: list[int] = []
    loader = DataLoader([1, 2], collate_fn=double, num_workers=1, worker_init_fn=called.append)
    own = loader.worker_init_fn
    with here.swapped(loader):
        assert isinstance(loader.worker_init_fn, TimedInit)
        assert loader.collate_fn([1]) == [2]
        loader.worker_init_fn(3)
    assert called == [3]
    assert (loader.worker_init_fn, loader.collate_fn) == (own, double)


def test_a_pickled_wrapper_finds_the_recording_of_its_new_process(here, in_worker):
    init, collate = pickle.loads(pickle.dumps((TimedInit(None), TimedCollate(double))))
    init(1)
    assert collate([1, 2]) == [2, 4]
    assert [(row.value, row.iterator) for row in written(here, Kind.FETCH)] == [(2, -1)]


def test_a_pickled_wrapper_where_nothing_is_recorded_calls_the_original():
    assert pickle.loads(pickle.dumps(TimedCollate(double)))([1]) == [2]
    assert TimedInit(None)(0) is None


def test_a_recording_that_fails_leaves_collating_alone(here, in_worker, monkeypatch):
    TimedInit(None)(1)
    monkeypatch.setattr(type(here.recorder.thread().writer), "add", lambda *_, **__: 1 / 0)
    assert TimedCollate(double)([1]) == [2]
    assert not here.recorder.on
    assert TimedCollate(double)([1]) == [2]
