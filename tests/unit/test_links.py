# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of interfaces: what is preferred, what the user set, and what is said when nothing fits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import links
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.assignment import assign

Reaches = Callable[[str, str, str], "str | None"]


def interface(name: str, address: str | None = None, kind: str = "ethernet", **more: Any) -> dict[str, Any]:
    addresses = []
    for text in (address or "").split():
        plain, _slash, prefix = text.partition("/")
        family = "ipv6" if ":" in plain else "ipv4"
        addresses.append(
            {"address": plain, "family": family, "prefix": int(prefix or 24), "scope": "global", "label": None}
        )
    found = {"name": name, "up": True, "loopback": kind == "loopback", "kind": kind, "speed_mbps": None, "members": []}
    return {**found, "addresses": addresses, **more}


LO = interface("lo", "127.0.0.1/8", "loopback")
DOCKER = interface("docker0", "172.17.0.1/16", "docker")


def node(identity: str, *interfaces: dict[str, Any]) -> dict[str, Any]:
    listener = {"port": 40000, "nonce": identity}
    return {"host": {"identity": identity}, "interfaces": [LO, *interfaces], "listener": listener}


def probe(nodes: dict[str, Any], way: Reaches, error: str = "timeout", rtt_ms: float = 0.2) -> dict[str, Any]:
    """What link_probe would say: `way` names the interface by which a host reaches an address of another, or None."""
    found: dict[str, Any] = {}
    for a in nodes:
        result: dict[str, Any] = {"links": {}, "unreached": {}}
        for peer in links.peers(nodes, a):
            good, bad = result["links"].setdefault(peer["host"], []), result["unreached"].setdefault(peer["host"], [])
            for address in peer["addresses"]:
                by = way(a, peer["host"], address)
                if by:
                    good.append({"address": address, "local_address": "-", "interface": by, "rtt_ms": rtt_ms})
                else:
                    bad.append({"address": address, "error": error, "errno": 110})
        found[a] = result
    return found


def by_subnet(nodes: dict[str, Any]) -> Reaches:
    """Hosts reach each other inside of a /24; Docker's subnet is everyone's own."""

    def way(a: str, _b: str, address: str) -> str | None:
        for own in nodes[a]["interfaces"]:
            for entry in own["addresses"]:
                if own["up"] and own["kind"] != "docker" and _subnet(entry["address"]) == _subnet(address):
                    return str(own["name"])
        return None

    return way


def _subnet(address: str) -> str:
    return address.rpartition(":" if ":" in address else ".")[0]


def chosen(
    nodes: dict[str, Any], wanted: dict[str, str | None] | None = None, way: Reaches | None = None
) -> dict[str, Any]:
    return links.choose(nodes, probe(nodes, way or by_subnet(nodes)), wanted or {})


def names(result: dict[str, Any]) -> dict[str, str]:
    assert result["causes"] == []
    return {host: entry["interface"] for host, entry in result["choice"].items()}


def test_the_wire_and_not_docker_wireless_or_overlay() -> None:
    overlay = {"a": "100.64.0.1", "b": "100.64.0.2"}
    nodes = {
        host: node(
            host,
            DOCKER,
            interface("tailscale0", overlay[host], "tun"),
            interface("wlan0", f"192.0.3.{number}", "wireless"),
            interface(wire, f"192.0.2.{number}", speed_mbps=1000),
        )
        for number, (host, wire) in enumerate([("a", "enp4s0"), ("b", "enx00e04c680001")], 36)
    }
    result = chosen(nodes)
    assert names(result) == {"a": "enp4s0", "b": "enx00e04c680001"}
    assert result["choice"]["a"]["address"] == "192.0.2.36"
    assert result["choice"]["a"]["why"] == "reached by its peer; wired, 1000 Mb/s, 0.2 ms"
    why = {entry["interface"]: entry["why"] for entry in result["ignored"]["a"]}
    assert why == {
        "docker0": "a Docker bridge; no peer reaches it at 172.17.0.1",
        "tailscale0": "a tunnel or overlay network, and enp4s0 is wired",
        "wlan0": "wireless, and enp4s0 is wired",
    }


def test_wireless_where_one_host_has_nothing_else() -> None:
    nodes = {
        "a": node("a", interface("eth0", "192.0.2.1")),
        "b": node("b", interface("eth0", "10.0.0.5"), interface("wlan0", "192.0.2.2", "wireless")),
    }
    assert names(chosen(nodes)) == {"a": "eth0", "b": "wlan0"}


