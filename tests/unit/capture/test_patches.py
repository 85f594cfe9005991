from __future__ import annotations

from types import SimpleNamespace

import pytest

from dlprof.capture.patches import Patches


class Thing:
    @staticmethod
    def static() -> str:
        return "as it was"

    def method(self) -> str:
        return "as it was"


def test_what_was_replaced_is_put_back_as_it_was():
    before = dict(vars(Thing))
    patches = Patches()
    patches.set(Thing, "static", lambda _: "ours")
    patches.set(Thing, "method", lambda _: "ours")
    assert Thing().method() == "ours"
    patches.restore()
    assert {name: vars(Thing)[name] for name in before} == before
    assert Thing.static() == "as it was"


def test_what_was_replaced_twice_is_put_back_to_the_first():
    thing = SimpleNamespace(value=1)
    patches = Patches()
    patches.set(thing, "value", 2)
    patches.set(thing, "value", 3)
    patches.restore()
    assert thing.value == 1


def test_the_last_thing_done_is_undone_first_and_only_once():
    undone: list[str] = []
    patches = Patches()
    patches.when_restored(lambda: undone.append("first"))
    patches.when_restored(lambda: undone.append("last"))
    patches.restore()
    patches.restore()
    assert undone == ["last", "first"]


def test_what_cannot_be_undone_does_not_keep_the_rest():
    thing = SimpleNamespace(value=1)
    patches = Patches()
    patches.set(thing, "value", 2)
    patches.when_restored(lambda: 1 / 0)
    patches.restore()
    assert thing.value == 1


def test_what_cannot_be_replaced_is_said_and_leaves_nothing_to_undo():
    patches = Patches()
    with pytest.raises(TypeError):
        patches.set(str, "upper", None)
    patches.restore()
    assert "a".upper() == "A"
