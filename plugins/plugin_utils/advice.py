# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would make a run fail or crawl on a host although everything is installed: memory, disk, clock, threads, others.

Estimates are lower bounds: what is refused cannot work, and nothing is said where it is not clear.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import plan as planning

Nodes = Mapping[str, Mapping[str, Any]]
Causes = list[dict[str, Any]]

_TORCH_BYTES = 300_000_000  # a process that has imported torch and opened its process group
_LOG_BYTES = 20_000_000
_ENVIRONMENT_BYTES = 2_000_000_000
_SMOKE_VOCABULARY = 256
_FLOAT = 4
_MARGIN = 0.9
_CLOCK_S = 5.0
_SWAP_SHARE = 0.1
_NETWORK_FILES = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "glusterfs", "fuse.glusterfs")
_SPINNING_BYTES_PER_S = 100_000_000
_SLOW_SAVE_S = 60
_FILES = 512


def check(plan: planning.Plan, settings: Mapping[str, Mapping[str, Any]], nodes: Nodes, restart: bool) -> Causes:
    """Everything about single hosts.

    :param restart: what the old run has in use will be free.
    """
    causes = _nothing_to_go_on_from(plan, settings[plan.hosts[0]])
    for host in (host for host in plan.hosts if host in nodes):
        node = nodes[host]
        causes += _memory(plan, host, node, restart)
        causes += _disk(plan, settings[host], host, node)
        causes += _threads(plan, settings[host], host, node["host"])
        causes += _swap(host, node["host"])
        causes += _limits(host, node["host"])
        causes += _others(host, node)
        causes += _checkpoints(plan, settings[host], host, node)
    return causes


def parameters(plan: planning.Plan, depth: int | None = None) -> int | None:
    """Of the model, or of the same one with another depth; C(None) for a script that nobody knows."""
    if plan.script not in (planning.BASE_TRAIN, planning.SMOKE_MODULE) or "model dim" not in plan.numbers:
        return None
    depth = depth or int(plan.numbers["depth"])
    dim = planning.model_dim(plan.arguments, depth)
    if plan.script == planning.SMOKE_MODULE:
        return 2 * _SMOKE_VOCABULARY * dim + depth * 12 * dim * dim
    return planning.count_parameters(depth, dim, planning.padded(int(plan.numbers["vocabulary"])))


def memory_needed(plan: planning.Plan, host: str, depth: int | None = None) -> int | None:
    """Bytes on this host: weights, gradients, this host's share of the optimizer, the logits of one micro-batch."""
    count, world, processes = parameters(plan, depth), plan.world_size, plan.nproc[host] or 1
    if count is None or not world or plan.device != "cpu":
        return None
    logits = plan.numbers["tokens per micro-batch and rank"] * plan.numbers.get("vocabulary", _SMOKE_VOCABULARY)
    each = _TORCH_BYTES + _FLOAT * (2 * count + count / world + 2 * logits)
    return int(processes * each)


def checkpoint_bytes(plan: planning.Plan, host: str) -> int | None:
    """What one save writes on this host: the model where rank 0 is, its ranks' part of the optimizer everywhere."""
    count, world = parameters(plan), plan.world_size
    if count is None or not world:
        return None
    return int(_FLOAT * count * ((host == plan.hosts[0]) + (plan.nproc[host] or 1) / world))


def _memory(plan: planning.Plan, host: str, node: Mapping[str, Any], restart: bool) -> Causes:
    needed, facts = memory_needed(plan, host), node["host"]
    have, free = facts.get("memory_bytes"), facts.get("memory_available_bytes")
    if needed is None or have is None:
        return []
    processes = plan.nproc[host] or 1
    who = f"{processes} process{'es' if processes > 1 else ''} with {parameters(plan) or 0:,} parameters"
    if needed > have:
        what = f"{host}: {who} need at least {_gb(needed)}, and it has {_gb(have)} of memory"
        room = min(have, free or have) * _MARGIN
        depths = range(int(plan.numbers["depth"]) - 1, 0, -1)
        fits = next((depth for depth in depths if (memory_needed(plan, host, depth) or 0) < room), None)
        fix = f"-e nanochat_extra_args=depth={fits}" if fits else "a host with more memory"
        more = "; or nproc_per_node: 1" if processes > 1 else ""
        return [cause("memory_small", what, f"{fix}{more}", host=host)]
    if free is not None and needed > free and not restart:
        what = f"{host}: {who} need at least {_gb(needed)}, and {_gb(free)} of its {_gb(have)} are free"
        fix = f"on {host}: ps aux --sort=-rss | head   (what else is running there?)"
        return [cause("memory_small", what, fix, host=host, weight="warning")]
    return []


