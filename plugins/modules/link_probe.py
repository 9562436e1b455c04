#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: link_probe
short_description: Which addresses of the other hosts this host reaches, and by which interface
version_added: 0.1.0
author:
  - torchlan contributors (@torchlan)
description:
  - Connects to every given address of every peer at the same time, on the ephemeral port of the listener that
    M(torchlan.nanochat.node_info) started there.
  - An address counts only if the peer's own random word comes back. An address like C(172.17.0.1) exists on every host
    with Docker, and a bare connect would reach this host itself.
  - Reads only, and needs no root. Takes at most about O(timeout_s), however many peers there are.
  - Where a peer's listener measures, the largest packet that passes whole and the bytes per second are found as well,
    one peer at a time and for at most 5 seconds in all.
extends_documentation_fragment:
  - torchlan.nanochat.attributes.facts
options:
  peers:
    description: The other hosts.
    type: list
    elements: dict
    required: true
    suboptions:
      host:
        description: Inventory name of the peer.
        type: str
        required: true
      addresses:
        description: Candidate addresses, IPv4 or IPv6. Link-local IPv6 addresses are skipped.
        type: list
        elements: str
        required: true
      port:
        description: Port of the peer's listener.
        type: int
        required: true
      nonce:
        description: The random word that the peer's listener answers with.
        type: str
        required: true
      also_port:
        description: Another port on which that listener answers, the port of the rendezvous.
        type: int
      bulk_port:
        description: Port where that listener sends bytes that are timed.
        type: int
  timeout_s:
    description: Seconds after which an address counts as unreachable.
    type: float
    default: 2
seealso:
  - module: torchlan.nanochat.node_info
"""

EXAMPLES = r"""
- name: Try the addresses of the laptop
  torchlan.nanochat.link_probe:
    peers:
      - host: laptop
        addresses: [192.0.2.37, 172.17.0.1]
        port: 41235
        nonce: 5a1c0f2e9b7d4c33
"""

RETURN = r"""
links:
  description:
    - Per peer, the addresses that reached it.
    - C(also) is there when the peer answers on a second port, with its C(port) and C(error), V(null) if it was reached.
    - C(mtu) and C(mbps) are there when the peer's listener measures; V(null) where nothing came back.
  returned: success
  type: dict
  sample:
    laptop:
      - {address: 192.0.2.37, local_address: 192.0.2.36, interface: enp4s0, rtt_ms: 0.21}
unreached:
  description:
    - Per peer, the addresses that did not reach it.
    - C(error) is V(refused), V(timeout), V(unreachable) or V(wrong_peer); C(errno) and C(message) are the system's.
  returned: success
  type: dict
  sample:
    laptop:
      - {address: 172.17.0.1, error: refused, errno: 111, message: Connection refused}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils.interfaces import by_address, interfaces
from ansible_collections.torchlan.nanochat.plugins.module_utils.measuring import measure
from ansible_collections.torchlan.nanochat.plugins.module_utils.probing import probe


def main() -> None:
    peer = {
        "host": {"type": "str", "required": True},
        "addresses": {"type": "list", "elements": "str", "required": True},
        "port": {"type": "int", "required": True},
        "nonce": {"type": "str", "required": True, "no_log": False},
        "also_port": {"type": "int"},
        "bulk_port": {"type": "int"},
    }
    module = AnsibleModule(
        argument_spec={
            "peers": {"type": "list", "elements": "dict", "required": True, "options": peer},
            "timeout_s": {"type": "float", "default": 2},
        },
        supports_check_mode=True,
    )
    own = interfaces()
    peers = module.params["peers"]
    links, unreached = probe(peers, module.params["timeout_s"], by_address(own))
    measure(peers, links, {entry["name"]: entry["mtu"] for entry in own})
    module.exit_json(changed=False, links=links, unreached=unreached)


if __name__ == "__main__":
    main()
