#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: collect
short_description: Bring what a run has left on a host to the controller
version_added: 0.1.0
author:
  - torchlan contributors (@torchlan)
description:
  - Brings a host's part of a run, and checkpoints where they are asked for, into a folder on the controller.
  - The values of C(nanochat_secret_env) are masked on the host and never leave it, also where a log repeats them; there
    a star takes the place of each byte. Values of less than six characters are masked in C(env) only. Where the
    record of the run is broken, all values of its environment are masked.
  - The log and checkpoints come in pieces. What was interrupted goes on where it was, as does the log of a run that has
    gone on since, and a file counts when its size and sha256 are right.
options:
  run:
    description: Name of the run.
    type: str
    required: true
  base_dir:
    description: Folder on the host that has the runs in C(runs/). A leading C(~) is the user's home folder.
    type: str
    required: true
  node_rank:
    description: The host's place in the cluster.
    type: int
    required: true
  folder:
    description: Folder on the controller, relative to the user's, that has a folder for each run. Read by the action.
    type: str
  attempts:
    description: Bring the newest attempt of the run, or all of them.
    type: str
    choices: [newest, all]
    default: newest
  checkpoints:
    description:
      - V(latest) or the number of a step. With O(collected), the newest step that is whole over all hosts, or this one,
        is brought, each file from one host that has it whole. Without O(collected) the host says which it has.
    type: str
  collected:
    description: What was returned on every host, by host; see O(checkpoints). Read by the action.
    type: dict
  step:
    description:
      - What the action asks the host for.
      - V(look) gives the small files, V(weigh) the sizes and digests of the checkpoint files O(names), V(read) a piece
        of the log.
    type: str
    choices: [look, weigh, read]
    default: look
  attempt:
    description: Read the log of this attempt. Used with O(step=read).
    type: str
  names:
    description: Names of files of the run's checkpoints. Used with O(step=weigh).
    type: list
    elements: str
    default: []
  offset:
    description: Where the piece begins. Used with O(step=read).
    type: int
    default: 0
  count:
    description: Bytes of the piece. Used with O(step=read).
    type: int
    default: 0
  size:
    description: Bytes of the file that are read in all. Used with O(step=read).
    type: int
    default: 0
attributes:
  check_mode:
    description: Can run in check mode and return changed status prediction without modifying target.
    support: full
  diff_mode:
    description: Returns details on what has changed in diff mode.
    support: none
  idempotent:
    description: When run twice in a row, the second run changes nothing.
    support: full
    details:
      - Of a run that has ended.
seealso:
  - module: torchlan.nanochat.page
"""

EXAMPLES = r"""
- name: Bring everything of the run
  torchlan.nanochat.collect:
    run: first
    base_dir: ~/.cache/nanochat
    node_rank: "{{ node_rank }}"
    folder: ./nanochat-runs
    checkpoints: latest
  register: collect_brought

- name: Bring its newest checkpoint
  torchlan.nanochat.collect:
    run: first
    base_dir: ~/.cache/nanochat
    node_rank: "{{ node_rank }}"
    folder: ./nanochat-runs
    checkpoints: latest
    collected: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'collect_brought'))) }}"
"""

RETURN = r"""
folder:
  description: Where the host's files are on the controller.
  type: str
  returned: when something was there to bring
  sample: nanochat-runs/first/collected/workstation
files:
  description: How many files there are now.
  type: int
  returned: when something was there to bring
bytes:
  description: How many bytes they have.
  type: int
  returned: when something was there to bring
bytes_read:
  description: How many bytes of logs and checkpoints came now.
  type: int
  returned: when something was there to bring
attempts:
  description: Names of the attempts that were brought.
  type: list
  elements: str
  returned: without O(collected)
checkpoints:
  description: The folder C(tag) of the checkpoints here, the ranks C(world) of the run, and what is wrong with each
    file of C(files), none when it is whole.
  type: dict
  returned: with O(checkpoints), without O(collected)
chosen:
  description: The step of the checkpoint, none where no step is whole.
  type: int
  returned: with O(collected)
why_not:
  description: Why newer steps were not taken.
  type: list
  elements: str
  returned: with O(collected)
"""

import base64
import os
import time
import zlib
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils import checkpoints, collecting
from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import RunPaths


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "run": {"type": "str", "required": True},
            "base_dir": {"type": "str", "required": True},
            "node_rank": {"type": "int", "required": True},
            "folder": {"type": "str"},
            "attempts": {"type": "str", "choices": ["newest", "all"], "default": "newest"},
            "checkpoints": {"type": "str"},
            "collected": {"type": "dict"},
            "step": {"type": "str", "choices": ["look", "weigh", "read"], "default": "look"},
            "attempt": {"type": "str"},
            "names": {"type": "list", "elements": "str", "default": []},
            "offset": {"type": "int", "default": 0},
            "count": {"type": "int", "default": 0},
            "size": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        paths = RunPaths.of(params["base_dir"], params["run"], params["node_rank"])
        result = {"look": _look, "weigh": _weigh, "read": _read}[params["step"]](paths, params)
    except (ValueError, OSError) as problem:
        module.fail_json(msg=str(problem))
    module.exit_json(changed=False, **result)


def _look(paths: RunPaths, params: dict[str, Any]) -> dict[str, Any]:
    current = paths.current_attempt()
    if current is None:
        return {"attempts": [], "where": paths.run_dir}
    names = paths.attempts() if params["attempts"] == "all" else [current]
    result: dict[str, Any] = {
        "attempts": collecting.look({name: paths.node_dir(name) for name in names}),
    }
    if params["checkpoints"]:
        result["checkpoints"] = collecting.inventory(paths.base_dir, paths.node_dir(current))
    result["clock"] = time.time()
    return result


def _checkpoint(paths: RunPaths, name: str) -> str:
    current = paths.current_attempt()
    tag = collecting.Attempt(paths.node_dir(current)).tag if current else None
    if tag is None or checkpoints.step_of(name) is None:
        raise ValueError("%r is no file of a checkpoint of this run" % name)
    return os.path.join(checkpoints.folder_of(paths.base_dir, tag), name)


def _weigh(paths: RunPaths, params: dict[str, Any]) -> dict[str, Any]:
    found = []
    for name in params["names"]:
        path = _checkpoint(paths, name)
        size = os.path.getsize(path)
        found.append({"name": name, "path": path, "size": size, "sha256": collecting.digest(path, size, [])})
    return {"files": found}


def _read(paths: RunPaths, params: dict[str, Any]) -> dict[str, Any]:
    attempt = collecting.Attempt(paths.node_dir(params["attempt"] or ""))
    path = os.path.join(attempt.folder, collecting.LOG)
    count = min(params["count"], collecting.PIECE)
    data = collecting.read(path, params["offset"], count, params["size"], attempt.forms)
    return {"data": base64.b64encode(zlib.compress(data, 1)).decode()}


if __name__ == "__main__":
    main()
