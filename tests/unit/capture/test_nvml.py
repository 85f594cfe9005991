"""What the supervisor asks NVIDIA's library, pretended here: which GPUs are the run's, and that nothing of it harms."""

# ruff: noqa: N802 - the names are NVIDIA's

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dlprof.capture import nvml
from dlprof.capture.nvml import NAME, GpuWatch, descendants, load_gpus

GB = 10**9
PID = 4242


class FakeLibrary:
    """``pynvml`` with some GPUs. ``processes[i]`` are (pid, bytes) on GPU i."""

    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    class NVMLError(Exception):
        pass

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.processes: dict[int, list[tuple[int, int | None]]] = {}
        self.busy = dict.fromkeys(range(count), 50)
        self.used = dict.fromkeys(range(count), 2 * GB)
        self.refused: set[str] = set()
        self.calls: list[str] = []

    def __getattribute__(self, name: str):
        if name.startswith("nvml"):
            self.calls.append(name)
            if name in self.refused:

                def refuse(*_: object) -> None:
                    raise self.NVMLError("not supported")

                return refuse
        return super().__getattribute__(name)

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}{handle}{handle}-uuid"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "Pretended H1"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=80 * GB, used=self.used[handle])

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [0, 0]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=self.busy[handle], memory=1)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.get(handle, [])]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:
        return 3

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return 4

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return 8

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return 16

    def nvmlDeviceGetPcieThroughput(self, handle: int, counter: int) -> int:
        return 3_000_000 if counter == self.NVML_PCIE_UTIL_RX_BYTES else 1000


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a driver whose training process has opened the GPUs."""
    driver = tmp_path / "nvidiactl"
    driver.touch()
    library = FakeLibrary()
    monkeypatch.setattr(nvml, "_DRIVER_FILES", (driver,))
    monkeypatch.setattr(nvml, "_has_opened_gpu", lambda pid: pid == PID)
    monkeypatch.setattr(nvml, "_visible_devices", lambda pid: None)
    monkeypatch.setattr(nvml, "descendants", lambda pid: {PID, PID + 1})
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def watched(folder, samples: int = 1, training: tuple[int, ...] = (PID,)) -> GpuWatch:
    watch = GpuWatch(PID)
    for number in range(samples):
        watch.look(training, number)
    watch.save(folder)
    return watch


# ---- which GPUs ------------------------------------------------------------------------------------------------------


def test_the_gpu_on_which_the_driver_names_the_run_is_the_runs(machine, tmp_path):
    machine.processes = {0: [(1, 5 * GB)], 1: [(PID + 1, GB), (77, GB)]}
    machine.used[1] = 3 * GB
    watched(tmp_path)
    (gpu,) = load_gpus(tmp_path)
    assert gpu == {
        "index": 1,
        "name": "Pretended H1",
        "matched_by": "pid",
        "memory_total_bytes": 80 * GB,
        "memory_used_max_bytes": 3 * GB,
        "memory_of_run_max_bytes": GB,
        "utilization_mean_ratio": 0.5,
        "utilization_samples": 1,
        "pcie_link": "3 x8",
        "pcie_link_max": "4 x16",
        "pcie_received_mean_bytes_per_s": 3 * GB,
        "pcie_received_max_bytes_per_s": 3 * GB,
        "other_processes_max": 1,
    }


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1]),
        (["1"], [1]),
        (["GPU-000"], [0]),
        (["GPU-111-uuid", "0"], [0, 1]),
        (["MIG-1234"], []),
        ([], []),
    ],
)
def test_where_process_numbers_say_nothing_the_visible_ones_count(machine, tmp_path, monkeypatch, visible, indices):
    machine.processes = {0: [(999_999, GB)]}
    monkeypatch.setattr(nvml, "_visible_devices", lambda pid: visible)
    watched(tmp_path)
    found = load_gpus(tmp_path)
    assert [gpu["index"] for gpu in found] == indices
    assert all(gpu["matched_by"] == "visible" and "other_processes_max" not in gpu for gpu in found)


def test_nothing_is_asked_before_a_training_process_has_opened_a_gpu(machine, tmp_path):
    watched(tmp_path, training=(PID + 1,))
    watched(tmp_path, training=())
    assert machine.calls == []
    assert not (tmp_path / NAME).exists()


def test_a_machine_without_a_driver_is_not_looked_at(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(nvml, "_DRIVER_FILES", (tmp_path / "none",))
    watched(tmp_path)
    assert machine.calls == []


# ---- what it says ----------------------------------------------------------------------------------------------------


def test_means_and_maxima_over_the_samples(machine, tmp_path):
    machine.processes = {0: [(PID, None)]}
    watch = GpuWatch(PID)
    for busy, used in ((0, GB), (100, 4 * GB), (50, 2 * GB)):
        machine.busy[0], machine.used[0] = busy, used
        watch.look([PID], busy)
    watch.save(tmp_path)
    (gpu,) = load_gpus(tmp_path)
    assert (gpu["utilization_mean_ratio"], gpu["memory_used_max_bytes"]) == (0.5, 4 * GB)
    assert "memory_of_run_max_bytes" not in gpu


def test_samples_stay_bounded_and_keep_their_mean(machine, tmp_path):
    machine.processes = {0: [(PID, GB)]}
    watch = GpuWatch(PID)
    for number in range(10_000):
        machine.busy[0] = number // 100
        watch.look([PID], number)
    watch.save(tmp_path)
    (gpu,) = json.loads((tmp_path / NAME).read_text())["gpus"]
    assert len(gpu["samples"]) <= 1024
    assert len(gpu["pcie_bytes_per_s"]) <= 1024
    assert load_gpus(tmp_path)[0]["utilization_mean_ratio"] == pytest.approx(0.495, abs=0.01)


# ---- harm ------------------------------------------------------------------------------------------------------------


def test_what_the_driver_does_not_say_is_left_out(machine, tmp_path):
    machine.refused = {
        name for name in dir(FakeLibrary) if name.startswith("nvmlDeviceGet") and not name.endswith(("Count", "Index"))
    }
    watch = watched(tmp_path, samples=3)
    assert watch.notices == []
    assert load_gpus(tmp_path)[0] == {"index": 0, "matched_by": "visible", "utilization_samples": 0}


def test_a_driver_that_does_not_start_is_nothing(machine, tmp_path):
    machine.refused = {"nvmlInit"}
    watch = watched(tmp_path, samples=3)
    assert machine.calls == ["nvmlInit"]
    assert watch.notices == []
    assert load_gpus(tmp_path) == []


def test_without_the_library_nothing_is_recorded(machine, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    watch = watched(tmp_path, samples=3)
    assert watch.notices == []
    assert load_gpus(tmp_path) == []


def test_an_error_of_another_kind_ends_the_sampling_and_is_told_once(machine, tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr(FakeLibrary, "nvmlDeviceGetUtilizationRates", broken)
    watch = watched(tmp_path, samples=3)
    assert [slug for slug, _ in watch.notices] == ["gpus-not-watched"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "gpus": []}', '{"version": 1, "gpus": [{}]}'])
def test_a_damaged_file_is_no_gpus(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    assert load_gpus(tmp_path) == []


# ---- processes -------------------------------------------------------------------------------------------------------


def test_descendants_are_children_and_their_children():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"1\n"
        found = descendants(os.getpid())
        assert {os.getpid(), child.pid} < found
        assert len(descendants(child.pid)) == 2
        child.communicate(b"\n")


def test_a_process_that_has_opened_no_gpu_has_opened_none():
    assert not nvml._has_opened_gpu(os.getpid())
    assert not nvml._has_opened_gpu(2**22 + 1)


def test_the_visible_devices_are_those_that_the_process_was_started_with():
    code = "print(1, flush=True); input()"
    given = os.environ | {"CUDA_VISIBLE_DEVICES": "1, GPU-abc"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, env=given) as child:
        assert child.stdout.readline() == b"1\n"
        assert nvml._visible_devices(child.pid) == ["1", "GPU-abc"]
        child.communicate(b"\n")
