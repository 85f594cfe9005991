"""torch's own loader with the hooks in place: nothing changes, everything is recorded. Workers: tests/process."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import Row, begin, events, rows
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, SequentialSampler
from torch.utils.data import dataloader as torchs

from dlprof.capture import dataloader as hooks_module
from dlprof.capture.dataloader import DataLoaderHooks, IteratorState, describe_loader
from dlprof.capture.session import STOP_SIGNAL, Session
from dlprof.formats.progress_file import ALL_STEPS, Phase, read_progress
from dlprof.model.kinds import Flag, Kind

HOOKED = (
    (torchs.DataLoader, "__iter__"),
    (torchs._BaseDataLoaderIter, "__next__"),
    (torchs._BaseDataLoaderIter, "_next_index"),
    (torchs._MultiProcessingDataLoaderIter, "_try_put_index"),
    (torchs._MultiProcessingDataLoaderIter, "_get_data"),
    (torchs._MultiProcessingDataLoaderIter, "_shutdown_workers"),
    (torchs._DatasetKind, "create_fetcher"),
)


class Squares(Dataset):
    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index**2), torch.rand(()).item(), random.random()])


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(10.0))


class InOneGo(Squares):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


@pytest.fixture
def recording(tmp_path) -> Iterator[Callable[..., DataLoaderHooks]]:
    """Begins to record with these settings; all that was hooked is given back afterwards."""
    made: list[DataLoaderHooks] = []

    def start(**settings: Any) -> DataLoaderHooks:
        hooks = DataLoaderHooks(begin(tmp_path, **settings))
        hooks.install(torchs)
        made.append(hooks)
        return hooks

    classes = {owner for owner, _ in HOOKED}
    before = {owner: dict(vars(owner)) for owner in classes}
    yield start
    for hooks in reversed(made):
        hooks.restore()
    assert {owner: dict(vars(owner)) for owner in classes} == before


@pytest.fixture
def hooks(recording) -> DataLoaderHooks:
    return recording()


def session_of(hooks: DataLoaderHooks) -> Session:
    return hooks._session


def optimizer_step(hooks: DataLoaderHooks) -> None:
    session_of(hooks).optimizer_begins()
    session_of(hooks).optimizer_ends()


def written(hooks: DataLoaderHooks, *kinds: Kind) -> list[Row]:
    session_of(hooks).recorder.flush_all()
    return rows(Path(session_of(hooks).recorder.folder), *kinds)


# ---- nothing changes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: DataLoader(Squares(), batch_size=5), id="sequential"),
        pytest.param(lambda: DataLoader(Squares(), batch_size=5, shuffle=True, drop_last=True), id="shuffled"),
        pytest.param(lambda: DataLoader(Squares(), batch_size=None), id="not batched"),
        pytest.param(lambda: DataLoader(InOneGo(), batch_size=5), id="in one go"),
        pytest.param(lambda: DataLoader(Stream(), batch_size=4), id="iterable"),
        pytest.param(lambda: DataLoader(Stream(), batch_size=None), id="iterable, not batched"),
        pytest.param(
            lambda: DataLoader(Squares(), batch_sampler=BatchSampler(SequentialSampler(Squares()), 3, True)),
            id="batch sampler",
        ),
        pytest.param(lambda: DataLoader(Squares(), batch_size=4, collate_fn=list), id="own collate_fn"),
    ],
)
def test_batches_and_random_states_are_the_same(recording, make):
    def run() -> tuple[Any, ...]:
        torch.manual_seed(1)
        random.seed(2)
        batches = [str(batch) for _ in range(2) for batch in make()]
        return batches, torch.get_rng_state().tolist(), random.getstate()

    expected = run()
    recording()
    assert run() == expected


def test_hooks_are_given_back(recording):
    hooks = recording()
    assert hasattr(torchs.DataLoader.__iter__, "__wrapped__")
    hooks.restore()
    assert not hasattr(torchs.DataLoader.__iter__, "__wrapped__")


def test_names_and_signatures_stay(hooks):
    for owner, name in HOOKED:
        assert getattr(owner, name).__name__ == name


def test_a_loader_whose_iteration_began_before_the_hooks_goes_on_unseen(recording):
    iterator = iter(DataLoader(Squares(), batch_size=5))
    hooks = recording()
    assert len(list(iterator)) == 3
    # A sampler that is held up is noted, whoever asks it.
    assert [row for row in written(hooks) if row.kind is not Kind.SAMPLER] == []


def test_an_older_torch_that_lacks_a_private_name_costs_that_hook_only(tmp_path):
    class OtherTorch:
        class DataLoader:
            def __iter__(self) -> Iterator[int]:
                return iter(())

    hooks = DataLoaderHooks(begin(tmp_path))
    hooks.install(OtherTorch)
    missing = [event["hook"] for event in events(tmp_path, "notice")]
    assert set(missing) >= {"__next__", "_next_index", "_try_put_index", "_get_data", "create_fetcher"}
    hooks.restore()
    assert not hasattr(OtherTorch.DataLoader.__iter__, "__wrapped__")


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_each_batch_is_a_request_with_its_number_and_the_end_is_flagged(hooks):
    for _ in DataLoader(Squares(), batch_size=5):
        pass
    found = written(hooks, Kind.NEXT)
    assert [(row.batch, row.iterator, row.flags) for row in found] == [
        (0, 1, 0),
        (1, 1, 0),
        (2, 1, 0),
        (-1, 1, Flag.ENDED),
    ]


def test_between_two_requests_lies_the_body(hooks):
    for _ in DataLoader(Squares(), batch_size=5):
        pass
    requests, bodies = written(hooks, Kind.NEXT), written(hooks, Kind.BODY)
    assert [(row.batch, row.iterator) for row in bodies] == [(0, 1), (1, 1), (2, 1)]
    for before, body, after in zip(requests, bodies, requests[1:], strict=False):
        assert before.end_ns <= body.start_ns <= body.end_ns <= after.start_ns


def test_a_fetch_lies_in_its_request_and_its_parts_in_the_fetch(hooks):
    for _ in DataLoader(Squares(), batch_size=4):
        pass
    fetches = written(hooks, Kind.FETCH)
    requests = written(hooks, Kind.NEXT)
    assert [row.value for row in fetches] == [4, 4, 4]
    for fetch, request in zip(fetches, requests, strict=False):
        assert request.start_ns <= fetch.start_ns <= fetch.end_ns <= request.end_ns
        inside = [row for row in written(hooks, Kind.GETITEM, Kind.COLLATE) if row.start_ns >= fetch.start_ns]
        assert inside[0].end_ns <= fetch.end_ns
    assert len(written(hooks, Kind.COLLATE)) == 3


def test_items_are_named_by_their_index(hooks):
    for _ in DataLoader(Squares(4), batch_size=2, sampler=[3, 1, 2, 0]):
        pass
    items = written(hooks, Kind.GETITEM)
    assert items[0].value == 3
    assert {row.value for row in items} <= {0, 1, 2, 3}


def test_items_of_an_iterable_are_numbered(hooks):
    for _ in DataLoader(Stream(), batch_size=4):
        pass
    assert written(hooks, Kind.GETITEM)[0].value == 0
    assert [row.batch for row in written(hooks, Kind.NEXT)] == [0, 1, 2, -1]


def test_iterations_are_numbered_over_all_loaders(hooks, tmp_path):
    train, validate = DataLoader(Squares(), batch_size=6), DataLoader(Squares(), batch_size=12)
    for loader in (train, validate, train):
        list(loader)
    assert [(row.iterator, row.value) for row in written(hooks, Kind.ITER)] == [(1, 1), (2, 2), (3, 1)]
    assert [(event["id"], event["loader"], event["workers"]) for event in events(tmp_path, "iterator")] == [
        (1, 1, []),
        (2, 2, []),
        (3, 1, []),
    ]
    assert [event["id"] for event in events(tmp_path, "loader")] == [1, 2]


def test_after_a_break_numbers_begin_again(hooks):
    loader = DataLoader(Squares(), batch_size=2)
    for number, _ in enumerate(loader):
        if number == 1:
            break
    next(iter(loader))
    assert [(row.iterator, row.batch) for row in written(hooks, Kind.NEXT)] == [(1, 0), (1, 1), (2, 0)]
    assert [(row.iterator, row.batch) for row in written(hooks, Kind.BODY)] == [(1, 0), (1, 1)]


def test_a_slow_sampler_is_seen_and_a_fast_one_is_not_worth_it(hooks, monkeypatch):
    class Slow(Sampler):
        def __iter__(self) -> Iterator[int]:
            for index in range(4):
                sum(range(20_000))
                yield index

        def __len__(self) -> int:
            return 4

    list(DataLoader(Squares(4), batch_size=2, sampler=Slow()))
    assert len(written(hooks, Kind.SAMPLER)) >= 2
    monkeypatch.setattr(hooks_module, "_SAMPLER_WORTH_RECORDING_NS", 1 << 40)
    before = len(written(hooks, Kind.SAMPLER))
    list(DataLoader(Squares(4), batch_size=2))
    assert len(written(hooks, Kind.SAMPLER)) == before


def test_a_loader_inside_a_dataset_is_nested_and_makes_no_step(recording):
    class Inner(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return sum(int(each.sum()) for each in DataLoader([index] * 3, batch_size=1))

    hooks = recording(steps=1)
    loader = iter(DataLoader(Inner(), batch_size=2))
    next(loader)
    found = written(hooks, Kind.NEXT)
    assert [row.flags & Flag.NESTED for row in found] == [0] + [Flag.NESTED] * 8
    assert session_of(hooks)._loop.taken(1) + session_of(hooks)._loop.taken(2) == 1


def test_a_batch_is_described_once_after_the_warm_up(recording, tmp_path):
    hooks = recording(warmup=1)
    list(DataLoader(Squares(), batch_size=4))
    (batch,) = events(tmp_path, "batch")
    assert (batch["tensors"], batch["samples"]) == ([[[4, 3], "float32"]], 4)
    assert len(written(hooks, Kind.OWN)) == 1


def test_an_exception_of_the_dataset_passes_and_the_recording_goes_on(hooks):
    class Fragile(Squares):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 3:
                raise KeyError("no such sample")
            return super().__getitem__(index)

    loader = iter(DataLoader(Fragile(), batch_size=2))
    next(loader)
    with pytest.raises(KeyError, match="no such sample"):
        next(loader)
    next(loader)
    assert [row.flags for row in written(hooks, Kind.NEXT)] == [0, Flag.ENDED, 0]
    assert session_of(hooks).recorder.thread().data_depth == 0


# ---- what is done in workers, tried here -----------------------------------------------------------------------------


def fetcher_of(dataset: Any) -> Any:
    return torchs._DatasetKind.create_fetcher(torchs._DatasetKind.Map, dataset, True, torch.stack, False)


def test_in_a_worker_a_fetch_belongs_to_the_batch_that_its_loop_is_at(hooks):
    position = hooks.enter_worker()
    position.batch, position.generation = 7, 2
    fetcher_of(Squares()).fetch([0, 1])
    assert [(row.batch, row.iterator, row.value) for row in written(hooks, Kind.FETCH)] == [(7, 2, 2)]


def test_the_dataset_seen_by_torch_is_otherwise_the_users(hooks):
    dataset = Squares()
    dataset.note = "mine"
    seen = fetcher_of(dataset).dataset
    assert (seen.note, seen.length) == ("mine", 12)
    assert not hasattr(seen, "__getitems__")
    assert hasattr(fetcher_of(InOneGo()).dataset, "__getitems__")


def test_a_reading_that_fails_costs_the_recording_and_nothing_else(hooks, monkeypatch):
    hooks.enter_worker()
    fetcher = fetcher_of(Squares())
    fetcher.fetch([0, 1])
    monkeypatch.setattr(type(session_of(hooks).recorder.thread().writer), "add", full)
    assert fetcher.fetch([0, 1]).shape == (2, 3)
    assert not session_of(hooks).recorder.on


# ---- receiving from workers, tried here ------------------------------------------------------------------------------


class Receiving:
    """An iterator of torch's that gets batches from workers."""

    _send_idx = 0


