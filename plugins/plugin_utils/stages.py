# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of a verdict: what is judged when, over all hosts at once.

Each stage takes what the hosts answered (a L(View)) and what was known before (the state, plain data that travels in a
registered variable), and returns the new state. C(go) in it opens the next tasks; nothing here talks to a host.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import proof as proving
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause, errors
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import (
    advice,
    check_stages,
    data_stages,
    decide,
    deliver,
    install_stages,
    links,
    plan,
    render,
    root_cause,
    shards,
    source,
)
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import settings as settings_util

State = dict[str, Any]


@dataclass
class View:
    """What is known of the cluster: the inventory, and the registered results of its hosts."""

    cluster: list[str]
    groups: Mapping[str, list[str]]
    # by registered name, then by host
    results: Mapping[str, Mapping[str, dict[str, Any]]]
    check_mode: bool = False

    def of(self, *names: str) -> dict[str, dict[str, Any]]:
        """Results by host; with several names, the latest one that a host has."""
        merged: dict[str, dict[str, Any]] = {}
        for name in names:
            merged.update(self.results.get(name, {}))
        return merged

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        return {host: result["settings"] for host, result in self.of("preflight_settings").items()}

    @property
    def shared(self) -> dict[str, Any]:
        """The settings of one host, for what is the same on all."""
        return next(iter(self.settings.values()))

    def nodes(self, *names: str) -> dict[str, dict[str, Any]]:
        """What C(node_info) saw, of the hosts that answered."""
        found = self.of(*(names or ("preflight_node",)))
        return {host: result["node"] for host, result in found.items() if "node" in result}

    def lost(self, name: str) -> list[dict[str, Any]]:
        """Causes of the hosts that did not answer in the task of that name, in the order of the inventory."""
        found = self.results.get(name, {})
        lost = {host: found[host]["nanochat_lost"] for host in self.cluster if "nanochat_lost" in found.get(host, {})}
        return [{**entry, "host": entry["host"] or host} for host, entry in lost.items()]

    def weigh(self, causes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The causes, those that C(nanochat_preflight_ignore) names as visible warnings."""
        ignored = {code for settings in self.settings.values() for code in settings["nanochat_preflight_ignore"]}
        return [
            {**entry, "weight": "warning", "what": f"{entry['what']} (ignored by nanochat_preflight_ignore)"}
            if entry["weight"] == "error" and entry["code"] in ignored
            else entry
            for entry in causes
        ]

    def causes(self, *names: str) -> list[dict[str, Any]]:
        """Causes that modules returned, each with its host."""
        result = []
        for name in names:
            for host, answer in self.results.get(name, {}).items():
                result += [{**entry, "host": entry["host"] or host} for entry in answer.get("causes", [])]
        return result


def inventory(view: View, state: State) -> State:
    """Everything that can be known without a host."""
    settings = view.settings
    causes = [*view.causes("preflight_settings")]
    if not causes:
        causes += view.weigh(plan.check_cluster(view.cluster, settings, view.groups, state.get("partial", False)))
    state.update(commit=None, requirements={}, manifest=None)
    state["needs"] = {host: decide.needs(mine) for host, mine in settings.items()} if not errors(causes) else {}
    if not errors(causes):
        run, problems = _plan(view, state)
        causes += view.weigh(problems)
        shared = settings[run.hosts[0]]
        if shared["nanochat_source"] == "git" and not errors(causes):
            causes += _resolve(settings, shared, state)
        if shared["nanochat_dataset_dir"]:
            state["manifest"] = shards.known_digest(deliver.absolute(shared["nanochat_dataset_dir"]))
        state["plan"] = _plan_data(run)
    return {**state, "causes": causes, "go": not errors(causes)}


def part(view: View, state: State) -> State:
    """For install and dataset: the same as C(inventory), for the hosts that take part; dead ones stop nobody."""
    return inventory(view, {**state, "partial": True})


def check(view: View, state: State) -> State:
    """For preflight: the same, and what a launch would bring or refuse later on is said as well."""
    return inventory(view, {**state, "check": True})


def _resolve(settings: Mapping[str, dict[str, Any]], shared: Mapping[str, Any], state: State) -> list[dict[str, Any]]:
    """One commit for all hosts, and what pip installs for it on each: hosts may ask for different builds of torch."""
    try:
        found = source.resolve(shared["nanochat_repo"], shared["nanochat_version"])
        state["commit"] = found.commit
        extra = "gpu" if shared["nanochat_device_type"] == "cuda" else "cpu"
        state["requirements"] = {
            host: found.requirements(mine["nanochat_torch"], extra)
            for host, mine in settings.items()
            if mine["nanochat_install_method"] == "pip"
        }
    except source.SourceError as problem:
        return [problem.cause]
    return list(found.causes)


def _plan_data(run: plan.Plan) -> dict[str, Any]:
    return {
        "run": run.run,
        "script": run.script,
        "device": run.device,
        "hosts": run.hosts,
        "master": run.hosts[0],
        "world_size": run.world_size,
        "ranks": run.ranks(),
        "numbers": run.numbers,
        "arguments": run.arguments,
        "expected_bytes_per_step": run.expected_bytes_per_step,
    }


def some(view: View, state: State) -> State:
    """For status and stop: the name of the run, on whatever part of the cluster there is."""
    settings = view.settings
    given = view.causes("preflight_settings")
    causes = [entry for entry in given if entry["code"] != "setting_invalid"]
    causes += plan.check_cluster(view.cluster, settings, view.groups, partial=True) if not errors(causes) else []
    go = not errors(causes)
    if go:
        shared = view.shared
        run = shared["nanochat_run"] or f"dist-{shared['nanochat_device_type']}-{len(view.cluster)}node"
        unnamed = not shared["nanochat_run"] and not shared["nanochat_device_type"]
        if unnamed or not settings_util.is_run_name(run):
            return {**state, "causes": given, "go": False}
        hosts = sorted(settings, key=lambda host: settings[host]["node_rank"])
        state["plan"] = {"run": run, "hosts": hosts, "master": hosts[0], "world_size": None, "ranks": [], "numbers": {}}
    return {**state, "causes": causes, "go": go}


def _plan(
    view: View, state: State, gpus: Mapping[str, int] | None = None, vocabulary: int | None = None
) -> tuple[plan.Plan, list[dict[str, Any]]]:
    """The run. Whether it would work is not asked where only a part of the cluster is worked on."""
    run, problems = plan.make(view.settings, gpus, vocabulary, len(view.cluster))
    return run, [] if state.get("partial") else problems


def _replan(view: View, state: State, nodes: Mapping[str, dict[str, Any]]) -> tuple[plan.Plan, list[dict[str, Any]]]:
    """The plan again, with what the hosts said about GPUs and vocabulary."""
    settings = view.settings
    gpus = {host: len(node["host"]["gpus"]) for host, node in nodes.items()}
    first = min(settings, key=lambda host: settings[host]["node_rank"])
    vocabulary = nodes[first]["data"]["tokenizer"]["vocab_size"] if first in nodes else None
    return _plan(view, state, gpus, vocabulary)


def look(view: View, state: State) -> State:
    """Which state the run is in, what to do about it, and what is missing on the hosts."""
    nodes, settings = view.nodes(), view.settings
    causes = view.lost("preflight_node")
    state.update(todo={"install": [], "dataset": []}, packages={})
    checking = bool(state.get("check"))
    if causes and not ((checking or state.get("partial")) and nodes):
        return {**state, "causes": _merge(state["causes"], causes), "go": False}
    # Work goes on for the hosts that answer; that others are dead is still an error at the end.
    state["causes"] = _merge(state["causes"], causes)
    dead = len(errors(causes))
    run, problems = _replan(view, state, nodes)
    shared = settings[run.hosts[0]]
    configuration = render.config(run, settings, state["commit"])
    runs = {host: nodes[host]["run"] for host in run.hosts if host in nodes}
    doing, refusal = decide.action(runs, configuration, shared["nanochat_relaunch"])
    causes = [entry for entry in view.weigh(problems) + refusal if entry not in state["causes"]]
    if doing in (decide.START, decide.RESTART):
        tried = set(view.of("install_packages"))
        state["packages"], lacking = decide.lacking(settings, nodes, tried)
        starting = not state.get("partial")
        found = decide.check_nodes(run, nodes, start=starting) + lacking
        if starting:
            found += advice.check(run, settings, nodes, doing == decide.RESTART)
            found += advice.clocks(nodes, {host: view.of("preflight_node")[host].get("asked") for host in nodes})
        causes = causes + view.weigh(found)
        if checking:
            causes += view.weigh(check_stages.forecast(view, state, run, nodes))
        elif not errors(causes):
            wanted = {name: state[name] for name in ("commit", "requirements", "manifest")}
            state["todo"] = decide.todo(run, settings, nodes, **wanted, download=bool(state.get("partial")))
            install = {*state["todo"]["install"], *state["packages"]}
            state["todo"]["install"] = [host for host in run.hosts if host in install]
            if not any(state["todo"].values()):
                causes += view.weigh(decide.check_software(run, nodes) + decide.check_data(run, nodes))
    elif doing in (decide.WATCH, decide.STORED):
        state["attempt"] = runs[run.hosts[0]]["attempt"]
        state["folders"] = {host: found["node_dir"] for host, found in runs.items()}
    state["software"] = {host: _software(node) for host, node in nodes.items()}
    state["peers"] = {host: links.peers(nodes, host) for host in nodes}
    state.update(
        plan=_plan_data(run), action=doing, config=configuration, fingerprint=render.fingerprint(configuration)
    )
    go = checking or not errors(causes)
    causes = state["causes"] + causes
    start = doing in (decide.START, decide.RESTART) and (checking or not dead)
    return {**state, "causes": causes, "go": go, "start": start}


def _software(node: Mapping[str, Any]) -> dict[str, Any]:
    """What a person wants to know about a prepared host."""
    return {
        "commit": node["checkout"]["commit"],
        "python": node["environment"]["version"],
        "torch": node["environment"]["torch"],
        "shards": node["data"]["shards"],
        "tokenizer": node["data"]["tokenizer"]["sha256"],
    }


# Registered by the roles that prepare a host.
_TASKS_OF = {
    "install": install_stages.TASKS,
    "dataset": data_stages.TASKS,
}


def prepared(view: View, state: State) -> State:
    """After install and dataset: look again, and refuse what is still missing."""
    tasks = [name for names in _TASKS_OF.values() for name in names]
    causes = _merge(*(view.lost(name) for name in tasks), view.causes(*tasks))
    if errors(causes):
        return {**state, "causes": _merge(state["causes"], causes), "go": False}
    state = look(view, state)
    if view.check_mode or not state["go"]:
        return state
    said = set()
    if state["todo"]["dataset"] and view.of(*_TASKS_OF["dataset"]):
        run, _known = _replan(view, state, view.nodes())
        found = view.weigh(decide.check_data(run, view.nodes()))
        state["causes"] += found
        said = {entry["host"] for entry in found}
    for part, hosts in state["todo"].items():
        for host in hosts if view.of(*_TASKS_OF[part]) else []:
            if part == "install" or host not in said:
                code = "environment_missing" if part == "install" else "data_missing"
                state["causes"].append(cause(code, f"{host}: {part} ran, and the host is still not ready", host=host))
    return {**state, "go": not errors(state["causes"])}


def idle(view: View, state: State) -> State:
    """For install and dataset: nobody may be using what they change."""
    causes = []
    for host, node in view.nodes().items():
        if node["run"]["state"] in ("alive", "half_alive"):
            what = f"{host}: run {state['plan']['run']} is {node['run']['state'].replace('_', ' ')}"
            causes.append(cause("run_in_progress", what, host=host))
    return {**state, "causes": state["causes"] + causes, "go": not causes}


def network(view: View, state: State) -> State:
    """Interfaces, the master's address, and what each host will run."""
    if not state["start"]:
        return state
    nodes, settings = view.nodes(), view.settings
    causes = view.lost("launch_links")
    run, _known = _replan(view, state, nodes)
    if causes:
        return {**state, "causes": state["causes"] + causes, "go": False}
    wanted = {host: settings[host]["nanochat_socket_ifname"] for host in run.hosts}
    chosen = links.choose(nodes, view.of("launch_links"), wanted)
    causes = list(chosen["causes"])
    state["network"] = chosen["choice"]
    if not errors(causes):
        attempt = state["attempt"] = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        shared = settings[run.hosts[0]]
        master_addr = shared["nanochat_master_addr"] or state["network"][run.hosts[0]]["address"]
        state["starts"] = {
            host: _start(run, settings[host], nodes[host], state, master_addr, attempt) for host in run.hosts
        }
        state["folders"] = {host: start["folder"] for host, start in state["starts"].items()}
    causes = state["causes"] + causes
    return {**state, "causes": causes, "go": not errors(causes)}


def _start(
    run: plan.Plan, settings: dict[str, Any], node: dict[str, Any], state: State, master_addr: str, attempt: str
) -> dict[str, Any]:
    """What one host is told to run."""
    folder = f"{node['paths']['base_dir']}/runs/{run.run}/attempts/{attempt}/node-{settings['node_rank']}"
    smoke = settings["nanochat_source"] == "smoke"
    python = node["environment"]["python"] or f"{node['paths']['dir']}/.venv/bin/python"
    directory = folder if smoke else node["paths"]["dir"]
    command = render.torchrun(run, settings, python, master_addr, attempt)
    variables = render.environment(run, settings, node, state["network"][settings["host"]], folder)
    # Everything that makes two hosts one run; paths and threads may differ.
    shared_names = sorted(name for name in variables if name.startswith("NANOCHAT_") and not name.endswith("_DIR"))
    facts = {"commit": state["commit"], "arguments": run.arguments}
    if not smoke:
        facts["uncommitted changes"] = bool(node["checkout"]["dirty"])
        facts["tokenizer"] = node["data"]["tokenizer"]["sha256"]
        facts["shards"] = node["data"]["manifest"]
    variables["TORCHLAN_PLAN"] = json.dumps(
        {
            "run": run.run,
            "attempt": attempt,
            "device": run.device,
            "host": settings["host"],
            "node_rank": settings["node_rank"],
            "nnodes": run.nnodes,
            "world_size": run.world_size,
            "nodes": [
                {
                    "node_rank": node_rank,
                    "host": host,
                    "address": state["network"][host]["address"],
                    "nproc": run.nproc[host],
                }
                for node_rank, host in enumerate(run.hosts)
            ],
            "ifname": state["network"][settings["host"]]["interface"],
            "join_timeout": settings["nanochat_join_timeout"],
            "first_step_timeout": settings["nanochat_first_step_timeout"],
            "hang_timeout": settings["nanochat_hang_timeout"],
            "exchange": settings["nanochat_exchange"],
            "wire_dtype": settings["nanochat_wire_dtype"],
            "resume": settings["nanochat_resume"],
            "auto_resume": settings["nanochat_auto_resume"],
            "resume_replay": settings["nanochat_resume_replay"],
            "keep_checkpoints": settings["nanochat_keep_checkpoints"],
            "expected_bytes_per_step": run.expected_bytes_per_step,
            "compare_env": shared_names,
            "fingerprint": facts,
        },
        sort_keys=True,
    )
    predicted = [] if node["environment"]["torch"] else [f"{python} is not there yet"]
    if not smoke and node["checkout"]["commit"] != state["commit"]:
        predicted.append(f"{directory} is not at {str(state['commit'])[:12]} yet")
    return {
        "folder": folder,
        "script": render.script(run, settings, folder, directory, command, attempt),
        "environment": variables,
        "predicted": predicted,
        "record": {
            "schema": 1,
            "run": run.run,
            "attempt": attempt,
            "node_rank": settings["node_rank"],
            "nnodes": run.nnodes,
            "host": settings["host"],
            "fingerprint": state["fingerprint"],
            "config": state["config"],
            "argv": command,
            "sample": render.sample(run, python, directory, folder),
        },
    }


def started(view: View, state: State) -> State:
    """Whether every agent was started; a part of a run is no run."""
    if not state["start"] or view.check_mode:
        return state
    causes = state["causes"] + view.lost("launch_started") + view.causes("launch_started")
    failed = bool(errors(causes))
    keep = any(settings["nanochat_keep_failed"] for settings in view.settings.values())
    verdict = {"verdict": "failed", "end": not keep} if failed else {}
    return {**state, **verdict, "causes": causes, "go": not failed}


@dataclass
class Seen:
    """What beats and sockets say about the ranks of one attempt."""

    cluster: dict[str, Any]
    # latest beat by rank, from the master's collection and from each host's own files
    beats: dict[int, dict[str, Any]]
    sockets: dict[int, list[dict[str, Any]]]


def _by_rank(run: plan.Plan, state: State) -> dict[int, dict[str, Any]]:
    """The network choice of every rank's host; empty when this launch started nothing and chose nothing."""
    network = state.get("network") or {}
    return {entry["rank"]: network[entry["host"]] for entry in run.ranks() if entry["host"] in network}


def _own_beats(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The beats that a host has of its own ranks, with their age by its own clock."""
    now = node["host"].get("clock_unix")
    beats = node["run"].get("beats") or []
    return [{**beat, "age_s": max(0.0, now - beat["time"])} if now and beat.get("time") else beat for beat in beats]


def _gather(nodes: Mapping[str, dict[str, Any]], met: Mapping[str, Any], attempt: str | None) -> Seen:
    """Join what every host saw of its own part; a newer beat replaces an older one of the same rank."""
    runs = [node["run"] for node in nodes.values()]
    clusters = [run["cluster"] for run in runs if run.get("cluster")] + [met.get("cluster") or {}]
    cluster: dict[str, Any] = next((entry for entry in clusters if entry.get("attempt") == attempt), {})
    seen = Seen(cluster, {}, {})
    own = [beat for node in nodes.values() for beat in _own_beats(node)]
    for beat in [*cluster.get("ranks", []), *own]:
        known = seen.beats.get(beat["rank"], {})
        if beat.get("attempt", attempt) == attempt and (beat.get("time") or 0) >= (known.get("time") or 0):
            seen.beats[beat["rank"]] = beat
    for entry in [*(entry for run in runs for entry in run.get("sockets") or []), *(met.get("sockets") or [])]:
        seen.sockets.setdefault(entry["rank"], []).append(entry)
    return seen


def _add_silent_ranks(
    seen: Seen, nodes: Mapping[str, dict[str, Any]], met: Mapping[str, Any], hosts: list[str]
) -> None:
    """Without the runner nobody beats: the ranks are the workers that hosts see, the steps those of rank 0's log."""
    rows = (met.get("evidence") or {}).get("ranks", [])
    step = next((row["step"] for row in rows if row["rank"] == 0), None)
    for host, node in nodes.items():
        node_rank = hosts.index(host)
        for rank in proving.ranks_of(node["run"]["processes"], host, node_rank, step if node_rank == 0 else None):
            seen.beats.setdefault(rank["rank"], rank)
            seen.sockets.setdefault(rank["rank"], [])  # it was looked at, and has none


def proof(view: View, state: State) -> State:
    """Whether the ranks train together: the runner's beats and every host's own sockets."""
    if view.check_mode:
        return state
    settings = view.settings
    stored = state.get("action") == decide.STORED
    nodes = view.nodes() if stored else view.nodes("verify_node")
    run, _known = _replan(view, state, view.nodes())
    shared = settings[run.hosts[0]]
    met = view.of("verify_rendezvous").get(run.hosts[0], {})
    seen = _gather(nodes, met, state.get("attempt"))
    if not shared["nanochat_runner"]:
        _add_silent_ranks(seen, nodes, met, run.hosts)
    judged = proving.judge(
        world_size=run.world_size or 1,
        backend="nccl" if run.device == "cuda" else "gloo",
        ranks=[seen.beats[rank] for rank in sorted(seen.beats)],
        sockets_by_rank=seen.sockets,
        expected_bytes_per_step=run.expected_bytes_per_step,
        runner=shared["nanochat_runner"],
        ifname_by_rank={rank: choice["interface"] for rank, choice in _by_rank(run, state).items()},
        addresses={rank: choice["address"] for rank, choice in _by_rank(run, state).items()},
        store_port=shared["nanochat_master_port"],
    )
    told = _merge(view.lost("verify_node"), seen.cluster.get("causes", []), met.get("causes", []), judged["causes"])
    run_state = decide.run_state({host: node["run"] for host, node in nodes.items()}) if nodes else "unknown"
    if run_state in ("failed", "half_alive") or errors(told):
        told = root_cause.explain(_master_first(nodes, run.hosts), seen.beats, told)
    causes = _merge(state["causes"], told)
    state["last_words"] = root_cause.last_words(nodes, causes)
    state["sample"] = _sample(nodes, run.hosts[0])
    if judged["verdict"] == "proven" and not errors(causes):
        verdict = "proven"
    else:
        verdict = "failed" if errors(causes) or run_state in ("failed", "half_alive") else "unverified"
        if not errors(causes):
            causes.append(cause("not_proven", f"run {run.run} is {run_state} and was not seen to train together"))
    return {
        **state,
        "causes": causes,
        "verdict": verdict,
        "run_state": run_state,
        "evidence": judged["evidence"],
        "beats": [seen.beats[rank] for rank in sorted(seen.beats)],
        # What this launch did not start, it does not end: a broken look is no reason to touch a live run.
        "end": verdict == "failed" and bool(state.get("start")) and not shared["nanochat_keep_failed"],
    }


def _sample(nodes: Mapping[str, dict[str, Any]], master: str) -> str | None:
    """How a finished run's model talks."""
    run = nodes[master]["run"] if master in nodes else {}
    return (run.get("record") or {}).get("sample") if run.get("state") == "finished" else None


def _master_first(nodes: Mapping[str, dict[str, Any]], hosts: list[str]) -> dict[str, dict[str, Any]]:
    return {host: nodes[host] for host in hosts if host in nodes}


def status(view: View, state: State) -> State:
    """What is known about the run on the hosts that answer; a dead host is a warning here."""
    nodes = view.nodes()
    causes = [*state["causes"], *_as_warnings(view.lost("preflight_node"))]
    runs = {host: node["run"] for host, node in nodes.items()}
    attempts = sorted(run["attempt"] for run in runs.values() if run["attempt"])
    state["attempt"] = attempts[-1] if attempts else None
    seen = _gather(nodes, {}, state["attempt"])
    state["run_state"] = decide.run_state(runs) if runs else "unknown"
    if state["run_state"] == "absent":
        causes.append(cause("run_absent", f"no host that answers knows a run {state['plan']['run']}", weight="note"))
    told = seen.cluster.get("causes", [])
    if state["run_state"] in ("failed", "half_alive"):
        told = root_cause.explain(_master_first(nodes, state["plan"]["hosts"]), seen.beats, told)
    causes = _merge(causes, told, root_cause.restarts(runs))
    state["last_words"] = root_cause.last_words(nodes, causes)
    state["sample"] = _sample(nodes, state["plan"]["hosts"][0])
    return {
        **state,
        "causes": causes,
        "beats": [seen.beats[rank] for rank in sorted(seen.beats)],
        "folders": {host: run["node_dir"] for host, run in runs.items() if run["node_dir"]},
        "host_runs": runs,
        # Hosts of one cluster may share a machine; their parts of this run are no other runs.
        "other_runs": {
            host: [other for other in node["other_runs"] if other["attempt"] != state["attempt"]]
            for host, node in nodes.items()
        },
        "go": bool(nodes),
    }


def ended(view: View, state: State) -> State:
    """What stopping did; a dead host is a warning, a process that is still there an error."""
    name = "stop_ended"
    causes = [*state["causes"], *_as_warnings(view.lost(name)), *view.causes(name)]
    answers = {host: answer for host, answer in view.of(name).items() if "ended" in answer}
    return {
        **state,
        "causes": causes,
        "ended": {host: answer["ended"] for host, answer in answers.items()},
        "go": bool(answers) and not errors(causes),
    }


def _as_warnings(causes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**entry, "weight": "warning"} for entry in causes]


def _merge(*lists: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All causes once, in order; the same one is often seen from several sides."""
    merged: list[dict[str, Any]] = []
    seen = set()
    for entry in (entry for entries in lists for entry in entries):
        key = (entry["code"], entry["host"], entry["rank"])
        if key not in seen:
            seen.add(key)
            merged.append(entry)
    return merged


STAGES: dict[str, Callable[[View, State], State]] = {
    "inventory": inventory,
    "check": check,
    "checked": check_stages.checked,
    "exchanged": check_stages.exchanged,
    "part": part,
    "some": some,
    "look": look,
    "shards": data_stages.shards,
    "shards_offered": data_stages.offered,
    "prepared": prepared,
    "idle": idle,
    "paths": install_stages.paths,
    "software": install_stages.software,
    "wheels": install_stages.wheels,
    "wheels_offered": install_stages.offered,
    "network": network,
    "started": started,
    "proof": proof,
    "status": status,
    "ended": ended,
}
