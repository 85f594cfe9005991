"""Hooks run once the user's code has imported a module, and the import is as it would be without them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zipfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from dlprof.capture.post_import import PostImportFinder


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import from; what is imported and installed is gone afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


class Calls:
    """What hooks were called with."""

    def __init__(self) -> None:
        self.modules: list[ModuleType] = []

    def __call__(self, module: ModuleType) -> None:
        self.modules.append(module)

    @property
    def names(self) -> list[str]:
        return [module.__name__ for module in self.modules]


def hooked(*names: str) -> Calls:
    calls = Calls()
    PostImportFinder(dict.fromkeys(names, calls)).install()
    return calls


def write(folder: Path, name: str, text: str = "DONE = True\n") -> None:
    path = folder / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_the_hook_is_called_once_after_the_modules_code_has_run(modules):
    write(modules, "seen")
    done: list[bool] = []
    PostImportFinder({"seen": lambda module: done.append(module.DONE)}).install()
    assert done == []
    importlib.import_module("seen")
    importlib.import_module("seen")
    assert done == [True]


def test_the_hook_is_called_before_the_importer_goes_on(modules):
    write(modules, "seen", "value = 1\n")
    write(modules, "script", "from seen import value\n")
    PostImportFinder({"seen": lambda module: setattr(module, "value", 2)}).install()
    assert importlib.import_module("script").value == 2


def test_a_module_that_is_there_already_is_hooked_at_once(modules):
    write(modules, "seen")
    importlib.import_module("seen")
    assert hooked("seen").names == ["seen"]


def test_modules_without_a_hook_are_left_alone(modules):
    write(modules, "seen")
    write(modules, "other")
    calls = hooked("seen")
    module = importlib.import_module("other")
    assert calls.names == []
    assert "exec_module" not in vars(module.__loader__)


def test_the_loader_stays_what_it_was(modules):
    write(modules, "seen", "def f():\n    return 1\n")
    hooked("seen")
    module = importlib.import_module("seen")
    assert type(module.__loader__) is type(module.__spec__.loader) is SourceFileLoader
    assert "exec_module" not in vars(module.__loader__)
    assert module.__file__ == str(modules / "seen.py")
    assert inspect.getsource(module.f) == "def f():\n    return 1\n"


def test_an_error_of_the_modules_code_passes_through_and_a_second_try_is_hooked(modules):
    write(modules, "seen", "raise RuntimeError('not today')\n")
    calls = hooked("seen")
    with pytest.raises(RuntimeError, match="not today"):
        importlib.import_module("seen")
    assert "seen" not in sys.modules
    write(modules, "seen", "DONE = 'at last, and longer'\n")
    importlib.invalidate_caches()
    importlib.import_module("seen")
    assert calls.names == ["seen"]


def test_a_module_that_is_not_there_is_not_there(modules):
    calls = hooked("not_there", "not_there.either")
    with pytest.raises(ModuleNotFoundError) as error:
        importlib.import_module("not_there")
    assert error.value.name == "not_there"
    assert importlib.util.find_spec("not_there") is None
    assert calls.names == []


def test_asking_whether_a_module_is_there_is_no_import(modules):
    write(modules, "seen")
    calls = hooked("seen")
    assert importlib.util.find_spec("seen") is not None
    assert calls.names == []
    importlib.import_module("seen")
    assert calls.names == ["seen"]


def test_a_reload_is_hooked_again_since_the_modules_code_has_run_again(modules):
    write(modules, "seen", "value = []\n")
    calls = hooked("seen")
    module = importlib.import_module("seen")
    module.value.append("ours")
    assert importlib.reload(module) is module
    assert module.value == []
    assert calls.modules == [module, module]


def test_modules_of_a_package_are_hooked_by_their_full_name(modules):
    write(modules, "package/__init__", "from package import inner\n")
    write(modules, "package/inner")
    calls = hooked("package", "package.inner")
    importlib.import_module("package.inner")
    assert calls.names == ["package.inner", "package"]


def test_a_module_imported_while_another_is_being_imported_from_the_same_zip_file(modules, monkeypatch):
    with zipfile.ZipFile(modules / "bundle.zip", "w") as bundle:
        bundle.writestr("outer.py", "import inner\nDONE = True\n")
        bundle.writestr("inner.py", "DONE = True\n")
    monkeypatch.syspath_prepend(str(modules / "bundle.zip"))
    calls = hooked("outer", "inner")
    outer = importlib.import_module("outer")
    assert calls.names == ["inner", "outer"]
    assert "exec_module" not in vars(outer.__loader__)


def test_a_module_that_replaces_itself_is_hooked_as_its_code_left_it(modules):
    write(modules, "seen", "import sys, types\nsys.modules[__name__] = types.ModuleType('replaced')\n")
    calls = hooked("seen")
    assert importlib.import_module("seen").__name__ == "replaced"
    assert len(calls.modules) == 1


def test_another_finder_that_came_first_is_asked(modules):
    asked: list[str] = []

    class Finder:
        def find_spec(self, name, path, target=None):
            asked.append(name)

    write(modules, "seen")
    sys.meta_path.insert(0, Finder())
    calls = hooked("seen")
    importlib.import_module("seen")
    assert asked == ["seen"]
    assert calls.names == ["seen"]


class AskingFinder:
    """As wrapt's, which ddtrace, OpenTelemetry, wandb and mlflow use: asks all finders again, itself left out."""

    def __init__(self) -> None:
        self.busy = False

    def find_spec(self, name, path, target=None):
        if self.busy or name != "seen":
            return None
        self.busy = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.busy = False


def test_a_finder_that_asks_all_finders_again_does_not_make_the_hook_run_twice(modules):
    write(modules, "seen")
    sys.meta_path.insert(0, AskingFinder())
    calls = hooked("seen")
    importlib.import_module("seen")
    assert calls.names == ["seen"]


def test_two_finders_both_call_their_hooks(modules):
    write(modules, "seen")
    one, other = hooked("seen"), hooked("seen")
    importlib.import_module("seen")
    assert (one.names, other.names) == (["seen"], ["seen"])


def test_a_loader_that_takes_no_attributes_is_left_alone(modules):
    class Slotted:
        __slots__ = ()

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            module.DONE = True

    class Finder:
        def find_spec(self, name, path, target=None):
            return importlib.util.spec_from_loader(name, Slotted()) if name == "seen" else None

    sys.meta_path.insert(0, Finder())
    calls = hooked("seen")
    assert importlib.import_module("seen").DONE
    assert calls.names == []