def test_unpickling_lasts_from_the_bytes_arrival_to_the_batchs(hooks):
    iterator = Receiving()
    state = hooks._states[iterator] = IteratorState(1)
    state.number = state.answers_to = 4

    def get_data(_: Any) -> tuple[int, str]:
        state.received = (100, 200, 5000, threading.get_ident())
        return 3, "batch"

    assert hooks._timed_get_data(get_data)(iterator) == (3, "batch")
    (read,), (unpickled,) = written(hooks, Kind.RECEIVE), written(hooks, Kind.UNPICKLE)
    assert (read.start_ns, read.end_ns, read.batch, read.iterator, read.value) == (100, 200, 3, 4, 5000)
    assert (unpickled.start_ns, unpickled.batch, unpickled.iterator) == (200, 3, 4)


def test_an_answer_that_is_no_batch_is_not_recorded(hooks):
    iterator = Receiving()
    state = hooks._states[iterator] = IteratorState(1)
    state.received = (100, 200, 5000, threading.get_ident())
    hooks._timed_get_data(lambda _: ("resumed", None))(iterator)
    assert state.received is None
    assert written(hooks) == []


def test_what_the_pin_memory_thread_read_long_ago_is_not_the_main_threads_unpickling(hooks):
    iterator = Receiving()
    state = hooks._states[iterator] = IteratorState(1)
    pinning = threading.Thread(target=lambda: setattr(state, "received", (100, 200, 5000, threading.get_ident())))
    pinning.start()
    pinning.join()
    session_of(hooks).recorder.thread().writer.add(Kind.OWN, hooks_module.now(), hooks_module.now())
    hooks._timed_get_data(lambda _: (3, "a batch that lay pinned in the queue"))(iterator)
    (called,) = written(hooks, Kind.OWN)
    assert all(row.start_ns >= called.start_ns for row in written(hooks, Kind.UNPICKLE))


