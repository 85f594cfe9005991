"""The TensorBoard plugin: the application, mounted below TensorBoard's own path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard.plugins import base_plugin

from dlprof.tensorboard.application import LOOPBACK, Application
from dlprof.tensorboard.runs import Runs
from dlprof.words import of_locale, speak

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

NAME = "dlprof_runs"
"""NVIDIA's retired DLProf had ``dlprof``."""
_MODULE = "/plugin.js"
_MOUNTED = f"/data/plugin/{NAME}"


class Plugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """Runs, their reports, comparisons and timelines.

    Args:
        context: What TensorBoard was started with. Without a log directory on a disk the plugin stays inactive.
    """

    plugin_name = NAME

    def __init__(self, context: base_plugin.TBContext) -> None:
        speak(of_locale(os.environ))
        logdir = context.logdir or ""
        self._runs = Runs(Path(logdir).expanduser()) if logdir and "://" not in logdir else None
        self._loopback = _serves_this_machine_only(context.flags)

    def get_plugin_apps(self) -> dict[str, WSGIApplication]:
        """What answers below the plugin's path."""
        if self._runs is None:
            return {}
        mounted = _mount(Application(self._runs, loopback=self._loopback))
        return {_MODULE: mounted, "/*": mounted}

    def is_active(self) -> bool:
        """Whether there is anything to show."""
        return self._runs is not None and self._runs.any()

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """How the page is named, and what it loads first. It looks for new runs itself."""
        return base_plugin.FrontendMetadata(es_module_path=_MODULE, tab_name="dlprof", disable_reload=True)


def _serves_this_machine_only(flags: Any) -> bool:
    """Whether TensorBoard listens where only this machine reaches it, as it does unless told otherwise."""
    host = getattr(flags, "host", None)
    return not getattr(flags, "bind_all", False) and (not host or host in LOOPBACK)


def _mount(application: Application) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    def mounted(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        below = {
            **environ,
            "SCRIPT_NAME": environ.get("SCRIPT_NAME", "") + _MOUNTED,
            "PATH_INFO": environ["PATH_INFO"].removeprefix(_MOUNTED),
        }
        return application(below, start_response)

    return mounted
