"""What the driver says of the GPUs that a run uses, sampled by the supervisor: ``nvml.json`` in the recording folder.

NVIDIA's library (``nvidia-ml-py``) is loaded when a training process has opened a GPU, not before; without it or
without the driver nothing is recorded and nothing is said. No torch here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from dlprof.capture.process_status import read_status

NAME = "nvml.json"
VERSION = 1

_PROC = Path("/proc")
_DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Linux's own, and that of Windows under which Linux runs."""
_DEVICE_FILES = ("/dev/nvidia", "/dev/dxg")
_MOST_SAMPLES = 1024
_LOOK_FOR_PROCESSES_EVERY = 5
_READ_PCIE_EVERY = 2
"""Samples. One reading of the PCIe counters takes the driver 20 ms, so it is one GPU's turn at a time."""
_KB = 1000


@dataclass
class _Gpu:
    """One GPU and what was read of it; None stands for what the driver does not say."""

    handle: Any
    index: int
    uuid: str | None
    visible: bool
    facts: dict[str, Any]
    samples: list[tuple[int, int | None, int | None]] = field(default_factory=list)
    every: int = 1
    pcie: list[tuple[int, int]] = field(default_factory=list)
    link: tuple[int, int] | None = None
    used_by_run: bool = False
    bytes_of_run: int | None = None
    others: int = 0

    def keep(self, sample: tuple[int, int | None, int | None], number: int) -> None:
        """Keep one sample of so many, so that their number stays bounded however long the run is."""
        if number % self.every:
            return
        self.samples.append(sample)
        if len(self.samples) >= _MOST_SAMPLES:
            self.samples, self.every = self.samples[::2], self.every * 2

    def record(self, matched_by: str) -> dict[str, Any]:
        """What is written to the file."""
        generation, width = self.link or (None, None)
        return {
            "index": self.index,
            "uuid": self.uuid,
            "matched_by": matched_by,
            **self.facts,
            "pcie_generation": generation,
            "pcie_width": width,
            "memory_of_run_max_bytes": self.bytes_of_run,
            "other_processes_max": self.others if matched_by == "pid" else None,
            "samples": self.samples,
            "pcie_bytes_per_s": self.pcie,
        }


