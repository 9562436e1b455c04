# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a link carries: the largest packet that passes whole, and bytes per second. Bounded, whatever is in between."""

from __future__ import annotations

import select
import socket
import time
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.listener import BULK_S

_MTU_S = 0.4
_SEND_AGAIN_S = 0.13
_USUAL_MTUS = (9000, 4000, 1500, 1492, 1400, 1280)
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
# IP_MTU_DISCOVER and IPV6_MTU_DISCOVER with ..._PMTUDISC_PROBE: never cut into pieces, whatever was learnt before.
_WHOLE = {socket.AF_INET: (socket.IPPROTO_IP, 10, 3), socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 3)}
_RATE_S = 0.2
# A connection's first moments say nothing: buffers fill, and token buckets are full.
_WARM_UP_S = 0.05
_ALL_RATES_S = 5.0
_MOST_ADDRESSES = 2


def measure(peers: list[dict[str, Any]], links: dict[str, list[dict[str, Any]]], mtus: dict[str, int]) -> None:
    """Add C(mtu) and C(mbps) to the links; C(None) where nothing came back.

    :param peers: with C(nonce), C(port) and C(bulk_port), in the order in which they are to be timed.
    :param mtus: of this host's interfaces, by name.
    """
    wanted = [
        (peer, link)
        for peer in peers
        for link in links.get(peer["host"], [])[:_MOST_ADDRESSES]
        if peer.get("bulk_port")
    ]
    _packets(wanted, mtus)
    until = time.monotonic() + _ALL_RATES_S
    for peer, link in wanted:
        link["mbps"] = _rate(link["address"], peer, until)


def _packets(wanted: list[tuple[dict[str, Any], dict[str, Any]]], mtus: dict[str, int]) -> None:
    """All links at once: which of the usual sizes arrive."""
    asked: dict[socket.socket, tuple[dict[str, Any], bytes, list[int]]] = {}
    for peer, link in wanted:
        link["mtu"] = None
        own = mtus.get(link["interface"] or "")
        family = socket.AF_INET6 if ":" in link["address"] else socket.AF_INET
        if not own or own > 65000:  # loopback's packets are no one's cable
            continue
        handle = socket.socket(family, socket.SOCK_DGRAM)
        try:
            handle.setsockopt(*_WHOLE[family])
            handle.connect((link["address"], peer["port"]))
            handle.setblocking(False)
        except OSError:
            handle.close()
            continue
        sizes = sorted({own, *(size for size in _USUAL_MTUS if size < own)}, reverse=True)
        asked[handle] = (link, peer["nonce"].encode(), [size - _HEADERS[family] for size in sizes])
    try:
        _ask(asked)
    finally:
        for handle in asked:
            handle.close()


def _ask(asked: dict[socket.socket, tuple[dict[str, Any], bytes, list[int]]]) -> None:
    end = time.monotonic() + _MTU_S
    again = 0.0
    open_ones = dict(asked)
    while open_ones and time.monotonic() < end:
        if time.monotonic() >= again:
            again = time.monotonic() + _SEND_AGAIN_S
            for handle, (_link, nonce, sizes) in open_ones.items():
                for size in sizes:
                    try:
                        handle.send(nonce.ljust(size, b"."))
                    except OSError:
                        pass  # larger than the interface takes, or told by an earlier one that it did not arrive
        ready, _write, _error = select.select(list(open_ones), [], [], max(0.0, min(again, end) - time.monotonic()))
        for handle in ready:
            link, nonce, sizes = open_ones[handle]
            try:
                word, _space, length = handle.recv(64).partition(b" ")
            except OSError:
                continue
            if word == nonce and length.isdigit():
                family = handle.family
                link["mtu"] = max(link["mtu"] or 0, int(length) + _HEADERS[family])
                if int(length) == sizes[0]:
                    del open_ones[handle]


def _rate(address: str, peer: dict[str, Any], until: float) -> float | None:
    """Mb/s from the peer to here; 0 where it accepted and no byte came."""
    left = min(2.0, until - time.monotonic())
    if left <= 0:
        return None
    try:
        with socket.create_connection((address, peer["bulk_port"]), timeout=left) as handle:
            handle.sendall(peer["nonce"].encode())
            buffer = bytearray(1 << 18)
            handle.settimeout(left)
            if not handle.recv_into(buffer):
                return None
            first = time.monotonic()
            began, count = first, 0
            handle.settimeout(BULK_S)
            while time.monotonic() - first < _RATE_S:
                got = handle.recv_into(buffer)
                if not got:
                    break
                count += got
                if began == first and time.monotonic() - first >= _WARM_UP_S:
                    began, count = time.monotonic(), 0
            spent = time.monotonic() - began
            return round(count * 8 / spent / 1e6, 1) if count and spent > 0.01 else None
    except socket.timeout:
        return 0.0
    except OSError:
        return None
