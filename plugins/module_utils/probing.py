# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connect to many addresses at once and see who answers."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import selectors
import socket
import struct
import time
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.host import identity

_MOST_AT_ONCE = 200
_MOST_BYTES = 256
_NO_ANSWER = -1
# Of the timeout, once every peer was reached in some way.
_ENOUGH = 0.6


class _Attempt:
    """One address of one peer, from connect to the answer."""

    def __init__(self, peer: dict[str, Any], address: str, port: int, tell: bytes = b"") -> None:
        self.peer = peer
        self.tell = tell
        self.port = port
        self.address = address
        self.family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.received = b""
        self.connected = False
        self.link: dict[str, Any] | None = None
        self.number: int | None = None
        self.wrong_peer = False
        self.until = 0.0
        self.handle: socket.socket | None = None

    def begin(self, until: float) -> bool:
        """False where the system refuses at once."""
        self.until = until
        try:
            ipaddress.ip_address(self.address)  # a name would ask a resolver, and wait for it
        except ValueError:
            return self.end(errno.EINVAL)
        try:
            self.handle = socket.socket(self.family, socket.SOCK_STREAM)
            self.handle.setblocking(False)
            number = self.handle.connect_ex((self.address, self.port))
        except OSError as problem:
            number = problem.errno or _NO_ANSWER
        if number in (0, errno.EINPROGRESS):
            return True
        return self.end(number)

    def ready(self) -> bool:
        """Go on after the socket became ready; False when done."""
        if self.handle is None:
            return False
        if not self.connected:
            number = self.handle.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                return self.end(number)
            self.connected = True
            return True
        try:
            block = self.handle.recv(_MOST_BYTES)
        except BlockingIOError:
            return True
        except OSError as problem:
            return self.end(problem.errno or _NO_ANSWER)
        self.received += block
        if block and b"\n" not in self.received and len(self.received) < _MOST_BYTES:
            return True
        if _nonce(self.received) != self.peer["nonce"]:
            self.wrong_peer = True
            return self.end(0)
        self.link = {
            "address": self.address,
            "local_address": _plain(str(self.handle.getsockname()[0])),
            "interface": None,
            "rtt_ms": _rtt_ms(self.handle),
        }
        if self.tell:
            with contextlib.suppress(OSError):
                self.handle.send(self.tell)
        return self.end(0)

    def end(self, number: int) -> bool:
        self.number = number
        if self.handle is not None:
            self.handle.close()
        return False

    def failure(self) -> dict[str, Any]:
        number = self.number or 0
        if self.wrong_peer:
            error = "wrong_peer"
        elif number in (errno.ECONNREFUSED, errno.ECONNRESET):
            error = "refused"
        elif number in (errno.ETIMEDOUT, _NO_ANSWER):
            error, number = "timeout", errno.ETIMEDOUT
        else:
            error = "unreachable"
        return {
            "address": self.address,
            "error": error,
            "errno": number,
            "message": os.strerror(number) if number else "",
        }


def probe(
    peers: list[dict[str, Any]], timeout_s: float, names: dict[str, str]
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[dict[str, Any]]]]:
    """Links and failures per peer. C(names) says which interface of this host holds which address.

    Where a peer answers on C(also_port) too, C(also) of a link says whether that one was reached.
    """
    attempts, also, own = [], {}, identity().encode()
    for peer in peers:
        for address in dict.fromkeys(peer["addresses"]):
            if not _is_link_local(address):
                attempts.append(_Attempt(peer, address, peer["port"]))
                if peer.get("also_port"):
                    also[peer["host"], address] = _Attempt(peer, address, peer["also_port"], own)
    _try_all([*attempts, *also.values()], timeout_s)
    links: dict[str, list[dict[str, Any]]] = {peer["host"]: [] for peer in peers}
    unreached: dict[str, list[dict[str, Any]]] = {peer["host"]: [] for peer in peers}
    for attempt in attempts:
        if attempt.link is None:
            unreached[attempt.peer["host"]].append(attempt.failure())
        else:
            attempt.link["interface"] = names.get(attempt.link["local_address"])
            second = also.get((attempt.peer["host"], attempt.address))
            if second:
                error = None if second.link else second.failure()["error"]
                attempt.link["also"] = {"port": second.port, "error": error}
            links[attempt.peer["host"]].append(attempt.link)
    return links, unreached


def _try_all(attempts: list[_Attempt], timeout_s: float) -> None:
    waiting = list(reversed(attempts))
    # Many slow addresses must not multiply the time: what is not begun by then is tried briefly.
    whole_until = time.monotonic() + timeout_s * 2
    # Time for a lost packet to be sent again.
    enough_at = time.monotonic() + timeout_s * _ENOUGH
    hosts = {(attempt.peer["host"], attempt.port) for attempt in attempts}

    def all_reached() -> bool:
        return hosts == {(attempt.peer["host"], attempt.port) for attempt in attempts if attempt.link}

    with selectors.DefaultSelector() as selector:
        open_ones: set[_Attempt] = set()
        while waiting or open_ones:
            while waiting and len(open_ones) < _MOST_AT_ONCE:
                attempt = waiting.pop()
                now = time.monotonic()
                if attempt.begin(now + max(0.2, min(timeout_s, whole_until - now))):
                    open_ones.add(attempt)
                    selector.register(attempt.handle, selectors.EVENT_WRITE, attempt)  # type: ignore[arg-type]
            now = time.monotonic()
            patience = min((attempt.until for attempt in open_ones), default=now) - now
            if now < enough_at:
                patience = min(patience, enough_at - now)
            for key, _events in selector.select(max(0.0, patience) if open_ones else 0.0):
                attempt = key.data
                # A closed socket cannot be unregistered, so that comes first.
                selector.unregister(key.fileobj)
                if attempt.ready():
                    selector.register(key.fileobj, selectors.EVENT_READ, attempt)
                else:
                    open_ones.discard(attempt)
            now = time.monotonic()
            if now >= enough_at and not waiting and all_reached():
                now = whole_until  # decoys and overlays that lead nowhere are not waited for
            for attempt in [one for one in open_ones if one.until <= now]:
                selector.unregister(attempt.handle)  # type: ignore[arg-type]
                attempt.end(_NO_ANSWER)
                open_ones.discard(attempt)


def _nonce(received: bytes) -> str | None:
    try:
        answer = json.loads(received.decode("utf-8"))
    except ValueError:
        return None
    return answer.get("nonce") if isinstance(answer, dict) else None


def _rtt_ms(handle: socket.socket) -> float | None:
    """The kernel's own measure of the handshake: this process is busy with the other connections."""
    try:
        info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return round(struct.unpack_from("=I", info, 68)[0] / 1000.0, 3)
    except (OSError, struct.error):
        return None


def _plain(address: str) -> str:
    return address.partition("%")[0]


def _is_link_local(address: str) -> bool:
    return "%" in address or address.lower().startswith(("fe8", "fe9", "fea", "feb"))