def test_the_faster_of_two_wires() -> None:
    nodes = {
        host: node(
            host,
            interface("eth0", f"192.0.2.{number}", speed_mbps=1000),
            interface("eth1", f"10.0.0.{number}", speed_mbps=10000),
        )
        for number, host in enumerate("abc", 1)
    }
    assert set(names(chosen(nodes)).values()) == {"eth1"}
    # one host has a slow card there: still one network for all
    nodes["c"] = node(
        "c", interface("eth0", "192.0.2.3", speed_mbps=1000), interface("usb0", "10.9.9.9", speed_mbps=10000)
    )
    result = chosen(nodes)
    assert set(names(result).values()) == {"eth0"}
    assert result["ignored"]["a"] == [{"interface": "eth1", "why": "wired; not reached by c"}]


def test_a_bridge_over_a_real_port_is_a_wire() -> None:
    nodes = {
        host: node(
            host,
            interface("eth0", speed_mbps=2500),
            interface("wlan0", f"192.0.3.{number}", "wireless"),
            interface("br0", f"192.0.2.{number}", "bridge", members=["eth0"]),
            interface("virbr0", "192.168.122.1", "bridge"),
        )
        for number, host in enumerate("ab", 1)
    }
    way = by_subnet(nodes)
    result = chosen(nodes, way=lambda a, b, x: None if x == "192.168.122.1" else way(a, b, x))
    assert set(names(result).values()) == {"br0"}


def test_ipv6_only_where_there_is_no_ipv4() -> None:
    nodes = {host: node(host, interface("eth0", f"192.0.2.{n} fd00::{n}")) for n, host in enumerate("ab", 1)}
    assert chosen(nodes)["choice"]["a"]["address"] == "192.0.2.1"
    nodes = {host: node(host, interface("eth0", f"fd00::{n}/64")) for n, host in enumerate("ab", 1)}
    assert chosen(nodes)["choice"]["a"]["address"] == "fd00::1"


def test_an_alias_is_not_the_interfaces_address() -> None:
    one = interface("eth0", "192.0.2.1")
    one["addresses"].insert(
        0, {"address": "10.0.0.1", "family": "ipv4", "prefix": 24, "scope": "global", "label": "eth0:1"}
    )
    assert links.address_of(one) == "192.0.2.1"


def test_two_interfaces_in_one_subnet() -> None:
    """Both of b's addresses are reached, but its own connections leave by the wireless one."""
    nodes = {
        "a": node("a", interface("eth0", "192.0.2.1")),
        "b": node("b", interface("eth0", "192.0.2.2"), interface("wlan0", "192.0.2.3", "wireless")),
    }
    way = {"a": "eth0", "b": "wlan0"}
    result = chosen(nodes, way=lambda a, _b, x: way[a] if x.startswith("192.") else None)
    assert names(result) == {"a": "eth0", "b": "wlan0"}
    assert result["ignored"]["b"] == [{"interface": "eth0", "why": "wired; this host's own connections leave by wlan0"}]
    # the user's word is refused where the routes say something else: the proof would fail on it
    result = chosen(nodes, {"b": "eth0"}, way=lambda a, _b, x: way[a] if x.startswith("192.") else None)
    assert result["choice"]["b"]["interface"] == "eth0"
    (cause,) = result["causes"]
    assert (cause["code"], cause["weight"], cause["host"]) == ("wrong_interface", "error", "b")
    assert "wlan0" in cause["what"] and "wlan0 on b" in cause["fix"]


def test_loopback_only_on_one_machine() -> None:
    nodes = {host: node("same", interface("eth0", "192.0.2.1")) for host in ("local-0", "local-1")}
    result = chosen(nodes, way=lambda _a, _b, x: "lo" if x.startswith("127.") else "eth0")
    assert names(result) == {"local-0": "lo", "local-1": "lo"}
    assert result["choice"]["local-0"] == {
        "interface": "lo",
        "address": "127.0.0.1",
        "why": "all hosts are this one machine",
    }
    # two nodes of one machine and a real other one
    nodes["far"] = node("other", interface("eth0", "192.0.2.9"))
    result = chosen(nodes, way=lambda _a, _b, x: "lo" if x.startswith("127.") else "eth0")
    assert set(names(result).values()) == {"eth0"}


def test_containers_of_one_machine_have_their_own_loopback() -> None:
    nodes = {host: node(host, interface("eth0", f"192.0.2.{n}", "veth")) for n, host in enumerate("ab", 1)}
    assert set(names(chosen(nodes)).values()) == {"eth0"}
    assert all("127.0.0.1" not in peer["addresses"] for peer in links.peers(nodes, "a"))


