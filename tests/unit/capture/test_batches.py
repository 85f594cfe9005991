from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import pytest
import torch

from dlprof.capture.batches import describe

Pair = namedtuple("Pair", "inputs labels")
INPUTS, LABELS = torch.zeros(8, 3, dtype=torch.float16), torch.zeros(8, dtype=torch.int64)
BOTH = {"tensors": [[[8, 3], "float16"], [[8], "int64"]], "bytes": 48 + 64, "samples": 8, "others": 0}


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param((INPUTS, LABELS), id="tuple"),
        pytest.param([INPUTS, LABELS], id="list"),
        pytest.param(Pair(INPUTS, LABELS), id="named tuple"),
        pytest.param({"input_ids": INPUTS, "labels": LABELS}, id="dict"),
        pytest.param(OrderedDict(a=INPUTS, b=LABELS), id="ordered dict"),
        pytest.param(UserDict(a=INPUTS, b=LABELS), id="mapping that is no dict"),
        pytest.param({"x": [INPUTS, {"y": (LABELS,)}]}, id="nested"),
    ],
)
def test_tensors_are_found_wherever_they_are(batch):
    assert describe(batch) == BOTH


def test_a_tensor_alone_is_a_batch():
    assert describe(INPUTS) == {"tensors": [[[8, 3], "float16"]], "bytes": 48, "samples": 8, "others": 0}


def test_a_number_in_a_tensor_has_no_samples_and_the_next_tensor_tells():
    assert describe((torch.tensor(1.0), LABELS))["samples"] == 8
    assert describe(torch.tensor(1.0))["samples"] is None


def test_what_is_no_tensor_is_counted():
    found = describe({"text": ["a", "b", "c"], "id": 7, "none": None, "inputs": INPUTS})
    assert (found["others"], found["samples"]) == (5, 8)
    assert describe("text") == {"tensors": [], "bytes": 0, "samples": None, "others": 1}


def test_an_object_of_the_users_own_counts_as_one():
    class Batch:
        def __init__(self) -> None:
            self.inputs = INPUTS

    assert describe(Batch())["others"] == 1


def test_an_empty_batch_is_nothing():
    assert describe([]) == {"tensors": [], "bytes": 0, "samples": None, "others": 0}


def test_a_view_counts_with_the_bytes_that_it_shows():
    assert describe(torch.zeros(1).expand(1000))["bytes"] == 4000


def test_values_are_not_looked_at():
    assert describe(torch.empty(4, 5, device="meta"))["tensors"] == [[[4, 5], "float32"]]


def test_a_parameter_is_a_tensor():
    assert describe(torch.nn.Parameter(torch.zeros(2)))["tensors"] == [[[2], "float32"]]


def test_of_a_batch_of_countless_objects_a_bounded_number_is_described():
    assert describe(list(range(50_000)))["others"] < 5000
    assert describe([[number] for number in range(50_000)])["others"] < 5000


def test_a_nested_tensor_does_not_end_the_recording():
    with pytest.warns(UserWarning, match="nested"):
        ragged = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    assert describe((ragged, LABELS))["samples"] == 8


class Endless(list[Any]):
    """A container that holds itself, seen as far as a test can wait."""

    looks = 0

    def __iter__(self):
        Endless.looks += 1
        if Endless.looks > 10_000:
            raise AssertionError("looked into for ever")
        return iter([self])


def test_a_container_that_holds_itself_is_not_looked_into_for_ever():
    assert describe(Endless())["tensors"] == []
