# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For C(preflight.yml): what a launch would bring by itself, as notes, and what it would refuse while doing so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import packages
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import data_plan, decide
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import plan as planning

Nodes = Mapping[str, Mapping[str, Any]]
Settings = Mapping[str, Mapping[str, Any]]
Causes = list[dict[str, Any]]


def software(
    plan: planning.Plan,
    settings: Settings,
    nodes: Nodes,
    todo: Mapping[str, list[str]],
    installs: Mapping[str, Mapping[str, Any]],
    commit: str | None,
) -> Causes:
    """Checkouts and environments as they are, against what a launch does about them.

    :param installs: system packages that a launch installs, by host.
    """
    causes: Causes = []
    for host, node in nodes.items():
        causes += _checkout(settings[host], host, node, commit)
        makes = settings[host]["nanochat_install_method"] != "existing"
        if host in todo["install"] and makes and node["environment"]["state"] != "ready":
            causes.append(_brings(host, "makes the environment with torch"))
        if host in installs:
            names = ", ".join(packages.SHOWN[name] for name in installs[host]["needed"])
            causes.append(_brings(host, f"installs {names} as root, with sudo"))
    there = {host: node for host, node in nodes.items() if node["environment"]["state"] == "ready"}
    kept = [host for host in there if host not in todo["install"]]
    same = there if len(kept) == len(there) or _existing(settings) else {host: there[host] for host in kept}
    return causes + (decide.check_software(plan, same) if same else [])


def _existing(settings: Settings) -> bool:
    return all(mine["nanochat_install_method"] == "existing" for mine in settings.values())


def _checkout(settings: Mapping[str, Any], host: str, node: Mapping[str, Any], commit: str | None) -> Causes:
    if settings["nanochat_source"] != "git":
        return []
    checkout, folder = node["checkout"], node["paths"]["dir"]
    if checkout["state"] == "other":
        return [cause("checkout_foreign", f"{host}: {folder} exists and is not a git checkout", host=host)]
    changed = ", ".join(checkout["dirty_files"][:3])
    if checkout["state"] == "git" and checkout["commit"] == commit:
        if not checkout["dirty"]:
            return []
        what = f"{host}: {folder} has uncommitted changes in {changed}"
        return [cause("checkout_dirty", what, host=host, weight="warning")]
    if checkout["dirty"]:
        what = (
            f"{host}: {folder} has uncommitted changes in {changed}; it is at {_short(checkout['commit'])} and should "
        )
        fix = f"on {host}: git -C '{folder}' stash"
        return [cause("checkout_dirty", f"{what}be at {_short(commit)}", fix, host=host)]
    at = f", where {_short(checkout['commit'])} is" if checkout["commit"] else ""
    return [_brings(host, f"checks out commit {_short(commit)} in {folder}{at}")]


def _short(commit: str | None) -> str:
    return (commit or "no commit")[:10]


def data(plan: planning.Plan, settings: Settings, nodes: Nodes, source: list[dict[str, Any]] | None) -> Causes:
    """Shards and tokenizers by the same rules as the role C(dataset), from what is known without reading them."""
    hosts = [host for host in plan.hosts if host in nodes]
    if not decide.trains_nanochat(plan) or not hosts:
        return []
    looks = {host: _look(nodes[host]) for host in hosts}
    shared = settings[hosts[0]]
    made = data_plan.make(looks, hosts[0], source, plan.world_size, shared["nanochat_dataset_repair"], hosts)
    causes: Causes = list(made["causes"])
    if shared["nanochat_dataset_repair"] and any(entry["code"] == "row_groups_few" for entry in causes):
        causes = [entry for entry in causes if entry["code"] != "row_groups_few"]
        causes.append(_brings(hosts[0], "rewrites files with fewer row groups than ranks, and keeps the old ones"))
    if not shared["nanochat_dataset_dir"] and len(made["files"]) < 2:
        causes = [entry for entry in causes if entry["code"] != "data_missing"]
        causes.append(_brings(hosts[0], f"downloads {shared['nanochat_dataset_shards']} shards"))
    sizes = {one["name"]: int(one["size"]) for one in made["files"]}
    for host in hosts if len(hosts) > 1 else ():
        unread = nodes[host]["data"]["unread"]
        if unread:
            causes.append(_brings(host, f"reads {unread} shard(s) first, to compare their contents"))
    for host, mine in made["hosts"].items():
        names = set(mine["missing"] + mine["replace"])
        if names:
            megabytes = sum(sizes[name] for name in names) / 1e6
            has = len(mine["have"])
            causes.append(
                _brings(host, f"brings {len(names)} of {len(sizes)} shards, {megabytes:.0f} MB; it has {has}")
            )
    tokenizer = made["tokenizer"]
    if tokenizer["train"]:
        return [*causes, _brings(hosts[0], "trains the tokenizer, and brings it to the others")]
    return causes + [_brings(host, f"brings the tokenizer of {tokenizer['source']}") for host in tokenizer["needed"]]


def _look(node: Mapping[str, Any]) -> dict[str, Any]:
    """What the module C(dataset) would say of this host."""
    found, tokenizer = node["data"], node["data"]["tokenizer"]
    names = ("name", "size", "sha256", "row_groups")
    files = [dict(zip(names, entry)) for entry in found["list"]]
    if files and files[-1]["row_groups"] is None:
        files[-1]["row_groups"] = found["row_groups"]["validation"]  # its footer alone is always looked at
    return {
        "folder": found["dir"],
        "files": files,
        "free_bytes": node.get("disk_free_bytes"),
        "tokenizer": {"tokenizer.pkl": tokenizer["sha256"], "token_bytes.pt": tokenizer["token_bytes_sha256"]},
    }


def _brings(host: str, what: str) -> dict[str, Any]:
    return cause("launch_brings", f"{host}: a launch {what}", host=host, weight="note")


def notes(plan: planning.Plan, nodes: Nodes) -> Causes:
    """What is worth knowing and stops nobody."""
    causes: Causes = []
    loopback = {
        host: [address for address in node["host"].get("own_name_addresses") or [] if address.startswith("127.")]
        for host, node in nodes.items()
    }
    named = {host: addresses for host, addresses in loopback.items() if addresses}
    if named and len(plan.hosts) > 1:
        shown = [f"{host} ({nodes[host]['host']['hostname']} is {one[0]})" for host, one in named.items()]
        listed = ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
        what = f"the own name of {listed} is loopback in /etc/hosts, as Debian writes it; the ranks don't use it"
        causes.append(cause("own_name_loopback", what, weight="note"))
    for host, node in nodes.items():
        facts = node["host"]
        session = facts.get("session") or {}
        if session.get("kills_at_logout") and not session.get("linger"):
            what = f"{host}: logind ends all processes of {facts['user']} at logout (KillUserProcesses=yes)"
            fix = f"on {host}: sudo loginctl enable-linger {facts['user']}"
            causes.append(cause("killed_at_logout", what, fix, host=host, weight="warning"))
        if facts.get("wsl"):
            what = f"{host}: this is WSL; peers reach it only with mirrored networking"
            fix = "in %UserProfile%\\.wslconfig: [wsl2] networkingMode=mirrored"
            causes.append(cause("note", what, fix, host=host, weight="note"))
    return causes
