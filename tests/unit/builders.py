# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small cluster for tests of the controller's code: settings, nodes, runs, beats, as the real ones look."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import plan as planning
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import render, stages
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import settings as settings_util
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.stages import View

State = dict[str, Any]

HOSTS = ["workstation", "laptop"]
ADDRESSES = {"workstation": "192.0.2.36", "laptop": "192.0.2.37"}
COMMIT = "92d63d4e8bb4df75c3b71618f31ddde2378b2bcd"
ATTEMPT = "20261130-180102"
PARAM_BYTES = 40_000_000
# nothing that looks like it is found in any other value
SECRET = "tell-nobody-4711"


def coerced(host: str = "workstation", rank: int = 0, /, **variables: Any) -> dict[str, Any]:
    """Settings of a host as the action gives them."""
    values, causes = settings_util.coerce({"node_rank": rank, **variables}, host)
    assert causes == []
    ssh = ["ssh", "-t", ADDRESSES.get(host, host)]
    return {**values, "host": host, "nanochat_hosts": list(HOSTS), "ssh": ssh, "become_password": False}


def problems(**variables: Any) -> list[dict[str, Any]]:
    """What coerce says about these variables of one host."""
    return settings_util.coerce({"node_rank": 0, **variables}, "h")[1]


def pair(**shared: Any) -> dict[str, dict[str, Any]]:
    return {host: coerced(host, rank, **shared) for rank, host in enumerate(HOSTS)}


def smoke(**shared: Any) -> dict[str, dict[str, Any]]:
    return pair(nanochat_source="smoke", nanochat_run="try", **shared)


def planned(settings: dict[str, dict[str, Any]]) -> planning.Plan:
    made, causes = planning.make(settings)
    assert causes == []
    return made


def configuration(settings: dict[str, dict[str, Any]], commit: str | None = None) -> dict[str, Any]:
    return render.config(planned(settings), settings, commit)


def run(state: str = "absent", **values: Any) -> dict[str, Any]:
    """What inspect_run finds."""
    attempt = None if state == "absent" else ATTEMPT
    found: dict[str, Any] = {
        "state": state,
        "attempt": attempt,
        "record": None,
        "exit_code": None,
        "stopped": None,
        "processes": [],
    }
    found.update(beats=[], cluster=None, log_tail=[], node_dir=f"/runs/{attempt}" if attempt else None, sockets=[])
    return {**found, **values}