def test_out_of_order_a_batch_that_the_pin_memory_thread_read_keeps_its_number(hooks):
    iterator = Receiving()
    iterator._rcvd_idx, iterator._in_order = 0, False
    state = hooks._states[iterator] = IteratorState(1)
    hooks._timed_get_data(lambda _: (3, "a batch that lay pinned in the queue"))(iterator)
    assert hooks_module._number(iterator, state) == 3


def test_tasks_that_are_sent_are_numbered(hooks):
    iterator = Receiving()
    hooks._states[iterator] = IteratorState(1)
    hooks._states[iterator].number = 4

    def put_index(each: Any) -> None:
        each._send_idx += 1

    put = hooks._noted_put_index(put_index)
    put(iterator)
    put(iterator)
    hooks._noted_put_index(lambda _: None)(iterator)
    assert [(row.batch, row.iterator) for row in written(hooks, Kind.TASK_SENT)] == [(0, 4), (1, 4)]


def test_the_first_tasks_of_a_second_epoch_do_not_belong_to_the_first(hooks):
    loader, iterator = DataLoader(Squares(), batch_size=5), Receiving()
    put = hooks._noted_put_index(lambda each: setattr(each, "_send_idx", each._send_idx + 1))

    def reset(_: Any) -> Any:
        put(iterator)
        return iterator

    iterate = hooks._timed_iter(reset)
    loader._iterator = iterate(loader)
    iterate(loader)
    # The number is not known yet: the analysis takes it from the making of the iterator around it.
    assert [row.iterator for row in written(hooks, Kind.TASK_SENT)] == [-1, -1]
    assert [row.iterator for row in written(hooks, Kind.ITER)] == [1, 2]


