# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who fetches what an environment is made from, and who gets it from whom.

Hosts whose environments are made from the same files have the same key. Of each such group one host fetches over the
slow line, unless some host has the files already; the others get them over the LAN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Looks = Mapping[str, Mapping[str, Any]]


def make(looks: Looks, todo: Sequence[str], method: Mapping[str, str], linked: Sequence[str]) -> dict[str, Any]:
    """Who fetches.

    :param looks: what C(environment) said in its step C(look), by host, in the order of the ranks.
    :param todo: hosts that are to be worked on.
    :param method: how each host's environment is made.
    :param linked: hosts that can reach each other.
    :returns: C(fetch) (by host, whether it packs for others), C(hosts) (those that need an environment), and C(from)
        (by host that gets files from another one: that one).
    """
    needing = [host for host in looks if host in todo and looks[host].get("needed")]
    plan: dict[str, Any] = {"hosts": needing, "fetch": {}, "from": {}}
    for host in needing:
        mine = [other for other in looks if looks[other].get("key") == looks[host]["key"]]
        group = [other for other in mine if other in linked and host in linked] or [host]
        source = next((other for other in group if looks[other].get("files")), None)
        if source is None and method[host] == "uv":
            # uv needs no index for what it has installed already
            source = next((other for other in group if not looks[other].get("needed")), None)
        source = source or next(other for other in group if other in needing)
        if not looks[source].get("files"):
            plan["fetch"][source] = plan["fetch"].get(source, False) or source != host
        if source != host:
            plan["from"][host] = source
    return plan


def exchanges(plan: Mapping[str, Any], looks: Looks, fetched: Looks) -> dict[str, dict[str, Any]]:
    """What each host that takes part offers and wants, once the files are on one host of each group.

    :param fetched: what C(environment) said in its step C(fetch), by host.
    :returns: by host C(folder), C(files) (all of its group's), C(have) (names) and C(group).
    """
    result: dict[str, dict[str, Any]] = {}
    for host, source in plan["from"].items():
        has = fetched.get(source) or looks[source]
        for one, names in ((source, [entry["name"] for entry in has["files"]]), (host, [])):
            result[one] = {"folder": looks[one]["folder"], "files": has["files"], "have": names, "group": has["key"]}
    return result
