# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of a verdict that C(preflight.yml) has for itself: a forecast of a launch, and the links as measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause, errors
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import (
    decide,
    deliver,
    link_advice,
    links,
    render,
)
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import (
    forecast as forecasting,
)
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import plan as planning
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import (
    shards as shards_util,
)

if TYPE_CHECKING:
    from ansible_collections.torchlan.nanochat.plugins.plugin_utils.stages import State, View


_SKIP = "-e nanochat_preflight_collective=false skips it; a launch says more"


def forecast(view: View, state: State, run: planning.Plan, nodes: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What a launch would bring, and what it would refuse on the way."""
    settings = view.settings
    wanted = {name: state[name] for name in ("commit", "requirements", "manifest")}
    state["todo"] = decide.todo(run, settings, nodes, **wanted)
    causes = forecasting.software(run, settings, nodes, state["todo"], state["packages"], state["commit"])
    folder = settings[run.hosts[0]]["nanochat_dataset_dir"]
    try:
        own = shards_util.known(deliver.absolute(folder)) if folder else None
    except shards_util.ShardsError as problem:
        return [*causes, problem.cause]
    return causes + forecasting.data(run, settings, nodes, own) + forecasting.notes(run, nodes)


def checked(view: View, state: State) -> State:
    """The links between the hosts that answered; the last word of a preflight."""
    causes = list(state["causes"])
    hosts = state.get("plan", {}).get("hosts", [])
    nodes = {host: node for host, node in view.nodes().items() if host in hosts}
    probed = view.of("preflight_links")
    if state.get("start") and probed:
        lost = view.lost("preflight_links")
        causes += lost
        answered = {host: result for host, result in probed.items() if "links" in result}
        wanted = {host: view.settings[host]["nanochat_socket_ifname"] for host in nodes}
        chosen = links.choose(nodes, answered, wanted)
        state["network"] = chosen["choice"]
        state["measured"] = link_advice.measured(chosen["choice"], answered)
        found = chosen["causes"] + link_advice.rendezvous(nodes, chosen["choice"], answered)
        found += link_advice.check(nodes, chosen["choice"], state["measured"])
        causes += view.weigh(found)
        if not errors(causes):
            state["exchange"], reasons = _exchange(view, state, nodes)
            causes += reasons
    return {**state, "causes": causes, "go": not errors(causes)}


def _exchange(
    view: View, state: State, nodes: Mapping[str, dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """What each host is told for a small exchange with the run's own environment; empty where there is to be none."""
    settings, plan = view.settings, state["plan"]
    hosts = plan["hosts"]
    shared = settings[plan["master"]]
    if not shared["nanochat_preflight_collective"] or len(hosts) < 2 or set(state["network"]) != set(hosts):
        return {}, []
    without = [host for host in hosts if nodes[host]["environment"]["state"] != "ready"]
    if without:
        what = f"no exchange was tried: {', '.join(without)} has no torch yet"
        return {}, [cause("launch_brings", what, weight="note")]
    run = planning.make(settings, {host: len(nodes[host]["host"]["gpus"]) for host in hosts})[0]
    address = shared["nanochat_master_addr"] or state["network"][plan["master"]]["address"]
    meet = f"[{address}]" if ":" in address else address
    told = {"world": len(hosts), "meet": f"{meet}:{shared['nanochat_master_port']}", "device": plan["device"]}
    exchange = {}
    for rank, host in enumerate(hosts):
        variables = render.environment(run, settings[host], nodes[host], state["network"][host], "/")
        variables.pop("PYTHONPATH")  # the runner is not there
        python = nodes[host]["environment"]["python"]
        exchange[host] = {"python": python, "environment": variables, "told": {"rank": rank, **told}}
    return exchange, []


def exchanged(view: View, state: State) -> State:
    """What came of the exchange; its speed is the cluster's."""
    causes = [*view.lost("preflight_exchange"), *view.lost("preflight_exchanged")]
    answers = view.of("preflight_exchanged")
    found = {host: answer["exchange"] for host, answer in answers.items() if answer.get("exchange")}
    silent = [host for host in answers if host not in found]
    problems = {host: str(answers[host].get("problem") or "") for host in silent}
    # one that says that its time is over has waited for another
    broken = {host: text for host, text in problems.items() if text and "timed out" not in text.lower()}
    if broken and not causes:
        host = min(broken, key=lambda name: "peer" in broken[name])  # who lost a peer is not the first
        what = f"{host}: a small exchange of all hosts did not work: {broken[host]}"
        causes += view.weigh([cause("backend_failed", what, _SKIP, host=host)])
    elif silent:
        # who is reached by all has no reason to hang: importing torch takes long on a busy host
        what = f"a small exchange of all hosts had no end in time on {', '.join(silent)}; are they busy?"
        causes.append(cause("start_timeout", what, _SKIP, weight="warning"))
    elif any(not one["right"] for one in found.values()):
        causes.append(cause("backend_failed", "a small exchange of all hosts gave a wrong sum"))
    elif found:
        slowest = max(found.values(), key=lambda one: float(one["seconds"]))
        step = state["plan"].get("expected_bytes_per_step")
        state["collective"] = {
            "mbps": round(slowest["mbps"]),
            "step_s": round(step * 8 / slowest["mbps"] / 1e6, 3) if step else None,
        }
    causes = state["causes"] + causes
    return {**state, "exchange": {}, "causes": causes, "go": not errors(causes)}
