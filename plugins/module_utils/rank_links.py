# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TCP connections of ranks: which of them are with which other rank, and how many bytes went over them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Connection:
    """One end of a connection, as its process's kernel sees it."""

    local: str
    local_port: int
    remote: str
    remote_port: int
    sent: int
    received: int
    counted: bool = True
    """Whether the kernel told the bytes; in some containers it does not."""

    @property
    def ends(self) -> tuple[str, int, str, int]:
        return (self.local, self.local_port, self.remote, self.remote_port)

    @property
    def seen_from_there(self) -> tuple[str, int, str, int]:
        return (self.remote, self.remote_port, self.local, self.local_port)


@dataclass
class Exchange:
    """What one rank exchanged with other ranks."""

    rank: int
    source: str
    sent: int = 0
    received: int = 0
    connections: int = 0
    sockets: int = 0
    """All TCP connections of the process, those to no rank (the store, the internet) included."""
    stray: int = 0
    """Bytes, of the lesser direction, over connections to somebody who cannot be told."""
    counted: bool = True
    """False when the kernel did not tell the bytes of some connection with a rank."""
    bytes_by_path: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """Bytes, both directions, by (peer, local address, remote address)."""

    @property
    def peers(self) -> list[int]:
        return sorted({peer for peer, _local, _remote in self.bytes_by_path})


def connections(sockets: Iterable[Mapping[str, Any]]) -> list[Connection]:
    """Both notations: C(local="ip:port") of beats, C(local="ip", local_port=port) of C(tcp_sockets); no others.

    Of a connection that was looked at more than once, the later look counts: bytes only grow.
    """
    found: dict[tuple[str, int, str, int], Connection] = {}
    for entry in sockets:
        try:
            local, local_port = _end(entry, "local")
            remote, remote_port = _end(entry, "remote")
            sent, received = int(entry.get("bytes_sent") or 0), int(entry.get("bytes_received") or 0)
        except (KeyError, TypeError, ValueError):
            continue
        if remote_port:
            counted = entry.get("bytes_sent") is not None and entry.get("bytes_received") is not None
            one = Connection(local, local_port, remote, remote_port, sent, received, counted)
            known = found.get(one.ends)
            if known is None or (counted, sent + received) > (known.counted, known.sent + known.received):
                found[one.ends] = one
    return list(found.values())


def exchange(
    rank: int,
    source: str,
    own: Iterable[Connection],
    far_ends: Mapping[tuple[str, int, str, int], int],
    dark: Mapping[int, set[str]],
    store_port: int | None,
) -> Exchange:
    """Sum up the connections of a rank that lead to another rank.

    :param far_ends: whose the known ends of connections are: one that two ranks list is between these two.
    :param dark: addresses of ranks on other hosts whose connections are not known. A connection to such an address has
        to do, as long as its bytes are those of training.
    """
    result = Exchange(rank, source)
    for connection in own:
        result.sockets += 1
        peer = far_ends.get(connection.seen_from_there)
        if peer is None:
            if store_port in (connection.local_port, connection.remote_port):
                continue
            peer = next((other for other in sorted(dark) if connection.remote in dark[other]), None)
        if peer is None:
            result.stray += min(connection.sent, connection.received)
        elif peer != rank:
            result.counted = result.counted and connection.counted
            result.connections += 1
            result.sent += connection.sent
            result.received += connection.received
            path = (peer, connection.local, connection.remote)
            result.bytes_by_path[path] = result.bytes_by_path.get(path, 0) + connection.sent + connection.received
    return result


def address(text: str) -> str:
    """An IP address in one spelling: C(::ffff:192.0.2.1) is 192.0.2.1, and a scope is left out."""
    parsed = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)


def family(text: str) -> int:
    return ipaddress.ip_address(text).version


def _end(entry: Mapping[str, Any], side: str) -> tuple[str, int]:
    text = str(entry[side])
    if entry.get(side + "_port") is not None:
        return address(text), int(entry[side + "_port"])
    host, _colon, port = text.rpartition(":")
    return address(host), int(port)
