# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A listener that lives for some seconds and tells who it is, so that peers can try every address of this host.

It is the only thing that a look at a host starts. It detaches, so that all hosts can be tried at the same time whatever
C(forks) is, and a timer of the kernel ends it, whatever happens.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import read_text
from ansible_collections.torchlan.nanochat.plugins.module_utils.detached import detach

NAME = "torchlan-probe"
# The longest that a peer is sent bytes for a measure.
BULK_S = 0.5
_MOST_ANSWERS = 4096
# After its last visitor: hosts come in batches of C(forks).
_IDLE_S = 10.0
# A visitor tries all addresses at once.
_QUIET_S = 0.5
_NONCE_BYTES = 16
_MOST_NAME = 64


def start_listener(seconds: int, identity: str, also_port: int | None = None, visitors: int = 0) -> dict[str, Any]:
    """Start it and return C({"port", "nonce"}). Call it before any thread exists: it forks.

    :param also_port: a free port to answer on as well, until all visitors came; C(also_port) of the result is C(None)
        where it was taken.
    :param visitors: how many hosts come to measure, and tell their names: they are offered datagrams to be counted (on
        UDP C(port)) and a stream to be timed (on TCP C(bulk_port)).
    """
    sockets = _same_port_sockets(0)
    nonce = secrets.token_hex(_NONCE_BYTES // 2)
    found: dict[str, Any] = {"port": int(sockets[0].getsockname()[1]), "nonce": nonce}
    also = _taken_is_none(also_port) if also_port is not None else []
    if also_port is not None:
        found["also_port"] = also_port if also else None
    answer = (json.dumps({"nonce": nonce, "host": identity}) + "\n").encode()
    datagrams = _datagram_sockets(found["port"]) if visitors else []
    server = _Server(sockets, also, datagrams, answer, nonce.encode(), visitors)
    _start(seconds, server.serve, sockets + also + datagrams)
    if visitors:
        streams = _same_port_sockets(0)
        found["bulk_port"] = int(streams[0].getsockname()[1])
        _start(seconds, lambda until: _pour(streams, nonce.encode(), until), streams)
    return found


def _start(seconds: int, serve: Callable[[float], None], sockets: list[socket.socket]) -> None:
    """In a process of its own, which alone keeps the sockets."""

    def live() -> None:
        signal.alarm(seconds + 1)
        serve(time.monotonic() + seconds)

    detach(live, [one.fileno() for one in sockets], NAME)
    for one in sockets:
        one.close()


def end_earlier(pid: int) -> bool:
    """End a listener of an earlier look that still holds a port; False where the process is anything else."""
    if read_text("/proc/%d/comm" % pid) != NAME:
        return False
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError:
        return False
    until = time.monotonic() + 1.0
    while os.path.exists("/proc/%d" % pid) and time.monotonic() < until:
        time.sleep(0.01)
    return True


def _taken_is_none(port: int) -> list[socket.socket]:
    try:
        return _same_port_sockets(port)
    except OSError:
        return []


def _same_port_sockets(port: int) -> list[socket.socket]:
    """One port for IPv4 and, where the host has it, IPv6."""
    for _attempt in range(20):
        four = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if port:
                four.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that are over hold no port
            four.bind(("0.0.0.0", port))
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
            if port:
                six.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            six.bind(("::", four.getsockname()[1]))
            six.listen(256)
            return [four, six]
        except OSError as problem:
            six.close()
            if problem.errno != errno.EADDRINUSE:
                return [four]
        four.close()  # another program has this port on IPv6; try the next
        if port:
            break
    raise OSError("no port is free on both IPv4 and IPv6")


def _datagram_sockets(port: int) -> list[socket.socket]:
    """The same port for datagrams; none where somebody has it."""
    found = []
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            one = socket.socket(family, socket.SOCK_DGRAM)
        except OSError:
            continue
        try:
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address, port))
            found.append(one)
        except OSError:
            one.close()
    return found


class _Server:
    """Answers and hangs up, one connection at a time; a datagram's length is told to who knows us."""

    def __init__(
        self,
        sockets: list[socket.socket],
        also: list[socket.socket],
        datagrams: list[socket.socket],
        answer: bytes,
        nonce: bytes,
        visitors: int,
    ) -> None:
        self._open = [*sockets, *also, *datagrams]
        self._also, self._datagrams = also, datagrams
        self._answer, self._nonce, self._visitors = answer, nonce, visitors
        self._came: set[bytes] = set()

    def serve(self, until: float) -> None:
        for one in self._open:
            one.setblocking(False)
        for _number in range(_MOST_ANSWERS):
            came = bool(self._also) and len(self._came) >= self._visitors
            patience = max(0.0, until - time.monotonic())
            ready, _write, _error = select.select(self._open, [], [], min(patience, _QUIET_S) if came else patience)
            if not ready and came:
                self._free_also()
                continue
            if not ready:
                return
            until = min(until, time.monotonic() + _IDLE_S)
            for one in ready:
                with contextlib.suppress(OSError):
                    if one in self._datagrams:
                        data, peer = one.recvfrom(1 << 16)
                        if data.startswith(self._nonce):
                            one.sendto(self._nonce + b" %d" % len(data), peer)
                    else:
                        self._tell(one)

    def _free_also(self) -> None:
        """The port of the rendezvous is kept from nobody longer than it must."""
        self._open = [one for one in self._open if one not in self._also]
        for one in self._also:
            one.close()
        self._also = []

    def _tell(self, one: socket.socket) -> None:
        connection, _peer = one.accept()
        with connection:
            connection.settimeout(0.2)
            connection.sendall(self._answer)
            connection.shutdown(socket.SHUT_WR)
            if one in self._also:
                self._came.add(connection.recv(_MOST_NAME))


def _pour(sockets: list[socket.socket], nonce: bytes, until: float) -> None:
    """Send zeros to one peer at a time, so that what it measures is one link's."""
    block = bytes(1 << 18)
    for one in sockets:
        one.setblocking(False)
    for _number in range(_MOST_ANSWERS):
        ready, _write, _error = select.select(sockets, [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return
        until = min(until, time.monotonic() + _IDLE_S)
        for one in ready:
            try:
                connection, _peer = one.accept()
            except OSError:
                continue
            with connection:
                try:
                    connection.settimeout(0.2)
                    if connection.recv(_NONCE_BYTES, socket.MSG_WAITALL) != nonce:
                        continue
                    end = time.monotonic() + BULK_S
                    while time.monotonic() < end:
                        connection.sendall(block)
                except OSError:
                    pass  # it has seen enough
