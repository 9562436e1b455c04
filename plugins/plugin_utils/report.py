# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""report.json, for machines, from the last verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import progress

SCHEMA = 1

# What the hosts' words for a run mean to a person.
_STATES = {None: "not started", "alive": "running", "half_alive": "half alive"}


def build(
    state: Mapping[str, Any], results: Mapping[str, Mapping[str, dict[str, Any]]], check_mode: bool
) -> dict[str, Any]:
    """The report as the documentation describes it.

    :param state: the last verdict's state.
    :param results: registered results by name and host, for the seconds that each stage took.
    """
    plan = state.get("plan") or {}
    evidence = state.get("evidence") or {}
    verdict, run_state = state.get("verdict"), state.get("run_state")
    if check_mode and state.get("go"):
        verdict = "planned"
    return {
        "schema": SCHEMA,
        "run": plan.get("run"),
        "attempt": state.get("attempt"),
        "verdict": verdict or "refused",
        "state": _STATES.get(run_state, run_state),
        "world_size": plan.get("world_size"),
        "backend": next(
            (beat["backend"] for beat in state.get("beats", []) if beat.get("backend")), evidence.get("backend")
        ),
        "ranks": ranks(state),
        "total": progress.total(state.get("beats", [])),
        "evidence": evidence,
        "plan": {key: plan.get(key) for key in ("script", "device", "hosts", "numbers", "arguments")},
        "network": state.get("network") or {},
        "causes": state.get("causes", []),
        "remote_tasks_before_agents": sum(
            1 for name in ("preflight_node", "launch_links", "launch_started") if results.get(name)
        ),
        "timings_s": timings(state, results),
    }


def ranks(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry a rank, the plan's ranks joined with what their beats said."""
    beats = {beat["rank"]: beat for beat in state.get("beats", [])}
    measured = {entry["rank"]: entry for entry in (state.get("evidence") or {}).get("ranks", [])}
    newest = max((beat.get("time") or 0 for beat in beats.values()), default=0)
    network = state.get("network") or {}
    words, began = progress.doing(beats.values()), progress.began_at(beats.values())
    result = []
    for entry in (state.get("plan") or {}).get("ranks") or list(beats.values()):
        beat = beats.get(entry["rank"], {})
        seen = measured.get(entry["rank"], {})
        host = entry["host"]
        result.append(
            {
                "rank": entry["rank"],
                "host": host,
                "node_rank": entry["node_rank"],
                "local_rank": entry.get("local_rank"),
                "pid": beat.get("pid"),
                "state": beat.get("state", "missing"),
                "doing": words.get(entry["rank"], "missing"),
                "address": beat.get("address") or network.get(host, {}).get("address"),
                "interface": beat.get("ifname") or network.get(host, {}).get("interface"),
                "collectives": beat.get("collectives_finished"),
                "bytes_sent": seen.get("bytes_sent", _own_count(beat, "bytes_sent")),
                "bytes_received": seen.get("bytes_received", _own_count(beat, "bytes_received")),
                "step": None if beat.get("step") is None else beat["step"] + began,
                "steps": beat.get("step_of"),
                "loss": beat.get("loss"),
                "tokens_per_s": beat.get("tokens_per_s"),
                "communication_share": beat.get("communication_share"),
                "memory_bytes": beat.get("memory_bytes"),
                "exit_code": beat.get("exit_code"),
                "last_beat_age_s": round(beat.get("age_s", newest - beat["time"]), 1) if beat.get("time") else None,
            }
        )
    return result


def _own_count(beat: Mapping[str, Any], which: str) -> int | None:
    """Bytes over all connections of a rank by its own beat, where nobody judged them."""
    counts = [entry[which] for entry in beat.get("sockets") or [] if entry.get(which) is not None]
    return sum(counts) if counts else None


def timings(state: Mapping[str, Any], results: Mapping[str, Mapping[str, dict[str, Any]]]) -> dict[str, float]:
    """Seconds of each remote task (its slowest host), and of the whole from the first verdict to the last."""
    named = {
        "node_info": "preflight_node",
        "packages": "install_packages",
        "checkout": "install_checkout",
        "fetch": "install_fetched",
        "share_wheels": "install_shared",
        "environment": "install_environment",
        "dataset": "dataset_shards",
        "share_shards": "dataset_fetched",
        "tokenizer": "dataset_trained",
        "link_probe": "launch_links",
        "measure": "preflight_links",
        "exchange": "preflight_exchanged",
        "training_run": "launch_started",
        "rendezvous": "verify_rendezvous",
        "node_info_again": "verify_node",
    }
    result = {}
    for label, name in named.items():
        seconds = [answer["seconds"] for answer in results.get(name, {}).values() if "seconds" in answer]
        if seconds:
            result[label] = max(seconds)
    times = dict(state.get("times", []))
    if "inventory" in times:
        if "training_run" in result:
            result["until_agents_run"] = round(times["started"] - times["inventory"], 2)
        result["total"] = round(max(times.values()) - times["inventory"], 2)
    return result
