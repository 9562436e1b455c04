#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: share
short_description: Bring large files from the hosts that have them to the hosts that lack them
version_added: 0.2.0
author:
  - torchlan contributors (@torchlan)
description:
  - Hosts bring each other files directly over the LAN, all at the same time whatever C(forks) is, and without ssh
    between them. V(offer) on every host starts an agent there, which listens on one port of the given address;
    V(fetch) on every host tells the agents of each other and waits until this host has all files.
  - Hosts that lack a file give each other the pieces that they have, so that four hosts take little longer than one.
  - A file gets its name only after its size and sha256 were compared. What came of a file is kept in the hidden folder
    C(.torchlan-share) of its folder; after whatever broke, the next exchange goes on from there.
  - The agents end by themselves when all hosts are done, or when nobody has needed them for a while.
  - The contents are not encrypted. They are as open on the LAN as the traffic of the training itself; that they are
    right is known from the sha256, which comes over ssh. Only who knows O(token) gets anything, and only the files of
    the exchange.
  - What is wrong is returned under RV(causes); the task does not fail for it.
attributes:
  check_mode:
    description: Says what would be brought, and starts nothing.
    support: full
  diff_mode:
    description: Returns details on what has changed in diff mode.
    support: none
  idempotent:
    description: When run twice in a row, the second run changes nothing.
    support: full
options:
  step:
    description:
      - V(offer) says what this host has and lacks, and starts its agent. An older agent of the folder is ended.
      - V(fetch) brings what it lacks.
    type: str
    choices: [offer, fetch]
    required: true
  name:
    description: What the files are, for people, such as V(shards).
    type: str
    default: files
  folder:
    description: Folder of the files on this host. A leading C(~) is the user's home folder.
    type: str
    required: true
  token:
    description: A secret of this exchange, the same on all hosts, of at least 32 hexadecimal digits.
    type: str
    required: true
  address:
    description: Address of this host on which the others reach it, IPv4 or IPv6. Required with O(step=offer).
    type: str
  files:
    description: All files of the exchange, in the same order on all hosts. Required with O(step=offer).
    type: list
    elements: dict
    suboptions:
      name:
        description: Path relative to O(folder).
        type: str
        required: true
      size:
        description: Bytes of it.
        type: int
        required: true
      sha256:
        description: Digest of its content.
        type: str
        required: true
  have:
    description: Names of files that this host holds whole, as the caller has verified. Used with O(step=offer).
    type: list
    elements: str
    default: []
  replace:
    description:
      - Names of files that may be there with other content and are then replaced. The file that was there is kept
        as C(NAME.old), or C(NAME.old2) and so on. Used with O(step=offer).
    type: list
    elements: str
    default: []
  self:
    description: Inventory name of this host. Set by the action. Used with O(step=fetch).
    type: str
  offers:
    description: Per host of the exchange, this one included, what V(offer) returned. Required with O(step=fetch).
    type: dict
  wait_s:
    description: Seconds after which V(fetch) comes back with RV(state=working). The action asks again.
    type: float
    default: 2
seealso:
  - module: torchlan.nanochat.dataset
  - module: torchlan.nanochat.environment
"""

EXAMPLES = r"""
- name: Offer what this host has
  torchlan.nanochat.share:
    step: offer
    name: shards
    folder: ~/.cache/nanochat/base_data_climbmix
    address: 192.0.2.36
    token: "{{ token }}"
    files: "{{ manifest }}"
    have: [shard_00000.parquet]
  register: offer

- name: Fetch what it lacks
  torchlan.nanochat.share:
    step: fetch
    name: shards
    folder: ~/.cache/nanochat/base_data_climbmix
    token: "{{ token }}"
    offers:
      workstation: {address: 192.0.2.36, port: 41235, have: [shard_00000.parquet]}
      laptop: {address: 192.0.2.37, port: 38011, have: []}
"""

RETURN = r"""
causes:
  description: What is wrong, with O(step=offer) or in the exchange.
  returned: success
  type: list
  elements: dict
port:
  description: Port of the agent; V(0) where none was started, because of check mode or of RV(causes).
  returned: O(step=offer)
  type: int