def test_one_host_alone() -> None:
    result = links.choose({"a": node("a", interface("eth0", "192.0.2.1"))}, {"a": {"links": {}, "unreached": {}}})
    assert result["choice"]["a"]["why"] == "the only host"


def test_without_a_probe_the_preference_decides() -> None:
    nodes = {host: node(host, DOCKER, interface("eth0", f"192.0.2.{n}")) for n, host in enumerate("ab", 1)}
    result = links.choose(nodes, {})
    assert names(result) == {"a": "eth0", "b": "eth0"}
    assert result["choice"]["a"]["why"].startswith("not tried yet")


def test_wanted_names() -> None:
    nodes = {
        host: node(host, interface("eth0", f"192.0.2.{n}"), interface("wlan0", f"192.0.3.{n}", "wireless"))
        for n, host in enumerate("ab", 1)
    }
    result = chosen(nodes, {"a": "wlan0", "b": None})
    assert names(result) == {"a": "wlan0", "b": "wlan0"}
    assert result["choice"]["a"]["why"].startswith("set by nanochat_socket_ifname; wireless")


def test_wanted_name_that_is_not_there() -> None:
    nodes = {host: node(host, DOCKER, interface("enp4s0", f"192.0.2.{n}")) for n, host in enumerate("ab", 1)}
    (cause,) = chosen(nodes, {"b": "eth0"})["causes"]
    assert (cause["code"], cause["host"]) == ("interface_unknown", "b")
    assert cause["what"] == "b has no interface 'eth0'; it has lo (127.0.0.1), docker0 (172.17.0.1), enp4s0 (192.0.2.2)"
    assert "enp4s0" in cause["fix"]


def test_wanted_name_that_cannot_be_used() -> None:
    nodes = {
        host: node(
            host, interface("eth0", f"192.0.2.{n}"), interface("eth1", f"10.0.0.{n}", up=False), interface("eth2")
        )
        for n, host in enumerate("ab", 1)
    }
    for name, words in (("eth1", "it is down"), ("eth2", "without an address"), ("lo", "loopback")):
        result = chosen(nodes, {"a": name})
        assert result["choice"] == {}
        (cause,) = result["causes"]
        assert (cause["code"], cause["host"]) == ("interface_no_address", "a")
        assert words in cause["what"]


def test_a_host_without_any_address() -> None:
    nodes = {"a": node("a", interface("eth0", "192.0.2.1")), "b": node("b", interface("eth0", up=False))}
    (cause,) = chosen(nodes)["causes"]
    assert (cause["code"], cause["host"]) == ("interface_no_address", "b")
    assert "eth0 (down)" in cause["what"]


def test_wanted_name_that_nobody_reaches() -> None:
    nodes = {
        "a": node("a", interface("eth0", "192.0.2.1")),
        "b": node("b", interface("eth0", "192.0.2.2"), interface("eth1", "10.0.0.2")),
    }
    (cause,) = chosen(nodes, {"b": "eth1"})["causes"]
    assert (cause["code"], cause["host"]) == ("link_blocked", "b")
    assert "eth1" in cause["what"]
    assert "eth0" in cause["fix"]


def test_a_firewall_one_way() -> None:
    nodes = {host: node(host, DOCKER, interface("eth0", f"192.0.2.{n}")) for n, host in enumerate("ab", 1)}
    way = by_subnet(nodes)
    (cause,) = chosen(nodes, way=lambda a, b, x: None if (a, b) == ("a", "b") else way(a, b, x))["causes"]
    assert (cause["code"], cause["host"]) == ("link_blocked", "b")
    assert cause["what"].startswith("a cannot connect to b on its ephemeral TCP ports (192.0.2.2:40000: no answer)")
    assert cause["what"].endswith("although ssh works")
    assert "on b: sudo iptables -I INPUT -p tcp -s 192.0.2.1 --dport 1024:65535 -j ACCEPT   (whatever" in cause["fix"]
    assert "to take it back: sudo iptables -D INPUT -p tcp -s 192.0.2.1 --dport 1024:65535 -j ACCEPT" in cause["fix"]


def test_a_firewall_on_one_of_eight() -> None:
    nodes = {f"n{n}": node(f"n{n}", interface("eth0", f"192.0.2.{n}")) for n in range(1, 9)}
    way = by_subnet(nodes)
    (cause,) = chosen(nodes, way=lambda a, b, x: None if b == "n3" else way(a, b, x))["causes"]
    assert cause["host"] == "n3"
    assert cause["what"].startswith("n1, n2, n4, n5, n6, n7, n8 cannot connect to n3")
    peers = ",".join(f"192.0.2.{n}" for n in (1, 2, 4, 5, 6, 7, 8))
    assert f"sudo iptables -I INPUT -p tcp -s {peers} --dport" in cause["fix"], "between exactly these hosts"
    (cause,) = chosen(nodes, way=lambda a, b, x: None if "n3" in (a, b) else way(a, b, x))["causes"]
    assert cause["host"] == "n3"
    (cause,) = chosen(nodes, way=lambda a, b, x: None if a == "n3" else way(a, b, x))["causes"]
    assert cause["host"] == "n3"
    assert "reaches none of the others" in cause["what"]


