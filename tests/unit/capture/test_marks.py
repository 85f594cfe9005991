"""What a script may say about itself, with and without dlprof around it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from recordings import begin, events, rows
from torch.utils.data import DataLoader

import dlprof
from dlprof.capture import install
from dlprof.model.kinds import Flag, Kind


@pytest.fixture
def session(tmp_path, monkeypatch):
    session = begin(tmp_path)
    monkeypatch.setattr(install, "_session", session)
    return session


@pytest.fixture
def written(session, tmp_path):
    def read(*kinds: Kind):
        session.recorder.flush_all()
        return rows(tmp_path, *kinds)

    return read


# ---- span ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "kind"), [("data", Kind.USER_DATA), ("host", Kind.USER_HOST), ("device", Kind.USER_DEVICE)]
)
def test_a_part_of_the_script_is_a_span_with_its_name(written, tmp_path, said, kind):
    with dlprof.span("forward", kind=said):
        pass
    assert [row.kind for row in written()] == [kind]
    assert [event["name"] for event in events(tmp_path, "name")] == ["forward"]


def test_without_saying_so_it_is_work_of_the_training_loop(written):
    with dlprof.span("logging"):
        pass
    assert [row.kind for row in written()] == [Kind.USER_HOST]


def test_an_exception_passes_and_ends_the_span(written):
    with pytest.raises(KeyError), dlprof.span("forward"):
        raise KeyError("no")
    assert len(written(Kind.USER_HOST)) == 1


def test_spans_may_lie_in_each_other_and_in_any_thread(written):
    def work() -> None:
        with dlprof.span("outer"), dlprof.span("inner", kind="device"):
            pass

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert sorted(row.kind for row in written()) == [Kind.USER_HOST] * 2 + [Kind.USER_DEVICE] * 2
    assert {row.role for row in written()} == {"main", "thread"}


def test_a_kind_that_there_is_not_is_said_so():
    with pytest.raises(ValueError, match="data, host, device"), dlprof.span("x", kind="gpu"):
        pass


def test_without_dlprof_a_span_does_nothing(tmp_path):
    with dlprof.span("forward"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_does_not_reach_the_script(session, monkeypatch):
    def full(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(session.recorder.thread().writer), "add", full)
    with dlprof.span("forward"):
        pass
    assert not session.recorder.on


# ---- iterate ---------------------------------------------------------------------------------------------------------


class Batches:
    """An iterable that is no DataLoader."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(3.0))


def test_batches_of_any_iterable_are_requests_and_fetches(written):
    assert [float(batch) for batch in dlprof.iterate(Batches())] == [0, 1, 2]
    requests, fetches = written(Kind.NEXT), written(Kind.FETCH)
    assert [(row.batch, row.flags) for row in requests][:3] == [(0, 0), (1, 0), (2, 0)]
    assert requests[3].flags == Flag.ENDED
    assert [(row.batch, row.iterator) for row in fetches][:3] == [(0, 1), (1, 1), (2, 1)]
    for request, fetch in zip(requests, fetches, strict=True):
        assert request.start_ns <= fetch.start_ns <= fetch.end_ns <= request.end_ns


def test_an_iterable_that_is_iterated_again_is_the_same_loader(written, tmp_path):
    batches = Batches()
    for _ in range(2):
        list(dlprof.iterate(batches))
    assert [event["id"] for event in events(tmp_path, "loader")] == [1]
    assert [event["loader"] for event in events(tmp_path, "iterator")] == [1, 1]


def test_a_loader_is_seen_anyway(session):
    loader = DataLoader(range(4), batch_size=2)
    assert type(dlprof.iterate(loader)) is type(iter(loader))


def test_without_dlprof_it_is_a_plain_iterator():
    batches = [1, 2, 3]
    assert type(dlprof.iterate(batches)) is type(iter(batches))


def test_the_script_is_stopped_after_the_steps(tmp_path, monkeypatch):
    session = begin(tmp_path, steps=2)
    monkeypatch.setattr(install, "_session", session)
    batches = dlprof.iterate(Batches())
    for _ in range(2):
        next(batches)
        session.optimizer_begins()
        session.optimizer_ends()
    with pytest.raises(SystemExit):
        next(batches)


def test_an_exception_of_the_iterable_passes(session):
    def batches() -> Iterator[int]:
        yield 1
        raise KeyError("no more")

    found = dlprof.iterate(batches())
    assert next(found) == 1
    with pytest.raises(KeyError, match="no more"):
        next(found)
    assert session.recorder.thread().data_depth == 0


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: (each for each in [1, 2, 3]), id="generator"),
        pytest.param(lambda: {1, 2, 3}, id="set"),
        pytest.param(lambda: [1, 2, 3], id="list"),
        pytest.param(lambda: range(1, 4), id="range"),
        pytest.param(lambda: zip([1], [2], strict=True), id="zip"),
        pytest.param(lambda: iter([1, 2]), id="iterator"),
    ],
)
def test_any_iterable_will_do(session, make):
    assert list(dlprof.iterate(make())) == list(make())


def test_a_full_disk_does_not_reach_the_script_that_iterates(session, monkeypatch):
    def full(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    batches = dlprof.iterate(Batches())
    monkeypatch.setattr(type(session.recorder.thread().writer), "add", full)
    assert len(list(batches)) == 3
