"""Functions named with --span are timed whoever holds them, and stay what they were."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import types
import warnings
from types import ModuleType

import pytest
from recordings import asked, events, rows

from dlprof.capture import recorder as recorder_module
from dlprof.capture.patches import Patches
from dlprof.capture.recorder import Recorder
from dlprof.capture.user_spans import UserSpans
from dlprof.model.kinds import Kind, Role

SOURCE = '''
import warnings
CALLS = []
def plain(a, b=2, *rest, c=3, **more):
    """What it does."""
    CALLS.append("plain")
    return a, b, rest, c, more
def recursive(n):
    return 0 if n == 0 else 1 + recursive(n - 1)
def warns():
    warnings.warn("about the caller", stacklevel=2)
def fails():
    raise KeyError("the user's own")
def closure():
    held = [1]
    def inside(x):
        held.append(x)
        return sum(held)
    return inside
inside = closure()
def items():
    yield 1
async def later():
    return 1
class Base:
    def method(self, x):
        return "base", x
class Set(Base):
    def method(self, x):
        return super().method(x)
    @staticmethod
    def still(x):
        return x + 1
    @classmethod
    def made(cls):
        return cls
    @property
    def size(self):
        return 7
number = 3
KEPT = [plain, Set.still]
'''


@pytest.fixture
def module(monkeypatch):
    """A module of the user's."""
    made = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", made)
    exec(compile(SOURCE, "mine.py", "exec"), made.__dict__)
    return made


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    # Each reading of the clock is 1 ms later, so that no call passes for fast.
    ticks = iter(range(0, 10**15, 10**6))
    monkeypatch.setattr("dlprof.capture.user_spans.now", lambda: next(ticks))
    assert recorder_module is not None
    return Recorder(str(tmp_path), asked())


@pytest.fixture
def timed(module, recorder):
    """Names functions of the module; gives it back with these timed."""
    patches = Patches()

    def name(*paths: str) -> ModuleType:
        spans = UserSpans(recorder, patches, [f"mine:{path}" for path in paths])
        spans.hooks()["mine"](module)
        return module

    yield name
    patches.restore()


def written(recorder, tmp_path, *kinds: Kind) -> list[str]:
    recorder.flush_all()
    names = {event["id"]: event["name"] for event in events(tmp_path, "name")}
    return [names[row.name] for row in rows(tmp_path, *kinds)]


def told(tmp_path) -> dict[str, str | None]:
    return {event["target"]: event["reason"] for event in events(tmp_path, "span")}


def test_arguments_result_and_defaults_pass(timed):
    mine = timed("plain")
    assert mine.plain(1) == (1, 2, (), 3, {})
    assert mine.plain(1, 5, 6, c=7, d=8) == (1, 5, (6,), 7, {"d": 8})
    with pytest.raises(TypeError, match=r"plain\(\) missing 1 required positional argument: 'a'"):
        mine.plain()


def test_outside_of_data_work_it_is_the_training_loops(timed, recorder, tmp_path):
    timed("plain").plain(1)
    assert written(recorder, tmp_path, Kind.USER_HOST) == ["mine:plain"]


def test_within_data_work_it_is_a_call_of_its_own_kind(timed, recorder, tmp_path):
    recorder.thread().data_depth = 1
    timed("plain").plain(1)
    assert written(recorder, tmp_path, Kind.USER_CALL) == ["mine:plain"]
    assert written(recorder, tmp_path, Kind.USER_HOST) == []


def test_in_a_worker_outside_of_data_work_nothing_is_recorded(timed, recorder, tmp_path):
    recorder.become(Role.WORKER)
    timed("plain").plain(1)
    assert written(recorder, tmp_path) == []


def test_who_took_the_function_before_calls_the_timed_one(timed, module, recorder, tmp_path):
    plain, still = module.KEPT
    timed("plain", "Set.still")
    plain(1)
    assert still(1) == 2
    assert written(recorder, tmp_path) == ["mine:plain", "mine:Set.still"]


def test_methods_of_every_kind(timed, recorder, tmp_path):
    mine = timed("Set.method", "Set.made", "Set.size")
    assert mine.Set().method(4) == ("base", 4)
    assert mine.Set.made() is mine.Set
    assert mine.Set().size == 7
    assert written(recorder, tmp_path) == ["mine:Set.method", "mine:Set.made", "mine:Set.size"]


