"""What TensorBoard loads at its start: it loads every plugin's, unguarded, so nothing here may fail."""

from __future__ import annotations

import logging

from tensorboard.plugins import base_plugin

_log = logging.getLogger(__name__)


class Loader(base_plugin.TBLoader):  # type: ignore[misc]
    """Makes the plugin, or leaves it out and says why."""

    def load(self, context: base_plugin.TBContext) -> base_plugin.TBPlugin | None:
        """The plugin; None where it cannot be made, and TensorBoard goes on without it.

        Args:
            context: What TensorBoard was started with.
        """
        try:
            from dlprof.tensorboard.plugin import Plugin

            return Plugin(context)
        except Exception as error:  # noqa: BLE001 - TensorBoard's other pages are to work whatever fails here
            _log.warning("the dlprof plugin is left out: %s: %s", type(error).__name__, error)
            return None
