#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_info
short_description: Everything about a host that matters for distributed training
version_added: 0.1.0
author:
  - torchlan contributors (@torchlan)
description:
  - Looks at a host in one task - its system, network interfaces, programs, checkout, Python environment, data,
    rendezvous port, and the state of the named run and of others.
  - Reads only, and needs no root. C(torch) is found in the environment's files, never imported.
  - What it finds is data. A missing environment or a taken port does not fail the task.
extends_documentation_fragment:
  - torchlan.nanochat.attributes.facts
attributes:
  idempotent:
    description: When run twice in a row, the second run changes nothing.
    support: full
    details:
      - This module changes nothing. With O(listen_s) it starts a process that ends by itself.
options:
  run:
    description: Name of the run to look for.
    type: str
    required: true
  node_rank:
    description: The rank of this host in the cluster.
    type: int
    required: true
  dir:
    description: Folder of the nanochat checkout. C(~) is the home folder of the user that this module runs as.
    type: str
    default: ~/nanochat
  base_dir:
    description: Folder of tokenizer, data, checkpoints and runs, C(NANOCHAT_BASE_DIR).
    type: str
    default: ~/.cache/nanochat
  data_dir:
    description:
      - Folder of the shards, C(NANOCHAT_DATA_DIR).
      - nanochat's own folder below O(base_dir) when not set.
    type: str
  source:
    description: Where the training program comes from.
    type: str
    choices: [git, smoke]
    default: git
  install_method:
    description:
      - How the Python environment is made.
      - For V(uv) and V(pip) it is C(.venv) in O(dir), for V(existing) it is the one of O(python).
    type: str
    choices: [uv, pip, existing]
    default: uv
  python:
    description: Interpreter of an existing environment. Used only with O(install_method=existing).
    type: str
  master_port:
    description: The port of the rendezvous. The result says whether it is free on this host.
    type: int
    default: 29500
  device_type:
    description: The device to train on. Graphics cards are asked for only with V(cuda).
    type: str
    choices: [cpu, cuda]
    default: cpu
  needs:
    description:
      - System packages that the run needs here. RV(node.lacking) says which are missing.
      - Only when one is, the result says how this user would become root.
    type: list
    elements: str
    choices: [tmux, git, compiler, headers]
    default: []
  listen_s:
    description:
      - Start a listener for so many seconds that M(torchlan.nanochat.link_probe) on other hosts can find.
      - It is the only thing that this module starts. It listens on a free TCP port of all addresses, answers each
        connection with a random word and an identifier of this host, reads nothing, and ends by itself.
      - V(0) starts none.
    type: int
    default: 0
  measured_by:
    description:
      - With O(listen_s), how many other hosts come to measure their links to this one.
      - The listener answers on O(master_port) too then, where O(node_rank) is 0 and the port is free, until all of them
        came there. A listener of an earlier look that still holds that port is ended.
    type: int
    default: 0
  model_tag:
    description: Folder of the run's checkpoints, to say which are there.
    type: str
seealso:
  - module: torchlan.nanochat.link_probe
"""

EXAMPLES = r"""
- name: Look at the host
  torchlan.nanochat.node_info:
    run: dist-cpu-2node
    node_rank: 0
  register: look

- name: Look at the host before its peers try to reach it
  torchlan.nanochat.node_info:
    run: dist-cpu-2node
    node_rank: "{{ node_rank }}"
    base_dir: /data/nanochat
    install_method: existing
    python: ~/venvs/nano/bin/python
    listen_s: 60
  register: look