have:
  description: Names of the files that this host holds.
  returned: O(step=offer)
  type: list
  elements: str
missing:
  description: Names of the files that it lacks.
  returned: O(step=offer)
  type: list
  elements: str
missing_bytes:
  description: Bytes that it lacks. What an earlier exchange has brought of RV(missing) is not counted.
  returned: O(step=offer)
  type: int
state:
  description: V(working), V(complete) or V(failed); V(predicted) in check mode.
  returned: O(step=fetch)
  type: str
brought:
  description: Names of the files that were brought, or in check mode would be.
  returned: O(step=fetch)
  type: list
  elements: str
bytes_from:
  description: Bytes that came, by the host that gave them.
  returned: O(step=fetch)
  type: dict
  sample: {workstation: 283115520, tower: 283115520}
progress:
  description: C(files), C(files_done), C(bytes), C(bytes_done), C(bytes_per_second), C(transfer_seconds).
  returned: O(step=fetch)
  type: dict
"""

import http.client
import os
import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils import share_agent
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.paths import absolute, free_bytes, nearest, unwritable
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_exchange import Exchange, Limits
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_fetch import Link
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_files import Entry, resolve
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import answer, sha256_file

_PROGRESS = ("files", "files_done", "bytes", "bytes_done", "bytes_per_second", "transfer_seconds")
_ANSWER_S = 10


class Offer:
    """What this host has and lacks, and what stands in the way."""

    def __init__(self, folder: str, files: list[dict[str, Any]], have: list[str], replace: list[str]) -> None:
        self.folder = folder
        self.entries = [Entry(str(one["name"]), int(one["size"]), str(one["sha256"]).lower()) for one in files]
        self.causes: list[dict[str, Any]] = []
        self.have: set[int] = set()
        self._verified, self._replace = set(have), set(replace)
        if len({entry.name for entry in self.entries}) < len(self.entries):
            self.causes.append(cause("path_invalid", "a name is twice among the files"))
        for index, entry in enumerate(self.entries):
            self._look(index, entry)

    def _look(self, index: int, entry: Entry) -> None:
        try:
            path = resolve(self.folder, entry.name)
        except ValueError as problem:
            self.causes.append(cause("path_invalid", str(problem), "Name files by their paths below the folder"))
            return
        if entry.size < 0 or not re.fullmatch("[0-9a-f]{64}", entry.sha256):
            self.causes.append(cause("path_invalid", f"{entry.name!r} has no usable size and sha256"))
        elif os.path.isfile(path) and os.path.getsize(path) == entry.size and self._right(path, entry):
            self.have.add(index)
        elif os.path.lexists(path) and (entry.name not in self._replace or os.path.isdir(path)):
            self.causes.append(cause("file_differs", f"{path} is there, and is not the file to be brought"))

    def _right(self, path: str, entry: Entry) -> bool:
        try:
            return entry.name in self._verified or sha256_file(path) == entry.sha256
        except OSError:
            return False

    def names(self, had: bool) -> list[str]:
        return [entry.name for index, entry in enumerate(self.entries) if (index in self.have) is had]


def offer(params: dict[str, Any], check_mode: bool, limits: Limits | None = None) -> dict[str, Any]:
    """What this host has and lacks; outside of check mode its agent listens then."""
    folder, wrong = absolute("folder", params["folder"])
    if folder is None:
        return answer(False, [wrong] if wrong else [], port=0, have=[], missing=[], missing_bytes=0)
    if not check_mode:
        share_agent.end_old(folder)  # it may be about to name a file
    looked = Offer(folder, params["files"], params["have"], params["replace"])
    causes = looked.causes
    port, missing_bytes = 0, 0
    if not causes:
        replace = set(params["replace"])
        exchange = Exchange(folder, looked.entries, looked.have, replace, params["token"], limits)
        missing_bytes = sum(part.entry.size - part.bytes_done for part in exchange.parts.values())
        if exchange.parts:
            causes += [one for one in (unwritable("folder", folder), _no_room(folder, missing_bytes)) if one]
        if not causes and not check_mode:
            port = _start(exchange, params["address"], causes)
    have, missing = looked.names(True), looked.names(False)
    return answer(False, causes, port=port, have=have, missing=missing, missing_bytes=missing_bytes)


def _no_room(folder: str, missing_bytes: int) -> dict[str, Any] | None:
    needed, free = missing_bytes + missing_bytes // 100, free_bytes(folder)
    if free is None or needed <= free:
        return None
    what = f"{folder} needs {needed / 1e6:.0f} MB, and {nearest(folder)} has {free / 1e6:.0f} MB free"
    return cause("disk_full", what)


def _start(exchange: Exchange, address: str, causes: list[dict[str, Any]]) -> int:
    try:
        return share_agent.start(exchange, address)
    except BlockingIOError:
        what = f"another process, perhaps of a host that shares the folder, brings files to {exchange.folder}"
        causes.append(cause("transfer_failed", what, "Wait for its end"))
    except OSError as problem:
        causes.append(
            cause("transfer_failed", f"the agent for {exchange.folder} on {address} did not start: {problem}")
        )
    return 0


def fetch(params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Tell the agent of this host who takes part, wait a little, say how far it is."""
    own, offers = params["self"], params["offers"]
    mine = offers.get(own)
    if mine is None:
        what = f"{own!r} is not among the hosts of the exchange: {', '.join(sorted(offers))}"
        return _fetched([cause("transfer_failed", what, host=own)], "failed")
    if check_mode:
        names = dict.fromkeys(name for one in offers.values() for name in one["have"])
        return _fetched([], "predicted", brought=[name for name in names if name not in mine["have"]])
    link = Link(str(mine["address"]), int(mine["port"]), params["token"], _ANSWER_S + params["wait_s"])
    try:
        link.ask("POST", "/peers", {"self": own, "offers": offers})
        state = link.ask("GET", f"/state?wait={params['wait_s']}")
    except (OSError, http.client.HTTPException, ValueError) as problem:
        what = f"the agent on {mine['address']}, port {mine['port']}, does not answer: {problem}"
        return _fetched([cause("transfer_failed", what, host=own)], "failed")
    finally:
        link.close()
    progress = {key: state[key] for key in _PROGRESS}
    return _fetched(state["causes"], state["state"], state["brought"], state["bytes_from"], progress)


