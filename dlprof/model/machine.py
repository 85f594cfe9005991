"""What was read from outside while a run was going on: its processes' counters and memory, and the machine's load."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ProcessReadings:
    """Counters of one process, those of its children that have ended and were waited for included.

    So the sum over the processes that are there at a look, parents and children, counts everything once. All but
    ``pid`` and ``parent`` have one entry a look at which the process was there; counters are since its start.

    Attributes:
        pid: Process.
        parent: Its parent.
        look: Index into ``Machine.at_ns``, ascending.
        cpu_ns: CPU time of all threads.
        major_faults: Page faults that had to read from disk.
        disk_bytes: Bytes read from storage, by calls and by page faults; -1 where it may not be read.
        asked_bytes: Bytes that read calls have returned, from the page cache, pipes and sockets too; -1 likewise.
    """

    pid: int
    parent: int
    look: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    major_faults: tuple[int, ...]
    disk_bytes: tuple[int, ...]
    asked_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of one process that no other shares, at some moments.

    Attributes:
        pid: Process.
        at_ns: When, ascending.
        private_bytes: Pages that only this process has: its own and those it has written to since it was forked.
    """

    pid: int
    at_ns: tuple[int, ...]
    private_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """All looks at a run and its machine. Columns have one entry a look; of the sums only differences mean anything.

    Attributes:
        cores: Cores that the training process may run on, at the last look.
        quota: Cores' worth of time that its control group may use, None without a quota.
        at_ns: When, ascending.
        busy_ns: Time that cores which the training process may run on were busy, for anybody.
        run_cpu_ns: CPU time of the command, all that it started, and dlprof.
        throttled_ns: Time that its control group, which had work, was kept from running; summed over cores.
        processes: Processes of the run that have dlprof's hooks.
        memory: Their memory.
    """

    cores: int
    quota: float | None
    at_ns: tuple[int, ...]
    busy_ns: tuple[int, ...]
    run_cpu_ns: tuple[int, ...]
    throttled_ns: tuple[int, ...]
    processes: tuple[ProcessReadings, ...]
    memory: tuple[ProcessMemory, ...]
