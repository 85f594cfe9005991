"""Counters of a run's processes and of its machine, read by the supervisor: ``machine.json`` in the recording folder.

Everything comes from ``/proc`` and the control groups' files; nothing is asked of the processes themselves. A look at
ten processes takes half a millisecond and there are two a second. No torch here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dlprof.capture.environment import cgroup_folders, cpu_quota
from dlprof.capture.nvml import descendants
from dlprof.formats.event_file import SUFFIX
from dlprof.model.machine import UNKNOWN, Machine, ProcessMemory, ProcessReadings

NAME = "machine.json"
VERSION = 1

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
_EVERY_NS = (150_000_000, 1_000_000_000)
"""At each tick of the supervisor, so that the steps of a short run have looks as well."""
_SHARE = 0.01
"""Of a core, for looks: one takes about 0.1 ms a process."""
_MOST_LOOKS = 512
_MOST_PROCESSES = 256
_ALL_PROCESSES_EVERY = 20
"""Looks. Going through all processes of the machine takes 15 microseconds a process."""
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""Columns of ``/proc/stat``: idle, and idle while waiting for a disk."""
_COUNTED = 8
"""Columns up to ``steal``; those after it are part of ``user`` and ``nice``."""

# The kernel walks all of a process's pages to tell its private memory (*measured:* 10 ms a GB of small pages), and the
# process cannot map memory meanwhile.
_MEMORY_SHARE = 0.005
_MEMORY_AT_ONCE_NS = 20_000_000
_MEMORY_EVERY_NS = (500_000_000, 5_000_000_000)
_MOST_OF_MEMORY = 256

_Counters = tuple[int, int, int, int]
"""CPU nanoseconds, major faults, bytes from disk, bytes asked for."""


@dataclass
class _Look:
    """One look: sums of which only differences mean anything, and each process's counters."""

    at_ns: int
    busy_ns: int
    run_cpu_ns: int
    throttled_ns: int
    processes: dict[int, _Counters]


@dataclass
class _Memory:
    """Private memory of one process so far."""

    first_ns: int
    due_ns: int
    every: int = 1
    number: int = 0
    readings: list[tuple[int, int]] = field(default_factory=list)
    last: tuple[int, int] | None = None

    def keep(self, reading: tuple[int, int]) -> None:
        """Keep one reading of so many, and always the last."""
        if self.number % self.every == 0:
            self.readings.append(reading)
            if len(self.readings) >= _MOST_OF_MEMORY:
                self.readings, self.every = self.readings[::2], self.every * 2
        self.number += 1
        self.last = reading

    def all(self) -> list[tuple[int, int]]:
        """Those that were kept, and the last."""
        extra = [self.last] if self.last is not None and self.last != self.readings[-1] else []
        return [*self.readings, *extra]


