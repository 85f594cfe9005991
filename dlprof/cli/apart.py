"""A call in a process of its own, for the analyses between several runs of a script."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

from dlprof.errors import DlprofError

_Result = TypeVar("_Result")


def apart(function: Callable[[], _Result]) -> _Result:
    """Call a function in a forked process.

    What the analysis loads starts threads and takes memory. The process that starts and watches the script must have
    one thread, and next to the script's later runs the memory is better free.

    Args:
        function: What it returns is pickled; its class must be one that loads nothing large here.

    Raises:
        DlprofError: The one that the function raised.
        RuntimeError: It raised something else, named in the message, or its process died.
        KeyboardInterrupt: Ctrl-C; the process is ended.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, sender))
    process.start()
    sender.close()
    try:
        kind, value = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the analysis ended with status {process.exitcode}") from None
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join()
        receiver.close()
    if kind == "dlprof-error":
        raise DlprofError(*value)
    if kind == "error":
        raise RuntimeError(value)
    return cast(_Result, value)


def _call(function: Callable[[], Any], sender: Connection) -> None:
    try:
        answer: tuple[str, Any] = ("result", function())
    except KeyboardInterrupt:
        # The terminal's signal came to both; the other process says so.
        return
    except DlprofError as error:
        answer = ("dlprof-error", (error.slug, error.message, error.hint, error.status))
    except Exception as error:  # noqa: BLE001 - it is raised again, over there
        answer = ("error", f"{type(error).__name__}: {error}")
    sender.send(answer)
