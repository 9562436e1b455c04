# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe and the listener that it looks for, on real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaces import Lab, lab_fixture  # noqa: F401

from ansible_collections.torchlan.nanochat.plugins.module_utils.interfaces import by_address, interfaces
from ansible_collections.torchlan.nanochat.plugins.module_utils.probing import probe
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import firewall, links

LISTEN = (
    "import json, sys; from ansible_collections.torchlan.nanochat.plugins.module_utils.listener import start_listener;"
    "print(json.dumps(start_listener(int(sys.argv[1]), sys.argv[2])))"
)
PROBE = (
    "import json, sys; from ansible_collections.torchlan.nanochat.plugins.module_utils.interfaces import *;"
    "from ansible_collections.torchlan.nanochat.plugins.module_utils.probing import probe;"
    "print(json.dumps(probe(json.loads(sys.argv[1]), float(sys.argv[2]), by_address(interfaces()))))"
)


MEASURE = (
    "import json, sys; from ansible_collections.torchlan.nanochat.plugins.module_utils.interfaces import *;"
    "from ansible_collections.torchlan.nanochat.plugins.module_utils.probing import probe;"
    "from ansible_collections.torchlan.nanochat.plugins.module_utils.measuring import measure;"
    "peers = json.loads(sys.argv[1]); own = interfaces(); found, _ = probe(peers, 2.0, by_address(own));"
    "measure(peers, found, {entry['name']: entry['mtu'] for entry in own}); print(json.dumps(found))"
)
LISTEN_FOR = (
    "import json, sys; from ansible_collections.torchlan.nanochat.plugins.module_utils.listener import start_listener;"
    "print(json.dumps(start_listener(20, 'me', int(sys.argv[1]), int(sys.argv[2]))))"
)
LISTENS = (
    "import json, sys; from ansible_collections.torchlan.nanochat.plugins.module_utils.sockets import listeners;"
    "print(json.dumps(bool(listeners(int(sys.argv[1])))))"
)
LOOK = (
    "import json, sys; from ansible_collections.torchlan.nanochat.plugins.modules.node_info import look;"
    "print(json.dumps(look(json.loads(sys.argv[1]))))"
)


def start(seconds: int, identity: str = "me") -> dict[str, Any]:
    """In a process of its own, with its output on a pipe, like a module."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    argv = [sys.executable, "-c", LISTEN, str(seconds), identity]
    # A listener that kept the pipe open would make this wait.
    done = subprocess.run(argv, stdout=subprocess.PIPE, env=env, timeout=20, check=True)
    return dict(json.loads(done.stdout))


def peer(host: str, listener: dict[str, Any], *addresses: str) -> dict[str, Any]:
    return {"host": host, "addresses": list(addresses), **listener}


def probe_here(*peers: dict[str, Any], timeout_s: float = 1.0) -> tuple[dict[str, Any], dict[str, Any]]:
    return probe(list(peers), timeout_s, by_address(interfaces()))


def ask(port: int, family: socket.AddressFamily = socket.AF_INET) -> dict[str, Any]:
    with socket.socket(family) as connection:
        connection.settimeout(2)
        connection.connect(("127.0.0.1" if family == socket.AF_INET else "::1", port))
        return dict(json.loads(connection.makefile().readline()))


def holder(port: int) -> Path:
    """The process that listens on a port, by the name that it gave itself."""
    until = time.monotonic() + 3
    while time.monotonic() < until:  # /proc/net/tcp may miss an entry while others come and go
        for comm in Path("/proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                if comm.read_text().strip() != "torchlan-probe":
                    continue
                inodes = [os.readlink(path) for path in (comm.parent / "fd").iterdir()]
                table = (comm.parent / "net/tcp").read_text()
                lines = [line.split() for line in table.splitlines() if f":{port:04X} " in line]
                if any(f"socket:[{words[9]}]" in inodes for words in lines):
                    return comm.parent
        time.sleep(0.1)
    raise AssertionError(f"nobody listens on {port}")


@contextlib.contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """Accepts, and says something else than a listener would; or, with None, nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = listening.accept()[0]
                    if answer is None:
                        kept.append(connection)
                    else:
                        with contextlib.suppress(OSError):
                            connection.sendall(answer)
                        connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        for connection in kept:
            connection.close()


def test_listener_answers_on_both_families_and_keeps_nothing_open() -> None:
    listener = start(20, "host-1")
    expected = {"nonce": listener["nonce"], "host": "host-1"}
    assert ask(listener["port"]) == expected
    if socket.has_ipv6 and "::1" in by_address(interfaces()):
        assert ask(listener["port"], socket.AF_INET6) == expected
    process = holder(listener["port"])
    try:
        open_files = {os.readlink(path) for path in (process / "fd").iterdir()}
        assert {name for name in open_files if not name.startswith("socket:")} == {os.devnull}
        assert os.readlink(process / "cwd") == "/"
        assert os.getsid(int(process.name)) != os.getsid(0)
    finally:
        os.kill(int(process.name), 15)