"""

RETURN = r"""
node:
  description: The facts of this host.
  returned: success
  type: dict
  contains:
    host:
      description:
        - Names, user, system and hardware.
        - RV(node.host.identity) is equal for two hosts of the inventory exactly when they share kernel and network
          namespace.
        - RV(node.host.cores_physical) and RV(node.host.cores_logical) respect the affinity, RV(node.host.cores_usable)
          also the cgroup's quota.
        - RV(node.host.firewall) is the firewall that this host is run with, as far as it shows without root;
          RV(node.host.session) says whether logind ends what this user leaves running.
      type: dict
      returned: success
      contains:
        identity:
          description: Digest of boot id, machine id and network namespace.
          type: str
          returned: success
        cores_logical:
          description: Hardware threads that this user's processes may run on.
          type: int
          returned: success
        cores_physical:
          description: Cores of those threads.
          type: int
          returned: success
        cores_usable:
          description: Hardware threads' worth of time that the cgroup allows.
          type: float
          returned: success
        firewall:
          description: C(kind) (V(ufw), V(firewalld), V(nftables), V(iptables) or V(null)), C(active), C(chain).
          type: dict
          returned: success
        session:
          description: C(kills_at_logout), C(in_login_session) and C(linger).
          type: dict
          returned: success
        ulimits:
          description: Soft limits C(nofile), C(nproc) and C(memlock), V(null) for none.
          type: dict
          returned: success
    paths:
      description: Absolute C(dir), C(base_dir), C(data_dir) and C(run_dir); V(null) where a path cannot be used.
      type: dict
      returned: success
    disk_free_bytes:
      description: Free space for this user where the run writes.
      type: int
      returned: success
    filesystem:
      description: The C(type) of the file system there, and whether its disk is C(rotational).
      type: dict
      returned: success
    leftovers:
      description: Training processes that the collection did not start, with C(pid), C(user), C(command), C(orphan).
      type: list
      elements: dict
      returned: success
    checkpoints:
      description: Steps of which checkpoints of O(model_tag) lie here.
      type: list
      elements: int
      returned: success
    tools:
      description: Absolute paths of C(tmux), C(git), C(uv) and a C++ C(compiler), or V(null).
      type: dict
      returned: success
    lacking:
      description: What of O(needs) is missing.
      type: list
      elements: str
      returned: success
    package_manager:
      description: The package manager of this host, or V(null).
      type: str
      returned: success
    privilege:
      description: How this user becomes root, V(root), V(sudo), V(password) or V(none); V(null) if nothing is lacking.
      type: str
      returned: success
    interfaces:
      description:
        - Each with C(name), C(index), C(up), C(loopback), C(kind), C(speed_mbps), C(mtu), C(master), C(members) and
          C(addresses).
        - C(kind) is one of V(ethernet), V(wireless), V(bridge), V(veth), V(tun), V(docker), V(virtual) and V(loopback).
      type: list
      elements: dict
      returned: success
    listener:
      description:
        - C(port) and C(nonce) of the listener, or V(null).
        - With O(measured_by), also C(bulk_port), and C(also_port) where it holds O(master_port).
      type: dict
      returned: success
    checkout:
      description: C(state) (V(absent), V(git) or V(other)), C(commit), C(dirty) and up to ten C(dirty_files).
      type: dict
      returned: success
    environment:
      description:
        - C(python), C(state) (V(absent), V(broken) or V(ready)), C(problem), C(version), C(torch), C(torch_build) and
          C(marker).
      type: dict
      returned: success
    data:
      description:
        - C(dir), number of C(shards), their C(bytes), one digest of all (C(manifest)) and the C(tokenizer).
        - C(list) holds name, size, SHA256 and number of row groups, the last two V(null) until
          M(torchlan.nanochat.dataset) has read the file as it is now; C(unread) counts those.
        - C(row_groups) of the C(validation) file, and the C(fewest) and C(most) of the training files.
      type: dict
      returned: success
    port:
      description:
        - The rendezvous C(port), whether it is C(free), and its C(holder) with C(pid), C(command), C(user) and
          C(run_dir).
      type: dict
      returned: success
    run:
      description: The state of the run on this host, with the TCP C(sockets) of its workers.
      type: dict
      returned: success
    other_runs:
      description: Other runs of the collection below the same base folder.
      type: list
      elements: dict
      returned: success
    causes:
      description: What is wrong with this host alone, each with C(code), C(weight), C(what) and C(fix).
      type: list
      elements: dict
      returned: success
  sample:
    host: {hostname: workstation, user: ann, cores_physical: 8, cores_logical: 16, cores_usable: 16.0}
    paths: {dir: /home/ann/nanochat, base_dir: /home/ann/.cache/nanochat}
    interfaces:
      - name: enp4s0
        up: true
        kind: ethernet
        speed_mbps: 1000
        addresses:
          - {address: 192.0.2.36, family: ipv4, prefix: 24, scope: global}
    listener: {port: 41235, nonce: 5a1c0f2e9b7d4c33}
    port: {port: 29500, free: true, holder: null}
    causes: []
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils import (
    checkpoints,
    data,
    host,
    leftovers,
    packages,
    paths,
    runs,
    software,
)
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.checkout_state import Checkout
from ansible_collections.torchlan.nanochat.plugins.module_utils.interfaces import interfaces
from ansible_collections.torchlan.nanochat.plugins.module_utils.listener import end_earlier, start_listener
from ansible_collections.torchlan.nanochat.plugins.module_utils.ports import port_state
from ansible_collections.torchlan.nanochat.plugins.module_utils.sockets import tcp_sockets

