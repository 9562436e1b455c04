# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run will be, and whether it can work: everything that is known without a host."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.proof import expected_each_way

SMOKE_MODULE = "torchlan_smoke"
BASE_TRAIN = "scripts.base_train"

# The options of scripts.base_train that the arithmetic needs, with nanochat's own defaults.
_DEFAULTS = {
    "depth": 20,
    "aspect-ratio": 64,
    "head-dim": 128,
    "max-seq-len": 2048,
    "device-batch-size": 32,
    "total-batch-size": -1,
    "num-iterations": -1,
    "eval-every": 250,
    "eval-tokens": 80 * 524288,
}
_DEFAULT_VOCABULARY = 32768
_VOCABULARY_PADDING = 64
_BYTES_PER_PARAMETER = 4  # float32, on CPU

# Settings that make one run only when they are equal on every host.
_SHARED = (
    "nanochat_source",
    "nanochat_repo",
    "nanochat_version",
    "nanochat_run",
    "nanochat_script",
    "nanochat_train_args",
    "nanochat_extra_args",
    "nanochat_tracker",
    "nanochat_device_type",
    "nanochat_master_addr",
    "nanochat_master_port",
    "nanochat_runner",
    "nanochat_exchange",
    "nanochat_wire_dtype",
    "nanochat_relaunch",
    "nanochat_auto_resume",
    "nanochat_resume",
    "nanochat_resume_replay",
    "nanochat_keep_checkpoints",
    "nanochat_keep_failed",
    "nanochat_notify",
    "nanochat_join_timeout",
    "nanochat_first_step_timeout",
    "nanochat_hang_timeout",
    "nanochat_dataset_dir",
    "nanochat_dataset_shards",
    "nanochat_dataset_repair",
    "nanochat_tokenizer_args",
    "nanochat_report_dir",
)


@dataclass
class Plan:
    """One run over all hosts."""

    run: str
    device: str
    script: str
    # host names by node rank
    hosts: list[str]
    # worker processes by host; None until the number of GPUs is known
    nproc: dict[str, int | None]
    arguments: dict[str, Any]
    # derived figures for people, in the order of the table; values are numbers or text
    numbers: dict[str, Any] = field(default_factory=dict)
    expected_bytes_per_step: int | None = None

    @property
    def nnodes(self) -> int:
        return len(self.hosts)

    @property
    def world_size(self) -> int | None:
        """Number of ranks; C(None) until every host's number of processes is known."""
        counts = [self.nproc[host] for host in self.hosts]
        return None if None in counts else sum(count for count in counts if count)

    def ranks(self) -> list[dict[str, Any]]:
        """Global ranks with their host, node rank and local rank, as torchrun will number them."""
        result: list[dict[str, Any]] = []
        for node_rank, host in enumerate(self.hosts):
            for local_rank in range(self.nproc[host] or 1):
                result.append({"rank": len(result), "host": host, "node_rank": node_rank, "local_rank": local_rank})
        return result


def check_cluster(
    cluster: list[str], settings: Mapping[str, dict[str, Any]], groups: Mapping[str, list[str]], partial: bool = False
) -> list[dict[str, Any]]:
    """The cluster as a whole: who is missing, ranks, groups, settings that must be equal.

    :param cluster: names of all hosts of the cluster, from the inventory, whatever C(--limit) says.
    :param settings: the settings of the hosts that take part in this play.
    :param groups: the inventory's groups.
    :param partial: hosts may be missing (status and stop).
    """
    causes = []
    for host in cluster:
        if host not in settings and not partial:
            causes.append(cause("host_excluded", f"{host} belongs to the cluster and does not take part", host=host))
    # Whose host is missing, its rank is missing too: that is said already.
    causes += _check_ranks(cluster, settings, partial or bool(causes))
    if causes:
        return causes
    for group, is_right in (("master", lambda rank: rank == 0), ("workers", lambda rank: rank != 0)):
        members = [host for host in groups.get(group, []) if host in settings]
        wrong = [host for host in members if not is_right(settings[host]["node_rank"])]
        for host in wrong:
            rank = settings[host]["node_rank"]
            causes.append(
                cause("group_mismatch", f"{host} is in the group {group} and has node_rank {rank}", host=host)
            )
    causes += _check_shared(settings)
    return causes


def _check_ranks(cluster: list[str], settings: Mapping[str, dict[str, Any]], partial: bool) -> list[dict[str, Any]]:
    by_rank: dict[int, list[str]] = {}
    for host, values in settings.items():
        if values["node_rank"] is not None:
            by_rank.setdefault(values["node_rank"], []).append(host)
    size = len(cluster)
    causes = []
    for rank, hosts in sorted(by_rank.items()):
        if len(hosts) > 1:
            causes.append(
                cause("rank_invalid", f"node_rank {rank} is used by {' and '.join(hosts)}", host=hosts[-1], rank=None)
            )
        elif not 0 <= rank < size:
            what = f"{hosts[0]} has node_rank {rank}; a cluster of {size} has the ranks 0 to {size - 1}"
            causes.append(cause("rank_invalid", what, host=hosts[0]))
    if not causes and not partial:
        for rank in sorted(set(range(size)) - set(by_rank)):
            causes.append(cause("rank_invalid", f"no host has node_rank {rank}"))
    return causes


