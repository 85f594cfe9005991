"""Looks at a run's processes and machine from outside, in a pretended /proc."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

import pytest

from dlprof.capture import machine as machine_module
from dlprof.capture.machine import NAME, MachineWatch, load_machine
from dlprof.model.machine import Machine

SECOND = 10**9
TICKS = os.sysconf("SC_CLK_TCK")
COMMAND, TRAINS, WORKER = 100, 200, 300


class Proc:
    """A folder like /proc. Processes are made with their parents, and changed by making them again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "proc"
        self.cgroups = folder / "cgroup"
        self.recording = folder / "recording"
        self.recording.mkdir(parents=True)
        (self.folder / "thread-self").mkdir(parents=True)
        (self.folder / "thread-self" / "children").touch()
        self.cpu(0, 0)

    def cpu(self, *busy_s: float, idle_s: float = 0) -> None:
        rows = [f"cpu{i} {s * TICKS:.0f} 0 0 {idle_s * TICKS:.0f} 7 0 0 0 0 0" for i, s in enumerate(busy_s)]
        (self.folder / "stat").write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 0 0", *rows, "intr 1", ""]))

    def process(
        self,
        pid: int,
        parent: int,
        *children: int,
        cpu_s: float = 0,
        of_children_s: float = 0,
        faults: int = 0,
        disk: int = 0,
        asked: int = 0,
        private_kb: int = 0,
        hooked: bool = True,
        state: str = "S",
    ) -> None:
        folder = self.folder / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        (folder / "task" / str(pid) / "children").write_text("".join(f"{child} " for child in children))
        fields = [state, parent, 0, 0, 0, 0, 0, 0, 0, faults, 0]
        fields += [int(cpu_s * TICKS), 0, int(of_children_s * TICKS), 0, 20, 0]
        (folder / "stat").write_text(f"{pid} (a (na) me) " + " ".join(map(str, fields)))
        (folder / "io").write_text(f"rchar: {asked}\nwchar: 5\nread_bytes: {disk}\nwrite_bytes: 1\n")
        (folder / "smaps_rollup").write_text(
            f"0-1 ---p 0 00:00 0 [rollup]\nRss: 99 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty: {private_kb - 1} kB\n"
        )
        if hooked:
            (self.recording / f"{pid}.events").touch()

    def throttled(self, seconds: float, version: int = 2) -> None:
        group = self.cgroups / ("cpu/job" if version == 1 else "job")
        group.mkdir(parents=True, exist_ok=True)
        (self.folder / str(TRAINS) / "cgroup").write_text("3:cpu,cpuacct:/job\n" if version == 1 else "0::/job\n")
        if version == 1:
            (group / "cpu.stat").write_text(f"nr_periods 9\nnr_throttled 3\nthrottled_time {seconds * SECOND:.0f}\n")
            (group / "cpu.cfs_quota_us").write_text("50000\n")
            (group / "cpu.cfs_period_us").write_text("100000\n")
        else:
            (group / "cpu.stat").write_text(f"usage_usec 5\nnr_throttled 3\nthrottled_usec {seconds * 1e6:.0f}\n")
            (group / "cpu.max").write_text("50000 100000\n")

    def ends(self, pid: int) -> None:
        (self.folder / str(pid) / "stat").unlink()
        (self.folder / str(pid) / "io").unlink()

    def watch(self) -> MachineWatch:
        return MachineWatch(COMMAND, self.recording, self.folder, self.cgroups)


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A command that has started a training process with one worker, all idle, on two cores."""
    proc = Proc(tmp_path)
    proc.process(COMMAND, 1, TRAINS, hooked=False)
    proc.process(TRAINS, COMMAND, WORKER)
    proc.process(WORKER, TRAINS)
    monkeypatch.setattr(machine_module.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(machine_module.time, "process_time_ns", lambda: 0)
    return proc


def saved(proc: Proc, watch: MachineWatch) -> Machine:
    watch.save(proc.recording)
    found = load_machine(proc.recording)
    assert found is not None
    return found


# ---- what is read ----------------------------------------------------------------------------------------------------


def test_each_process_with_hooks_is_read_at_each_look(proc):
    watch = proc.watch()
    watch.look([TRAINS], SECOND)
    proc.process(WORKER, TRAINS, cpu_s=2, faults=3, disk=4096, asked=9000)
    watch.look([TRAINS], 2 * SECOND)
    found = saved(proc, watch)
    assert found.at_ns == (SECOND, 2 * SECOND)
    assert [(each.pid, each.parent) for each in found.processes] == [(TRAINS, COMMAND), (WORKER, TRAINS)]
    worker = found.processes[1]
    assert worker.look == (0, 1)
    assert worker.cpu_ns == (0, 2 * SECOND)
    assert worker.major_faults == (0, 3)
    assert (worker.disk_bytes, worker.asked_bytes) == ((0, 4096), (0, 9000))
    assert watch.notices == []


def test_what_a_worker_has_used_is_its_parents_once_it_has_ended(proc):
    watch = proc.watch()
    proc.process(WORKER, TRAINS, cpu_s=2)
    watch.look([TRAINS], SECOND)
    proc.ends(WORKER)
    proc.process(TRAINS, COMMAND, of_children_s=2)
    watch.look([TRAINS], 2 * SECOND)
    found = saved(proc, watch)
    assert found.run_cpu_ns == (2 * SECOND, 2 * SECOND)
    assert [each.look for each in found.processes] == [(0, 1), (0,)]


def test_the_cores_that_the_training_process_may_use_count(proc, monkeypatch):
    watch = proc.watch()
    proc.cpu(10, 10, 10)
    watch.look([TRAINS], SECOND)
    monkeypatch.setattr(machine_module.os, "sched_getaffinity", lambda pid: {1} if pid == TRAINS else {0, 1, 2})
    proc.cpu(17, 13, 10, idle_s=50)
    watch.look([TRAINS], 2 * SECOND)
    found = saved(proc, watch)
    assert differences(found.busy_ns) == [3 * SECOND]
    assert found.cores == 1


def differences(values: tuple[int, ...]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(values)]


@pytest.mark.parametrize("version", [1, 2])
def test_throttling_of_the_group_that_the_training_process_is_in(proc, version):
    watch = proc.watch()
    proc.throttled(4, version)
    watch.look([TRAINS], SECOND)
    proc.throttled(4.5, version)
    watch.look([TRAINS], 2 * SECOND)
    found = saved(proc, watch)
    assert differences(found.throttled_ns) == [SECOND // 2]
    assert found.quota == 0.5


def test_moving_into_another_group_is_no_throttling(proc):
    watch = proc.watch()
    watch.look([TRAINS], SECOND)
    proc.throttled(100)
    watch.look([TRAINS], 2 * SECOND)
    assert saved(proc, watch).throttled_ns == (0, 0)


def test_private_memory_of_workers_and_not_of_the_training_process(proc):
    watch = proc.watch()
    for second in range(1, 4):
        proc.process(WORKER, TRAINS, private_kb=1000 * second)
        watch.look([TRAINS], second * SECOND)
    (memory,) = saved(proc, watch).memory
    assert memory.pid == WORKER
    assert memory.private_bytes == (1_024_000, 2_048_000, 3_072_000)


def test_memory_that_takes_long_to_read_is_read_rarely(proc, monkeypatch):
    clock = iter(range(0, 10**15, 100_000_000))
    monkeypatch.setattr(machine_module.time, "thread_time_ns", lambda: next(clock))
    watch = proc.watch()
    proc.process(WORKER, TRAINS, private_kb=1000)
    for second in range(1, 100):
        watch.look([TRAINS], second * SECOND)
    (memory,) = saved(proc, watch).memory
    # A tenth of a second at half a percent of the time is once in twenty seconds.
    assert 4 <= len(memory.at_ns) <= 6


def test_processes_whose_parents_have_ended_are_still_the_runs(proc):
    proc.process(TRAINS, 1)
    proc.process(COMMAND, 1, hooked=False)
    watch = proc.watch()
    proc.process(WORKER, 1, cpu_s=1)
    watch.look([TRAINS], SECOND)
    found = saved(proc, watch)
    assert [each.pid for each in found.processes] == [TRAINS, WORKER]
    assert found.run_cpu_ns == (SECOND,)


def test_without_lists_of_children_all_processes_are_gone_through(proc, monkeypatch):
    (proc.folder / "thread-self" / "children").unlink()
    monkeypatch.setattr(machine_module, "descendants", lambda pid: {COMMAND, 400})
    proc.process(400, COMMAND, cpu_s=3, hooked=False)
    watch = proc.watch()
    watch.look([TRAINS], SECOND)
    assert saved(proc, watch).run_cpu_ns == (3 * SECOND,)


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_looks_stay_bounded_and_the_last_is_kept(proc):
    watch = proc.watch()
    for second in range(1, 3001):
        if second == 3000:
            proc.process(WORKER, TRAINS, disk=77)
        watch.look([TRAINS], second * SECOND)
    found = saved(proc, watch)
    assert len(found.at_ns) <= machine_module._MOST_LOOKS
    assert found.at_ns[0] == SECOND
    assert found.at_ns[-1] == 3000 * SECOND
    assert found.processes[1].disk_bytes[-1] == 77
    assert len(found.memory[0].at_ns) <= machine_module._MOST_OF_MEMORY


@pytest.mark.parametrize(("cost_ms", "looks"), [(1, 10), (5, 4), (50, 2)])
def test_looks_take_a_hundredth_of_a_core_at_most_but_there_is_one_each_second(proc, monkeypatch, cost_ms, looks):
    watch = proc.watch()
    used = itertools.count(0, cost_ms * 10**6)
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(used))
    monkeypatch.setattr(watch, "_look_at_memory", lambda *_: None)
    for tenth in range(10, 30):
        watch.look([TRAINS], tenth * SECOND // 10)
    assert len(saved(proc, watch).at_ns) == looks


# ---- harm ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "lost"), [("io", "disk_bytes"), ("smaps_rollup", "memory")])
def test_what_may_not_be_read_is_a_notice(proc, monkeypatch, file, lost):
    original = Path.read_text

    def read_text(path: Path, *args: object, **kwargs: object) -> str:
        if path.name == file:
            raise PermissionError
        return original(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read_text)
        watch = proc.watch()
        watch.look([TRAINS], SECOND)
    found = saved(proc, watch)
    assert watch.notices == [("processes-not-readable", {"error": file})]
    if lost == "memory":
        assert found.memory == ()
    else:
        assert found.processes[1].disk_bytes == (-1,)


def test_a_machine_that_says_nothing_is_a_notice_told_once(proc):
    (proc.folder / "stat").unlink()
    watch = proc.watch()
    watch.look([TRAINS], SECOND)
    watch.look([TRAINS], 2 * SECOND)
    watch.save(proc.recording)
    assert [slug for slug, _ in watch.notices] == ["machine-not-watched"]
    assert load_machine(proc.recording) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "machine": {}}', json.dumps({"version": 1})]
)
def test_a_damaged_file_is_none(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    assert load_machine(tmp_path) is None