def _fetched(
    causes: list[dict[str, Any]],
    state: str,
    brought: list[str] | None = None,
    bytes_from: dict[str, int] | None = None,
    progress: dict[str, Any] | None = None,
) -> dict[str, Any]:
    more = {"state": state, "brought": brought or [], "bytes_from": bytes_from or {}}
    return answer(bool(brought), causes, **more, progress=progress or dict.fromkeys(_PROGRESS, 0))


def main() -> None:
    entry = {
        "name": {"type": "str", "required": True},
        "size": {"type": "int", "required": True},
        "sha256": {"type": "str", "required": True},
    }
    module = AnsibleModule(
        argument_spec={
            "step": {"type": "str", "choices": ["offer", "fetch"], "required": True},
            "name": {"type": "str", "default": "files"},
            "folder": {"type": "str", "required": True},
            "token": {"type": "str", "required": True, "no_log": True},
            "address": {"type": "str"},
            "files": {"type": "list", "elements": "dict", "options": entry},
            "have": {"type": "list", "elements": "str", "default": []},
            "replace": {"type": "list", "elements": "str", "default": []},
            "self": {"type": "str"},
            "offers": {"type": "dict"},
            "wait_s": {"type": "float", "default": 2},
        },
        required_if=[("step", "offer", ("address", "files")), ("step", "fetch", ("self", "offers"))],
        supports_check_mode=True,
    )
    if not re.fullmatch("[0-9a-fA-F]{32,}", module.params["token"]):
        module.fail_json(msg="token must be at least 32 hexadecimal digits")
    if module.params["step"] == "offer":
        module.exit_json(**offer(module.params, module.check_mode))
    module.exit_json(**fetch(module.params, module.check_mode))


if __name__ == "__main__":
    main()
