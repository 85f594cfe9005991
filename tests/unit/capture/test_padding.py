"""Pad tokens are counted in what the training loop receives, and nothing of it is changed or guessed."""

from __future__ import annotations

from collections import UserDict
from types import SimpleNamespace

import pytest
import torch
from recordings import asked, events
from tokenizers import Tokenizer, models

from dlprof.capture import padding
from dlprof.capture.padding import PadCounter, PadIds, declared_pad_id
from dlprof.capture.recorder import Recorder

IDS = torch.tensor([[5, 6, 0, 0], [5, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])


@pytest.fixture
def counted(tmp_path):
    """Counts batches and gives the last event's tokens and pad tokens, None where there is none."""

    def count(*batches: object) -> tuple[int, int] | None:
        counter = PadCounter(Recorder(str(tmp_path), asked()))
        for batch in batches:
            counter.look(1, batch)
        counter.finish()
        found = events(tmp_path, "padding")
        return (found[-1]["tokens"], found[-1]["pad_tokens"]) if found else None

    return count


def declare(folder, pad_id: int) -> None:
    (folder / f"pad-id-{pad_id}").touch()


class Encoding(UserDict):
    """As transformers' BatchEncoding."""


@pytest.mark.parametrize(
    "batch",
    [
        {"attention_mask": MASK},
        {"attention_mask": MASK.bool(), "input_ids": IDS},
        Encoding({"attention_mask": MASK, "input_ids": IDS}),
        ({"attention_mask": MASK}, torch.tensor([1, 2])),
        [torch.tensor([1, 2]), {"attention_mask": MASK}],
    ],
)
def test_zeros_of_an_attention_mask(counted, batch):
    assert counted(batch) == (8, 5)


def test_batches_add_up(counted):
    assert counted({"attention_mask": MASK}, {"attention_mask": torch.ones(3, 4, dtype=torch.long)}) == (20, 5)


def test_without_a_mask_the_declared_id_counts(counted, tmp_path):
    declare(tmp_path, 0)
    assert counted({"input_ids": IDS}) == (8, 5)


def test_no_declared_id_is_not_taken_to_be_0(counted):
    assert counted({"input_ids": IDS}) is None


def test_two_declared_ids_may_be_another_models(counted, tmp_path):
    declare(tmp_path, 0)
    declare(tmp_path, 1)
    assert counted({"input_ids": IDS}) is None


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(2, 2),
        None,
        {},
        {"attention_mask": MASK.float()},
        {"attention_mask": torch.ones(2, 1, 4, 4, dtype=torch.long), "input_ids": IDS},
        {"attention_mask": torch.ones(2, 9, dtype=torch.long), "input_ids": IDS},
        {"attention_mask": [[1, 0]]},
        {"attention_mask": torch.ones(0, 4, dtype=torch.long)},
        {"attention_mask": MASK.to("meta")},
    ],
)
def test_what_is_no_table_of_tokens_is_passed_over(counted, tmp_path, batch):
    declare(tmp_path, 0)
    assert counted(batch) is None


def test_neither_the_batch_nor_the_random_state_changes(counted):
    ids = IDS.clone()
    before = torch.get_rng_state()
    assert counted({"attention_mask": MASK.clone(), "input_ids": ids}) == (8, 5)
    assert torch.equal(ids, IDS)
    assert torch.equal(torch.get_rng_state(), before)
    # Its storage may still grow, which it may not once it has been seen through numpy.
    assert ids.resize_(100, 100).shape == (100, 100)


def test_a_mode_of_the_scripts_own_sees_nothing_of_it(counted):
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        assert counted({"attention_mask": MASK}) == (8, 5)
    assert seen == []


def test_under_a_profiler_nothing_is_counted(counted):
    with torch.autograd.profiler.profile():
        assert counted({"attention_mask": MASK}) is None


def test_of_a_large_batch_some_rows_are_looked_at(counted):
    mask = torch.ones(512, 2048, dtype=torch.long)
    mask[:, 1024:] = 0
    tokens, pads = counted({"attention_mask": mask})
    assert tokens <= padding._MOST_TOKENS
    assert pads * 2 == tokens


def test_one_very_long_row(counted):
    mask = torch.ones(1, 100_000, dtype=torch.long)
    mask[:, 50_000:] = 0
    tokens, pads = counted({"attention_mask": mask})
    assert tokens <= padding._MOST_TOKENS
    assert pads / tokens == pytest.approx(0.5, abs=0.01)


def test_batches_and_loaders_are_bounded(tmp_path):
    counter = PadCounter(Recorder(str(tmp_path), asked()))
    for loader in range(100):
        counter.look(loader, {"attention_mask": MASK})
    for _ in range(1000):
        counter.look(0, {"attention_mask": MASK})
    counter.finish()
    last = {event["loader"]: event["batches"] for event in events(tmp_path, "padding")}
    assert len(last) == padding._MOST_LOADERS
    assert last[0] == padding._MOST_BATCHES


# ---- which id --------------------------------------------------------------------------------------------------------


def test_a_tokenizer_that_pads_says_with_what():
    tokenizer = Tokenizer(models.WordLevel({"a": 1}, unk_token="a"))
    assert declared_pad_id(tokenizer) is None
    tokenizer.enable_padding(pad_id=7, pad_token="a")
    assert declared_pad_id(tokenizer) == 7


class Pretrained:
    """As transformers' tokenizers, which write to the log when they are asked for what is not set."""

    def __init__(self, token: str | None) -> None:
        self._special_tokens_map = {"pad_token": token}

    @property
    def pad_token_id(self) -> int:
        assert self._special_tokens_map["pad_token"] is not None
        return 9


def test_a_pretrained_tokenizer_is_only_asked_where_it_has_a_pad_token():
    assert declared_pad_id(Pretrained("<pad>")) == 9
    assert declared_pad_id(Pretrained(None)) is None


@pytest.mark.parametrize(("said", "known"), [(3, 3), (-1, None)])
def test_sentencepiece_says_minus_one_for_none(said, known):
    kind = type("Processor", (), {"__module__": "sentencepiece", "pad_id": lambda self: said})
    assert declared_pad_id(kind()) == known


def test_other_processes_are_told(tmp_path):
    PadIds(str(tmp_path)).called(Pretrained("<pad>"))
    assert (tmp_path / "pad-id-9").exists()


def test_a_tokenizer_whose_pad_token_is_set_later_is_looked_at_again(tmp_path):
    ids, tokenizer = PadIds(str(tmp_path)), Pretrained(None)
    for _ in range(100):
        ids.called(tokenizer)
    tokenizer._special_tokens_map["pad_token"] = "<pad>"
    for _ in range(100):
        ids.called(tokenizer)
    assert (tmp_path / "pad-id-9").exists()


@pytest.mark.parametrize("odd", [None, 3, SimpleNamespace(_pad_token="x")])
def test_what_is_no_tokenizer_does_no_harm(tmp_path, odd):
    PadIds(str(tmp_path)).called(odd)
    assert list(tmp_path.iterdir()) == []
