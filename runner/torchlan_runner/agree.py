# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All ranks agree before any process group exists, or all of them end, with the reason in every log.

Talks through torchrun's own store, for start-up only: with a dead link its calls ignore their timeouts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Callable

from torchlan_runner.plan import Plan, cause

# fact group -> (cause code, what a person calls it, how to fix a difference)
GROUPS = {
    "world": (
        "world_differs",
        "world",
        "start every host from one launch: same inventory, same nnodes; end older agents with stop.yml",
    ),
    "argument": (
        "arguments_differ",
        "argument",
        "set arguments for the whole group, not per host; launch again with nanochat_relaunch=true",
    ),
    "version": (
        "versions_differ",
        "version",
        "install the same versions on every host: install.yml, or equal environments in nanochat_python",
    ),
    "environment": (
        "environment_differs",
        "environment variable",
        "set the variable for the whole group (nanochat_env in group_vars), not per host",
    ),
    "code": (
        "versions_differ",
        "nanochat code",
        "bring every host to one commit without local changes: install.yml",
    ),
    "tokenizer": ("tokenizer_differs", "tokenizer", "copy the master's tokenizer to every host: dataset.yml"),
    "data": ("data_differ", "data", "bring the same shards to every host: dataset.yml"),
    "plan": (
        "arguments_differ",
        "plan",
        "start every host from one launch; end older agents with stop.yml",
    ),
}
# what the controller put into the plan's fingerprint -> fact group
PLAN_GROUPS = {
    "args": "argument",
    "script": "argument",
    "commit": "code",
    "dirty": "code",
    "tokenizer": "tokenizer",
    "tokenizer_sha256": "tokenizer",
    "shards": "data",
    "data": "data",
}
SETTLE = 3.0  # seconds in which the others may learn why we end


class Ended(Exception):
    """This start is over for every rank; causes say why."""

    def __init__(self, causes: list[dict[str, Any]], table: str = "") -> None:
        super().__init__("; ".join(c["what"] for c in causes))
        self.causes = causes
        self.table = table


class Board:
    """The store with our prefix, and one common verdict that ends everybody."""

    def __init__(self, store: Any, plan: Plan) -> None:
        self.store = store
        self.plan = plan

    def put(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def has(self, keys: list[str]) -> bool:
        return bool(self.store.check(keys))

    def get(self, key: str) -> Any:
        return json.loads(self.store.get(key).decode("utf-8"))

    def count(self, key: str) -> int:
        return int(self.store.add(key, 1))

    def end(self, causes: list[dict[str, Any]], table: str = "") -> None:
        """Ends this start for all ranks: the first verdict wins, everybody raises the same one."""
        if self.count("end/claims") == 1:
            self.put("end/verdict", {"causes": causes, "table": table})
        deadline = time.monotonic() + SETTLE
        while not self.has(["end/verdict"]) and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.has(["end/verdict"]):
            verdict = self.get("end/verdict")
            causes, table = verdict["causes"], verdict["table"]
        self._settle()
        raise Ended(causes, table)

    def look(self) -> None:
        """Raises Ended if any rank has ended this start."""
        if self.has(["end/verdict"]):
            verdict = self.get("end/verdict")
            self._settle()
            raise Ended(verdict["causes"], verdict["table"])

    def _settle(self) -> None:
        """torchrun's store dies with the first agent: leave it up until those who joined have read the verdict."""
        self.put("end/seen/%d" % self.plan.rank, 1)
        joined = [r for r in range(self.plan.env_world_size) if self.has(["print/%d" % r])]
        deadline = time.monotonic() + SETTLE
        while time.monotonic() < deadline:
            if all(self.has(["end/seen/%d" % r]) for r in joined):
                return
            time.sleep(0.05)


def open_board(plan: Plan, environ: Mapping[str, str]) -> Board:
    from torch.distributed import PrefixStore, TCPStore

    hosted_by_agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        plan.master_addr,
        plan.master_port,
        None,
        plan.rank == 0 and not hosted_by_agent,
        timedelta(seconds=max(plan.join_timeout, 1)),
        wait_for_workers=False,
        multi_tenant=True,
    )
    return Board(PrefixStore("torchlan/%s/%d" % (plan.run_id, plan.restart), store), plan)


