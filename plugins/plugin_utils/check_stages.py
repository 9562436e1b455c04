# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of a verdict that C(preflight.yml) has for itself: a forecast of a launch, and the links as measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import errors
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import (
    decide,
    deliver,
    link_advice,
    links,
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
    return {**state, "causes": causes, "go": not errors(causes)}
