"""Loaded by every Python under ``dlprof run``, before its own code: puts the hooks in place and gets out of the way.

Python imports ``sitecustomize`` once at start. This folder is first on ``PYTHONPATH``, so the module that would have
been imported without dlprof is shadowed: it is run from here. dlprof is then loaded from where this file lies, so a
child in another environment is covered as well, and nothing of dlprof's environment leaks into its ``sys.path``.
"""

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _leave_path() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    sys.path_importer_cache.pop(_HERE, None)


def _run_shadowed() -> None:
    mine = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # The import system expects to find an entry under this name when this module is done.
        sys.modules.setdefault("sitecustomize", mine)


def _load_dlprof() -> None:
    package = os.path.dirname(os.path.dirname(_HERE))
    spec = importlib.util.spec_from_file_location(
        "dlprof", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        raise ImportError("dlprof cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules["dlprof"] = module
    spec.loader.exec_module(module)


def _install(folder: str) -> None:
    try:
        if sys.version_info < (3, 11):
            raise ImportError("Python %d.%d is older than 3.11" % sys.version_info[:2])
        if "dlprof" not in sys.modules:
            _load_dlprof()
        from dlprof.capture import install

        install.install(folder)
    except Exception as error:
        try:
            import json

            line = json.dumps(
                {
                    "event": "notice",
                    "slug": "child-without-dlprof",
                    "executable": sys.executable,
                    "error": str(error),
                }
            )
            with open(os.path.join(folder, "%d.events" % os.getpid()), "a") as file:
                file.write(line + "\n")
        except OSError:
            pass


try:
    _leave_path()
    _run_shadowed()
finally:
    if os.environ.get("DLPROF_RECORDING"):
        _install(os.environ["DLPROF_RECORDING"])