def test_listener_ends_by_itself() -> None:
    listener = start(2)
    assert ask(listener["port"])["nonce"] == listener["nonce"]
    process = holder(listener["port"])
    until = time.monotonic() + 5
    while process.exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not process.exists()


def test_listener_survives_peers_that_say_much_or_vanish() -> None:
    listener = start(10)
    for _number in range(20):
        with socket.create_connection(("127.0.0.1", listener["port"])) as connection, contextlib.suppress(OSError):
            connection.sendall(b"x" * 100000)
    assert ask(listener["port"])["nonce"] == listener["nonce"]


def test_a_link_and_its_interface() -> None:
    reached, unreached = probe_here(peer("b", start(10), "127.0.0.1"))
    assert unreached == {"b": []}
    (link,) = reached["b"]
    assert (link["address"], link["local_address"], link["interface"]) == ("127.0.0.1", "127.0.0.1", "lo")
    assert 0 <= link["rtt_ms"] < 100


def test_two_hosts_on_one_machine_are_told_apart() -> None:
    one, two = start(10), start(10)
    reached, unreached = probe_here(
        peer("right", one, "127.0.0.1"), peer("wrong", {**one, "nonce": two["nonce"]}, "127.0.0.1")
    )
    assert len(reached["right"]) == 1
    assert reached["wrong"] == []
    assert unreached["wrong"][0]["error"] == "wrong_peer"


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"[]\n", b"", b"\xff" * 5000, b'{"nonce": "other"}\n'])
def test_another_program_is_no_peer(answer: bytes) -> None:
    with server(answer) as port:
        reached, unreached = probe_here(peer("b", {"port": port, "nonce": "n"}, "127.0.0.1"))
    assert reached == {"b": []}
    assert unreached["b"][0]["error"] in ("wrong_peer", "refused")


def test_a_silent_program_is_a_timeout() -> None:
    with server(None) as port:
        begun = time.monotonic()
        _reached, unreached = probe_here(peer("b", {"port": port, "nonce": "n"}, "127.0.0.1"), timeout_s=0.5)
    assert unreached["b"][0]["error"] == "timeout"
    assert time.monotonic() - begun < 2


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    _reached, unreached = probe_here(peer("b", {"port": port, "nonce": "n"}, "127.0.0.1"))
    assert {"address": "127.0.0.1", "error": "refused", "errno": 111}.items() <= unreached["b"][0].items()


def test_link_local_is_skipped_and_names_are_not_resolved() -> None:
    listener = {"port": 9, "nonce": "n"}
    reached, unreached = probe_here(peer("b", listener, "fe80::1", "fe80::1%eth0", "some-name.example.org"))
    assert reached == {"b": []}
    assert [(entry["address"], entry["error"]) for entry in unreached["b"]] == [
        ("some-name.example.org", "unreachable")
    ]


def test_without_peers() -> None:
    assert probe_here() == ({}, {})


def test_docker_addresses_on_both_sides_reach_nobody(lab: Lab) -> None:
    a, b = lab.host("a"), lab.host("b")
    lab.cable(a, "eth0", "10.90.0.1/24", b, "lan7", "10.90.0.2/24")
    lab.cable(a, "eth1", "fd00:91::1/64", b, "lan8", "fd00:91::2/64")
    for host in (a, b):
        lab.ip(host, "link", "add", "docker0", "type", "bridge")
        lab.ip(host, "address", "add", "172.17.0.1/16", "dev", "docker0")
        lab.ip(host, "link", "set", "docker0", "up")
    there = lab.python(b, LISTEN, "20", "b")
    addresses = ["172.17.0.1", "10.90.0.2", "fd00:91::2", "192.168.77.7"]
    reached, unreached = lab.python(a, PROBE, json.dumps([peer("b", there, *addresses)]), "1")
    assert [(link["address"], link["local_address"], link["interface"]) for link in reached["b"]] == [
        ("10.90.0.2", "10.90.0.1", "eth0"),
        ("fd00:91::2", "fd00:91::1", "eth1"),
    ]
    assert {entry["address"]: entry["error"] for entry in unreached["b"]} == {
        "172.17.0.1": "refused",
        "192.168.77.7": "unreachable",
    }
    # The same port is by chance taken here as well: it is this host that answers at its own docker0.
    own = lab.python(a, LISTEN, "20", "a")
    _reached, unreached = lab.python(
        a, PROBE, json.dumps([peer("b", {**there, "port": own["port"]}, "172.17.0.1")]), "1"
    )
    assert unreached["b"][0]["error"] == "wrong_peer"


