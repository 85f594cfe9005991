"""Facts about the machine that limit a run: cores, memory, shared memory, open files. Standard library only."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from pathlib import Path
from typing import Any

_CGROUP = Path("/sys/fs/cgroup")


def environment() -> dict[str, Any]:
    """What this process may use of this machine.

    Returns:
        ``cores``: what affinity and quota leave, not divided by ranks; ``cpu_count``, ``cpu_affinity``,
        ``cpu_quota`` (cores, None without one), ``memory_bytes`` and ``memory_limit_bytes``, ``shm_bytes`` and
        ``shm_free_bytes``, ``open_files_limit`` and what it may be raised to, ``open_files_hard_limit``, versions and
        names. None stands for what the system does not say.
    """
    shm = _disk("/dev/shm")  # noqa: S108 - looked at, not written
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        **usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory_limit_bytes": memory_limit(),
        "shm_bytes": shm[0],
        "shm_free_bytes": shm[1],
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "open_files_hard_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    }


def usable_cores() -> dict[str, Any]:
    """``cores`` that the calling thread may use, and what limits them: ``cpu_affinity`` and ``cpu_quota``."""
    affinity = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return {
        "cpu_affinity": affinity,
        "cpu_quota": quota,
        "cores": affinity if quota is None else min(affinity, quota),
    }


def cpu_quota(root: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores that the cgroup's quota allows, the least over the hierarchy; None without a quota.

    Args:
        root: Where cgroups are mounted.
        own: The file that names this process's cgroups.
    """
    quotas = []
    for folder in cgroup_folders(root, own, "cpu"):
        text = _read(folder / "cpu.max")
        if text and not text.startswith("max"):
            quotas.append(_ratio(*text.partition(" ")[::2]))
        text, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if text and period and not text.startswith("-"):
            quotas.append(_ratio(text, period))
    known = [quota for quota in quotas if quota]
    return min(known) if known else None


def memory_limit(root: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Bytes that the cgroup allows, the least over the hierarchy; None without a limit. Arguments as above."""
    limits = []
    for folder in cgroup_folders(root, own, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text.isdigit() and int(text) < 1 << 60:
                limits.append(int(text))
    return min(limits) if limits else None


def cgroup_folders(root: Path, own: Path, controller: str) -> list[Path]:
    """Folders of a process's control groups, each followed by those around it, up to the mount; not all exist.

    Args:
        root: Where cgroups are mounted.
        own: The file that names the process's cgroups, as ``/proc/self/cgroup``.
        controller: Which controller's; groups of version 2 are given for any.
    """
    folders = []
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        folder = base / path.lstrip("/")
        # Inside a container the path is the host's and is not there: the container's own group is the mount's root.
        folders += [folder, *folder.parents[: len(folder.relative_to(base).parts)], base]
    return folders


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _ratio(quota: str, period: str) -> float | None:
    try:
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None


def _disk(path: str) -> tuple[int | None, int]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None, -1
    return usage.total, usage.free
