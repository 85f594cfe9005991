"""What limits a run, read from control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlprof.capture.environment import cpu_quota, environment, memory_limit

GIB = 1 << 30


class Machine:
    """A tree of control groups, and the file that says where this process stands in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "cgroup"
        self.own = folder / "own"
        self.own.write_text("")

    def stands_in(self, *lines: str) -> Machine:
        self.own.write_text("".join(line + "\n" for line in lines))
        return self

    def limit(self, group: str, **files: object) -> Machine:
        folder = self.root / group.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / name.replace("__", ".")).write_text(f"{value}\n")
        return self

    @property
    def cores(self) -> float | None:
        return cpu_quota(self.root, self.own)

    @property
    def memory(self) -> int | None:
        return memory_limit(self.root, self.own)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


# ---- version 2 -------------------------------------------------------------------------------------------------------


def test_version_2(machine):
    machine.stands_in("0::/user/job").limit("user/job", cpu__max="150000 100000", memory__max=2 * GIB)
    assert (machine.cores, machine.memory) == (1.5, 2 * GIB)


def test_max_is_no_limit(machine):
    machine.stands_in("0::/job").limit("job", cpu__max="max 100000", memory__max="max")
    assert (machine.cores, machine.memory) == (None, None)


def test_the_least_limit_of_the_groups_around_holds(machine):
    machine.stands_in("0::/a/b/c")
    machine.limit("a/b/c", cpu__max="max 100000", memory__max=8 * GIB)
    machine.limit("a/b", cpu__max="200000 100000", memory__max="max")
    machine.limit("a", cpu__max="400000 100000", memory__max=4 * GIB)
    assert (machine.cores, machine.memory) == (2, 4 * GIB)


def test_in_a_container_the_mounts_root_is_the_containers_own_group(machine):
    machine.stands_in("0::/docker/0123456789ab").limit("/", cpu__max="50000 100000", memory__max=GIB)
    assert (machine.cores, machine.memory) == (0.5, GIB)


def test_a_path_that_leads_out_of_the_name_space_does_no_harm(machine):
    machine.stands_in("0::/../../elsewhere").limit("/", cpu__max="100000 100000")
    assert machine.cores == 1


# ---- version 1 -------------------------------------------------------------------------------------------------------


def test_version_1(machine):
    machine.stands_in("5:cpu,cpuacct:/job", "4:memory:/job", "1:name=systemd:/job")
    machine.limit("cpu/job", cpu__cfs_quota_us=250_000, cpu__cfs_period_us=100_000)
    machine.limit("memory/job", memory__limit_in_bytes=3 * GIB)
    assert (machine.cores, machine.memory) == (2.5, 3 * GIB)


def test_minus_one_and_almost_the_whole_address_space_are_no_limits(machine):
    machine.stands_in("5:cpu,cpuacct:/", "4:memory:/")
    machine.limit("cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100_000)
    machine.limit("memory", memory__limit_in_bytes=9_223_372_036_854_771_712)
    assert (machine.cores, machine.memory) == (None, None)


def test_version_1_has_limits_around_too(machine):
    machine.stands_in("5:cpu:/a/b")
    machine.limit("cpu/a/b", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100_000)
    machine.limit("cpu/a", cpu__cfs_quota_us=100_000, cpu__cfs_period_us=100_000)
    assert machine.cores == 1


def test_another_controllers_group_is_not_looked_at(machine):
    machine.stands_in("5:cpuset:/a", "4:cpu:/b")
    machine.limit("cpu/a", cpu__cfs_quota_us=100_000, cpu__cfs_period_us=100_000)
    machine.limit("cpu/b", cpu__cfs_quota_us=300_000, cpu__cfs_period_us=100_000)
    assert machine.cores == 3


def test_both_versions_at_once(machine):
    machine.stands_in("4:memory:/job", "0::/job")
    machine.limit("job", cpu__max="200000 100000").limit("memory/job", memory__limit_in_bytes=GIB)
    assert (machine.cores, machine.memory) == (2, GIB)


# ---- nothing to be read ----------------------------------------------------------------------------------------------


def test_without_control_groups_there_is_no_limit(machine):
    assert (machine.cores, machine.memory) == (None, None)
    machine.own.unlink()
    assert (machine.cores, machine.memory) == (None, None)


@pytest.mark.parametrize("text", ["", "x y", "100000 0", "0 100000", "nonsense"])
def test_a_quota_that_makes_no_sense_is_none(machine, text):
    machine.stands_in("0::/").limit("/", cpu__max=text, memory__max=text)
    assert (machine.cores, machine.memory) == (None, None)


# ---- this machine ----------------------------------------------------------------------------------------------------


def test_this_machine_says_what_a_report_needs():
    found = environment()
    assert 0 < found["cores"] <= found["cpu_affinity"] <= found["cpu_count"]
    assert found["cpu_quota"] is None or found["cpu_quota"] >= found["cores"]
    assert found["memory_bytes"] > 0
    assert found["open_files_limit"] > 0
    assert found["shm_bytes"] is None or 0 <= found["shm_free_bytes"] <= found["shm_bytes"]