# ---- stopping --------------------------------------------------------------------------------------------------------


def train(hooks: DataLoaderHooks, epochs: int = 100, length: int = 12) -> Iterator[int]:
    """A training loop; yields after each step."""
    loader = DataLoader(Squares(length), batch_size=2)
    count = 0
    for _ in range(epochs):
        for _ in loader:
            optimizer_step(hooks)
            count += 1
            yield count


def test_the_script_is_stopped_at_the_request_after_the_last_step(recording, tmp_path):
    hooks = recording(steps=8, warmup=2)
    done, cleaned = [], []

    def script() -> None:
        try:
            for step in train(hooks):
                done.append(step)  # noqa: PERF402 - as far as it gets
        finally:
            cleaned.append(True)

    with pytest.raises(SystemExit) as stopped:
        script()
    assert (done, cleaned, stopped.value.code) == (list(range(1, 11)), [True], 0)
    assert len(events(tmp_path, "stop")) == 1
    (progress,) = read_progress(tmp_path)
    assert (progress.phase, progress.batches_done, progress.batches_total) == (Phase.DONE, 10, 10)
    assert progress.stop_requested_ns > 0


def test_a_script_that_swallows_the_stop_is_stopped_again_at_each_request(recording, tmp_path):
    hooks = recording(steps=3)
    loader = iter(DataLoader(Squares(), batch_size=2))
    for _ in range(3):
        next(loader)
        optimizer_step(hooks)
    for _ in range(3):
        with pytest.raises(SystemExit):
            next(loader)
    with pytest.raises(SystemExit):
        iter(DataLoader(Squares(), batch_size=2))
    assert len(events(tmp_path, "stop")) == 1