def test_an_inherited_method_is_found_at_its_class(timed, recorder, tmp_path, module):
    del module.Set.method
    timed("Set.method").Set().method(1)
    assert written(recorder, tmp_path) == ["mine:Set.method"]


def test_a_closure_keeps_its_variables(timed):
    mine = timed("inside")
    assert (mine.inside(1), mine.inside(2)) == (2, 4)


def test_calls_within_calls(timed, recorder, tmp_path):
    assert timed("recursive").recursive(3) == 3
    assert len(written(recorder, tmp_path)) == 4


def test_identity_signature_source_and_documentation_stay(timed, module):
    before, signature = module.plain, inspect.signature(module.plain)
    timed("plain")
    assert module.plain is before
    assert inspect.signature(module.plain) == signature
    assert module.plain.__doc__ == "What it does."
    assert (module.plain.__name__, module.plain.__qualname__) == ("plain", "plain")


def test_it_pickles_and_copies_as_before(timed):
    mine = timed("plain", "Set.method")
    assert pickle.loads(pickle.dumps(mine.plain)) is mine.plain
    assert copy.deepcopy(mine.plain) is mine.plain


def test_a_pickler_that_writes_code_gets_one_that_is_not_timed(timed):
    code = timed("plain").plain.__code__
    (held,) = (constant for constant in code.co_consts if type(constant).__name__ == "_Timed")
    remake, (original,) = held.__reduce__()
    assert remake(original).__code__.co_name == "plain"
    assert inspect.isfunction(original)


def test_errors_and_warnings_are_the_functions_own(timed):
    mine = timed("fails", "warns")
    with pytest.raises(KeyError, match="the user's own"):
        mine.fails()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mine.warns()
    assert caught[0].filename == __file__


def test_after_restore_the_code_is_the_users(module, recorder):
    patches, code = Patches(), module.plain.__code__
    UserSpans(recorder, patches, ["mine:plain"]).hooks()["mine"](module)
    assert module.plain.__code__ is not code
    patches.restore()
    assert module.plain.__code__ is code
    assert not hasattr(module.plain, "__wrapped__")


def test_what_cannot_be_timed_is_told(timed, tmp_path):
    mine = timed("items", "later", "number", "plain", "missing", "Set.missing", "plain.inner")
    assert list(mine.items()) == [1]
    found = told(tmp_path)
    assert found["mine:plain"] is None
    assert "generator" in str(found["mine:items"])
    assert "coroutine" in str(found["mine:later"])
    assert "int" in str(found["mine:number"])
    # What is not there may come later.
    assert set(found) == {"mine:plain", "mine:items", "mine:later", "mine:number"}


def test_two_names_of_one_function_time_it_once(timed, module, recorder, tmp_path):
    module.again = module.plain
    timed("plain", "again").plain(1)
    assert len(written(recorder, tmp_path)) == 1


@pytest.mark.parametrize("name", ["__main__", "train"])
def test_the_scripts_own_functions_by_either_name(recorder, tmp_path, monkeypatch, name):
    main = ModuleType("__main__")
    main.__file__ = "/somewhere/train.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    patches = Patches()
    spans = UserSpans(recorder, patches, [f"{name}:augment"])
    spans.look_in_script()
    assert told(tmp_path) == {}
    exec("def augment(x): return x + 1", main.__dict__)
    spans.look_in_script()
    assert told(tmp_path) == {f"{name}:augment": None}
    assert main.augment(1) == 2
    assert written(recorder, tmp_path) == [f"{name}:augment"]
    patches.restore()


def test_a_module_that_was_run_has_its_own_name(recorder, tmp_path, monkeypatch):
    main = ModuleType("__main__")
    main.__spec__ = types.SimpleNamespace(name="pkg.train")
    exec("def augment(x): return x", main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    UserSpans(recorder, Patches(), ["pkg.train:augment", "train:augment"]).look_in_script()
    assert told(tmp_path) == {"pkg.train:augment": None}


def test_a_recording_that_has_ended_leaves_the_function_working(timed, recorder, tmp_path):
    recorder.on = False
    assert timed("plain").plain(1)[0] == 1


def test_a_recording_that_fails_does_not_reach_the_caller(timed, recorder, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    mine = timed("plain")
    monkeypatch.setattr(recorder.thread(), "writer", types.SimpleNamespace(add=full, close=lambda: None))
    assert mine.plain(1)[0] == 1
    assert not recorder.on
