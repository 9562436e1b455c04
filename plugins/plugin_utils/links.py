# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One network interface per host, chosen by what C(link_probe) reached, and why.

Gloo and NCCL take one interface name per host and use that interface's first address. So an interface fits only if
every peer reached exactly that address, and if this host's own connections to the peers leave by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import blocked
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.assignment import assign

Node = Mapping[str, Any]
Nodes = Mapping[str, Node]

# The better the lower: it decides before the speed does.
_CLASSES = {"ethernet": 0, "veth": 1, "wireless": 2, "virtual": 3, "bridge": 4, "tun": 5, "docker": 6, "loopback": 7}
_WORDS = {
    "ethernet": "wired",
    "veth": "a container's own",
    "tun": "a tunnel or overlay network",
    "docker": "a Docker bridge",
    "bridge": "a bridge for virtual machines",
}
_USUAL_MBPS = 1000  # what a wire is taken for when its driver does not say
_MOST_ADDRESSES = 12


@dataclass
class Candidate:
    """One interface of a host, with the one address that would be used."""

    name: str
    address: str
    kind: str
    cost: float
    speed_mbps: int | None = None
    rtts: list[float] = field(default_factory=list)

    @property
    def description(self) -> str:
        words = [_WORDS.get(self.kind, self.kind)]
        if self.speed_mbps:
            words.append(f"{self.speed_mbps} Mb/s")
        if self.rtts:
            words.append(f"{max(self.rtts):.2g} ms")
        return ", ".join(words)


@dataclass
class Network:
    """What is known about the ways between the hosts."""

    nodes: Nodes
    links: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        self.hosts = list(self.nodes)
        # from, to -> address of "to" -> interfaces of "from" that reached it
        self.reached: dict[tuple[str, str], dict[str, set[str | None]]] = {}
        for a, result in self.links.items():
            for b in set(result.get("links", {})) | set(result.get("unreached", {})):
                found = self.reached.setdefault((a, b), {})
                for link in result.get("links", {}).get(b, []):
                    found.setdefault(link["address"], set()).add(link["interface"])

    def fits(self, a: str, own: Candidate, b: str, other: Candidate, strict: bool = True) -> bool:
        """Whether a reached b's address, and by its own interface. What was not tried does fit."""
        if (a, b) not in self.reached:
            return True
        by = self.reached[a, b].get(other.address)
        return by is not None and (not strict or own.name in by)

    def leaves_by(self, a: str, name: str) -> bool:
        """Whether any connection of this host to a peer went out by that interface."""
        return any(name in by for (source, _b), found in self.reached.items() if source == a for by in found.values())

    def rtts_to(self, b: str, address: str) -> list[float]:
        return [
            link["rtt_ms"]
            for result in self.links.values()
            for link in result.get("links", {}).get(b, [])
            if link["address"] == address and link.get("rtt_ms") is not None
        ]


def one_machine(nodes: Nodes) -> bool:
    """Whether all hosts share one kernel and one network namespace, so that loopback reaches them all."""
    return len({node["host"]["identity"] for node in nodes.values()}) == 1


def address_of(interface: Mapping[str, Any]) -> str | None:
    """The address that Gloo and NCCL take for this name: the first IPv4, else IPv6; aliases have other names."""
    for family in ("ipv4", "ipv6"):
        for address in interface["addresses"]:
            link_local = family == "ipv6" and address["scope"] == "link"
            if address["family"] == family and not address.get("label") and not link_local:
                return str(address["address"])
    return None


def peers(nodes: Nodes, host: str) -> list[dict[str, Any]]:
    """The argument C(peers) of C(link_probe) on C(host)."""
    own = nodes[host]["host"]["identity"]
    found = []
    names = list(nodes)
    first = names.index(host) + 1
    # Each host begins with the next one, so that measuring does not bring all of them to one host at a time.
    for name in names[first:] + names[: first - 1]:
        node = nodes[name]
        if not node.get("listener"):
            continue
        usable = [entry for entry in node["interfaces"] if entry["up"] and address_of(entry)]
        # Another machine's 127.0.0.1 is one's own.
        near = [entry for entry in usable if not entry["loopback"] or node["host"]["identity"] == own]
        near.sort(key=lambda entry: _CLASSES.get(_kind(entry, node)[0], 9))
        loopbacks = [entry for entry in near if entry["loopback"]]
        others = [entry for entry in near if not entry["loopback"]][:_MOST_ADDRESSES]
        addresses = [address_of(entry) for entry in loopbacks + others]
        found.append({"host": name, "addresses": addresses, **node["listener"]})
    return found


