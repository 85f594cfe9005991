"""What a script may say about itself: ``dlprof.span`` and ``dlprof.iterate``. Both do nothing without dlprof."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

from dlprof.capture import install
from dlprof.capture.recorder import now, process_cpu, thread_cpu
from dlprof.model.kinds import Kind

T = TypeVar("T")

_KINDS = {"data": Kind.USER_DATA, "host": Kind.USER_HOST, "device": Kind.USER_DEVICE}


@contextlib.contextmanager
def span(name: str, kind: Literal["data", "host", "device"] = "host") -> Iterator[None]:
    """Mark a part of the script.

    Args:
        name: What the report and the trace call it.
        kind: ``data`` for work on a batch, ``host`` for work of the training loop, ``device`` for a stand-in for an
            accelerator: time in it counts as device work, in whichever thread it is spent.

    Raises:
        ValueError: An unknown kind.
    """
    if kind not in _KINDS:
        raise ValueError(f"kind is one of {', '.join(_KINDS)}, not {kind!r}")
    session = install.current()
    start = now()
    try:
        yield
    finally:
        if session is not None and session.recorder.on:
            recorder = session.recorder
            try:
                recorder.thread().writer.add(_KINDS[kind], start, now(), name=recorder.name(name))
            except Exception as error:
                recorder.failed("span", error)


def iterate(batches: Iterable[T]) -> Iterator[T]:
    """Make the batches of any iterable the steps of a run, where there is no DataLoader to see them.

    Args:
        batches: A DataLoader is returned as it is: it is seen anyway.

    Returns:
        An iterator over the same batches.
    """
    session = install.current()
    if session is None or hasattr(batches, "_index_sampler"):
        return iter(batches)
    return _Iterated(session, batches)


class _Iterated(Iterator[T]):
    def __init__(self, session: Any, batches: Iterable[T]) -> None:
        self._session = session
        start = now()
        self._loader = session.loader_number(batches, _describe)
        session.before_iteration(0)
        self._batches = iter(batches)
        self._number = session.iteration_begun(start, self._loader, [])
        self._count = 0

    def __next__(self) -> T:
        session = self._session
        request = session.before_request(self._loader)
        if request is None:
            return next(self._batches)
        ended, batch = True, None
        in_process, runnable, cpu, start = process_cpu(), request.thread.runnable_ns(), thread_cpu(), now()
        try:
            batch = next(self._batches)
            ended = False
        finally:
            try:
                request.thread.writer.add(
                    Kind.FETCH,
                    start,
                    now(),
                    self._count,
                    self._number,
                    0,
                    thread_cpu() - cpu,
                    request.thread.runnable_ns() - runnable,
                    process_cpu() - in_process,
                )
            except Exception as error:
                session.recorder.failed("iterate", error)
            session.after_request(
                request, ended=ended, batch=batch, number=self._count, iterator=self._number, ready=-1
            )
            self._count += 1
        return batch


def _describe(batches: Any) -> dict[str, Any]:
    kind = type(batches)
    return {"num_workers": 0, "made_by": "dlprof.iterate", "dataset": f"{kind.__module__}.{kind.__qualname__}"}
