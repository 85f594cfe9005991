"""--set: what a loader is made with, what goes with it, what is refused, and which loaders are meant."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import asked, events
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from dlprof.capture.overrides import Overrides
from dlprof.capture.recorder import Recorder
from dlprof.formats.settings_file import Override
from dlprof.model.kinds import Role


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(12))


Make = Callable[..., DataLoader[Any]]


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(str(tmp_path), asked())


@pytest.fixture
def make(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Make]:
    """Loaders made with these settings: ``make("num_workers=2", ...)(dataset, batch_size=3)``."""
    original = DataLoader.__init__

    def with_settings(**wanted: Any) -> Make:
        overrides = Overrides(recorder, [_override(name, value) for name, value in wanted.items()])

        def changed(loader: Any, *args: Any, **kwargs: Any) -> None:
            plan = overrides.plan(original, loader, args, kwargs)
            if plan is None:
                original(loader, *args, **kwargs)
            else:
                overrides.make(plan, original, loader, args, kwargs)

        monkeypatch.setattr(DataLoader, "__init__", changed)
        return DataLoader

    return with_settings


def _override(name: str, value: Any) -> Override:
    loader, _, setting = name.rpartition("__")
    return Override(loader, setting, value)


def said(recorder: Recorder) -> list[dict[str, Any]]:
    recorder.flush_all()
    return events(Path(recorder.folder), "set")


def test_a_setting_takes_the_place_of_the_scripts(make: Callable[..., Make], recorder: Recorder) -> None:
    loader = make(num_workers=3, prefetch_factor=4, pin_memory=True)(Numbers(), 4, num_workers=1)
    assert (loader.num_workers, loader.prefetch_factor, loader.pin_memory) == (3, 4, True)
    assert loader.batch_size == 4
    (event,) = said(recorder)
    assert event["changed"] == {"num_workers": [1, 3], "prefetch_factor": [None, 4], "pin_memory": [False, True]}
    assert (event["index"], event["dataset"].rpartition(".")[2], event["refused"]) == (0, "Numbers", {})


def test_positional_arguments_are_changed_too(make: Callable[..., Make]) -> None:
    loader = make(num_workers=2, batch_size=6)(Numbers(), 4, False, None, None, 1)
    assert (loader.num_workers, loader.batch_size, len(loader)) == (2, 6, 2)


def test_without_workers_goes_what_needs_them(make: Callable[..., Make], recorder: Recorder) -> None:
    loader = make(num_workers=0)(
        Numbers(),
        num_workers=2,
        prefetch_factor=3,
        persistent_workers=True,
        multiprocessing_context="spawn",
        timeout=9,
    )
    settings = loader.num_workers, loader.prefetch_factor, loader.persistent_workers, loader.timeout
    assert settings == (0, None, False, 0)
    assert loader.multiprocessing_context is None
    assert [int(batch) for batch in loader] == list(range(12))
    assert said(recorder)[0]["dropped"] == [
        "prefetch_factor",
        "persistent_workers",
        "multiprocessing_context",
        "timeout",
    ]


@pytest.mark.parametrize(
    ("name", "value"), [("prefetch_factor", 4), ("persistent_workers", True), ("multiprocessing_context", "fork")]
)
def test_what_needs_workers_is_refused_without(
    make: Callable[..., Make], recorder: Recorder, name: str, value: Any
) -> None:
    loader = make(**{name: value})(Numbers())
    assert loader.num_workers == 0
    assert [int(batch) for batch in loader] == list(range(12))
    assert said(recorder)[0]["refused"] == {name: "it needs num_workers of at least 1"}


def test_a_plain_batch_sampler_is_made_anew(make: Callable[..., Make]) -> None:
    sampler = SequentialSampler(range(12))
    loader = make(batch_size=5)(Numbers(), batch_sampler=BatchSampler(sampler, 4, drop_last=True))
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert loader.batch_sampler is not None
    assert loader.batch_sampler.sampler is sampler  # type: ignore[attr-defined]


class Buckets(BatchSampler):
    """A script's own."""


def test_a_batch_sampler_of_the_scripts_own_is_left(make: Callable[..., Make], recorder: Recorder) -> None:
    mine = Buckets(SequentialSampler(range(12)), 4, drop_last=False)
    loader = make(batch_size=5, num_workers=1)(Numbers(), batch_sampler=mine)
    assert loader.batch_sampler is mine
    assert loader.num_workers == 1
    assert said(recorder)[0]["refused"] == {
        "batch_size": "the script's own batch_sampler (Buckets) decides what a batch is"
    }


def test_a_dataset_that_makes_batches_itself_keeps_them(make: Callable[..., Make], recorder: Recorder) -> None:
    assert make(batch_size=5)(Numbers(), batch_size=None).batch_size is None
    assert "batch_size=None" in said(recorder)[0]["refused"]["batch_size"]


def test_what_torch_refuses_leaves_the_scripts_settings(make: Callable[..., Make], recorder: Recorder) -> None:
    loader = make(prefetch_factor=-1, in_order=False)(Numbers(), num_workers=1)
    assert (loader.prefetch_factor, loader.in_order) == (2, True)
    (event,) = said(recorder)
    assert event["changed"] == {}
    assert set(event["refused"]) == {"prefetch_factor", "in_order"}
    assert "prefetch_factor" in event["refused"]["prefetch_factor"]