NOT_THERE: dict[str, Any] = {"state": "absent"}
NO_ENVIRONMENT: dict[str, Any] = {
    **NOT_THERE,
    **dict.fromkeys(("python", "version", "torch", "torch_build", "headers", "marker")),
    "problem": "its path cannot be used",
}


def look(params: dict[str, Any]) -> dict[str, Any]:
    """All facts of this host."""
    # The listener forks, so it comes before the thread that asks for the own name.
    port = _port(params)
    listener = None
    if params["listen_s"] > 0:
        rendezvous = params["measured_by"] > 0 and params["node_rank"] == 0 and port["free"]
        also = params["master_port"] if rendezvous else None
        listener = start_listener(params["listen_s"], host.identity(), also, params["measured_by"])
    causes: list[dict[str, Any]] = []
    places = _places(params, causes)

    # Everything that takes a program is started first and read last.
    own_name = host.OwnName()
    environment = _environment(params, places, causes)
    checkout = Checkout(places["dir"]) if places["dir"] else None
    gpus = host.Gpus() if params["device_type"] == "cuda" else None

    node: dict[str, Any] = {
        "host": host.facts(),
        "paths": places,
        "disk_free_bytes": paths.free_bytes(places["run_dir"]) if places["run_dir"] else None,
        "tools": software.tools(),
        "interfaces": interfaces(),
        "listener": listener,
        "port": port,
        "filesystem": paths.filesystem(places["run_dir"]) if places["run_dir"] else None,
        "leftovers": leftovers.trainers(),
        "checkpoints": _checkpoints(places["base_dir"], params["model_tag"]),
        "data": _data(places),
        **_runs(params, places),
    }
    node["checkout"] = checkout.facts() if checkout else dict(NOT_THERE, commit=None, dirty=None, dirty_files=[])
    node["environment"] = environment.facts() if environment else dict(NO_ENVIRONMENT)
    node["lacking"] = software.lacking(params["needs"], node["environment"]["headers"])
    node["package_manager"] = packages.manager()
    node["privilege"] = packages.privilege() if node["lacking"] else None
    node["host"]["gpus"] = gpus.names() if gpus else []
    node["host"]["own_name_addresses"] = own_name.addresses()
    if params["install_method"] == "existing" and node["environment"]["state"] != "ready":
        # the other methods make or mend theirs
        causes.append(cause("environment_missing", node["environment"]["problem"]))
    node["causes"] = causes
    return node


def _port(params: dict[str, Any]) -> dict[str, Any]:
    """Who holds the port of the rendezvous; nobody's listener of an earlier look."""
    found = port_state(params["master_port"])
    pid = (found["holder"] or {}).get("pid")
    if params["listen_s"] > 0 and pid and end_earlier(pid):
        found = port_state(params["master_port"])
    return found


def _checkpoints(base_dir: str | None, tag: str | None) -> list[int]:
    """Steps of which this host has a part of the run's checkpoint."""
    if not base_dir or not tag:
        return []
    names = checkpoints.names(checkpoints.folder_of(base_dir, tag))
    return sorted({step for step in map(checkpoints.step_of, names) if step is not None})