def _disk(plan: planning.Plan, settings: Mapping[str, Any], host: str, node: Mapping[str, Any]) -> Causes:
    free, one = node.get("disk_free_bytes"), checkpoint_bytes(plan, host)
    if free is None:
        return []
    there = node["paths"]["base_dir"]
    absent = node["environment"]["state"] == "absent" and settings["nanochat_install_method"] != "existing"
    needed = _LOG_BYTES + (one or 0) + (_ENVIRONMENT_BYTES if absent else 0)
    saves, kept = _saves(plan), settings["nanochat_keep_checkpoints"]
    if kept:
        saves = min(saves, kept + 1)  # an older one goes when the newer one is whole
    if needed > free:
        parts = ["logs", *(["a checkpoint"] if one else []), *(["the environment"] if absent else [])]
        what = f"{host}: {there} has {_gb(free)} free, and {', '.join(parts)} need {_gb(needed)}"
        fix = f"on {host}: free {_gb(needed - free)} there (du -xh --max-depth=2 {there} | sort -h | tail); "
        return [cause("disk_full", what, fix + "or name another nanochat_base_dir", host=host)]
    if one and needed + one * (saves - 1) > free:
        what = f"{host}: {there} has {_gb(free)} free, enough for {max(1, int(free // one))} of {saves} checkpoints"
        fix = "free space there, a larger save-every, or a small nanochat_keep_checkpoints"
        return [cause("disk_full", what, fix, host=host, weight="warning")]
    kind, spins = (node.get("filesystem") or {}).get("type"), (node.get("filesystem") or {}).get("rotational")
    if kind in _NETWORK_FILES:
        what = f"{host}: {there} is on {kind}, which the run would write over the network that it trains over"
        return [cause("disk_slow", what, "nanochat_base_dir: a local folder", host=host, weight="warning")]
    if spins and one and one / _SPINNING_BYTES_PER_S > _SLOW_SAVE_S:
        what = f"{host}: {there} is on a spinning disk; each checkpoint of {_gb(one)} takes a minute or more"
        return [cause("disk_slow", what, "nanochat_base_dir: a folder on a faster disk", host=host, weight="warning")]
    return []


def _saves(plan: planning.Plan) -> int:
    """Checkpoints that a run writes: the last one always."""
    every, steps = (_int(plan.arguments.get(name), -1) for name in ("save-every", "num-iterations"))
    return 1 + (steps - 1) // every if every > 0 and steps > 0 else 1


def _int(value: Any, default: int) -> int:
    try:
        return int(str(value))
    except ValueError:
        return default


def _threads(plan: planning.Plan, settings: Mapping[str, Any], host: str, facts: Mapping[str, Any]) -> Causes:
    processes = plan.nproc[host] or 1
    cores = int(min(facts["cores_physical"], facts.get("cores_usable") or facts["cores_physical"]))
    given = settings["nanochat_env"].get("OMP_NUM_THREADS") or settings["nanochat_omp_num_threads"]
    better = cores // processes
    if plan.device == "cpu" and given is not None and str(given) == "1" and better > 1:
        what = f"{host}: one thread per process (OMP_NUM_THREADS=1), {processes} process(es) and {cores} cores"
        return [
            cause("threads_few", what, f"nanochat_omp_num_threads: {better}, or unset it", host=host, weight="warning")
        ]
    return []


def _swap(host: str, facts: Mapping[str, Any]) -> Causes:
    used, memory = facts.get("swap_used_bytes") or 0, facts.get("memory_bytes") or 0
    if memory and used > _SWAP_SHARE * memory:
        what = f"{host}: {_gb(used)} are swapped out; a rank that is swapped stops all others"
        fix = f"on {host}: end what needs the memory, then: sudo swapoff -a && sudo swapon -a"
        return [cause("swap_in_use", what, fix, host=host, weight="warning")]
    return []


