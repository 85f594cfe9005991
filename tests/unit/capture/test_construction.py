"""Which line makes a loader: that of the script, whatever torch, dlprof or a framework put between."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from torch.utils.data import DataLoader

from dlprof.capture.construction import Constructions
from dlprof.formats.places import Place, is_users, made_at, shown_file


@pytest.fixture
def constructions(monkeypatch: pytest.MonkeyPatch) -> Constructions:
    """What was noted of the loaders that a test makes."""
    noting = Constructions()
    original = DataLoader.__init__

    def noted(loader: Any, *args: Any, **kwargs: Any) -> None:
        noting.noted(loader)
        original(loader, *args, **kwargs)

    # Its globals are this module's: torch's own name makes it a line that is passed over.
    hidden = FunctionType(noted.__code__, {"__name__": "dlprof.capture"}, closure=noted.__closure__)
    monkeypatch.setattr(DataLoader, "__init__", hidden)
    return noting


def line_of(text: str) -> Place:
    """Where the one line of this file stands that ends with this comment."""
    (number,) = [n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(f"# {text}")]
    return __file__, number


def in_file(file: str, make: Callable[[], Any], module: str = "framework") -> Callable[[], Any]:
    """The same function, as though it stood in another file."""
    assert isinstance(make, FunctionType)
    code = make.__code__.replace(co_filename=file)
    return FunctionType(code, {**make.__globals__, "__name__": module}, closure=make.__closure__)


def test_the_line_of_the_call_is_named(constructions: Constructions) -> None:
    loader = DataLoader(  # here
        [1, 2],
        batch_size=1,
    )
    assert constructions.of(loader) == (line_of("here"),)


def test_a_class_of_the_scripts_own_is_named_by_who_makes_one(constructions: Constructions) -> None:
    class Mine(DataLoader[int]):
        def __init__(self) -> None:
            super().__init__([1, 2], 1)

    loader = Mine()  # mine
    assert constructions.of(loader) == (line_of("mine"),)


def test_what_a_framework_makes_is_named_by_its_line_and_the_users(constructions: Constructions) -> None:
    def make() -> DataLoader[int]:
        return DataLoader([1, 2])  # in the framework

    file = "/opt/venv/lib/python3.11/site-packages/framework/trainer.py"
    loader = in_file(file, make)()  # asks for it
    inner, user = constructions.of(loader)
    assert inner == (file, line_of("in the framework")[1])
    assert user == line_of("asks for it")


@pytest.mark.parametrize("module", ["torch.utils.data.dataloader", "torchdata.nodes", "dlprof.capture.dataloader"])
def test_lines_of_torch_and_dlprof_name_no_loader(constructions: Constructions, module: str) -> None:
    def make() -> DataLoader[int]:
        return DataLoader([1, 2])

    loader = in_file("/opt/anything.py", make, module)()  # asks torch
    assert constructions.of(loader) == (line_of("asks torch"),)


def test_a_loader_that_is_made_again_keeps_its_first_line(constructions: Constructions) -> None:
    loader = DataLoader([1, 2])  # first
    constructions.noted(loader)
    assert constructions.of(loader) == (line_of("first"),)


def test_a_loader_is_not_kept_alive_and_one_that_is_no_key_does_no_harm(constructions: Constructions) -> None:
    class NoKey(DataLoader[int]):
        __hash__ = None  # type: ignore[assignment]

    assert constructions.of(NoKey([1])) == ()
    loader = DataLoader([1])
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None


def test_places_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    packages = "/opt/venv/lib/python3.11/site-packages/"
    assert made_at([(str(tmp_path / "a" / "train.py"), 4)]) == "a/train.py:4"
    assert (
        made_at([(f"{packages}transformers/trainer.py", 1050), ("train.py", 70)])
        == "transformers/trainer.py:1050 (called from train.py:70)"
    )
    assert shown_file("/elsewhere/train.py") == "/elsewhere/train.py"
    assert not is_users(inspect.getfile(inspect))
    assert is_users("/elsewhere/train.py")
