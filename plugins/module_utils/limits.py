# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much processor and memory this process may use: affinity and cgroup limits, not what the machine has."""

from __future__ import annotations

import os
import resource
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import read_text


def cpus() -> dict[str, Any]:
    """Cores that the scheduler lets this process use, and the time that a cgroup lets it use on them."""
    allowed = os.sched_getaffinity(0)
    quota = _cpu_quota()
    logical = len(allowed)
    return {
        "cores_logical": logical,
        "cores_physical": _physical(allowed),
        "cores_usable": round(min(float(logical), quota), 2) if quota else float(logical),
        "cpu_quota": round(quota, 2) if quota else None,
    }


def memory() -> dict[str, int | None]:
    """Bytes of memory, all and available, within the cgroup's limit."""
    values: dict[str, int] = {}
    for line in (read_text("/proc/meminfo") or "").splitlines():
        name, _colon, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[name] = int(words[0]) * 1024
    total, available = values.get("MemTotal"), values.get("MemAvailable")
    for limit, used in _memory_limits():
        if total is None or limit < total:
            total = limit
        if available is None or limit - used < available:
            available = max(0, limit - used)
    return {"memory_bytes": total, "memory_available_bytes": available}


def strain() -> dict[str, Any]:
    """How busy the machine is, and how much it has swapped out."""
    swap: dict[str, int] = {}
    for line in (read_text("/proc/meminfo") or "").splitlines():
        name, _colon, rest = line.partition(":")
        if name in ("SwapTotal", "SwapFree") and rest.split()[:1]:
            swap[name] = int(rest.split()[0]) * 1024
    total = swap.get("SwapTotal", 0)
    return {
        "load_1m": round(os.getloadavg()[0], 2),
        "swap_bytes": total,
        "swap_used_bytes": max(0, total - swap.get("SwapFree", total)),
    }


def ulimits() -> dict[str, int | None]:
    """Soft limits of this user's processes; C(None) is unlimited."""
    found = {
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "nproc": resource.getrlimit(resource.RLIMIT_NPROC)[0],
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
    }
    return {name: None if value == resource.RLIM_INFINITY else value for name, value in found.items()}


def _physical(allowed: set[int]) -> int:
    """Cores without their second threads; one file is read per core, as a big machine has hundreds of them."""
    seen: set[int] = set()
    cores = 0
    for cpu in sorted(allowed):
        if cpu in seen:
            continue
        cores += 1
        siblings = read_text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        seen.update(_cpu_list(siblings or str(cpu)))
    return cores


def _cpu_list(text: str) -> set[int]:
    """C(0,4-6) as a set."""
    cpus_named: set[int] = set()
    for part in text.split(","):
        first, _dash, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            cpus_named.update(range(int(first), int(last or first) + 1))
    return cpus_named


def _own_groups(controller: str) -> list[str]:
    """Folders of this process's cgroup and of those above it; C(controller) is "" for cgroup v2."""
    for line in (read_text("/proc/self/cgroup") or "").splitlines():
        _number, _colon, rest = line.partition(":")
        names, _colon, path = rest.partition(":")
        if controller not in names.split(","):
            continue
        mounts = ["/sys/fs/cgroup/" + names, "/sys/fs/cgroup/" + controller]
        root = next((mount.rstrip("/") for mount in mounts if os.path.isdir(mount)), "/sys/fs/cgroup")
        # In a container the path may be the host's while the mount shows the container's own group as its root.
        parts = [part for part in path.split("/") if part and part != ".."]
        return ["/".join([root, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
    return []


def _cpu_quota() -> float | None:
    """The tightest limit, in cores."""
    limits: list[float] = []
    for folder in _own_groups(""):
        words = (read_text(folder + "/cpu.max") or "").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            limits.append(int(words[0]) / int(words[1]))
    for folder in _own_groups("cpu"):
        quota = read_text(folder + "/cpu.cfs_quota_us") or ""
        period = read_text(folder + "/cpu.cfs_period_us") or ""
        if quota.isdigit() and period.isdigit() and int(quota) and int(period):
            limits.append(int(quota) / int(period))
    return min(limits) if limits else None


def _memory_limits() -> list[tuple[int, int]]:
    """Limit and present use of each group, reclaimable page cache not counted as use."""
    found: list[tuple[int, int]] = []
    for controller, names in (
        ("", ("memory.max", "memory.current", "inactive_file")),
        ("memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ):
        for folder in _own_groups(controller):
            limit, used = read_text(f"{folder}/{names[0]}") or "", read_text(f"{folder}/{names[1]}") or ""
            if not (limit.isdigit() and used.isdigit()) or int(limit) >= 1 << 60:
                continue
            reclaimable = 0
            for line in (read_text(folder + "/memory.stat") or "").splitlines():
                name, _space, value = line.partition(" ")
                if name == names[2] and value.isdigit():
                    reclaimable = int(value)
            found.append((int(limit), max(0, int(used) - reclaimable)))
    return found
