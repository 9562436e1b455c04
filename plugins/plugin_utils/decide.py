# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do about a run, from the look at every host: start it, leave it alone, or refuse."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import data as data_facts
from ansible_collections.torchlan.nanochat.plugins.module_utils import packages
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import data_plan, render
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import plan as planning

# What launch does with the run
START = "start"  # nothing of it is alive
RESTART = "restart"  # end what is alive, then start
WATCH = "watch"  # alive with this configuration: leave it alone and look again
STORED = "stored"  # finished with this configuration: show its stored proof
REFUSE = "refuse"

RUN_OF = re.compile(r"/runs/([A-Za-z0-9_-]+)/attempts/")


def run_state(runs: Mapping[str, dict[str, Any]]) -> str:
    """State of a run over all its hosts.

    :param runs: C(node.run) of C(node_info) by host.
    :returns: C(absent), C(alive), C(half_alive), C(finished), C(stopped) or C(failed).
    """
    states = {run["state"] for run in runs.values()}
    attempts = {run["attempt"] for run in runs.values()}
    if states & {"alive", "half_alive"}:
        return "alive" if states == {"alive"} and len(attempts) == 1 else "half_alive"
    if states == {"finished"} and len(attempts) == 1:
        return "finished"
    if states == {"absent"}:
        return "absent"
    return "stopped" if "stopped" in states and "failed" not in states else "failed"


def action(
    runs: Mapping[str, dict[str, Any]], configuration: Mapping[str, Any], relaunch: bool
) -> tuple[str, list[dict[str, Any]]]:
    """What launch does, by the table of run states.

    :param runs: C(node.run) by host, every host of the cluster.
    :param configuration: C(render.config) of the run that is wanted.
    :param relaunch: C(nanochat_relaunch).
    :returns: one of the words above, and the causes of a refusal.
    """
    state = run_state(runs)
    wanted = render.fingerprint(configuration)
    name = configuration["run"]
    if state == "half_alive":
        if relaunch:
            return RESTART, []
        parts = ", ".join(f"{run['state'].replace('_', ' ')} on {host}" for host, run in runs.items())
        return REFUSE, [cause("half_alive", f"run {name} is {parts}")]
    if state not in ("alive", "finished"):
        return START, []
    records = {host: run.get("record") or {} for host, run in runs.items()}
    changed = {host: record for host, record in records.items() if record.get("fingerprint") != wanted}
    if state == "finished":
        return (START if relaunch or changed else STORED), []
    if relaunch:
        return RESTART, []
    if not changed:
        return WATCH, []
    old = next(iter(changed.values())).get("config")
    lines = render.differences(old, dict(configuration)) if old else []
    what = f"run {name} is alive with another configuration: {'; '.join(lines[:5]) or 'its record cannot be read'}"
    return REFUSE, [cause("run_differs", what)]


def check_nodes(plan: planning.Plan, nodes: Mapping[str, dict[str, Any]], start: bool) -> list[dict[str, Any]]:
    """What is wrong with the hosts, and with C(start) what stands against a start there."""
    causes = []
    for host, node in nodes.items():
        causes += [{**entry, "host": host, "what": _on(host, entry["what"])} for entry in node.get("causes", [])]
    if start:
        causes += _check_port(plan, nodes)
        causes += _check_gpus(plan, nodes)
    return causes


def _on(host: str, what: str) -> str:
    return what if what.startswith(f"{host}:") else f"{host}: {what}"