def recorded(state: str, config: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A run that was started with this configuration."""
    return run(state, record={"fingerprint": render.fingerprint(config), "config": config}, **values)


def node(host: str = "workstation", the_run: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    """What node_info sees on a host that is ready for a smoke run."""
    addresses = [{"address": ADDRESSES[host], "family": "ipv4", "prefix": 24, "scope": "global", "label": None}]
    wire: dict[str, Any] = {"name": "eth0", "up": True, "loopback": False, "kind": "ethernet", "members": []}
    wire.update(speed_mbps=1000, mtu=1500)
    home = f"/home/{host}"
    seen = {
        "host": {"identity": host, "system": "Debian GNU/Linux 13", "cores_physical": 8, "gpus": [], "user": "ann"},
        "paths": {"dir": f"{home}/nanochat", "base_dir": f"{home}/cache", "data_dir": f"{home}/cache/data"},
        "lacking": [],
        "package_manager": "apt-get",
        "privilege": None,
        "tools": {"tmux": "/usr/bin/tmux", "git": "/usr/bin/git", "uv": None, "compiler": None},
        "interfaces": [{**wire, "addresses": addresses}],
        "listener": {"port": 40001, "nonce": host},
        "checkout": {"state": "absent", "commit": None, "dirty": None, "dirty_files": []},
        "environment": {
            "python": f"{home}/nanochat/.venv/bin/python",
            "state": "ready",
            "version": "3.11.2",
            "torch": "2.13.0",
            "marker": {"requirements": []},
        },
        "data": data(),
        "port": {"port": 29500, "free": True, "holder": None},
        "run": the_run or run(),
        "other_runs": [],
        "causes": [],
    }
    return {**seen, **values}


def data(**values: Any) -> dict[str, Any]:
    listed = [["shard_00000.parquet", 10, "0" * 64, 8], ["shard_00001.parquet", 20, "1" * 64, 8]]
    tokenizer = {"present": True, "sha256": "a" * 64, "token_bytes_sha256": "b" * 64, "vocab_size": None}
    return {
        "dir": "/data",
        "shards": 2,
        "bytes": 30,
        "manifest": "m1",
        "unread": 0,
        "list": listed,
        "row_groups": {"validation": 8, "fewest": 8, "most": 8},
        "tokenizer": tokenizer,
        **values,
    }


def nodes(runs: dict[str, dict[str, Any]] | None = None, **values: Any) -> dict[str, dict[str, Any]]:
    return {host: node(host, (runs or {}).get(host), **values) for host in HOSTS}


def links() -> dict[str, dict[str, Any]]:
    """What link_probe says where both hosts reach each other."""
    found = {}
    for a, b in (HOSTS, reversed(HOSTS)):
        link = {"address": ADDRESSES[b], "interface": "eth0", "source": ADDRESSES[a], "rtt_ms": 0.2}
        found[a] = {"links": {b: [link]}, "unreached": {}}
    return found


def beat(rank: int, **values: Any) -> dict[str, Any]:
    """A healthy rank after three steps."""
    one = {"rank": rank, "local_rank": 0, "node_rank": rank, "host": HOSTS[rank], "pid": 100 + rank, "world_size": 2}
    one.update(attempt=ATTEMPT, time=1000.0 + rank, state="training", step=3, step_of=10, param_bytes=PARAM_BYTES)
    one.update(backend="gloo", ifname="eth0", address=ADDRESSES[HOSTS[rank]], collectives_finished=42)
    one.update(checksums={"1": "aa", "2": "bb"}, loss=5.25, tokens_per_s=1234.0, sockets=[], exit_code=None)
    return {**one, **values}


def sockets(rank: int, count: int = PARAM_BYTES * 3) -> list[dict[str, Any]]:
    """What a host's kernel says of the one connection between the two ranks."""
    mine, other = ADDRESSES[HOSTS[rank]], ADDRESSES[HOSTS[1 - rank]]
    ends = {"local": mine, "local_port": 50000 + rank, "remote": other, "remote_port": 50001 - rank}
    return [{"rank": rank, "pid": 100 + rank, **ends, "bytes_sent": count, "bytes_received": count}]


def lost(host: str, code: str = "host_unreachable") -> dict[str, Any]:
    what = f"{host} (192.0.2.99): No route to host"
    return {
        "nanochat_lost": {
            "code": code,
            "weight": "error",
            "host": host,
            "rank": None,
            "what": what,
            "fix": "switch it on",
        }
    }


def view(settings: dict[str, dict[str, Any]], check_mode: bool = False, **results: dict[str, dict[str, Any]]) -> View:
    """The cluster with these settings and registered results."""
    given = {host: {"settings": values, "causes": []} for host, values in settings.items()}
    return View(list(HOSTS), {"nanochat": list(HOSTS)}, {"preflight_settings": given, **results}, check_mode)


def looked(seen: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """As the task of node_info registers it."""
    return {host: {"node": one} for host, one in seen.items()}


# ---- states of a verdict, as they travel from stage to stage ----


def fresh() -> State:
    return {"causes": []}


def codes(state: State) -> list[str]:
    return [entry["code"] for entry in state["causes"]]


def seen(runs: dict[str, dict[str, Any]] | None = None, **values: Any) -> dict[str, dict[str, Any]]:
    return looked(nodes(runs, **values))


def after_inventory(settings: dict[str, dict[str, Any]]) -> State:
    state = stages.inventory(view(settings), fresh())
    assert state["go"], state["causes"]
    return state


def after_look(node_of: dict[str, dict[str, Any]], settings: dict[str, dict[str, Any]] | None = None) -> State:
    settings = settings or smoke()
    return stages.look(view(settings, preflight_node=node_of), after_inventory(settings))


def after_network(settings: dict[str, dict[str, Any]] | None = None, check_mode: bool = False) -> State:
    settings = settings or smoke()
    looks = view(settings, check_mode, preflight_node=seen(), launch_links=links())
    return stages.network(looks, stages.look(looks, after_inventory(settings)))