def _limits(host: str, facts: Mapping[str, Any]) -> Causes:
    files = (facts.get("ulimits") or {}).get("nofile")
    if files is not None and files < _FILES:
        what = f"{host}: this user may open {files} files at once; sockets, shards and workers need more"
        fix = f"on {host}: echo '{facts['user']} soft nofile 4096' | sudo tee /etc/security/limits.d/nanochat.conf"
        return [cause("limits_small", what, fix, host=host, weight="warning")]
    return []


def _others(host: str, node: Mapping[str, Any]) -> Causes:
    """Trainers that are no part of this run."""
    causes: Causes = []
    holder = (node["port"].get("holder") or {}).get("pid")
    found = [entry for entry in node.get("leftovers", []) if entry["pid"] != holder]
    orphans = [entry for entry in found if entry["orphan"]]
    if orphans:
        pids = " ".join(str(entry["pid"]) for entry in orphans)
        users = ", ".join(sorted({entry["user"] for entry in orphans}))
        what = f"{host}: {len(orphans)} trainer(s) of {users} whose launcher is gone: {orphans[0]['command'][:80]}"
        causes.append(cause("leftovers", what, f"on {host}: kill {pids}", host=host, weight="warning"))
    alive = [entry for entry in found if not entry["orphan"]]
    if alive:
        what = f"{host}: {alive[0]['user']} trains here already (pid {alive[0]['pid']}, {alive[0]['command'][:80]})"
        causes.append(
            cause("host_busy", what, "wait for its end, or share the host knowingly", host=host, weight="warning")
        )
    for other in node["other_runs"]:
        what = f"{host}: run {other['run']} of the collection is alive here, {len(other['pids'])} processes"
        fix = f"ansible-playbook torchlan.nanochat.stop -e nanochat_run={other['run']}   (or share the host knowingly)"
        causes.append(cause("host_busy", what, fix, host=host, weight="note"))
    return causes


def _nothing_to_go_on_from(plan: planning.Plan, shared: Mapping[str, Any]) -> Causes:
    times = shared["nanochat_auto_resume"]
    if not times or _int(plan.arguments.get("save-every"), -1) > 0:
        return []
    what = f"nanochat_auto_resume={times} without --save-every: a run that starts again begins at step 0"
    fix = "nanochat_extra_args: {save-every: 500}, or as many steps as may be lost"
    return [cause("checkpoint_missing", what, fix, weight="warning")]


def _checkpoints(plan: planning.Plan, settings: Mapping[str, Any], host: str, node: Mapping[str, Any]) -> Causes:
    """Steps that this run would write again; the runner sets them aside before it begins."""
    if settings["nanochat_runner"]:
        return []
    steps, last = node.get("checkpoints") or [], _int(plan.arguments.get("num-iterations"), -1)
    if not steps or "resume-from-step" in plan.arguments:
        return []
    shown = ", ".join(str(step) for step in steps[-3:])
    folder = f"{node['paths']['base_dir']}/base_checkpoints/{plan.arguments['model-tag']}"
    every = _int(plan.arguments.get("save-every"), -1)
    again = [step for step in steps if step == last or (every > 0 and step % every == 0 and step <= max(last, 0))]
    if not again:
        return []
    what = f"{host}: {folder} holds steps {shown}, and this run writes step {again[-1]} again"
    return [
        cause(
            "checkpoint_overwritten",
            what,
            "another nanochat_run, or move that folder away",
            host=host,
            weight="warning",
        )
    ]


def clocks(nodes: Nodes, asked: Mapping[str, list[float] | None]) -> Causes:
    """Clocks that differ by more than asking takes.

    :param asked: when each host was asked and when it had answered, by the controller's clock.
    """
    offsets: dict[str, tuple[float, float]] = {}
    for host, node in nodes.items():
        times, clock = asked.get(host), node["host"].get("clock_unix")
        if times and clock:
            offsets[host] = (clock - times[1], clock - times[0])
    # The controller may be the one that is wrong: what most hosts say is right.
    usual = statistics.median([sum(one) / 2 for one in offsets.values()]) if len(offsets) > 2 else 0.0
    causes: Causes = []
    for host, (low, high) in offsets.items():
        off = low - usual if low > usual else high - usual if high < usual else 0.0
        if abs(off) > _CLOCK_S:
            than = "the others'" if usual else "the controller's"
            what = f"{host}: its clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} {than}"
            causes.append(
                cause("clock_differs", what, f"on {host}: sudo timedatectl set-ntp true", host=host, weight="warning")
            )
    return causes


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{math.ceil(count / 1e6)} MB"
