"""The application served to this machine alone."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Self

from werkzeug.serving import WSGIRequestHandler, make_server

from dlprof.errors import DlprofError
from dlprof.tensorboard.application import Application
from dlprof.words import tr

HOST = "127.0.0.1"


class _Quiet(WSGIRequestHandler):
    """Says nothing of requests: the terminal is the user's."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Every request."""

    def log(self, type: str, message: str, *args: Any) -> None:
        """What is wrong with a request."""


class Server:
    """A socket on loopback, and the application behind it.

    Args:
        application: What answers.
        port: Where; 0 for any that is free.

    Attributes:
        address: Where it is to be seen.

    Raises:
        DlprofError: The port is in use or not to be had.
    """

    def __init__(self, application: Application, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # A port that a server has just left is free.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise DlprofError(
                "port-not-free",
                tr("cannot serve on port {port}: {reason}", port=port, reason=error.strerror or error),
                tr("name another with --port, or leave it out"),
            ) from error
        bound = self._socket.getsockname()[1]
        self._server = make_server(
            HOST, bound, application, threaded=True, request_handler=_Quiet, fd=self._socket.fileno()
        )
        self.address = f"http://{HOST}:{bound}/"

    def serve(self) -> None:
        """Answer requests until `stop` or Ctrl-C."""
        self._server.serve_forever()

    def stop(self) -> None:
        """End `serve` in another thread."""
        self._server.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.server_close()
        self._socket.close()
