# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from torchlan_runner import sockets


@pytest.fixture(params=["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        listener = socket.socket(family)
        listener.bind((request.param, 0))
    except OSError:
        pytest.skip("no IPv6 here")
    listener.listen()
    client = socket.socket(family)
    client.connect((request.param, listener.getsockname()[1]))
    server, _peer = listener.accept()
    yield client, server
    for end in (client, server, listener):
        end.close()


def mine(client: socket.socket) -> dict[str, Any]:
    port = client.getsockname()[1]
    return next(entry for entry in sockets.tcp_sockets([os.getpid()]) if entry["local_port"] == port)


def test_counters_and_addresses(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    client.sendall(b"x" * 5000)
    server.recv(1000)
    entry = mine(client)
    assert entry["pid"] == os.getpid()
    assert entry["remote_port"] == server.getsockname()[1]
    assert entry["local"] == client.getsockname()[0].replace("::ffff:", "")
    if entry["counters"] == "netlink":
        assert 5000 <= entry["bytes_sent"] <= 5001
        assert mine(server)["bytes_received"] == 5000
        assert {"backoff", "unacked", "retrans", "rtt_us", "last_data_recv_ms"} <= set(entry)
    assert mine(server)["unread"] == 4000


def test_a_refusing_kernel_falls_back_to_proc(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(state: int, with_info: bool = True) -> list[dict[str, Any]]:
        raise sockets.Refused(1, "Operation not permitted")

    client, server = pair
    expected = mine(client)
    monkeypatch.setattr(sockets, "_diag", refuse)
    entry = mine(client)
    assert entry["bytes_sent"] is None and entry["counters"] == "proc"
    for name in ("local", "local_port", "remote", "remote_port", "inode", "pid"):
        assert entry[name] == expected[name]
    assert any(entry["pid"] == os.getpid() for entry in sockets.listeners(server.getsockname()[1]))


def test_listeners_are_found_by_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        found = sockets.listeners(port)
        assert len(found) == 1 and found[0]["pid"] == os.getpid() and found[0]["uid"] == os.getuid()
        assert "python" in found[0]["command"] or "pytest" in found[0]["command"]
        assert port in {entry["local_port"] for entry in sockets.listeners()}
    assert sockets.listeners(port) == []


def test_processes_that_are_gone_have_no_sockets() -> None:
    assert sockets.tcp_sockets([2**22 + 1]) == []
    assert sockets.tcp_sockets([]) == []


def test_proc_lines() -> None:
    line = "  1: 0100007F:1F90 0200007F:D431 01 0000000A:00000005 00:00000000 00000000  1000        0 4242 1 x"
    entry = sockets.parse_proc_line(line)
    assert entry is not None
    assert (entry["local"], entry["local_port"], entry["remote"]) == ("127.0.0.1", 8080, "127.0.0.2")
    assert (entry["unsent"], entry["unread"], entry["uid"], entry["inode"]) == (10, 5, 1000, 4242)
    mapped = line.replace("0100007F:", "0000000000000000FFFF00000100007F:")
    other = sockets.parse_proc_line(mapped)
    assert other is not None and other["local"] == "127.0.0.1"
    assert sockets.parse_proc_line("nonsense") is None


def test_a_short_tcp_info_of_an_old_kernel() -> None:
    assert sockets.parse_info(bytes(104)).keys() == {"backoff", "unacked", "last_data_recv_ms", "rtt_us", "retrans"}
    assert sockets.parse_info(b"") == {}
