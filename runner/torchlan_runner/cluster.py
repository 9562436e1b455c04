# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""cluster.json: what rank 0 knows about all ranks, and which of their ends is the cause of the others."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from torchlan_runner.plan import Plan, cause

# What a rank says when another one went away: a consequence, not the cause.
_PEER_LOST = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe|connection refused|socket closed|"
    r"timed out waiting|application timeout|gloo/transport|remote process exited|nccl.*(remote|system) error",
    re.IGNORECASE,
)


def is_consequence(error: Mapping[str, Any]) -> bool:
    return error.get("type") in (
        "RuntimeError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "ConnectionError",
    ) and bool(_PEER_LOST.search(str(error.get("message") or "")))


def ends(entry: Mapping[str, Any]) -> bool:
    """Whether a cause can be why a rank ended: warnings and notes are about what goes on."""
    return entry["weight"] == "error" or entry["code"] == "ended_from_outside"


def compose(
    plan: Plan, beats: Mapping[int, Mapping[str, Any]], reason: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The whole picture. `reason`: why the guards have ended the run."""
    ranks: list[dict[str, Any]] = []
    for rank in range(max(plan.world_size, plan.env_world_size)):
        if rank in beats:
            ranks.append(dict(beats[rank]))
        else:
            host, node_rank = plan.place(rank)
            ranks.append({"rank": rank, "node_rank": node_rank, "host": host, "state": "missing"})
    equal = equal_parameters(ranks)
    return {
        "schema": 1,
        "run": plan.run,
        "attempt": plan.attempt,
        "time": time.time(),
        "world_size": plan.env_world_size,
        "ranks": ranks,
        "causes": collect_causes(ranks, equal, reason),
        "agreed": all(rank.get("agreed") for rank in ranks),
        "equal_parameters": {name: equal[name] for name in ("step", "equal")} if equal else None,
    }


def equal_parameters(ranks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The newest step whose checksum all ranks have; any unequal step of all is reported rather than it."""
    if not ranks:
        return None
    common = set(ranks[0].get("checksums") or {})
    for rank in ranks[1:]:
        common &= set(rank.get("checksums") or {})
    newest = None
    for step in sorted(common, key=int):
        values = {rank["rank"]: rank["checksums"][step] for rank in ranks}
        newest = {"step": int(step), "equal": len(set(values.values())) == 1, "values": values}
        if not newest["equal"]:
            return newest
    return newest


def collect_causes(
    ranks: list[dict[str, Any]], equal: Mapping[str, Any] | None, reason: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """What ranks and guards say, each thing once: first what can be the cause of the rest."""
    found: list[dict[str, Any]] = []
    signals: list[dict[str, Any]] = []

    def add(entry: Mapping[str, Any]) -> None:
        if not any((one["code"], one["rank"], one["host"]) == (entry["code"], entry["rank"], entry["host"])
                   for one in found if entry["rank"] is not None or one == entry):  # fmt: skip
            found.append(dict(entry))

    errors = [rank for rank in ranks if rank.get("error")]
    errors.sort(key=lambda rank: rank["error"]["time"])
    for rank in errors:
        if not is_consequence(rank["error"]):
            add(error_cause(rank))
    for entry in [*([reason] if reason else []), *(entry for rank in ranks for entry in rank.get("causes") or [])]:
        if entry["code"] == "ended_from_outside":
            signals.append(dict(entry))
        else:
            add(entry)
    others = any(entry["weight"] == "error" for entry in found)
    for rank in errors:
        if is_consequence(rank["error"]):
            add(peer_lost_cause(rank, "warning" if others else "error"))
    for entry in signals:  # torchrun ends its other workers when one has failed
        add(dict(entry, weight="note") if others else entry)
    for rank in ranks:
        code = rank.get("exit_code")
        if code and not rank.get("error") and not any(map(ends, found)):
            found.append(
                cause(
                    "rank_died",
                    "rank %s on %s exited with status %s" % (rank["rank"], rank.get("host"), code),
                    "look at the end of train.log on %s" % rank.get("host"),
                    host=rank.get("host"),
                    rank=rank["rank"],
                )
            )
    if equal and not equal["equal"]:
        found.append(parameters_cause(ranks, equal))
    return found


def error_cause(rank: Mapping[str, Any]) -> dict[str, Any]:
    error = rank["error"]
    message = str(error.get("message") or "").strip().splitlines()
    return cause(
        "exception",
        "rank %s on %s: %s: %s" % (rank["rank"], rank.get("host"), error.get("type"), message[0] if message else ""),
        "look at the traceback in train.log on %s" % rank.get("host"),
        host=rank.get("host"),
        rank=rank["rank"],
    )


def peer_lost_cause(rank: Mapping[str, Any], weight: str) -> dict[str, Any]:
    message = str(rank["error"].get("message") or "").strip().splitlines()
    return cause(
        "peer_lost",
        "rank %s on %s lost another rank: %s" % (rank["rank"], rank.get("host"), message[0] if message else ""),
        "the cause is on another host: look for the rank that ended first, or for the link between them",
        host=rank.get("host"),
        rank=rank["rank"],
        weight=weight,
    )


def parameters_cause(ranks: list[dict[str, Any]], equal: Mapping[str, Any]) -> dict[str, Any]:
    groups: dict[str, list[str]] = {}
    for rank in ranks:
        groups.setdefault(equal["values"][rank["rank"]], []).append("%s on %s" % (rank["rank"], rank.get("host")))
    text = " | ".join("rank " + ", ".join(names) for names in groups.values())
    return cause(
        "parameters_differ",
        "after step %d the ranks hold different parameters: %s" % (equal["step"], text),
        "the ranks train unrelated models: the script does not exchange gradients, or starts from different weights",
    )
