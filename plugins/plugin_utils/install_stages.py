# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of a verdict about software, for the role C(install), and about the paths that files take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import errors
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import exchange, links, sharing

if TYPE_CHECKING:
    from ansible_collections.torchlan.nanochat.plugins.plugin_utils.stages import State, View

# Registered by the role, in this order.
TASKS = (
    "install_packages",
    "install_checkout",
    "install_wanted",
    "install_fetched",
    "install_offered",
    "install_shared",
    "install_environment",
)


def paths(view: View, state: State) -> State:
    """Addresses over which hosts bring each other files, before there is a run."""
    nodes, settings = view.nodes(), view.settings
    causes = view.lost("preflight_links")
    if not causes:
        wanted = {host: settings[host]["nanochat_socket_ifname"] for host in nodes}
        chosen = links.choose(nodes, view.of("preflight_links"), wanted)
        causes = list(chosen["causes"])
        state["network"] = {} if errors(causes) else chosen["choice"]
    if state.get("partial"):
        # Every host can be served through the controller; a launch would be refused in the end.
        causes = [{**entry, "weight": "warning"} for entry in causes]
    return _next(state, causes)


def software(view: View, state: State) -> State:
    """Who fetches what an environment is made from, so that the slow line carries it once."""
    tasks = TASKS[:3]
    causes = [entry for name in tasks for entry in (*view.lost(name), *view.causes(name))]
    if not errors(causes):
        looks, ranked = view.of("install_wanted"), state["plan"]["hosts"]
        methods = {host: settings["nanochat_install_method"] for host, settings in view.settings.items()}
        ordered = {host: looks[host] for host in ranked if host in looks}
        state["sharing"] = sharing.make(ordered, state["todo"]["install"], methods, list(state.get("network") or {}))
    return _next(state, causes)


def wheels(view: View, state: State) -> State:
    """The files are on some host: who offers them and who gets them."""
    causes = [*view.lost("install_fetched"), *view.causes("install_fetched")]
    if not errors(causes):
        looks, fetched = view.of("install_wanted"), view.of("install_fetched")
        state["wheels"] = sharing.exchanges(state["sharing"], looks, fetched)
        state["exchange_name"] = exchange.new() if state["wheels"] else None
    return _next(state, causes)


def offered(view: View, state: State) -> State:
    """Where every host offers its files; C(offers) by host, of the hosts that exchange the same ones."""
    causes = [*view.lost("install_offered"), *view.causes("install_offered")]
    answers, shares = view.of("install_offered"), state["wheels"]
    known: dict[str, dict[str, Any]] = {
        host: {"address": state["network"][host]["address"], "port": answer["port"], "have": answer["have"]}
        for host, answer in answers.items()
        if answer.get("port")
    }
    state["offers"] = {
        host: {other: offer for other, offer in known.items() if shares[other]["group"] == mine["group"]}
        for host, mine in shares.items()
    }
    return _next(state, causes)


def _next(state: State, causes: list[dict[str, Any]]) -> State:
    new = [entry for entry in causes if entry not in state["causes"]]
    return {**state, "causes": state["causes"] + new, "go": not errors(causes)}
