"""Whose events are whose in a trace: the processes that train, their threads, and the devices that they use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlprof.model.trace import ON_DEVICE, Activity, Events, Trace

_MARKS = (Activity.STEP, Activity.NEXT, Activity.OPTIMIZER)
_CALLS = (Activity.LAUNCH, Activity.SYNCHRONIZE, Activity.ALLOCATOR)


@dataclass(frozen=True, slots=True)
class Scope:
    """One process that trains.

    Attributes:
        pid: As the trace names it.
        host: Events of its threads.
        main: Those of them that lie on the thread of the training loop.
        device: Events of the devices that it uses.
        names: What events are called.
    """

    pid: int | str
    host: Events
    main: Events
    device: Events
    names: tuple[str, ...]

    def name(self, name_id: int) -> str:
        """An event's name by its number."""
        return self.names[name_id]


def scopes(trace: Trace) -> list[Scope]:
    """The processes of a trace that train, in the order of their first event.

    Processes that only prepare data (a loader's workers, where a trace has them) are none.

    Args:
        trace: As it was read.
    """
    events = trace.events
    on_device = np.isin(events.activity, list(map(int, ON_DEVICE)))
    pid_of_lane = _pids(trace)
    pid = pid_of_lane[events.lane]
    trains = pid[_is(events, *_MARKS, *_CALLS) & ~on_device]
    found = np.unique(trains if len(trains) else pid[~on_device])
    if len(found) > 1:
        # Where marks say who trains, those without are others.
        marked = np.unique(pid[_is(events, Activity.STEP) & ~on_device])
        found = marked if len(marked) else found
    device_of = _devices(events, pid, on_device, found)
    made = []
    for number in found.tolist() or [-1]:
        host = events.where((pid == number) & ~on_device)
        device = events.where(on_device & (device_of == number))
        places = [lane.pid for lane, its in zip(trace.lanes, pid_of_lane.tolist(), strict=True) if its == number]
        made.append(Scope(places[0] if places else "", host, host.where(_on_main(host)), device, trace.names))
    return sorted(made, key=lambda each: int(each.host.start_ns.min()) if len(each.host) else 0)


def _pids(trace: Trace) -> npt.NDArray[np.int64]:
    """Number of the process of each lane."""
    numbers: dict[int | str, int] = {}
    return np.array([numbers.setdefault(lane.pid, len(numbers)) for lane in trace.lanes], dtype=np.int64)


def _is(events: Events, *activities: Activity) -> npt.NDArray[np.bool_]:
    return np.isin(events.activity, list(map(int, activities)))


def _devices(
    events: Events, pid: npt.NDArray[np.int64], on_device: npt.NDArray[np.bool_], found: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Which process launched each event on a device, by the device's launches as a whole; -1 is none of them."""
    owner = np.full(len(events), -1, dtype=np.int64)
    if len(found) <= 1:
        owner[on_device] = found[0] if len(found) else -1
        return owner
    calls = _is(events, *_CALLS)
    for device in np.unique(pid[on_device]).tolist():
        mine = on_device & (pid == device)
        launched = np.unique(events.correlation[mine])
        scores = [
            np.count_nonzero(np.isin(events.correlation[calls & (pid == process)], launched)) for process in found
        ]
        # Numbers of launches are each process's own and may agree by chance; most of them cannot.
        owner[mine] = found[int(np.argmax(scores))]
    return owner


def _on_main(host: Events) -> npt.NDArray[np.bool_]:
    """Which of a process's events lie on the thread that runs the training loop."""
    # A track of steps alone, as some tools draw one, is no thread.
    works = np.isin(host.lane, np.unique(host.lane[_is(host, Activity.OPERATOR, Activity.NEXT, *_CALLS)]))
    for activities in ((Activity.STEP,), (Activity.NEXT,), (Activity.OPTIMIZER,), (Activity.OPERATOR,), _CALLS):
        chosen = _is(host, *activities) & works
        if chosen.any():
            lanes, counts = np.unique(host.lane[chosen], return_counts=True)
            main: npt.NDArray[np.bool_] = host.lane == lanes[np.argmax(counts)]
            return main
    return np.zeros(len(host), dtype=bool)
