# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why no interfaces fit together: who cannot reach whom, where to look, and the command that helps."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import firewall

if TYPE_CHECKING:
    from ansible_collections.torchlan.nanochat.plugins.plugin_utils.links import Candidate, Network

_ERRORS = {
    "timeout": "no answer",
    "refused": "refused",
    "unreachable": "no route, or rejected by a firewall",
    "wrong_peer": "another machine answers there",
}
_MOST_SHOWN = 3

Candidates = Mapping[str, Sequence["Candidate"]]


def explain(network: Network, candidates: Candidates, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    """Causes, at least one; each names the host where the fault most likely is."""
    blocked = [
        (a, b)
        for (a, b), reached in network.reached.items()
        if a in candidates and b in candidates and not any(other.address in reached for other in candidates[b])
    ]
    mute = _mute(network.hosts, blocked)
    causes = []
    for host in network.hosts:
        found = [_reaches_nobody(network, candidates, host)] if host in mute else []
        sources = [a for a, target in blocked if target == host and a not in mute]
        if sources:
            found.append(_not_reached(network, candidates, wanted, sources, host))
        if found:
            # one cause per host: both ways blocked is most likely one fault
            what, fix = ("; ".join(entry[key] for entry in found) for key in ("what", "fix"))
            causes.append(cause("link_blocked", what, fix, host=host))
    return causes or [_no_common(network, candidates)]


def _mute(hosts: list[str], blocked: list[tuple[str, str]]) -> list[str]:
    """Hosts that reach nobody although others reach those same hosts: the fault is on their side."""
    found = []
    for a in hosts if len(hosts) > 2 else ():
        targets = {b for source, b in blocked if source == a}
        blame = all(sum(1 for source, target in blocked if target == b) < len(hosts) - 1 for b in targets)
        if len(targets) == len(hosts) - 1 and blame:
            found.append(a)
    return found


def _tried(network: Network, a: str, b: str, addresses: set[str]) -> str:
    """What a tried at b: in a common network, if there is one."""
    port = (network.nodes[b].get("listener") or {}).get("port", "?")
    unreached = [entry for entry in network.links[a].get("unreached", {}).get(b, []) if entry["address"] in addresses]
    common = [entry for entry in unreached if _common_source(network, a, b, entry["address"])]
    entries = (common or unreached)[:_MOST_SHOWN]
    shown = [f"{_with_port(entry['address'], port)}: {_ERRORS[entry['error']]}" for entry in entries]
    return "; ".join(shown) or "no address to try"


def _with_port(address: str, port: Any) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _common_source(network: Network, a: str, b: str, target: str) -> tuple[str, str] | None:
    """Address of a in the subnet of b's address, and that subnet. Docker's own exists everywhere and does not count."""
    addresses = [entry for interface in network.nodes[b]["interfaces"] for entry in interface["addresses"]]
    prefix = next((entry["prefix"] for entry in addresses if entry["address"] == target), None)
    if prefix is None:
        return None
    subnet = ipaddress.ip_network(f"{target}/{prefix}", strict=False)
    for interface in network.nodes[a]["interfaces"]:
        for entry in interface["addresses"]:
            counts = interface["up"] and interface["kind"] != "docker" and entry["scope"] != "link"
            if counts and entry["address"] != target and ipaddress.ip_address(entry["address"]) in subnet:
                return str(entry["address"]), str(subnet)
    return None


def _source(network: Network, candidates: Candidates, a: str, b: str) -> tuple[str, str | None]:
    """The address that a would come from at b, and the network that they share."""
    for other in candidates[b]:
        common = _common_source(network, a, b, other.address)
        if common:
            return common
    return candidates[a][0].address, None


def _not_reached(
    network: Network, candidates: Candidates, wanted: Mapping[str, str], sources: list[str], b: str
) -> dict[str, Any]:
    a = sources[0]
    addresses = {other.address for other in candidates[b]}
    names = ", ".join(sources)
    verb = "cannot" if b not in wanted else f"cannot, by {wanted[b]},"
    what = f"{names} {verb} connect to {b} on its ephemeral TCP ports ({_tried(network, a, b, addresses)})"
    elsewhere = {
        str(interface["name"])
        for interface in network.nodes[b]["interfaces"]
        for address in interface["addresses"]
        if address["address"] in network.reached[a, b]
    }
    if elsewhere:
        names = " or ".join(sorted(elsewhere))
        fix = f"Set nanochat_socket_ifname of {b} to {names}, which {a} does reach; or unset it."
        return cause("link_blocked", what, fix, host=b)
    return cause("link_blocked", what + ", although ssh works", _firewall(network, candidates, sources, b), host=b)


def _firewall(network: Network, candidates: Candidates, sources: list[str], b: str) -> str:
    found = [_source(network, candidates, a, b) for a in sources]
    if not any(subnet for _address, subnet in found):
        return (
            f"{b} ({_addresses(candidates[b])}) and {', '.join(sources)} ({_addresses(candidates[sources[0]])}) "
            "share no network: connect them to one, or open the firewall between the two."
        )
    errors = {
        entry["error"]
        for a in sources
        for entry in network.links[a].get("unreached", {}).get(b, [])
        if _common_source(network, a, b, entry["address"])
    }
    if errors == {"wrong_peer"}:
        return f"Two machines use the same address: give {b} another one."
    shown = list(dict.fromkeys(address for address, _subnet in found))
    fix = firewall.fix(b, network.nodes[b]["host"].get("firewall"), shown)
    if any(interface["kind"] == "veth" for interface in network.nodes[b]["interfaces"] if interface["up"]):
        fix += "; if they are bridged on a machine with Docker, there: sudo iptables -I DOCKER-USER -j ACCEPT"
    if errors == {"refused"}:
        fix += f"; if there is no firewall, the probe was ended too early: on {b}, loginctl enable-linger"
    return fix


def _addresses(candidates: Sequence[Candidate]) -> str:
    return ", ".join(f"{one.name} {one.address}" for one in candidates[:_MOST_SHOWN])


def _reaches_nobody(network: Network, candidates: Candidates, a: str) -> dict[str, Any]:
    b = next(host for host in network.hosts if host != a)
    addresses = {other.address for other in candidates[b]}
    what = (
        f"{a} ({_addresses(candidates[a])}) reaches none of the others on ephemeral TCP ports, though others do"
        f" (to {b}, {_tried(network, a, b, addresses)})"
    )
    fix = f"On {a}: is it in the same network? Does its firewall stop outgoing connections? sudo nft list ruleset"
    return cause("link_blocked", what, fix, host=a)


def _no_common(network: Network, candidates: Candidates) -> dict[str, Any]:
    """All pairs reach each other, but not by one interface per host."""
    for a in network.hosts:
        by: dict[str, set[str]] = {}
        for b in network.hosts:
            names = {
                name
                for other in candidates.get(b, ())
                for name in network.reached.get((a, b), {}).get(other.address, ())
                if name
            }
            if names:
                by[b] = names
        if by and not set.intersection(*by.values()):
            ways = ", ".join(f"{b} by {'/'.join(sorted(names))}" for b, names in by.items())
            what = f"{a} has no single interface to all its peers: it reaches {ways}"
            return cause("link_blocked", what, "Connect all hosts to one network, wired if possible.", host=a)
    what = "every host reaches every other, but no choice of one interface per host fits all of them"
    return cause("link_blocked", what, "Set nanochat_socket_ifname on each host, all in one network.")
