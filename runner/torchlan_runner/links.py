# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every pair of nodes proves that it can connect on ephemeral ports, before Gloo tries and hangs without a word."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from torchlan_runner.plan import Node, Plan, cause

TIMEOUT = 4.0  # seconds for one connection
WHOLE = 10.0  # seconds for everybody's results


class Listener:
    """Answers on an ephemeral port of this node's own address with a nonce: a bare connect may reach anybody."""

    def __init__(self, address: str, run_id: str, node_rank: int) -> None:
        self.run_id, self.node_rank = run_id, node_rank
        self.nonce = secrets.token_hex(8)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.socket.bind((address, 0))
            self.socket.listen(128)
            self.socket.settimeout(0.2)
        except OSError:
            self.socket.close()
            raise
        self.address, self.port = address, self.socket.getsockname()[1]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="torchlan-links", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _peer = self.socket.accept()
            except socket.timeout:
                continue
            except OSError:
                return
            try:
                connection.settimeout(TIMEOUT)
                answer = {"run": self.run_id, "node_rank": self.node_rank, "nonce": self.nonce}
                connection.sendall((json.dumps(answer) + "\n").encode())
            except OSError:
                pass
            finally:
                connection.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(1)
        self.socket.close()


def try_link(peer: Mapping[str, Any], run_id: str, timeout: float = TIMEOUT) -> str | None:
    """None if the peer's listener answered, else what happened."""
    try:
        with socket.create_connection((peer["address"], peer["port"]), timeout) as connection:
            connection.settimeout(timeout)
            text = b""
            while not text.endswith(b"\n") and len(text) < 4096:
                part = connection.recv(4096)
                if not part:
                    break
                text += part
    except socket.timeout:
        return "no answer within %g s" % timeout
    except OSError as error:
        return "%s" % (error.strerror or error)
    try:
        answer = json.loads(text.decode("utf-8"))
    except ValueError:
        return "something else answered"
    if not isinstance(answer, dict) or answer.get("nonce") != peer["nonce"] or answer.get("run") != run_id:
        return "another host or run answered"
    return None


def check_links(board: Any, plan: Plan) -> None:
    """Raises Ended in all ranks if any node can't reach any other."""
    if len(plan.nodes) < 2:
        return
    failures: list[dict[str, Any]] = []
    if plan.local_rank == 0:
        listener = None
        try:
            listener = Listener(plan.address, plan.run_id, plan.node_rank)
            board.put(
                "link/%d" % plan.node_rank, {"address": plan.address, "port": listener.port, "nonce": listener.nonce}
            )
        except OSError as error:
            board.put("link/%d" % plan.node_rank, {"error": str(error)})
            failures.append(unusable_address(plan, error))
        if listener is not None:
            failures.extend(_connect_to_all(board, plan))
        board.put("links/%d" % plan.node_rank, failures)
    else:
        listener = None
    try:
        _wait_for_results(board, plan)
    finally:
        if listener is not None:
            listener.close()


def _connect_to_all(board: Any, plan: Plan) -> list[dict[str, Any]]:
    others = [node for node in plan.nodes if node.node_rank != plan.node_rank]
    results: dict[int, str | None] = {}
    peers: dict[int, dict[str, Any]] = {}
    threads = []
    deadline = time.monotonic() + WHOLE / 2
    waiting = {node.node_rank for node in others}
    while waiting and time.monotonic() < deadline:
        board.look()
        for node_rank in sorted(waiting):
            if board.has(["link/%d" % node_rank]):
                waiting.discard(node_rank)
                peer = board.get("link/%d" % node_rank)
                if "error" not in peer:
                    peers[node_rank] = peer
                    thread = threading.Thread(
                        target=_try_into, args=(results, node_rank, peer, plan.run_id), daemon=True
                    )
                    thread.start()
                    threads.append(thread)
        time.sleep(0.02)
    for thread in threads:
        thread.join(TIMEOUT * 2 + 1)
    found = []
    for node in others:
        problem = results.get(node.node_rank, "no answer")
        if node.node_rank in peers and problem is not None:
            found.append(blocked(plan, node, peers[node.node_rank]["port"], problem))
    return found


def _try_into(results: dict[int, str | None], node_rank: int, peer: Mapping[str, Any], run_id: str) -> None:
    results[node_rank] = try_link(peer, run_id)


def _wait_for_results(board: Any, plan: Plan) -> None:
    deadline = time.monotonic() + WHOLE
    keys = ["links/%d" % node.node_rank for node in plan.nodes]
    while not board.has(keys):
        board.look()
        if time.monotonic() > deadline:
            late = [node for node in plan.nodes if not board.has(["links/%d" % node.node_rank])]
            board.end([silent(node) for node in late])
        time.sleep(0.02)
    failures = [failure for key in keys for failure in board.get(key)]
    if failures:
        board.end(failures)


def silent(node: Node) -> dict[str, Any]:
    return cause(
        "rank_missing",
        "host %s (node_rank %d) agreed, then said nothing more during the connection check"
        % (node.host, node.node_rank),
        "look at train.log on %s" % node.host,
        host=node.host,
    )


def unusable_address(plan: Plan, error: OSError) -> dict[str, Any]:
    return cause(
        "address_unusable",
        "host %s can't listen on its own address %s (%s): %s"
        % (plan.host, plan.address, plan.ifname or "no interface named", error.strerror or error),
        "the address changed or is another host's: launch again, or set nanochat_socket_ifname",
        host=plan.host,
        rank=plan.rank,
    )


def blocked(plan: Plan, node: Node, port: int, problem: str) -> dict[str, Any]:
    return cause(
        "link_blocked",
        "%s -> %s blocked: TCP from %s to %s port %d: %s"
        % (plan.host, node.host, plan.address, node.address, port, problem),
        "on %s allow TCP from %s on all ports of net.ipv4.ip_local_port_range (%s), for example: sudo ufw allow from %s"
        % (node.host, plan.address, port_range(), plan.address),
        host=node.host,
        rank=plan.first_rank(node.node_rank),
    )


def port_range() -> str:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return "-".join(file.read().split())
    except OSError:
        return "32768-60999"