class MachineWatch:
    """Looks at a run's processes and its machine while it is going on.

    Args:
        pid: The command; it and its descendants are the run.
        recording: The recording folder: processes with hooks leave a file there.
        proc: Where the process file system is.
        cgroups: Where control groups are.
    """

    def __init__(self, pid: int, recording: Path, proc: Path = _PROC, cgroups: Path = _CGROUP) -> None:
        self._pid = pid
        self._recording = recording
        self._proc = proc
        self._cgroups = cgroups
        self._on = True
        self._due_ns = 0
        self._looks: list[_Look] = []
        self._last: _Look | None = None
        self._every = 1
        self._number = 0
        self._hooked: set[int] = set()
        self._hooked_at_ns = -1
        self._ended: set[int] = set()
        self._others: set[int] = set()
        # A kernel may be built without these files.
        self._lists_children = (proc / "thread-self" / "children").exists()
        self._parents: dict[int, int] = {}
        self._cpus: dict[int, int] = {}
        self._throttled: dict[Path, int] = {}
        self._cores = 0
        self._quota: float | None = None
        self._memory: dict[int, _Memory] = {}
        self._allowance_ns = float(_MEMORY_AT_ONCE_NS)
        self._allowed_at_ns = 0
        self._refused: set[str] = set()
        self.notices: list[tuple[str, dict[str, Any]]] = []

    def look(self, training: Iterable[int], now_ns: int) -> None:
        """Take a look if one is due. Never raises.

        Args:
            training: Processes that train.
            now_ns: ``CLOCK_MONOTONIC``.
        """
        if not self._on or now_ns < self._due_ns:
            return
        begun = time.thread_time_ns()
        try:
            trains = list(training)
            self._keep(self._take(trains[0] if trains else self._pid, now_ns))
            shortest, longest = _EVERY_NS
            self._due_ns = now_ns + max(shortest, min(longest, round((time.thread_time_ns() - begun) / _SHARE)))
            if trains:
                self._look_at_memory(set(trains), now_ns)
        except Exception as error:
            self._on = False
            self._note("machine-not-watched", f"{type(error).__name__}: {error}")

    def save(self, recording: Path) -> None:
        """Write what was seen. Never raises."""
        if self._refused:
            self._note("processes-not-readable", ", ".join(sorted(self._refused)))
        if self._last is None:
            return
        try:
            document = {"version": VERSION, "machine": asdict(self._machine())}
            (recording / NAME).write_text(json.dumps(document), encoding="utf-8")
        except Exception as error:
            self._note("machine-not-watched", f"{type(error).__name__}: {error}")

    def _note(self, slug: str, error: str) -> None:
        if all(slug != known for known, _ in self.notices):
            self.notices.append((slug, {"error": error}))

    # ---- one look ------------------------------------------------------------------------------------------------

    def _take(self, pid: int, now_ns: int) -> _Look:
        before = self._last
        busy = self._busy_ns(pid)
        throttled = self._throttled_ns(pid)
        run_cpu = time.process_time_ns()
        processes: dict[int, _Counters] = {}
        hooked = self._with_hooks()
        # Parents first: what a child has used is its parent's from the moment when it is waited for, and would be
        # missing from one sum, while the other way round it would be there twice and for good.
        for member in self._members():
            counters = self._counters(member)
            if counters is None:
                continue
            run_cpu += counters[0]
            if member in hooked and len(processes) < _MOST_PROCESSES:
                processes[member] = counters
        if before is not None:
            busy += before.busy_ns
            throttled += before.throttled_ns
        return _Look(now_ns, busy, run_cpu, throttled, processes)

    def _keep(self, look: _Look) -> None:
        if self._number % self._every == 0:
            self._looks.append(look)
            if len(self._looks) >= _MOST_LOOKS:
                self._looks, self._every = self._looks[::2], self._every * 2
        self._number += 1
        self._last = look

    def _members(self) -> list[int]:
        """The command and all that it has started, a parent before its children."""
        found = dict.fromkeys([self._pid])
        if self._lists_children:
            pending = [self._pid]
            while pending:
                for child in self._children(pending.pop()):
                    if child not in found:
                        found[child] = None
                        pending.append(child)
        elif self._number % _ALL_PROCESSES_EVERY == 0:
            self._others = descendants(self._pid)
        # Those whose parents have ended are the run's as well.
        return [*found, *sorted((self._others | self._hooked) - found.keys())]

    def _children(self, pid: int) -> list[int]:
        children: list[int] = []
        try:
            threads = os.listdir(self._proc / str(pid) / "task")
        except OSError:
            return children
        for thread in threads:
            try:
                text = (self._proc / str(pid) / "task" / thread / "children").read_text(encoding="ascii")
            except OSError:
                continue
            children += map(int, text.split())
        return children

    def _with_hooks(self) -> set[int]:
        changed_ns = os.stat(self._recording).st_mtime_ns
        if changed_ns != self._hooked_at_ns:
            self._hooked_at_ns = changed_ns
            names = [name.removesuffix(SUFFIX) for name in os.listdir(self._recording) if name.endswith(SUFFIX)]
            self._hooked = {int(name) for name in names if name.isdigit()} - self._ended
        return self._hooked

    def _counters(self, pid: int) -> _Counters | None:
        stat = self._fields(pid)
        if stat is None:
            self._hooked.discard(pid)
            self._ended.add(pid)
            return None
        self._parents[pid] = int(stat[1])
        disk, asked = self._bytes_read(pid)
        # Times and faults of children that were waited for are in the columns after the process's own.
        return sum(map(int, stat[11:15])) * _TICK_NS, int(stat[9]) + int(stat[10]), disk, asked

    def _fields(self, pid: int) -> list[str] | None:
        """Columns of ``stat`` from the third on; None where the process has ended."""
        try:
            line = (self._proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The name stands in parentheses and may hold any character.
        fields = line.rpartition(")")[2].split()
        return None if len(fields) < 15 or fields[0] in "ZXx" else fields

    def _bytes_read(self, pid: int) -> tuple[int, int]:
        try:
            text = (self._proc / str(pid) / "io").read_text(encoding="ascii")
        except PermissionError:
            if pid in self._hooked:
                self._refused.add("io")
            return UNKNOWN, UNKNOWN
        except OSError:
            return UNKNOWN, UNKNOWN
        values = dict(line.split(": ") for line in text.splitlines())
        return int(values.get("read_bytes", UNKNOWN)), int(values.get("rchar", UNKNOWN))

    # ---- the machine ---------------------------------------------------------------------------------------------

    def _busy_ns(self, pid: int) -> int:
        """How long the cores that a process may run on were busy since the look before, summed over them."""
        try:
            allowed = os.sched_getaffinity(pid)
        except OSError:
            return 0
        cpus: dict[int, int] = {}
        for line in (self._proc / "stat").read_text(encoding="ascii").splitlines():
            if not line.startswith("cpu"):
                break
            name, *columns = line.split()
            number = name.removeprefix("cpu")
            if number:
                times = [int(column) for column in columns[:_COUNTED]]
                cpus[int(number)] = sum(times) - sum(times[column] for column in _IDLE if column < len(times))
        before, self._cpus = self._cpus, cpus
        self._cores = len(allowed)
        return sum(cpus[cpu] - before[cpu] for cpu in allowed if cpu in cpus and cpu in before) * _TICK_NS

    def _throttled_ns(self, pid: int) -> int:
        """How long a process's control group was throttled since the look before: the group, or one around it."""
        own = self._proc / str(pid) / "cgroup"
        before, self._throttled = self._throttled, {}
        for folder in cgroup_folders(self._cgroups, own, "cpu"):
            total = _throttled_total_ns(folder)
            if total is not None:
                self._throttled[folder] = total
        self._quota = cpu_quota(self._cgroups, own)
        return max((total - before[f] for f, total in self._throttled.items() if f in before), default=0)

    # ---- memory --------------------------------------------------------------------------------------------------

    def _look_at_memory(self, training: set[int], now_ns: int) -> None:
        self._allowance_ns += (now_ns - (self._allowed_at_ns or now_ns)) * _MEMORY_SHARE
        self._allowance_ns = min(self._allowance_ns, _MEMORY_AT_ONCE_NS)
        self._allowed_at_ns = now_ns
        # Of the training processes themselves nobody asks it, and it would hold them up.
        alive = set(self._last.processes if self._last is not None else ()) - training
        for pid in alive:
            self._memory.setdefault(pid, _Memory(now_ns, now_ns))
        due = [pid for pid in alive if self._memory[pid].due_ns <= now_ns]
        for pid in sorted(due, key=lambda each: self._memory[each].due_ns):
            if self._allowance_ns <= 0:
                break
            begun = time.thread_time_ns()
            private = self._private_bytes(pid)
            self._allowance_ns -= time.thread_time_ns() - begun
            memory = self._memory[pid]
            # Often at first, so that a short run has an end as well.
            shortest, longest = _MEMORY_EVERY_NS
            memory.due_ns = now_ns + max(shortest, min(longest, (now_ns - memory.first_ns) // 2))
            if private is not None:
                memory.keep((now_ns, private))
        while len(self._memory) > 2 * _MOST_PROCESSES:
            # Of workers that are started anew for each epoch the latest are kept.
            ended = next((pid for pid in self._memory if pid not in alive), None)
            if ended is None:
                break
            del self._memory[ended]

    def _private_bytes(self, pid: int) -> int | None:
        try:
            text = (self._proc / str(pid) / "smaps_rollup").read_text(encoding="ascii", errors="replace")
        except PermissionError:
            self._refused.add("smaps_rollup")
            return None
        except OSError:
            return None
        found = [line.split()[1] for line in text.splitlines() if line.startswith(("Private_Clean:", "Private_Dirty:"))]
        return sum(map(int, found)) * 1024 if found else None

    # ---- the whole -----------------------------------------------------------------------------------------------

    def _machine(self) -> Machine:
        looks = list(self._looks)
        if self._last is not None and self._last is not looks[-1]:
            looks.append(self._last)
        pids = sorted({pid for look in looks for pid in look.processes})
        return Machine(
            cores=self._cores,
            quota=self._quota,
            at_ns=tuple(look.at_ns for look in looks),
            busy_ns=tuple(look.busy_ns for look in looks),
            run_cpu_ns=tuple(look.run_cpu_ns for look in looks),
            throttled_ns=tuple(look.throttled_ns for look in looks),
            processes=tuple(self._readings(pid, looks) for pid in pids),
            memory=tuple(
                ProcessMemory(pid, *zip(*memory.all(), strict=True))
                for pid, memory in self._memory.items()
                if memory.readings
            ),
        )

    def _readings(self, pid: int, looks: list[_Look]) -> ProcessReadings:
        seen = [(index, look.processes[pid]) for index, look in enumerate(looks) if pid in look.processes]
        cpu, faults, disk, asked = zip(*(counters for _, counters in seen), strict=True)
        return ProcessReadings(pid, self._parents[pid], tuple(index for index, _ in seen), cpu, faults, disk, asked)


def _throttled_total_ns(group: Path) -> int | None:
    """How long a control group was throttled since it was made; None where it has no quota's statistics."""
    try:
        text = (group / "cpu.stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    values = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
    if "throttled_usec" in values:
        return int(values["throttled_usec"]) * 1000
    return int(values["throttled_time"]) if "throttled_time" in values else None


def load_machine(recording: Path) -> Machine | None:
    """What ``MachineWatch.save`` wrote.

    Args:
        recording: The recording folder.

    Returns:
        None where nothing was written or the file is damaged.
    """
    try:
        document = json.loads((recording / NAME).read_text(encoding="utf-8"))
        if document["version"] != VERSION:
            return None
        found: dict[str, Any] = document["machine"]
        processes = tuple(ProcessReadings(**_tuples(each)) for each in found["processes"])
        memory = tuple(ProcessMemory(**_tuples(each)) for each in found["memory"])
        return replace(Machine(**_tuples(found)), processes=processes, memory=memory)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
