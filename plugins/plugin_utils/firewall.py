# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command that lets a host's peers in, for the firewall that it is run with, and the one that takes it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_DEFAULT_CHAIN = "inet filter input"


def commands(facts: Mapping[str, Any] | None, sources: Sequence[str]) -> tuple[list[str], list[str]]:
    """To open, and to take back; lines for a shell, without sudo.

    The run needs every port from 1024 on: Gloo and NCCL listen where the system lets them.

    :param facts: C(node.host.firewall); without a known firewall, the commands are iptables'.
    :param sources: addresses or networks of the peers.
    """
    facts = facts or {}
    opening, closing = _OF.get(str(facts.get("kind")), _iptables)(sources, facts)
    return opening, closing


def fix(host: str, facts: Mapping[str, Any] | None, sources: Sequence[str]) -> str:
    """For a person: copyable."""
    opening, closing = commands(facts, sources)
    lines = [" && ".join(f"sudo {line}" for line in part) for part in (opening, closing)]
    kind = (facts or {}).get("kind")
    doubt = "" if (facts or {}).get("active") else f"   ({kind or 'whatever filters there'}: only root sees its rules)"
    return f"on {host}: {lines[0]}{doubt}; to take it back: {lines[1]}"


def _ufw(sources: Sequence[str], _facts: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    rules = [f"allow proto tcp from {source} to any port 1024:65535" for source in sources]
    return [f"ufw {rule}" for rule in rules], [f"ufw delete {rule}" for rule in rules]


def _firewalld(sources: Sequence[str], _facts: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    rules = [
        f"'rule family={_family(source)} source address={source} port port=1024-65535 protocol=tcp accept'"
        for source in sources
    ]
    return [f"firewall-cmd --add-rich-rule={rule}" for rule in rules], [
        f"firewall-cmd --remove-rich-rule={rule}" for rule in rules
    ]


def _nftables(sources: Sequence[str], facts: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    chain = facts.get("chain") or _DEFAULT_CHAIN
    words = {"ipv4": "ip", "ipv6": "ip6"}
    opening = [
        f"nft insert rule {chain} {words[family]} saddr {those[0] if len(those) == 1 else _set(those)}"
        " tcp dport 1024-65535 accept"
        for family, those in _by_family(sources)
    ]
    return opening, ["nft -f /etc/nftables.conf"]


def _set(sources: Sequence[str]) -> str:
    return f"'{{ {', '.join(sources)} }}'"  # a shell has its own meaning for braces


def _iptables(sources: Sequence[str], _facts: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    programs = {"ipv4": "iptables", "ipv6": "ip6tables"}
    rules = [
        (programs[family], f"INPUT -p tcp -s {','.join(those)} --dport 1024:65535 -j ACCEPT")
        for family, those in _by_family(sources)
    ]
    return [f"{program} -I {rule}" for program, rule in rules], [f"{program} -D {rule}" for program, rule in rules]


def _by_family(sources: Sequence[str]) -> list[tuple[str, list[str]]]:
    """One command for all sources of a family."""
    found = {family: [source for source in sources if _family(source) == family] for family in map(_family, sources)}
    return list(found.items())


def _family(source: str) -> str:
    return "ipv6" if ":" in source else "ipv4"


_OF = {"ufw": _ufw, "firewalld": _firewalld, "nftables": _nftables, "iptables": _iptables}
