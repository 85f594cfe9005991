"""--ceiling: copies that share nothing with the loader's batches, each served once, as many as memory allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from recordings import asked, events

from dlprof.capture import ceiling as ceiling_module
from dlprof.capture.ceiling import MOST_BATCHES, Ceiling
from dlprof.capture.recorder import Recorder


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(str(tmp_path), asked())


def batch(number: int) -> dict[str, Any]:
    return {"x": torch.full((2, 3), float(number)), "names": [f"a{number}", "b"], "pair": (torch.tensor(number), None)}


def fill(ceiling: Ceiling, make: Any = batch) -> None:
    """The loop takes real batches until copies are served."""
    for number in range(MOST_BATCHES):
        ceiling.before_request()
        if ceiling.serving or ceiling.done:
            return
        ceiling.arrived(make(number))
    raise AssertionError("no copy was ever served")


def served(ceiling: Ceiling) -> list[tuple[Any, int, bool]]:
    found = []
    while not ceiling.done:
        copy, number = ceiling.serve()
        found.append((copy, number, ceiling.settled))
        ceiling.before_request()
    return found


def test_copies_are_served_in_turn_and_the_first_ones_do_not_count(recorder: Recorder) -> None:
    ceiling = Ceiling(recorder)
    fill(ceiling)
    found = served(ceiling)
    assert len(found) == 22
    assert [settled for _, _, settled in found] == [False] * 2 + [True] * 20
    assert len({number for _, number, _ in found}) == 22
    assert {copy["names"][0] for copy, _, _ in found} == {"a0", "a1", "a2", "a3"}
    assert len({copy["x"].data_ptr() for copy, _, _ in found}) == 22


def test_what_the_loop_does_to_a_batch_does_not_reach_the_others(recorder: Recorder) -> None:
    ceiling = Ceiling(recorder)

    given: list[dict[str, Any]] = []

    def remembered(number: int) -> dict[str, Any]:
        given.append(batch(number))
        return given[-1]

    fill(ceiling, remembered)
    for each in given:
        each["x"].zero_()
        each.pop("names")
    while not ceiling.done:
        copy, _ = ceiling.serve()
        assert copy["names"] == [f"a{int(copy['pair'][0])}", "b"]
        assert torch.equal(copy["x"], torch.full((2, 3), float(copy["pair"][0])))
        copy.clear()
        ceiling.before_request()


class Pair(NamedTuple):
    """A batch with names."""

    x: torch.Tensor
    y: str


class Encoding(dict):  # type: ignore[type-arg]
    """As transformers' BatchEncoding: a mapping with more to it."""

    def __init__(self, values: dict[str, Any], extra: str) -> None:
        super().__init__(values)
        self.extra = extra


@pytest.mark.parametrize(
    "make",
    [
        lambda number: torch.tensor([number]),
        lambda number: Pair(torch.tensor([number]), "label"),
        lambda number: Encoding({"input_ids": torch.tensor([number])}, "extra"),
        lambda number: [number, "text", None],
    ],
)
def test_a_copy_is_of_the_batchs_own_kind(recorder: Recorder, make: Any) -> None:
    ceiling = Ceiling(recorder)
    fill(ceiling, make)
    copy, _ = ceiling.serve()
    assert type(copy) is type(make(0))
    assert getattr(copy, "extra", "extra") == "extra"


def test_copies_end_where_memory_does(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling_module, "_available_bytes", lambda: 4 * 32 * 10)
    ceiling = Ceiling(recorder)
    fill(ceiling)
    assert len(served(ceiling)) == 10


def test_without_memory_for_a_few_it_is_said(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling_module, "_available_bytes", lambda: 4 * 32 * 6)
    ceiling = Ceiling(recorder)
    fill(ceiling)
    assert ceiling.done
    (notice,) = events(Path(recorder.folder), "notice")
    assert (notice["slug"], notice["reason"]) == (
        "ceiling-not-run",
        "there is no memory for copies of batches of 32 bytes",
    )


class Bound:
    """What cannot be copied."""

    def __deepcopy__(self, memo: object) -> Bound:
        raise RuntimeError("bound to a device")


def test_a_batch_that_cannot_be_copied_ends_it_and_reaches_the_loop(recorder: Recorder) -> None:
    ceiling = Ceiling(recorder)
    fill(ceiling, lambda number: [Bound()])
    assert ceiling.done
    (notice,) = events(Path(recorder.folder), "notice")
    assert notice["reason"] == "a batch could not be copied: RuntimeError: bound to a device"


def test_random_numbers_are_left_alone(recorder: Recorder) -> None:
    before = torch.get_rng_state()
    ceiling = Ceiling(recorder)
    fill(ceiling)
    served(ceiling)
    assert torch.equal(torch.get_rng_state(), before)