def agree(
    board: Board, facts: Mapping[str, Any], pid: int, poll: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Claims the rank, publishes the facts, waits for all, compares. Returns the warnings."""
    plan = board.plan
    deadline = time.monotonic() + plan.join_timeout
    me = {"host": plan.host, "node_rank": plan.node_rank, "rank": plan.rank, "local_rank": plan.local_rank, "pid": pid}
    number = board.count("claim/%d" % plan.rank)
    board.put("who/%d/%d" % (plan.rank, number), me)
    if number > 1:
        first_key = "who/%d/1" % plan.rank
        first = board.get(first_key) if board.has([first_key]) else {"host": "?", "node_rank": "?"}
        board.end([duplicate_cause(plan.rank, first, me)])
    board.put("print/%d" % plan.rank, {"who": me, "facts": dict(facts)})

    world = plan.env_world_size
    waiting = set(range(world))
    prints: dict[int, dict[str, Any]] = {}
    pause = 0.02
    while waiting:
        board.look()
        if board.has(["print/%d" % rank for rank in sorted(waiting)]):
            here = set(waiting)
        else:
            here = {rank for rank in waiting if board.has(["print/%d" % rank])}
        prints.update({rank: board.get("print/%d" % rank) for rank in here})
        waiting -= here
        if waiting and here:
            # A rank that counts a larger world than we do waits for ranks that never come: compare early what is there.
            _judge(board, {rank: _world_only(entry) for rank, entry in prints.items()}, plan)
        if waiting and time.monotonic() > deadline:
            board.end(missing_causes(plan, waiting))
        if waiting:
            poll()
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
    board.look()
    return _judge(board, prints, plan)


def _world_only(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"who": entry["who"], "facts": {k: v for k, v in entry["facts"].items() if k.startswith("world.")}}


def _judge(board: Board, prints: Mapping[int, Mapping[str, Any]], plan: Plan) -> list[dict[str, Any]]:
    if len(prints) < 2:
        return []
    rows = differences(prints)
    causes = difference_causes(rows, plan.device)
    if any(c["weight"] == "error" for c in causes):
        board.end(causes, table(rows))
    return causes


def duplicate_cause(rank: int, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    return cause(
        "rank_duplicate",
        "rank %d was claimed twice: by host %s (node_rank %s, pid %s) and by host %s (node_rank %s, pid %s)"
        % (
            rank,
            first["host"],
            first["node_rank"],
            first.get("pid"),
            second["host"],
            second["node_rank"],
            second.get("pid"),
        ),
        "give every host its own node_rank, and end older agents of this run with stop.yml",
        host=second["host"],
        rank=rank,
    )


def missing_causes(plan: Plan, missing: set[int]) -> list[dict[str, Any]]:
    found = []
    for rank in sorted(missing):
        host, node_rank = plan.place(rank)
        found.append(
            cause(
                "rank_missing",
                "rank %d (host %s, node_rank %s) has not joined within %g s"
                % (rank, host, node_rank, plan.join_timeout),
                "look at train.log on %s; if it is only slow to start, raise nanochat_join_timeout"
                % (host or "that host"),
                host=host,
                rank=rank,
            )
        )
    return found


def differences(prints: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Facts that are not equal to the lowest rank's (rank 0's when it is there): key and value per rank."""
    base = prints[min(prints)]["facts"]
    keys = list(base)
    for entry in prints.values():
        keys.extend(key for key in entry["facts"] if key not in keys)
    rows = []
    for key in keys:
        values = {rank: entry["facts"].get(key) for rank, entry in prints.items()}
        if any(value != base.get(key) for value in values.values()):
            rows.append(
                {
                    "key": key,
                    "values": values,
                    "hosts": {rank: entry["who"]["host"] for rank, entry in prints.items()},
                    "base": min(prints),
                }
            )
    return rows


def difference_causes(rows: list[dict[str, Any]], device: str) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        group, _dot, name = row["key"].partition(".")
        if group == "plan":
            group = PLAN_GROUPS.get(name.split(".")[0], "plan")
        code, noun, fix = GROUPS.get(group, GROUPS["plan"])
        weight = "error"
        if row["key"] == "version.torch build" and device == "cpu":
            weight = "warning"  # +cpu and +cu128 of one version train together on CPUs
        base = row["values"][row["base"]]
        others = [rank for rank, value in sorted(row["values"].items()) if value != base]
        rank = others[0]
        what = "%s %s: %s on %s, %s on %s" % (
            noun,
            name,
            shown(base),
            row["hosts"][row["base"]],
            shown(row["values"][rank]),
            ", ".join(dict.fromkeys(row["hosts"][r] for r in others)),
        )
        found.append(cause(code, what, fix, host=row["hosts"][rank], rank=rank, weight=weight))
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """What differs, one line per fact, one column per host (per rank where a host's ranks differ)."""
    if not rows:
        return ""
    ranks = sorted({rank for row in rows for rank in row["values"]})
    columns: list[tuple[str, int]] = []
    for rank in ranks:
        host = next(row["hosts"][rank] for row in rows if rank in row["hosts"])
        same = [r for h, r in columns if h.split(" rank ")[0] == host]
        if same and all(row["values"].get(rank) == row["values"].get(same[0]) for row in rows):
            continue
        columns.append((host if not same else "%s rank %d" % (host, rank), rank))
    lines = [["differs"] + [host for host, _rank in columns]]
    for row in rows:
        lines.append([row["key"].replace(".", " ", 1)] + [shown(row["values"].get(rank)) for _host, rank in columns])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def shown(value: Any) -> str:
    text = "(not set)" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:40] + "…" + text[-16:]