def test_with_all_steps_the_script_is_never_stopped(recording, tmp_path):
    hooks = recording(steps=None)
    assert len(list(train(hooks, epochs=30))) == 180
    assert events(tmp_path, "stop") == []
    assert read_progress(tmp_path)[0].batches_total == ALL_STEPS


def test_progress_counts_waiting_and_measured_time_after_the_warm_up(recording, tmp_path):
    hooks = recording(steps=None, warmup=3)
    loop = train(hooks)
    for _ in range(3):
        next(loop)
    (warming,) = read_progress(tmp_path)
    assert (warming.phase, warming.wait_ns, warming.measured_ns) == (Phase.WARM_UP, 0, 0)
    assert warming.first_batch_ns > 0
    for _ in range(5):
        next(loop)
    (measuring,) = read_progress(tmp_path)
    assert (measuring.phase, measuring.batches_done) == (Phase.MEASURING, 8)
    assert 0 < measuring.wait_ns <= measuring.measured_ns


def test_optimizer_steps_without_a_loader_are_counted_and_stopped(recording, tmp_path):
    hooks = recording(steps=4, warmup=1)
    for _ in range(4):
        optimizer_step(hooks)
    with pytest.raises(SystemExit):
        optimizer_step(hooks)
    assert len(written(hooks, Kind.OPTIMIZER)) == 5
    assert read_progress(tmp_path)[0].batches_done == 5


def test_an_optimizer_inside_an_optimizer_counts_once(hooks):
    session = session_of(hooks)
    session.optimizer_begins()
    session.optimizer_begins()
    session.optimizer_ends()
    session.optimizer_ends()
    assert len(written(hooks, Kind.OPTIMIZER)) == 1


def test_a_script_that_goes_on_after_the_steps_is_recorded_no_further(recording, tmp_path):
    hooks = recording(steps=3, ends_script=False)
    assert len(list(train(hooks, epochs=2))) == 12
    assert [row.batch for row in written(hooks, Kind.NEXT)] == [0, 1, 2]
    assert len(written(hooks, Kind.BODY)) == 3
    assert events(tmp_path, "stop") == []


