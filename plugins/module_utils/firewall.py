# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which firewall this host is run with, as far as it shows without root: the rules themselves only root sees."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import read_text

_SBIN = "/usr/sbin:/sbin:/usr/bin:/bin"
_INPUT_CHAIN = re.compile(
    r"table\s+(?P<family>inet|ip|ip6)\s+(?P<table>\S+)\s*\{(?:(?!\btable\b).)*?"
    r"chain\s+(?P<chain>\S+)\s*\{\s*type\s+filter\s+hook\s+input",
    re.DOTALL,
)


def facts() -> dict[str, Any]:
    """C(kind) is C(ufw), C(firewalld), C(nftables), C(iptables) or C(None).

    C(active) is true where its own files say so, and C(None) where only root could tell. C(chain) is the chain of
    C(/etc/nftables.conf) that sees what comes in, as words of C(nft).
    """
    if re.search(r"^ENABLED=yes", read_text("/etc/ufw/ufw.conf") or "", re.MULTILINE):
        return {"kind": "ufw", "active": True, "chain": None}
    if os.path.exists("/run/firewalld.pid") or os.path.isdir("/run/firewalld"):
        return {"kind": "firewalld", "active": True, "chain": None}
    nft, iptables = (shutil.which(name, path=_SBIN) for name in ("nft", "iptables"))
    enabled = os.path.lexists("/etc/systemd/system/sysinit.target.wants/nftables.service")
    if nft and (enabled or not iptables):
        return {"kind": "nftables", "active": True if enabled else None, "chain": input_chain()}
    if iptables:
        return {"kind": "iptables", "active": None, "chain": None}
    return {"kind": None, "active": None, "chain": None}


def input_chain(text: str | None = None) -> str | None:
    """C(inet filter input), or what this host calls it."""
    found = _INPUT_CHAIN.search(text if text is not None else read_text("/etc/nftables.conf") or "")
    return " ".join(found.group("family", "table", "chain")) if found else None
