"""What options take as a value."""

from __future__ import annotations

import click
import pytest

from dlprof.cli.options import FunctionNameType


@pytest.mark.parametrize("text", ["train:augment", "a.b.c:load", "__main__:Set.__getitem__", "größe:f"])
def test_a_functions_name(text: str) -> None:
    assert FunctionNameType().convert(text, None, None) == text


@pytest.mark.parametrize("text", ["", "augment", "train.py:augment:", ":f", "train:", "a-b:f", "a:b()", "a:.f", "1:f"])
def test_what_is_no_functions_name_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="module:function"):
        FunctionNameType().convert(text, None, None)