def test_nor_is_one_without_a_loader(recording):
    hooks = recording(steps=3, ends_script=False)
    for _ in range(10):
        optimizer_step(hooks)
    assert len(written(hooks, Kind.OPTIMIZER)) <= 4


@pytest.fixture
def no_optimizer(monkeypatch):
    monkeypatch.setattr("dlprof.capture.session._any_optimizer", lambda: False)


def test_progress_of_inference_counts_batches_to_the_end(no_optimizer, recording, tmp_path):
    recording(steps=4)
    loader = DataLoader(Squares(), batch_size=2)
    with pytest.raises(SystemExit):
        list(loader)
    (progress,) = read_progress(tmp_path)
    assert (progress.phase, progress.batches_done) == (Phase.DONE, 4)


def test_a_loop_in_another_thread_is_stopped_through_the_main_thread(recording):
    before = signal.getsignal(STOP_SIGNAL)
    try:
        hooks = recording(listens=True, steps=3)

        def loop() -> None:
            with contextlib.suppress(SystemExit):
                list(train(hooks, epochs=3))

        thread = threading.Thread(target=loop)

        def script() -> None:
            thread.start()
            thread.join()

        with pytest.raises(SystemExit):
            script()
        thread.join()
        assert session_of(hooks)._loop.taken(1) == 3
    finally:
        signal.signal(STOP_SIGNAL, before)


def test_a_loop_in_another_thread_gets_its_batches(recording, tmp_path):
    hooks = recording()
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.extend(train(hooks, epochs=2)))
    thread.start()
    thread.join()
    assert len(done) == 12
    assert {row.role for row in rows(tmp_path, Kind.NEXT)} == {"thread"}


# ---- when recording fails --------------------------------------------------------------------------------------------


def full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("method", ["add", "flush"])
def test_a_full_disk_costs_the_recording_and_nothing_else(hooks, monkeypatch, tmp_path, method):
    loader = DataLoader(Squares(), batch_size=4)
    expected = len(loader)
    iterator = iter(loader)
    next(iterator)
    monkeypatch.setattr(type(session_of(hooks).recorder.thread().writer), method, full)
    assert len(list(iterator)) == expected - 1
    assert len(list(loader)) == expected
    assert [event["slug"] for event in events(tmp_path, "notice")] == ["recording-stopped-disk"]


def test_a_batch_that_cannot_be_described_costs_the_recording_and_nothing_else(hooks, monkeypatch):
    def confused(_: Any) -> Any:
        raise RuntimeError("what is this?")

    monkeypatch.setattr("dlprof.capture.batches.describe", confused)
    assert len(list(DataLoader(Squares(), batch_size=4))) == 3


def test_a_batch_that_cannot_be_described_does_not_end_the_recording(hooks, monkeypatch):
    def confused(_: Any) -> Any:
        raise RuntimeError("what is this?")

    monkeypatch.setattr("dlprof.capture.batches.describe", confused)
    list(DataLoader(Squares(), batch_size=4))
    assert len(written(hooks, Kind.BODY)) == 3


def test_a_recording_that_has_ended_records_nothing_more(hooks, tmp_path):
    session_of(hooks).recorder.on = False
    assert len(list(DataLoader(Squares(), batch_size=4))) == 3
    assert written(hooks) == []
    assert list(tmp_path.iterdir()) == []


# ---- settings --------------------------------------------------------------------------------------------------------


def collate(samples: list[Any]) -> list[Any]:
    return samples


def test_a_loaders_settings_are_those_in_force():
    loader = DataLoader(Squares(), batch_size=5, num_workers=2, persistent_workers=True, collate_fn=collate)
    found = describe_loader(loader)
    json.dumps(found)
    assert found == {
        "num_workers": 2,
        "batch_size": 5,
        "prefetch_factor": 2,
        "persistent_workers": True,
        "pin_memory": False,
        "drop_last": False,
        "timeout": 0,
        "in_order": True,
        "start_method": "fork",
        "dataset": f"{__name__}.Squares",
        "iterable": False,
        "sampler": "torch.utils.data.sampler.BatchSampler",
        "collate_fn": f"{__name__}.collate",
        "length": 3,
    }