def _check_shared(settings: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    causes = []
    for name in _SHARED:
        values = {host: values[name] for host, values in settings.items()}
        first = next(iter(values.values()))
        if any(value != first for value in values.values()):
            if all(isinstance(value, dict) for value in values.values()):
                for key in sorted({key for value in values.values() for key in value}):
                    mine = {host: value.get(key, "(unset)") for host, value in values.items()}
                    if len({repr(value) for value in mine.values()}) > 1:
                        causes.append(cause("arguments_differ", f"{name}: {key} is {_per_host(mine)}"))
            else:
                causes.append(cause("arguments_differ", f"{name} is {_per_host(values)}"))
    return causes


def _per_host(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{value} on {host}" for host, value in values.items())


def make(
    settings: Mapping[str, dict[str, Any]],
    gpus: Mapping[str, int] | None = None,
    vocabulary: int | None = None,
    nnodes: int | None = None,
) -> tuple[Plan, list[dict[str, Any]]]:
    """The run that the settings describe, and why it cannot work.

    :param settings: settings by host, all hosts, with valid ranks and equal shared settings (C(check_cluster)).
    :param gpus: number of GPUs by host, once the hosts were looked at.
    :param vocabulary: tokens in the tokenizer, once it was looked at.
    :param nnodes: size of the cluster, which the run is named after, when not all of its hosts are here.
    """
    hosts = sorted(settings, key=lambda host: settings[host]["node_rank"])
    shared = settings[hosts[0]]
    device = shared["nanochat_device_type"]
    smoke = shared["nanochat_source"] == "smoke"
    nproc: dict[str, int | None] = {}
    for host in hosts:
        nproc[host] = settings[host]["nproc_per_node"] or (1 if device == "cpu" else (gpus or {}).get(host) or None)
    plan = Plan(
        run=shared["nanochat_run"] or f"dist-{device}-{nnodes or len(hosts)}node",
        device=device,
        script=SMOKE_MODULE if smoke else shared["nanochat_script"],
        hosts=hosts,
        nproc=nproc,
        arguments={},
    )
    causes = _arguments(plan, shared)
    causes += _check_checkpoints(plan, shared)
    causes += _check_master_addr(plan, shared, settings)
    if plan.script in (BASE_TRAIN, SMOKE_MODULE) and not causes:
        causes += _arithmetic(plan, vocabulary or _vocabulary(shared), smoke)
    return plan, causes


def _arguments(plan: Plan, shared: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Fill in the script's options, the user's last."""
    given = {**shared["nanochat_train_args"], **shared["nanochat_extra_args"]}
    tracker = shared["nanochat_tracker"]
    ours: dict[str, Any] = {"device-type": plan.device, "run": "dummy" if tracker == "none" else plan.run}
    if tracker == "mlflow":
        ours["tracker"] = tracker
    if plan.script in (BASE_TRAIN, SMOKE_MODULE):
        ours["model-tag"] = plan.run  # two runs of one depth would overwrite each other's checkpoints
    plan.arguments = {**ours, **given}
    if plan.arguments["device-type"] != plan.device:
        what = f"--device-type={plan.arguments['device-type']} against nanochat_device_type={plan.device}"
        return [cause("setting_invalid", what, "leave the option out and set nanochat_device_type")]
    return []


def _check_checkpoints(plan: Plan, shared: Mapping[str, Any]) -> list[dict[str, Any]]:
    resumed = shared["nanochat_resume"] or shared["nanochat_auto_resume"]
    names = ("nanochat_resume", "nanochat_auto_resume", "nanochat_keep_checkpoints")
    asked = " and ".join(f"{name}={shared[name]}" for name in names if shared[name])
    if asked and not (shared["nanochat_runner"] and plan.script in (BASE_TRAIN, SMOKE_MODULE)):
        what = f"{asked} needs the runner and {BASE_TRAIN}, whose checkpoints it knows"
        return [cause("setting_invalid", what, f"nanochat_runner: true, nanochat_script: {BASE_TRAIN}")]
    typed = str(plan.arguments.get("resume-from-step", "-1"))
    if resumed and typed != "-1":
        what = f"{asked} against --resume-from-step={typed}"
        return [cause("setting_invalid", what, "leave the option out: the runner gives it (nanochat_resume: STEP)")]
    return []


def _check_master_addr(
    plan: Plan, shared: Mapping[str, Any], settings: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    address = shared["nanochat_master_addr"]
    if address is None or plan.nnodes == 1:
        return []
    everyone_on_loopback = all(settings[host]["nanochat_socket_ifname"] == "lo" for host in plan.hosts)
    loopback = address == "localhost" or address.startswith("127.") or address == "::1"
    if not address.strip() or address in ("0.0.0.0", "::") or (loopback and not everyone_on_loopback):
        what = f"nanochat_master_addr={address!r} cannot be reached from the other {plan.nnodes - 1} hosts"
        return [cause("master_addr_invalid", what)]
    return []


def _vocabulary(shared: Mapping[str, Any]) -> int:
    value = shared["nanochat_tokenizer_args"].get("vocab-size", _DEFAULT_VOCABULARY)
    return int(value) if str(value).isdigit() else _DEFAULT_VOCABULARY


def _arithmetic(plan: Plan, vocabulary: int, smoke: bool) -> list[dict[str, Any]]:
    """Derived figures, and the divisions that must come out even."""
    causes = []
    values: dict[str, int] = {}
    for name, default in _DEFAULTS.items():
        given = plan.arguments.get(name, default)
        try:
            values[name] = int(str(given))
        except ValueError:
            causes.append(cause("setting_invalid", f"--{name}={given} is not a whole number"))
            continue
        if name in ("depth", "aspect-ratio", "head-dim", "max-seq-len", "device-batch-size") and values[name] < 1:
            causes.append(cause("setting_invalid", f"--{name}={given} is less than 1"))
    if causes:
        return causes
    depth, dim = values["depth"], model_dim(plan.arguments, values["depth"])
    plan.numbers.update({"depth": depth, "model dim": dim, "heads": dim // values["head-dim"]})
    world = plan.world_size
    if world is None:
        return []
    micro = values["device-batch-size"] * values["max-seq-len"]
    total = values["total-batch-size"]
    sizes = (
        f"device-batch-size {values['device-batch-size']} x max-seq-len {values['max-seq-len']} x world size {world}"
    )
    plan.numbers["world size"] = world
    plan.numbers["tokens per micro-batch and rank"] = micro
    if total > 0:
        plan.numbers["tokens per step"] = total
        plan.numbers["tokens per step and rank"] = total // world
        if total % (micro * world):
            below = total - total % (micro * world)
            near = [size for size in (below, below + micro * world) if size > 0]
            what = f"total-batch-size {total} is not a multiple of {sizes} = {micro * world}"
            fix = f"total-batch-size: {' or '.join(str(size) for size in near)}"
            causes.append(cause("batch_indivisible", what, fix))
        else:
            plan.numbers["gradient accumulation"] = total // (micro * world)
    if values["eval-every"] > 0 and values["eval-tokens"] < micro * world:
        what = f"eval-tokens {values['eval-tokens']} / ({sizes} = {micro * world}) is less than one step"
        causes.append(cause("eval_tokens_small", what, f"eval-tokens: {micro * world} or more, or eval-every: -1"))
    if smoke:
        # A byte-level model of the same shape; the runner reports its real size.
        plan.numbers["iterations"] = values["num-iterations"]
        return causes
    rows = padded(vocabulary)
    if rows % world:
        fits = [size for size in range(world - 1, 0, -1) if rows % size == 0][:1]
        what = f"vocabulary {rows} % world size {world} = {rows % world}: the optimizer cannot split the embeddings"
        causes.append(
            cause("vocab_indivisible", what, f"a world size of {fits[0]}, or another vocab-size" if fits else None)
        )
    parameters = count_parameters(depth, dim, rows)
    plan.numbers["parameters"] = parameters
    plan.numbers["vocabulary"] = vocabulary
    if world > 1:
        plan.expected_bytes_per_step = expected_each_way(world, parameters * _BYTES_PER_PARAMETER)
        plan.numbers["bytes per step and rank, each way"] = plan.expected_bytes_per_step
    return causes


def model_dim(arguments: Mapping[str, Any], depth: int) -> int:
    """nanochat's width of a model of this depth."""
    aspect, head = (int(str(arguments.get(name, _DEFAULTS[name]))) for name in ("aspect-ratio", "head-dim"))
    return math.ceil(depth * aspect / head) * head


def padded(vocabulary: int) -> int:
    """Rows of the embeddings."""
    return math.ceil(vocabulary / _VOCABULARY_PADDING) * _VOCABULARY_PADDING


def count_parameters(depth: int, model_dim: int, padded_vocabulary: int) -> int:
    """Parameters of nanochat's GPT, without its few hundred scalars.

    Two embeddings, value embeddings on every second layer, and 4 + 8 matrices of model_dim squared a layer.
    """
    value_embeddings = math.ceil(depth / 2)
    return (2 + value_embeddings) * padded_vocabulary * model_dim + depth * 12 * model_dim * model_dim
