# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of a verdict about shards and tokenizers, for the role C(dataset)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause, errors
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import data_plan, deliver, exchange
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import shards as shards_util

if TYPE_CHECKING:
    from ansible_collections.torchlan.nanochat.plugins.plugin_utils.stages import State, View

# Registered by the role, in this order.
TASKS = (
    "dataset_shards",
    "dataset_received",
    "dataset_offered",
    "dataset_fetched",
    "dataset_remembered",
    "dataset_trained",
    "dataset_tokenizer",
)


def shards(view: View, state: State) -> State:
    """What is to be done about shards and tokenizers, from what every host that takes part has."""
    causes = [*view.lost("dataset_shards"), *view.causes("dataset_shards")]
    answers = view.of("dataset_shards")
    looks = {host: answers[host] for host in state["plan"]["hosts"] if "files" in answers.get(host, {})}
    if not looks or errors(causes):
        return {**state, "causes": state["causes"] + causes, "go": not errors(causes)}
    shared = view.shared
    folder = shared["nanochat_dataset_dir"]
    try:
        own = shards_util.manifest(deliver.absolute(folder)) if folder else None
        if folder:  # by now it was read
            state["manifest"] = shards_util.known_digest(deliver.absolute(folder))
    except shards_util.ShardsError as problem:
        return {**state, "causes": [*state["causes"], problem.cause], "go": False}
    linked = [host for host, choice in (state.get("network") or {}).items() if choice.get("address")]
    plan = state["plan"]
    made = data_plan.make(looks, plan["master"], own, plan["world_size"], shared["nanochat_dataset_repair"], linked)
    causes += view.weigh(made.pop("causes"))
    causes += _predicted(made) if view.check_mode else []
    # The public name of the exchange; its secret is made on the spot, and is in no registered variable.
    made["exchange_name"] = exchange.new() if made["exchange"] else None
    made["files"] = [{key: one[key] for key in ("name", "size", "sha256")} for one in made["files"]]
    return {**state, "data": made, "causes": state["causes"] + causes, "go": not errors(causes)}


def _predicted(made: dict[str, Any]) -> list[dict[str, Any]]:
    """For check mode, what would come from host to host: those tasks don't run."""
    sizes = {one["name"]: one["size"] for one in made["files"]}
    notes = []
    for host, mine in made["hosts"].items():
        names = mine["missing"] + mine["replace"]
        if names:
            what = f"{host}: would get {len(names)} shard(s), {sum(sizes[name] for name in names) / 1e6:.0f} MB"
            notes.append(cause("note", what, "run it without --check", host=host, weight="note"))
    return notes


def offered(view: View, state: State) -> State:
    """Where every host of the exchange offers what it has."""
    tasks = ("dataset_received", "dataset_offered")
    causes = [entry for name in tasks for entry in (*view.lost(name), *view.causes(name))]
    offers: dict[str, dict[str, Any]] = {
        host: {"address": state["network"][host]["address"], "port": answer["port"], "have": answer["have"]}
        for host, answer in view.of("dataset_offered").items()
        if answer.get("port")
    }
    return {**state, "offers": offers, "causes": state["causes"] + causes, "go": not errors(causes)}