def _check_port(plan: planning.Plan, nodes: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    master = plan.hosts[0]
    if master not in nodes or nodes[master]["port"]["free"]:
        return []
    port = nodes[master]["port"]
    holder = port.get("holder") or {}
    own = {process["pid"] for process in nodes[master]["run"]["processes"]}
    if holder.get("pid") in own:
        return []  # our own run, which is being replaced
    who = " ".join(
        str(part)
        for part in (
            f"pid {holder['pid']}" if holder.get("pid") else "a process that only root can see",
            f"({holder['command']})" if holder.get("command") else "",
            f"of user {holder['user']}" if holder.get("user") else "",
        )
        if part
    )
    what = f"{master}: port {port['port']} is held by {who}"
    return [cause("port_in_use", what, f"{_free(master, port, holder)}; or nanochat_master_port: another", host=master)]


def _free(master: str, port: Mapping[str, Any], holder: Mapping[str, Any]) -> str:
    """How the port becomes free."""
    run = RUN_OF.search(holder.get("run_dir") or "")
    if run:
        return f"ansible-playbook torchlan.nanochat.stop -e nanochat_run={run.group(1)}"
    if holder.get("pid"):
        return f"on {master}: kill {holder['pid']}"
    return f"on {master}: sudo ss -ltnp 'sport = :{port['port']}'   (its pid is for root and its user to see)"


def needs(settings: Mapping[str, Any]) -> list[str]:
    """System packages that a host needs, by the names of C(module_utils/packages.py)."""
    if settings["nanochat_source"] == "smoke":
        return ["tmux"]
    disabled = str(settings["nanochat_env"].get("TORCHDYNAMO_DISABLE", "0")).lower() in ("1", "true")
    return ["tmux", "git"] if disabled else ["tmux", "git", "compiler", "headers"]


def lacking(
    settings: Mapping[str, dict[str, Any]], nodes: Mapping[str, dict[str, Any]], tried: Collection[str] = ()
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """System packages to install by host, and causes where this user cannot.

    :param tried: hosts where it was done already, in vain if something is lacking still.
    """
    install: dict[str, dict[str, Any]] = {}
    causes = []
    for host, node in nodes.items():
        missing, manager, privilege = node["lacking"], node["package_manager"], node["privilege"]
        if not missing:
            continue
        known = privilege == "password" and settings[host]["become_password"]
        able = privilege in ("root", "sudo") or known
        if able and host not in tried and manager in packages.DRIVEN:
            install[host] = {"needed": missing, "manager": manager, "become": privilege != "root"}
            continue
        why = {
            "none": f"{node['host']['user']} cannot use sudo",
            "password": "sudo asks for a password (--ask-become-pass gives it)",
        }.get(privilege, f"{manager or 'its package manager'} is not driven by this collection")
        why = "were not installed by the task that installs packages" if host in tried else why
        fix = f"on {host}, an administrator: {packages.command(missing, manager)}"
        for code, of in (("packages_missing", ("tmux", "git")), ("compiler_missing", ("compiler", "headers"))):
            mine = " and ".join(packages.SHOWN[name] for name in missing if name in of)
            if mine:
                without = "; or nanochat_env: {TORCHDYNAMO_DISABLE: 1}" if code == "compiler_missing" else ""
                causes.append(cause(code, f"{host}: {mine} missing, and {why}", fix + without, host=host))
    return install, causes


def _check_gpus(plan: planning.Plan, nodes: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    if plan.device != "cuda":
        return []
    causes = []
    for host, node in nodes.items():
        have, need = len(node["host"]["gpus"]), plan.nproc[host] or 1
        if have < need:
            what = f"{host}: {need} processes on cuda, and {have} GPUs are seen"
            causes.append(cause("setting_invalid", what, "nproc_per_node, or nanochat_device_type: cpu", host=host))
    return causes


def todo(
    plan: planning.Plan,
    settings: Mapping[str, dict[str, Any]],
    nodes: Mapping[str, dict[str, Any]],
    commit: str | None,
    requirements: Mapping[str, list[str]],
    manifest: str | None,
    download: bool = False,
) -> dict[str, list[str]]:
    """Which hosts still need which part of the preparation: C({"install": [hosts], "dataset": [hosts]}).

    :param requirements: what pip installs, by host.
    :param manifest: digest of the controller's own shards, when they are the source.
    :param download: whether the master is to have as many shards as C(nanochat_dataset_shards), too. A launch trains
        with those that are there.
    """
    install = [
        host
        for host in plan.hosts
        if host in nodes and not _installed(settings[host], nodes[host], commit, requirements.get(host))
    ]
    dataset = []
    if trains_nanochat(plan):
        hosts = [host for host in plan.hosts if host in nodes]
        first = nodes[hosts[0]]["data"]
        for host in hosts:
            data = nodes[host]["data"]
            same = data["manifest"] == (manifest or first["manifest"])
            same = same and data["tokenizer"]["sha256"] == first["tokenizer"]["sha256"]
            # A world of one host has nobody to be equal to.
            unread = data["unread"] if len(plan.hosts) > 1 or manifest else 0
            if not (data["tokenizer"]["present"] and data["shards"] > 1 and same) or unread:
                dataset.append(host)
        repair = settings[hosts[0]]["nanochat_dataset_repair"] and not manifest
        wanted = 0 if settings[hosts[0]]["nanochat_dataset_dir"] else settings[hosts[0]]["nanochat_dataset_shards"]
        names = [entry[0] for entry in first["list"]]
        if download and hosts[0] not in dataset and data_facts.lacks_shards(names, wanted):
            dataset.insert(0, hosts[0])
        if repair and not dataset and _check_row_groups(plan, nodes):
            dataset.append(hosts[0])
    return {"install": install, "dataset": dataset}


def trains_nanochat(plan: planning.Plan) -> bool:
    """Whether the run reads nanochat's shards and tokenizer."""
    return plan.script == planning.BASE_TRAIN


def _installed(
    settings: Mapping[str, Any], node: Mapping[str, Any], commit: str | None, requirements: list[str] | None
) -> bool:
    environment, checkout = node["environment"], node["checkout"]
    if settings["nanochat_source"] == "git" and (checkout["state"] != "git" or checkout["commit"] != commit):
        return False
    if settings["nanochat_install_method"] == "existing":
        return True  # whether it has torch is for check_software: nothing here would mend it
    if environment["state"] != "ready" or not environment["torch"]:
        return False
    if settings["nanochat_source"] == "smoke":
        wanted = str(settings["nanochat_torch"] or "").partition("==")[2]
        return wanted in ("", environment["torch"], str(environment["torch"]).partition("+")[0])
    marker = environment["marker"] or {}
    if settings["nanochat_install_method"] == "pip":
        return bool(marker.get("requirements") == requirements)
    return bool(marker)


def check_software(plan: planning.Plan, nodes: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Python with torch on every host, and equal versions, once nothing is left to install."""
    causes = []
    for host, node in nodes.items():
        environment = node["environment"]
        if environment["state"] != "ready" or not environment["torch"]:
            python = environment["python"]
            what = f"{host}: no torch in {python}" if python else f"{host}: there is no Python environment"
            causes.append(cause("environment_missing", what, host=host))
    if causes:
        return causes
    for name, of in (("python", _python_line), ("torch", lambda node: node["environment"]["torch"])):
        seen = {host: of(nodes[host]) for host in plan.hosts if host in nodes}
        if len(set(seen.values())) > 1:
            odd = _odd_one(seen)
            python = nodes[odd]["environment"]["python"] if odd else None
            fix = f"nanochat_python of {odd}: another than {python}; or nanochat_install_method: uv for all"
            causes.append(cause("versions_differ", f"{name} is {_listed(seen)}", fix if odd else None, host=odd))
    return causes


def _odd_one(seen: Mapping[str, Any]) -> str | None:
    """The host that differs from all others, or of two the one that is not the first."""
    values = list(seen.values())
    alone = [host for host, value in seen.items() if values.count(value) == 1]
    if len(seen) == 2:
        return list(seen)[1]
    return alone[0] if len(alone) == 1 and len(set(values)) == 2 else None


def _listed(by_host: Mapping[str, Any]) -> str:
    return ", ".join(f"{value} on {host}" for host, value in by_host.items())


def _python_line(node: Mapping[str, Any]) -> str:
    """Python's minor version: patch releases of one line work together."""
    return ".".join(str(node["environment"]["version"]).split(".")[:2])


def check_data(plan: planning.Plan, nodes: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Shards and tokenizer of a nanochat run: there, and the same everywhere."""
    if not trains_nanochat(plan):
        return []
    causes = []
    master, *others = [host for host in plan.hosts if host in nodes]
    for host, node in nodes.items():
        if not node["data"]["tokenizer"]["present"]:
            folder = node["paths"]["base_dir"]
            causes.append(cause("tokenizer_missing", f"{host}: no tokenizer in {folder}/tokenizer", host=host))
        if node["data"]["shards"] < 2:
            what = f"{host}: {node['data']['shards']} shards in {node['data']['dir']}; training needs two or more"
            causes.append(cause("data_missing", what, host=host))
    if causes:
        return causes
    causes += _check_row_groups(plan, nodes)
    for host in others:
        mine, theirs = nodes[master]["data"], nodes[host]["data"]
        if mine["tokenizer"]["sha256"] != theirs["tokenizer"]["sha256"]:
            theirs_is, mine_is = (entry["tokenizer"]["sha256"][:12] for entry in (theirs, mine))
            what = f"{host}: the tokenizer is {theirs_is}, {master}'s {mine_is}"
            causes.append(cause("tokenizer_differs", what, host=host))
        if mine["manifest"] != theirs["manifest"]:
            what = f"{host}: {theirs['shards']} shards, {master} has {mine['shards']}: "
            what += _first_difference({master: mine, host: theirs})
            causes.append(cause("data_differ", what, host=host))
    return causes


def _check_row_groups(plan: planning.Plan, nodes: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the master's files: those of the others are the same."""
    master = next(host for host in plan.hosts if host in nodes)
    data = nodes[master]["data"]
    groups, name = data["row_groups"], data["list"][-1][0] if data["list"] else ""
    validation = (name, groups["validation"])
    return data_plan.row_group_causes(master, validation, groups["fewest"], groups["most"], plan.world_size)


def _first_difference(data: Mapping[str, Mapping[str, Any]]) -> str:
    """The first file that two hosts do not have alike."""
    found = {host: {entry[0]: entry[1:3] for entry in one["list"]} for host, one in data.items()}
    for name in sorted({name for files in found.values() for name in files}):
        has = {host: files.get(name) for host, files in found.items()}
        if any(one != next(iter(has.values())) for one in has.values()):
            by_size = len({tuple(one[:1]) if one else None for one in has.values()}) > 1
            return f"{name} is {_listed({host: _file(one, by_size) for host, one in has.items()})}"
    return "the lists are equal as far as they are shown, their digests are not"


def _file(one: list[Any] | None, by_size: bool) -> str:
    if one is None:
        return "missing"
    return f"{one[0]} bytes" if by_size else f"sha256 {one[1][:12]}" if one[1] else "not read yet"