def choose(
    nodes: Nodes, links: Mapping[str, Mapping[str, Any]], wanted_ifname: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Interface and address of every host.

    :param nodes: C(node_info)'s C(node) by host.
    :param links: C(link_probe)'s result by host; hosts without one are judged by what the others reached.
    :param wanted_ifname: names that the user set.
    :returns: C(choice) by host with C(interface), C(address), C(why), empty unless every host has one; C(ignored) by
        host, a list of C(interface) and C(why); C(causes).
    """
    wanted = {host: name for host, name in (wanted_ifname or {}).items() if name and host in nodes}
    network = Network(nodes, links)
    shared = one_machine(nodes) if nodes else False
    candidates: dict[str, list[Candidate]] = {}
    causes: list[dict[str, Any]] = []
    for host in nodes:
        candidates[host], problem = _candidates(network, host, wanted.get(host), shared)
        if problem:
            causes.append(problem)
    if causes:
        return {"choice": {}, "ignored": {}, "causes": causes}
    costs = {host: [candidate.cost for candidate in candidates[host]] for host in candidates}
    picked = assign(costs, lambda a, i, b, j: network.fits(a, candidates[a][i], b, candidates[b][j]))
    if picked is None and wanted:
        # Where only the way out differs, the user's word counts: both libraries listen by name and connect by route.
        picked = assign(costs, lambda a, i, b, j: network.fits(a, candidates[a][i], b, candidates[b][j], strict=False))
    if picked is None:
        return {"choice": {}, "ignored": {}, "causes": blocked.explain(network, candidates, wanted)}
    chosen = {host: candidates[host][index] for host, index in picked.items()}
    choice = {
        host: {"interface": one.name, "address": one.address, "why": _why(one, host, wanted, shared, len(nodes))}
        for host, one in chosen.items()
    }
    ignored = {host: _ignored(network, host, chosen, shared) for host in nodes}
    return {"choice": choice, "ignored": ignored, "causes": _other_ways(network, chosen)}


def _kind(interface: Mapping[str, Any], node: Node) -> tuple[str, int | None]:
    """Kind and speed. A bridge over a real port is that wire: machines that also run virtual ones have it so."""
    if interface["kind"] == "bridge":
        members = [entry for entry in node["interfaces"] if entry["name"] in interface.get("members", ())]
        ports = [entry for entry in members if entry["kind"] == "ethernet"]
        if ports:
            speeds = [entry["speed_mbps"] for entry in ports if entry.get("speed_mbps")]
            return "ethernet", max(speeds, default=None)
    return str(interface["kind"]), interface.get("speed_mbps")


def _candidates(
    network: Network, host: str, wanted: str | None, shared: bool
) -> tuple[list[Candidate], dict[str, Any] | None]:
    """The interfaces to choose from, the best first, or why there are none."""
    node = network.nodes[host]
    named = {entry["name"]: entry for entry in node["interfaces"]}
    if wanted:
        problem = _wanted_problem(host, wanted, named, shared)
        if problem:
            return [], problem
        named = {wanted: named[wanted]}
    found = []
    for name, entry in named.items():
        address = address_of(entry)
        if entry["up"] and address and (shared or not entry["loopback"]):
            kind, speed = _kind(entry, node)
            rtts = network.rtts_to(host, address)
            found.append(Candidate(name, address, kind, _cost(kind, speed, address, rtts, shared), speed, rtts))
    if not found:
        states = ", ".join(f"{name} ({_state(entry)})" for name, entry in named.items() if not entry["loopback"])
        what = f"{host} has no interface with an address that is up, other than loopback: {states or 'there is none'}"
        return [], cause("interface_no_address", what, "Plug in the cable, or bring the interface up.", host=host)
    return sorted(found, key=lambda candidate: candidate.cost), None


def _wanted_problem(
    host: str, wanted: str, named: Mapping[str, Mapping[str, Any]], shared: bool
) -> dict[str, Any] | None:
    usable = [name for name, entry in named.items() if entry["up"] and address_of(entry) and not entry["loopback"]]
    usable.sort(key=lambda name: _CLASSES.get(named[name]["kind"], 9))
    fix = f"Set nanochat_socket_ifname of {host} to one of {', '.join(usable)}; or unset it." if usable else None
    if wanted not in named:
        names = ", ".join(f"{name} ({_state(entry)})" for name, entry in named.items())
        return cause("interface_unknown", f"{host} has no interface {wanted!r}; it has {names}", fix, host=host)
    entry = named[wanted]
    if entry["loopback"] and not shared:
        what = f"{wanted} of {host} is the loopback interface, and other machines cannot reach it"
    elif not entry["up"] or not address_of(entry):
        what = f"{wanted} of {host} cannot be used: it is {_state(entry)}"
    else:
        return None
    return cause("interface_no_address", what, fix, host=host)


def _state(entry: Mapping[str, Any]) -> str:
    return "down" if not entry["up"] else address_of(entry) or "without an address"


def _cost(kind: str, speed: int | None, address: str, rtts: list[float], shared: bool) -> float:
    """First the class, then IPv4, then the speed by its doublings, then the round trip."""
    rank = -1 if kind == "loopback" and shared else _CLASSES.get(kind, 9)
    doublings = max(0.0, 20 - math.log2(speed or _USUAL_MBPS))
    rtt = sorted(rtts)[len(rtts) // 2] if rtts else 0.0
    return rank * 1e6 + (3e5 if ":" in address else 0) + doublings * 1e4 + min(rtt, 900.0) * 10


def _why(one: Candidate, host: str, wanted: Mapping[str, str], shared: bool, hosts: int) -> str:
    if host in wanted:
        return f"set by nanochat_socket_ifname; {one.description}"
    if one.kind == "loopback":
        return "the only host" if hosts == 1 else "all hosts are this one machine"
    if not one.rtts:
        return f"not tried yet; {one.description}"
    reach = "reached by its peer" if hosts == 2 else f"reached by all {hosts - 1} peers"
    return f"{reach}; {one.description}"


def _ignored(network: Network, host: str, chosen: Mapping[str, Candidate], shared: bool) -> list[dict[str, str]]:
    """The other interfaces that have an address, and why not they."""
    one = chosen[host]
    found = []
    for entry in network.nodes[host]["interfaces"]:
        address = address_of(entry)
        if entry["name"] == one.name or not address or entry["loopback"]:
            continue
        kind, speed = _kind(entry, network.nodes[host])
        other = Candidate(entry["name"], address, kind, 0, speed)
        found.append({"interface": entry["name"], "why": _why_not(network, host, other, entry["up"], chosen, shared)})
    return found


def _why_not(
    network: Network, host: str, other: Candidate, is_up: bool, chosen: Mapping[str, Candidate], shared: bool
) -> str:
    one = chosen[host]
    if not is_up:
        return "down"
    if shared and one.kind == "loopback":
        return "all hosts are this one machine"
    tried = [peer for peer in chosen if (peer, host) in network.reached]
    missing = [peer for peer in tried if other.address not in network.reached[peer, host]]
    kind = _WORDS.get(other.kind, other.kind)
    if tried and len(missing) == len(tried):
        return f"{kind}; no peer reaches it at {other.address}"
    if missing:
        return f"{kind}; not reached by {', '.join(missing)}"
    if tried and not network.leaves_by(host, other.name):
        return f"{kind}; this host's own connections leave by {one.name}"
    if other.kind != one.kind:
        return f"{kind}, and {one.name} is {_WORDS.get(one.kind, one.kind)}"
    if (other.speed_mbps or _USUAL_MBPS) < (one.speed_mbps or _USUAL_MBPS):
        return f"slower than {one.name}"
    return f"as good as {one.name}, and not needed"


def _other_ways(network: Network, chosen: Mapping[str, Candidate]) -> list[dict[str, Any]]:
    """Hosts whose traffic leaves by another interface than the one that the user set: the proof would fail on it."""
    causes = []
    for a, own in chosen.items():
        for b, other in chosen.items():
            if a == b or network.fits(a, own, b, other):
                continue
            by = ", ".join(sorted(name for name in network.reached[a, b][other.address] if name)) or "another interface"
            what = f"{a} connects to {b} by {by}, although {own.name} is set: its routes say so"
            fix = f"Unset nanochat_socket_ifname on all hosts, or name interfaces of one network: {by} on {a}; or "
            causes.append(cause("wrong_interface", what, f"{fix}correct the route to {other.address}", host=a))
            break
    return causes