class GpuWatch:
    """Samples the GPUs of a run while it trains.

    A GPU belongs to the run if the driver names one of the run's processes on it. In a container the driver may give
    process numbers of the host: then those GPUs count that the training process may see (``CUDA_VISIBLE_DEVICES``).

    Args:
        pid: The command; its descendants count as the run.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._on = any(path.exists() for path in _DRIVER_FILES)
        self._library: Any = None
        self._gpus: list[_Gpu] = []
        self._number = 0
        self.notices: list[tuple[str, dict[str, Any]]] = []

    def look(self, training: Iterable[int], now_ns: int) -> None:
        """Take one sample. Never raises.

        Args:
            training: Processes that train.
            now_ns: ``CLOCK_MONOTONIC``.
        """
        if not self._on:
            return
        try:
            pids = list(training)
            if self._library is None and not self._start(pids):
                return
            self._sample(now_ns)
        except Exception as error:
            self._on = False
            self.notices.append(("gpus-not-watched", {"error": f"{type(error).__name__}: {error}"}))

    def save(self, recording: Path) -> None:
        """Write what was sampled, if anything was, and let go of the driver. Never raises."""
        if self._library is None:
            return
        try:
            chosen = [(gpu, "pid") for gpu in self._gpus if gpu.used_by_run]
            chosen = chosen or [(gpu, "visible") for gpu in self._gpus if gpu.visible]
            document = {"version": VERSION, "gpus": [gpu.record(how) for gpu, how in chosen]}
            (recording / NAME).write_text(json.dumps(document), encoding="utf-8")
            self._library.nvmlShutdown()
        except Exception as error:
            self.notices.append(("gpus-not-watched", {"error": f"{type(error).__name__}: {error}"}))

    def _start(self, training: list[int]) -> bool:
        uses = [pid for pid in training if _has_opened_gpu(pid)]
        if not uses:
            return False
        try:
            import pynvml as library

            library.nvmlInit()
        except Exception:
            # No library, no driver, or none of the kind that this library knows.
            self._on = False
            return False
        self._library = library
        visible = _visible_devices(uses[0])
        for index in range(library.nvmlDeviceGetCount()):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                self._gpus.append(self._describe(handle, index, visible))
        return True

    def _describe(self, handle: Any, index: int, visible: list[str] | None) -> _Gpu:
        uuid = self._ask("nvmlDeviceGetUUID", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        mig = self._ask("nvmlDeviceGetMigMode", handle)
        facts = {
            "name": self._ask("nvmlDeviceGetName", handle),
            "memory_total_bytes": None if memory is None else int(memory.total),
            "pcie_generation_max": self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            "pcie_width_max": self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            "mig": None if mig is None else bool(mig[0]),
        }
        return _Gpu(handle, index, uuid, visible is None or _is_among(visible, index, uuid), facts)

    def _sample(self, now_ns: int) -> None:
        if self._number % _LOOK_FOR_PROCESSES_EVERY == 0:
            run = descendants(self._pid)
            for gpu in self._gpus:
                self._match(gpu, run)
        matched = [gpu for gpu in self._gpus if gpu.used_by_run]
        watched = matched or [gpu for gpu in self._gpus if gpu.visible]
        for gpu in watched:
            rates = self._ask("nvmlDeviceGetUtilizationRates", gpu.handle)
            memory = self._ask("nvmlDeviceGetMemoryInfo", gpu.handle)
            busy = None if rates is None else int(rates.gpu)
            gpu.keep((now_ns, busy, None if memory is None else int(memory.used)), self._number)
        if watched and self._number % _READ_PCIE_EVERY == 0:
            self._read_pcie(watched[self._number // _READ_PCIE_EVERY % len(watched)])
        self._number += 1

    def _match(self, gpu: _Gpu, run: set[int]) -> None:
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", gpu.handle) or []
        ours = [each for each in processes if each.pid in run]
        gpu.used_by_run |= bool(ours)
        gpu.others = max(gpu.others, len(processes) - len(ours))
        known = [each.usedGpuMemory for each in ours if each.usedGpuMemory is not None]
        if known:
            gpu.bytes_of_run = max(gpu.bytes_of_run or 0, sum(known))

    def _read_pcie(self, gpu: _Gpu) -> None:
        library = self._library
        # An idle GPU lowers its link: what counts is the best that was seen.
        generation = self._ask("nvmlDeviceGetCurrPcieLinkGeneration", gpu.handle)
        width = self._ask("nvmlDeviceGetCurrPcieLinkWidth", gpu.handle)
        if generation and width:
            gpu.link = max(gpu.link or (0, 0), (generation, width))
        received = self._ask("nvmlDeviceGetPcieThroughput", gpu.handle, library.NVML_PCIE_UTIL_RX_BYTES)
        sent = self._ask("nvmlDeviceGetPcieThroughput", gpu.handle, library.NVML_PCIE_UTIL_TX_BYTES)
        if received is not None and sent is not None and len(gpu.pcie) < _MOST_SAMPLES:
            gpu.pcie.append((received * _KB, sent * _KB))

    def _ask(self, function: str, *arguments: Any) -> Any:
        """One question to the driver; None where it does not answer, as of much that concerns MIG or older GPUs."""
        try:
            return getattr(self._library, function)(*arguments)
        except self._library.NVMLError:
            return None


def load_gpus(recording: Path) -> list[dict[str, Any]]:
    """What ``GpuWatch.save`` wrote, summed up for ``Profile.environment``.

    Args:
        recording: The recording folder.

    Returns:
        One dict a GPU: ``index``, ``name``, ``memory_total_bytes``, ``memory_used_max_bytes`` (by all processes),
        ``memory_of_run_max_bytes``, ``utilization_mean_ratio`` (part of the time in which any kernel ran, of any
        process), ``pcie_link`` ("4 x16"), ``pcie_link_max``, ``pcie_received_max_bytes_per_s``, ...; only what is
        known. Empty where nothing was sampled or the file is damaged.
    """
    try:
        document = json.loads((recording / NAME).read_text(encoding="utf-8"))
        if document["version"] != VERSION:
            return []
        return [_summed_up(gpu) for gpu in document["gpus"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _summed_up(gpu: dict[str, Any]) -> dict[str, Any]:
    busy = [sample[1] for sample in gpu["samples"] if sample[1] is not None]
    used = [sample[2] for sample in gpu["samples"] if sample[2] is not None]
    received = [pair[0] for pair in gpu["pcie_bytes_per_s"]]
    facts = {
        "index": gpu["index"],
        "name": gpu["name"],
        "matched_by": gpu["matched_by"],
        "memory_total_bytes": gpu["memory_total_bytes"],
        "memory_used_max_bytes": max(used, default=None),
        "memory_of_run_max_bytes": gpu["memory_of_run_max_bytes"],
        "utilization_mean_ratio": fmean(busy) / 100 if busy else None,
        "utilization_samples": len(busy),
        "pcie_link": _link(gpu["pcie_generation"], gpu["pcie_width"]),
        "pcie_link_max": _link(gpu["pcie_generation_max"], gpu["pcie_width_max"]),
        "pcie_received_mean_bytes_per_s": fmean(received) if received else None,
        "pcie_received_max_bytes_per_s": max(received, default=None),
        "other_processes_max": gpu["other_processes_max"],
        "mig": gpu["mig"] or None,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _link(generation: int | None, width: int | None) -> str | None:
    return f"{generation} x{width}" if generation and width else None


# ---- which processes, which devices ----------------------------------------------------------------------------------


def descendants(pid: int) -> set[int]:
    """A process and all that it has started, as far as ``/proc`` shows them."""
    parents: dict[int, int] = {}
    for entry in os.listdir(_PROC):
        if entry.isdigit():
            status = read_status(int(entry))
            if status is not None:
                parents[status.pid] = status.parent
    found = {pid}
    grown = True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found


def _has_opened_gpu(pid: int) -> bool:
    folder = _PROC / str(pid) / "fd"
    return any(target.startswith(_DEVICE_FILES) for target in _each(os.readlink, _entries(folder)))


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _each(function: Callable[[Path], str], paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            yield function(path)
        except OSError:
            continue


def _visible_devices(pid: int) -> list[str] | None:
    """``CUDA_VISIBLE_DEVICES`` with which a process was started, None where it may see all."""
    try:
        entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for entry in entries:
        name, _, value = entry.partition(b"=")
        if name == b"CUDA_VISIBLE_DEVICES":
            return [part.strip() for part in value.decode(errors="replace").split(",") if part.strip()]
    return None


def _is_among(visible: list[str], index: int, uuid: str | None) -> bool:
    # A UUID may be cut short. Of MIG instances the names do not tell the GPU: they are left to the process numbers.
    return str(index) in visible or any(part.startswith("GPU-") and (uuid or "").startswith(part) for part in visible)