def _places(params: dict[str, Any], causes: list[dict[str, Any]]) -> dict[str, str | None]:
    places: dict[str, str | None] = {}
    for name in ("dir", "base_dir", "data_dir"):
        places[name] = None
        if params[name] is not None:
            places[name], problem = paths.absolute("nanochat_" + name, params[name])
            if problem:
                causes.append(problem)
    # The files of runs are named by the real path: with links, two names would be two runs.
    base_dir = places["base_dir"] = os.path.realpath(places["base_dir"]) if places["base_dir"] else None
    places["run_dir"] = _run_dir(base_dir, params) if base_dir else None
    if base_dir:
        problem = paths.unwritable("nanochat_base_dir", base_dir)
        if problem:
            causes.append(problem)
        if params["data_dir"] is None:
            places["data_dir"] = data.default_folder(base_dir)
    return places


def _run_dir(base_dir: str, params: dict[str, Any]) -> str:
    return runs.RunPaths.of(base_dir, params["run"], params["node_rank"]).run_dir


def _environment(
    params: dict[str, Any], places: dict[str, str | None], causes: list[dict[str, Any]]
) -> software.Environment | None:
    if params["install_method"] == "existing" and params["python"]:
        python, problem = paths.absolute("nanochat_python", params["python"])
        if problem:
            causes.append(problem)
        return software.Environment(python, None) if python else None
    if places["dir"] is None:
        return None
    folder = os.path.join(places["dir"], ".venv")
    return software.Environment(os.path.join(folder, "bin", "python"), folder)


def _data(places: dict[str, str | None]) -> dict[str, Any]:
    # Empty names find nothing, and the answer keeps its shape.
    return data.facts(places["base_dir"] or "", places["data_dir"] or "")


def _runs(params: dict[str, Any], places: dict[str, str | None]) -> dict[str, Any]:
    """The named run, with the sockets of its workers, and the others."""
    if places["base_dir"] is None:
        lists: dict[str, Any] = {name: [] for name in ("processes", "beats", "log_tail", "sockets")}
        return {"run": dict(NOT_THERE, attempt=None, record=None, cluster=None, **lists), "other_runs": []}
    run = runs.inspect_run(places["base_dir"], params["run"], params["node_rank"])
    workers = [process for process in run["processes"] if process["role"] == "worker"]
    ranks = {worker["pid"]: worker["rank"] for worker in workers if worker["attempt"] == run["attempt"]}
    # The table of sockets is long on a busy host: without workers it is not asked for.
    run["sockets"] = [dict(entry, rank=ranks[entry["pid"]]) for entry in tcp_sockets(ranks)]
    return {"run": run, "other_runs": runs.other_runs(places["base_dir"], params["run"], run["attempt"])}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "run": {"type": "str", "required": True},
            "node_rank": {"type": "int", "required": True},
            "dir": {"type": "str", "default": "~/nanochat"},
            "base_dir": {"type": "str", "default": "~/.cache/nanochat"},
            "data_dir": {"type": "str"},
            "source": {"type": "str", "choices": ["git", "smoke"], "default": "git"},
            "install_method": {"type": "str", "choices": ["uv", "pip", "existing"], "default": "uv"},
            "python": {"type": "str"},
            "master_port": {"type": "int", "default": 29500},
            "device_type": {"type": "str", "choices": ["cpu", "cuda"], "default": "cpu"},
            "needs": {
                "type": "list",
                "elements": "str",
                "choices": ["tmux", "git", "compiler", "headers"],
                "default": [],
            },
            "listen_s": {"type": "int", "default": 0},
            "measured_by": {"type": "int", "default": 0},
            "model_tag": {"type": "str"},
        },
        supports_check_mode=True,
    )
    if not runs.NAME.fullmatch(module.params["run"]):
        module.fail_json(msg=f"run must consist of letters, digits, - and _, got {module.params['run']!r}")
    module.exit_json(changed=False, node=look(module.params))


if __name__ == "__main__":
    main()