def test_eight_peers_behind_a_firewall_take_under_three_seconds(lab: Lab) -> None:
    a, b = lab.host("a"), lab.host("b")
    lab.cable(a, "eth0", "10.90.0.1/24", b, "eth0", "10.90.0.2/24")
    for number in range(3, 60):
        lab.ip(b, "address", "add", f"10.90.0.{number}/24", "dev", "eth0")
    for number in range(60, 70):  # a neighbour entry that leads nowhere: sent, and never answered
        lab.ip(a, "neighbour", "add", f"10.90.0.{number}", "lladdr", "02:00:00:00:00:01", "dev", "eth0")
    there = lab.python(b, LISTEN, "30", "b")
    peers = [peer(f"good{n}", there, *(f"10.90.0.{2 + 6 * n + m}" for m in range(6))) for n in range(8)]
    peers += [peer(f"bad{n}", there, f"10.90.0.{60 + n}") for n in range(10)]
    begun = time.monotonic()
    reached, unreached = lab.python(a, PROBE, json.dumps(peers), "2")
    assert time.monotonic() - begun < 3
    assert all(len(reached[f"good{n}"]) == 6 for n in range(8))
    assert all(unreached[f"bad{n}"][0]["error"] == "timeout" for n in range(10))


def look_and_choose(lab: Lab, hosts: dict[str, str], wanted: dict[str, str | None] | None = None) -> dict[str, Any]:
    """Everything that a launch does to find interfaces, from the look to the choice."""
    params = {"run": "r", "node_rank": 0, "dir": "/nowhere", "base_dir": "/tmp", "data_dir": None, "python": None}
    params.update(install_method="uv", master_port=29500, device_type="cpu", listen_s=15, needs=[])
    params.update(measured_by=0, model_tag=None)
    nodes = {host: lab.python(there, LOOK, json.dumps(params)) for host, there in hosts.items()}
    found = {}
    for host, there in hosts.items():
        reached, unreached = lab.python(there, PROBE, json.dumps(links.peers(nodes, host)), "1")
        found[host] = {"links": reached, "unreached": unreached}
    return links.choose(nodes, found, wanted)


def test_from_look_to_choice_and_with_a_firewall(lab: Lab) -> None:
    hosts = {name: lab.host(name) for name in ("a", "b")}
    a, b = hosts["a"], hosts["b"]
    lab.cable(a, "enp4s0", "10.90.0.1/24", b, "usb0", "10.90.0.2/24")
    for host in (a, b):
        lab.ip(host, "link", "add", "docker0", "type", "bridge")
        lab.ip(host, "address", "add", "172.17.0.1/16", "dev", "docker0")
        lab.ip(host, "link", "set", "docker0", "up")
    result = look_and_choose(lab, hosts)
    assert result["causes"] == []
    assert {host: (one["interface"], one["address"]) for host, one in result["choice"].items()} == {
        "a": ("enp4s0", "10.90.0.1"),
        "b": ("usb0", "10.90.0.2"),
    }
    # ssh and the rendezvous port are open, the ephemeral ports are not
    rule = ["INPUT", "-p", "tcp", "--syn", "--dport", "30000:65535", "-j", "DROP"]
    dropped = subprocess.run(["ip", "netns", "exec", b, "iptables", "-A", *rule], capture_output=True, check=False)
    if dropped.returncode != 0:
        pytest.skip("no iptables here")
    (cause,) = look_and_choose(lab, hosts)["causes"]
    assert (cause["code"], cause["host"]) == ("link_blocked", "b")
    assert cause["what"].startswith("a cannot connect to b")
    assert "10.90.0.2:" in cause["what"]
    (opening,), (closing,) = firewall.commands({"kind": "iptables"}, ["10.90.0.1"])
    assert f"sudo {opening}" in cause["fix"] and f"sudo {closing}" in cause["fix"]
    subprocess.run(["ip", "netns", "exec", b, *opening.split()], check=True)
    assert look_and_choose(lab, hosts)["causes"] == []


def test_speed_packets_and_the_port_of_the_rendezvous(lab: Lab) -> None:
    a, b = lab.host("a"), lab.host("b")
    lab.cable(a, "wide", "10.90.0.1/24", b, "usual", "10.90.0.2/24")
    lab.ip(a, "link", "set", "wide", "mtu", "9000")
    subprocess.run(["ip", "netns", "exec", b, *"tc qdisc add dev usual root tbf rate 80mbit".split(),
                    *"burst 64kb latency 50ms".split()], check=True)  # fmt: skip
    listener = lab.python(b, LISTEN_FOR, "29500", "1")
    assert listener["also_port"] == 29500
    (link,) = lab.python(a, MEASURE, json.dumps([peer("b", listener, "10.90.0.2")]))["b"]
    assert link["also"] == {"port": 29500, "error": None}
    assert link["mtu"] == 1500, "what b's card takes"
    assert 40 < link["mbps"] < 90
    until = time.monotonic() + 5
    while lab.python(b, LISTENS, "29500"):  # the one visitor came
        assert time.monotonic() < until
    assert lab.python(b, LISTENS, str(listener["port"]))
    # taken by somebody: nothing of ours is there, and nothing is sent to it
    with_holder = "import json, socket, sys; one = socket.create_server(('', 29500));" + LISTEN_FOR.replace(
        "import json, sys;", ""
    )
    assert lab.python(b, with_holder, "29500", "1")["also_port"] is None