def test_the_scripts_own_mistakes_stay_torchs_to_name(make: Callable[..., Make], recorder: Recorder) -> None:
    with pytest.raises(TypeError, match="no_such"):
        make(num_workers=1)(Numbers(), no_such=1)
    with pytest.raises(ValueError, match="shuffle"):
        make(num_workers=1)(Numbers(), sampler=SequentialSampler(range(12)), shuffle=True)
    assert recorder.on
    assert all(not event["changed"] for event in said(recorder))


def test_train_means_loaders_that_shuffle_draw_or_stream(make: Callable[..., Make]) -> None:
    loader = make(train__num_workers=2)
    numbers = Numbers()
    assert loader(numbers).num_workers == 0
    assert loader(numbers, sampler=SequentialSampler(range(3))).num_workers == 0
    assert loader(numbers, shuffle=True).num_workers == 2
    assert loader(numbers, sampler=RandomSampler(range(3))).num_workers == 2
    drawn = BatchSampler(RandomSampler(range(3)), 2, drop_last=False)
    assert loader(numbers, batch_sampler=drawn).num_workers == 2
    assert loader(Stream()).num_workers == 2


def test_a_number_means_a_dataset(make: Callable[..., Make]) -> None:
    loader = make(**{"1__num_workers": 2})
    first, second = Numbers(), Numbers()
    assert [loader(data).num_workers for data in (first, second, first, second)] == [0, 2, 0, 2]


def test_lists_are_told_apart_too(recorder: Recorder) -> None:
    overrides = Overrides(recorder, [])
    first, second = [1], [1]
    assert [overrides.index_of(data) for data in (first, second, first)] == [0, 1, 0]


def test_a_dataset_is_not_kept_alive(recorder: Recorder) -> None:
    import weakref

    overrides = Overrides(recorder, [])
    dataset = Numbers()
    overrides.index_of(dataset)
    gone = weakref.ref(dataset)
    del dataset
    gc.collect()
    assert gone() is None


def test_the_last_one_holds(make: Callable[..., Make], recorder: Recorder) -> None:
    loader = make(num_workers=3, train__num_workers=2)
    assert loader(Numbers(), shuffle=True).num_workers == 2
    assert loader(Numbers()).num_workers == 3


def test_a_loader_inside_a_worker_keeps_its_own(make: Callable[..., Make], recorder: Recorder) -> None:
    recorder.become(Role.WORKER)
    assert make(num_workers=3)(Numbers()).num_workers == 0
    assert said(recorder) == []


def test_what_a_framework_makes_anew_is_changed_once_and_told_once(
    make: Callable[..., Make], recorder: Recorder
) -> None:
    loader = make(num_workers=2, batch_size=6)
    numbers = Numbers()
    first = loader(numbers, batch_size=4)
    again = loader(numbers, batch_sampler=first.batch_sampler, num_workers=first.num_workers)
    assert again.batch_sampler is first.batch_sampler
    assert again.num_workers == 2
    assert [event["changed"] for event in said(recorder) if event["changed"]] == [
        {"num_workers": [0, 2], "batch_size": [4, 6]}
    ]


def test_a_subclass_gets_the_settings_its_constructor_passes_on(make: Callable[..., Make]) -> None:
    make(num_workers=2)

    class Mine(DataLoader[int]):
        def __init__(self, count: int) -> None:
            super().__init__(Numbers(), count, num_workers=1)

    assert Mine(3).num_workers == 2


def test_torch_does_not_warn_of_workers_that_the_script_did_not_ask_for(
    make: Callable[..., Make], recwarn: pytest.WarningsRecorder
) -> None:
    loader = make(num_workers=999)(Numbers())
    assert loader.num_workers == 999
    assert not recwarn
    pickle.loads(pickle.dumps(loader))
    assert make(in_order=False)(Numbers(), num_workers=999).num_workers == 999
    assert "999 worker processes" in str(recwarn.pop(UserWarning).message)


def test_of_a_loader_that_is_not_meant_is_told_which_it_is(make: Callable[..., Make], recorder: Recorder) -> None:
    make(**{"1__num_workers": 2})(Numbers())
    (event,) = said(recorder)
    assert (event["index"], event["dataset"].rpartition(".")[2]) == (0, "Numbers")
    assert "changed" not in event


def test_of_a_loader_is_told_for_which_settings_it_was_meant(make: Callable[..., Make], recorder: Recorder) -> None:
    make(**{"0__num_workers": 2, "train__batch_size": 3})(Numbers())
    assert [event["asked"] for event in said(recorder)] == [["0.num_workers=2"]]


def test_random_numbers_are_drawn_as_without(make: Callable[..., Make]) -> None:
    torch.manual_seed(3)
    plain = [batch.tolist() for batch in DataLoader(Numbers(), 4, shuffle=True)]
    torch.manual_seed(3)
    assert [batch.tolist() for batch in make(batch_size=4)(Numbers(), 4, shuffle=True)] == plain
