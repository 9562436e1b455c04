# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this rank was told: TORCHLAN_PLAN and the variables that torchrun sets."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EXIT_CODE = 78  # this start was refused by the runner itself (EX_CONFIG), the script never ran
ENDED_CODE = 79  # the guard ended this rank, because the run is over


class PlanError(Exception):
    """TORCHLAN_PLAN can't be used."""


@dataclass(frozen=True)
class Node:
    node_rank: int
    host: str
    address: str
    nproc: int


@dataclass(frozen=True)
class Plan:
    run: str
    attempt: str
    device: str
    host: str
    node_rank: int
    nnodes: int
    world_size: int
    nodes: tuple[Node, ...]
    ifname: str | None
    address: str
    join_timeout: float
    compare_env: tuple[str, ...]
    fingerprint: Mapping[str, Any]
    # from torchrun
    rank: int
    local_rank: int
    env_world_size: int
    group_world_size: int
    master_addr: str
    master_port: int
    run_id: str
    restart: int
    run_dir: str | None
    raw: Mapping[str, Any] = field(repr=False, default_factory=dict)

    def place(self, rank: int) -> tuple[str | None, int | None]:
        """Host and node rank where the plan puts a global rank."""
        first = 0
        for node in self.nodes:
            if first <= rank < first + node.nproc:
                return node.host, node.node_rank
            first += node.nproc
        return None, None

    def first_rank(self, node_rank: int) -> int:
        return sum(node.nproc for node in self.nodes if node.node_rank < node_rank)

    def address_of(self, node_rank: int) -> str:
        return next((node.address for node in self.nodes if node.node_rank == node_rank), "")


def read_plan(environ: Mapping[str, str]) -> Plan:
    text = environ.get("TORCHLAN_PLAN", "")
    if not text:
        raise PlanError(
            "TORCHLAN_PLAN is not set. torchlan_runner is started by the run.sh that the collection writes; "
            "to start a script by hand, run it without the runner."
        )
    try:
        raw = json.loads(text)
        nodes = tuple(
            sorted(
                (
                    Node(int(n["node_rank"]), str(n["host"]), str(n.get("address") or ""), int(n.get("nproc") or 1))
                    for n in raw["nodes"]
                ),
                key=lambda node: node.node_rank,
            )
        )
        node_rank = int(raw["node_rank"])
        world_size = int(raw.get("world_size") or sum(node.nproc for node in nodes))
        return Plan(
            run=str(raw["run"]),
            attempt=str(raw["attempt"]),
            device=str(raw.get("device") or "cpu"),
            host=str(raw.get("host") or socket.gethostname()),
            node_rank=node_rank,
            nnodes=int(raw.get("nnodes") or len(nodes)),
            world_size=world_size,
            nodes=nodes,
            ifname=raw.get("ifname"),
            address=next((node.address for node in nodes if node.node_rank == node_rank), ""),
            join_timeout=float(raw.get("join_timeout") or 20),
            compare_env=tuple(str(name) for name in raw.get("compare_env") or ()),
            fingerprint=raw.get("fingerprint") or {},
            rank=int(environ.get("RANK", "0")),
            local_rank=int(environ.get("LOCAL_RANK", "0")),
            env_world_size=int(environ.get("WORLD_SIZE", "1")),
            group_world_size=int(environ.get("GROUP_WORLD_SIZE", "1")),
            master_addr=environ.get("MASTER_ADDR", ""),
            master_port=int(environ.get("MASTER_PORT", "0") or 0),
            run_id=environ.get("TORCHELASTIC_RUN_ID", "") or "%s.%s" % (raw["run"], raw["attempt"]),
            restart=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0),
            run_dir=environ.get("TORCHLAN_RUN_DIR") or None,
            raw=raw,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError("TORCHLAN_PLAN can't be read: %s: %s" % (type(error).__name__, error)) from error


def script_and_args(argv: list[str]) -> tuple[str, list[str]]:
    """SCRIPT and ARGS from the command line. torchrun leaves `--` in or not, depending on Python's argparse."""
    words = argv[1:]
    if words[:1] == ["--"]:
        words = words[1:]
    if not words or words[0].startswith("-"):
        raise PlanError("usage: python -m torchlan_runner MODULE [--] ARGS…")
    script, args = words[0], words[1:]
    if args[:1] == ["--"]:
        args = args[1:]
    return script, args


def cause(
    code: str, what: str, fix: str, host: str | None = None, rank: int | None = None, weight: str = "error"
) -> dict[str, Any]:
    """The collection's one shape of a cause (its own module_utils are not on a host's path)."""
    return {"code": code, "weight": weight, "host": host, "rank": rank, "what": what, "fix": fix}


def options(args: list[str]) -> dict[str, str]:
    """The script's options as they are in its arguments, C(--depth) -> C(4); a flag has the value C()."""
    return {key: value for key, _equals, value in (word.partition("=") for word in args)}


def warn(text: str) -> None:
    """One line on stderr; never an error of its own."""
    try:
        os.write(2, ("[torchlan] " + text + "\n").encode("utf-8", "replace"))
    except OSError:
        pass