@pytest.mark.parametrize(
    ("loader", "facts"),
    [
        pytest.param(
            lambda: DataLoader(Squares(), batch_size=None), {"batch_size": None, "length": 12}, id="unbatched"
        ),
        pytest.param(
            lambda: DataLoader(Squares(), batch_sampler=BatchSampler(SequentialSampler(Squares()), 5, False)),
            {"batch_size": 5, "length": 3},
            id="batch sampler",
        ),
        pytest.param(
            lambda: DataLoader(Squares(), batch_sampler=[[0, 1], [2]]), {"batch_size": None, "length": 2}, id="list"
        ),
        pytest.param(lambda: DataLoader(Stream(), batch_size=4), {"iterable": True, "length": None}, id="iterable"),
        pytest.param(lambda: DataLoader(Squares(), num_workers=0), {"start_method": None}, id="no workers"),
        pytest.param(
            lambda: DataLoader(Squares(), num_workers=1, multiprocessing_context="spawn"),
            {"start_method": "spawn"},
            id="spawn",
        ),
    ],
)
def test_settings_of_loaders_of_all_kinds(loader, facts):
    found = describe_loader(loader())
    json.dumps(found)
    assert {key: found[key] for key in facts} == facts


def test_asking_for_the_settings_warns_of_nothing_and_draws_no_random_number():
    class Sized(Stream):
        def __len__(self) -> int:
            return 3

    loader = DataLoader(Sized(), batch_size=4)
    state = torch.get_rng_state()
    describe_loader(loader)
    assert torch.equal(torch.get_rng_state(), state)
    # Had the length been asked for, torch would warn that there are more batches than it says.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 3


# ---- the end ---------------------------------------------------------------------------------------------------------


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def at_exit(hooks: DataLoaderHooks, tmp_path, monkeypatch, error: BaseException | None) -> list[dict[str, Any]]:
    monkeypatch.setattr("sys.last_value", error, raising=False)
    session_of(hooks)._at_exit()
    return events(tmp_path, "exit")


def test_at_the_end_the_exception_that_ended_the_script_is_written_down(hooks, tmp_path, monkeypatch):
    list(DataLoader(Squares(), batch_size=4))
    (event,) = at_exit(hooks, tmp_path, monkeypatch, ValueError("no"))
    assert (event["exception"], event["message"]) == ("ValueError", "no")
    assert event["spans"]["recorded"] == len(written(hooks))
    assert event["torch"]["version"] == torch.__version__


def test_a_script_that_ends_well_says_so(hooks, tmp_path, monkeypatch):
    list(DataLoader(Squares(), batch_size=4))
    (event,) = at_exit(hooks, tmp_path, monkeypatch, None)
    assert (event["exception"], event["message"]) == (None, None)


def test_a_block_that_ends_well_is_not_blamed_for_an_earlier_cells_error(hooks, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.last_value", ValueError("a cell ago"), raising=False)
    list(DataLoader(Squares(), batch_size=4))
    session_of(hooks).close()
    assert [event["exception"] for event in events(tmp_path, "exit")] == [None]


def test_a_python_that_never_had_a_loader_says_nothing(hooks, tmp_path, monkeypatch):
    assert at_exit(hooks, tmp_path, monkeypatch, None) == []
    assert os.listdir(tmp_path) == []


def test_an_exception_that_cannot_be_put_into_words_costs_its_words_only(hooks, tmp_path, monkeypatch):
    list(DataLoader(Squares(), batch_size=4))
    (event,) = at_exit(hooks, tmp_path, monkeypatch, UnspeakableError())
    assert event["exception"] == "UnspeakableError"
