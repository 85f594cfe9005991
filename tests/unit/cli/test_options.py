"""What options take as a value."""

from __future__ import annotations

import click
import pytest

from dlprof.cli.options import RUN_OPTIONS, DurationType, FunctionNameType, OverrideType
from dlprof.formats.settings_file import Override
from dlprof.model.bounds import NAMES


@pytest.mark.parametrize("text", ["train:augment", "a.b.c:load", "__main__:Set.__getitem__", "größe:f"])
def test_a_functions_name(text: str) -> None:
    assert FunctionNameType().convert(text, None, None) == text


@pytest.mark.parametrize("text", ["", "augment", "train.py:augment:", ":f", "train:", "a-b:f", "a:b()", "a:.f", "1:f"])
def test_what_is_no_functions_name_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="module:function"):
        FunctionNameType().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("num_workers=4", Override("", "num_workers", 4)),
        ("train.num_workers=0", Override("train", "num_workers", 0)),
        ("1.prefetch_factor = 8", Override("1", "prefetch_factor", 8)),
        ("pin_memory=true", Override("", "pin_memory", True)),
        ("persistent_workers=False", Override("", "persistent_workers", False)),
        ("in_order=0", Override("", "in_order", False)),
        ("multiprocessing_context=spawn", Override("", "multiprocessing_context", "spawn")),
    ],
)
def test_settings_to_change(text: str, expected: Override) -> None:
    assert OverrideType().convert(text, None, None) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num_workers", "NAME=VALUE"),
        ("=4", "no setting ''"),
        ("num_worker=4", "no setting 'num_worker'"),
        ("num_workers=-1", "at least 0"),
        ("num_workers=two", "at least 0"),
        ("num_workers=", "at least 0"),
        ("prefetch_factor=0", "at least 1"),
        ("batch_size=0", "at least 1"),
        ("pin_memory=maybe", "neither true nor false"),
        ("multiprocessing_context=thread", "fork, spawn, forkserver"),
        ("val.num_workers=2", "'val' names no loader"),
        ("-1.num_workers=2", "'-1' names no loader"),
    ],
)
def test_settings_that_cannot_be_changed_so(text: str, says: str) -> None:
    with pytest.raises(click.BadParameter, match=says):
        OverrideType().convert(text, None, None)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1h", 3600)])
def test_a_time(text: str, seconds: int) -> None:
    assert DurationType().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "m", "0s", "-1m", "1.5h", "10 m", "1d", "1m30s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="such as 90s, 10m or 1h"):
        DurationType().convert(text, None, None)


def test_a_time_without_its_unit_is_asked_for_it() -> None:
    with pytest.raises(click.BadParameter, match="10 has no unit: 10s are seconds, 10m minutes, 10h hours"):
        DurationType().convert("10", None, None)


def test_the_help_names_what_can_be_set_and_bounded() -> None:
    help_of = {option.name: option.help for option in RUN_OPTIONS}
    assert all(name in help_of["--set"] for name in OverrideType.settings)
    assert all(name in help_of["--fail-if"] for name in NAMES)
