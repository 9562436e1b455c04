# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What C(preflight.yml) says about the chosen links: the port of the rendezvous, speed, packets, Wi-Fi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import firewall

Choice = Mapping[str, Mapping[str, Any]]
Links = Mapping[str, Mapping[str, Any]]
Causes = list[dict[str, Any]]

# A line of 100 Mb/s carries 94; nothing faster measures less than this, also on a busy machine.
_SLOW_MBPS = 100
_LOOK = "on {host}: ethtool {card}   (what was negotiated?); a gigabit port, cable and switch"


def measured(choice: Choice, links: Links) -> list[dict[str, Any]]:
    """Each ordered pair's chosen link, as it was measured: C(from), C(to), C(rtt_ms), C(mbps), C(mtu)."""
    found = []
    for a in choice:
        for b in choice:
            there = _link(links, a, b, choice)
            if a != b and there:
                # pylint: disable-next=arguments-out-of-order
                back = _link(links, b, a, choice) or {}  # bytes are timed where they arrive
                numbers = {"rtt_ms": there.get("rtt_ms"), "mbps": back.get("mbps"), "mtu": there.get("mtu")}
                found.append({"from": a, "to": b, **numbers})
    return found


def _link(links: Links, a: str, b: str, choice: Choice) -> Mapping[str, Any] | None:
    if b not in choice:
        return None
    listed = links.get(a, {}).get("links", {}).get(b, [])
    return next((link for link in listed if link["address"] == choice[b]["address"]), None)


def rendezvous(nodes: Mapping[str, Mapping[str, Any]], choice: Choice, links: Links) -> Causes:
    """Hosts that reach the master on ephemeral ports and not on the port where the ranks meet."""
    for master in choice:
        refused = {}
        for a in choice:
            also = (_link(links, a, master, choice) or {}).get("also")
            if also and also["error"]:
                refused[a] = also["port"]
        if refused:
            port, names = next(iter(refused.values())), ", ".join(refused)
            what = f"{names} cannot connect to {master} on port {port}, where the ranks meet; other ports are open"
            sources = [choice[a]["address"] for a in refused]
            fix = firewall.fix(master, nodes[master]["host"].get("firewall"), sources)
            return [cause("link_blocked", what, f"{fix}; or nanochat_master_port: another", host=master)]
    return []


def check(nodes: Mapping[str, Mapping[str, Any]], choice: Choice, pairs: list[dict[str, Any]]) -> Causes:
    """Warnings, at most one of each kind a host."""
    causes: Causes = []
    for host, chosen in choice.items():
        card = next(entry for entry in nodes[host]["interfaces"] if entry["name"] == chosen["interface"])
        if card["loopback"]:
            continue
        if card["kind"] == "wireless":
            what = f"{host}: {card['name']} is Wi-Fi; every step waits for it"
            causes.append(cause("link_wireless", what, f"a cable for {host}", host=host, weight="warning"))
        if card.get("speed_mbps") and card["speed_mbps"] <= _SLOW_MBPS:
            what = f"{host}: {card['name']} runs at {card['speed_mbps']} Mb/s"
            causes.append(cause("link_slow", what, _LOOK.format(host=host, card=card["name"]), host, weight="warning"))
        causes += _packets(host, card, pairs)
    named = {entry["host"] for entry in causes if entry["code"] in ("link_slow", "link_wireless")}
    return causes + _slow(choice, pairs, named)


def _slow(choice: Choice, pairs: list[dict[str, Any]], named: set[Any]) -> Causes:
    """Slow by measure: a host that is slow with several is named, of a single pair nobody knows which end it is."""
    slow = {(one["from"], one["to"]): one["mbps"] for one in pairs if one["mbps"] and one["mbps"] < _SLOW_MBPS}
    slow = {ends: mbps for ends, mbps in slow.items() if not named & set(ends)}
    causes: Causes = []
    for host in choice:
        peers = {peer for ends in slow if host in ends for peer in ends if peer != host}
        if len(peers) > 1:
            numbers = [mbps for ends, mbps in slow.items() if host in ends]
            what = f"{host}: {min(numbers):.0f} to {max(numbers):.0f} Mb/s with {', '.join(sorted(peers))}, as measured"
            fix = _LOOK.format(host=host, card=choice[host]["interface"])
            causes.append(cause("link_slow", what, fix, host=host, weight="warning"))
            slow = {ends: mbps for ends, mbps in slow.items() if host not in ends}
    for (a, b), mbps in slow.items():
        back = slow.get((b, a))
        if back is None or a < b:
            both = f" and {back:.0f} back" if back is not None else ""
            what = f"from {a} to {b}, {mbps:.0f} Mb/s{both}, as measured"
            fix = _LOOK.format(host=f"{a} and {b}", card=choice[a]["interface"])
            causes.append(cause("link_slow", what, fix, weight="warning"))
    return causes


def _packets(host: str, card: Mapping[str, Any], pairs: list[dict[str, Any]]) -> Causes:
    short = {
        pair["to"]: pair["mtu"] for pair in pairs if pair["from"] == host and pair["mtu"] and pair["mtu"] < card["mtu"]
    }
    if not short:
        return []
    stuck = [pair["to"] for pair in pairs if pair["from"] == host and pair["to"] in short and pair["mbps"] == 0.0]
    name, least = card["name"], min(short.values())
    what = f"{host}: {name} has an MTU of {card['mtu']}, and what arrives at {', '.join(short)} is {least} at most"
    what += f"; large transfers to {', '.join(stuck)} stand still" if stuck else ""
    fix = f"on {host}: sudo ip link set dev {name} mtu {least}   (or {card['mtu']} everywhere, switches too)"
    return [cause("mtu_differs", what, fix, host=host, weight="error" if stuck else "warning")]
