# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of the cluster, or an error: a play whose pattern matches nothing ends with exit status 0."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError

DOCUMENTATION = r"""
name: cluster
short_description: The hosts of the cluster, or an error
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Gives the list for C(hosts:) of a play.
  - A group that does not exist, is empty, or is left without a host by C(--limit) is an error here. Ansible would
    print C(no hosts matched) and end with exit status 0.
options:
  _input:
    description: The variable C(groups).
    type: dict
    required: true
  hosts:
    description: The cluster's hosts, as a list or as comma-separated names of hosts and groups.
      Unset, the group V(nanochat).
    type: raw
  reachable:
    description: The hosts that C(--limit) left, which is C(ansible_play_hosts_all) while C(hosts:) is templated.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: A play over the cluster
  hosts: "{{ groups | torchlan.nanochat.cluster(nanochat_hosts | default(none), ansible_play_hosts_all) }}"
  tasks: []
"""

RETURN = r"""
_value:
  description: Names of the hosts, in the order of the inventory.
  type: list
  elements: str
"""


def cluster(groups: dict[str, list[str]], hosts: Any = None, reachable: list[str] | None = None) -> list[str]:
    """Names of the cluster's hosts.

    :raises AnsibleFilterError: no host, an unknown name, or no host left by C(--limit).
    """
    known = set(groups.get("all", []))
    if not hosts:
        if not groups.get("nanochat"):
            raise AnsibleFilterError(
                "group_missing: the inventory has no host in the group 'nanochat' "
                f"(its groups: {', '.join(sorted(groups)) or 'none'}). "
                "Fix: put the hosts or a group of yours there (nanochat: {children: {gpu_boxes: }}), or name them with "
                "-e nanochat_hosts=HOST,GROUP (a variable of the inventory is not known yet when Ansible asks for the "
                "hosts of a play); is the inventory given with -i?"
            )
        names = list(groups["nanochat"])
    else:
        words = hosts.replace(",", " ").split() if isinstance(hosts, str) else [str(name) for name in hosts]
        names = []
        for word in words:
            if word not in known and word not in groups:
                raise AnsibleFilterError(
                    f"group_missing: nanochat_hosts names {word!r}, which is neither a host nor a group there. "
                    f"Fix: one of {', '.join(sorted(known | set(groups)))}."
                )
            names.extend(name for name in groups.get(word, [word]) if name not in names)
    if reachable is not None and not set(names) & set(reachable):
        raise AnsibleFilterError(
            f"host_excluded: --limit leaves none of the cluster's hosts ({', '.join(names)}). Fix: run without --limit."
        )
    return names


class FilterModule:
    """Entry point of the plugin loader."""

    def filters(self) -> dict[str, Any]:
        return {"cluster": cluster}