def test_hosts_without_a_common_network() -> None:
    nodes = {"a": node("a", interface("eth0", "192.0.2.1")), "b": node("b", interface("eth0", "10.0.0.2"))}
    causes = chosen(nodes)["causes"]
    assert {cause["host"] for cause in causes} == {"a", "b"}
    assert all("share no network" in cause["fix"] for cause in causes)


def test_two_machines_with_one_address() -> None:
    nodes = {
        "a": node("a", interface("eth0", "192.0.2.1")),
        "b": node("b", interface("eth0", "192.0.2.2")),
        "c": node("c", interface("eth0", "192.0.2.2")),
    }
    way = by_subnet(nodes)
    result = links.choose(nodes, probe(nodes, lambda a, b, x: None if b == "c" else way(a, b, x), error="wrong_peer"))
    assert any("another machine answers there" in cause["what"] and cause["host"] == "c" for cause in result["causes"])


def test_a_chain_has_no_single_interface() -> None:
    nodes = {
        "left": node("left", interface("eth0", "192.0.2.1"), interface("eth1", "10.0.1.1")),
        "middle": node("middle", interface("eth0", "192.0.2.2"), interface("eth1", "10.0.0.2")),
        "right": node("right", interface("eth0", "10.0.1.3"), interface("eth1", "10.0.0.3")),
    }
    (cause,) = chosen(nodes)["causes"]
    assert (cause["code"], cause["host"]) == ("link_blocked", "left")
    assert "middle by eth0, right by eth1" in cause["what"]


def test_a_host_that_did_not_probe_is_judged_by_the_others() -> None:
    nodes = {host: node(host, DOCKER, interface("eth0", f"192.0.2.{n}")) for n, host in enumerate("ab", 1)}
    found = probe(nodes, by_subnet(nodes))
    del found["b"]
    assert names(links.choose(nodes, found)) == {"a": "eth0", "b": "eth0"}


def test_thirty_two_hosts_with_six_interfaces_each() -> None:
    def several(number: int) -> list[dict[str, Any]]:
        wires = [interface(f"eth{net}", f"10.0.{net}.{number}", speed_mbps=1000 * (net + 1)) for net in range(4)]
        return [*wires, interface("wlan0", f"10.0.8.{number}", "wireless"), DOCKER]

    nodes = {f"n{number}": node(f"n{number}", *several(number)) for number in range(1, 33)}
    found = probe(nodes, by_subnet(nodes))
    begun = time.monotonic()
    result = links.choose(nodes, found)
    assert time.monotonic() - begun < 1.5
    assert set(names(result).values()) == {"eth3"}
    # and with every cable in another socket, so that only one network joins them all
    for number, host in enumerate(nodes):
        nodes[host]["interfaces"][1 + number % 3] = interface("gone", None)
    found = probe(nodes, by_subnet(nodes))
    begun = time.monotonic()
    assert set(names(links.choose(nodes, found)).values()) == {"eth3"}
    assert time.monotonic() - begun < 1.5


def test_the_search_takes_the_cheapest_whole() -> None:
    costs = {"a": [0.0, 1.0], "b": [0.0, 1.0], "c": [0.0, 1.0]}
    assert assign(costs, lambda a, i, b, j: i == j) == {"a": 0, "b": 0, "c": 0}
    costs = {"a": [0.0, 1.0], "b": [9.0, 1.0], "c": [9.0, 1.0]}
    assert assign(costs, lambda a, i, b, j: i == j) == {"a": 1, "b": 1, "c": 1}
    assert assign(costs, lambda a, i, b, j: False) is None
    assert assign({"a": [2.0, 1.0]}, lambda a, i, b, j: True) == {"a": 1}
    assert assign({"a": [], "b": [0.0]}, lambda a, i, b, j: True) is None


def test_a_search_that_cannot_succeed_ends() -> None:
    """Pairwise everything seems possible, as in colouring a map with too few colours."""
    hosts = {f"n{number}": [float(colour) for colour in range(6)] for number in range(32)}
    begun = time.monotonic()
    assert assign(hosts, lambda a, i, b, j: i != j) is None
    assert time.monotonic() - begun < 5
