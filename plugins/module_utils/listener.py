# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A listener that lives for some seconds and tells who it is, so that peers can try every address of this host.

It is the only thing that a look at a host starts. It detaches, so that all hosts can be tried at the same time whatever
C(forks) is, and a timer of the kernel ends it, whatever happens.
"""

from __future__ import annotations

import json
import secrets
import select
import signal
import socket
import time
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.detached import detach

_MOST_ANSWERS = 4096


def start_listener(seconds: int, identity: str) -> dict[str, Any]:
    """Start it and return C({"port", "nonce"}). Call it before any thread exists: it forks."""
    sockets = _same_port_sockets()
    nonce = secrets.token_hex(8)
    port = int(sockets[0].getsockname()[1])
    answer = (json.dumps({"nonce": nonce, "host": identity}) + "\n").encode()
    detach(lambda: _live(sockets, answer, seconds), [one.fileno() for one in sockets], "torchlan-probe")
    for one in sockets:
        one.close()
    return {"port": port, "nonce": nonce}


def _same_port_sockets() -> list[socket.socket]:
    """One port for IPv4 and, where the host has it, IPv6."""
    for _attempt in range(20):
        four = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            four.bind(("0.0.0.0", 0))
            four.listen(256)
        except OSError:
            four.close()
            raise
        try:
            six = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        except OSError:
            return [four]
        try:
            six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            six.bind(("::", four.getsockname()[1]))
            six.listen(256)
            return [four, six]
        except OSError as problem:
            six.close()
            if problem.errno != 98:  # EADDRINUSE: another program has this port on IPv6; try the next
                return [four]
        four.close()
    raise OSError("no port is free on both IPv4 and IPv6")


def _live(sockets: list[socket.socket], answer: bytes, seconds: int) -> None:
    signal.alarm(seconds + 1)
    _serve(sockets, answer, time.monotonic() + seconds)


def _serve(sockets: list[socket.socket], answer: bytes, until: float) -> None:
    """Answer and hang up: one connection at a time, nothing is read."""
    for one in sockets:
        one.setblocking(False)
    for _number in range(_MOST_ANSWERS):
        ready, _write, _error = select.select(sockets, [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return
        for one in ready:
            try:
                connection, _peer = one.accept()
            except OSError:
                continue
            with connection:
                try:
                    connection.settimeout(0.2)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
