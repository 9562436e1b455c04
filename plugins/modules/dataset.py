#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shards and tokenizer of one host: what the action asks for, step by step."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dataset
short_description: Shards and tokenizer of a host
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Looks at the shards of a host, reading those that nobody has read as they are now, and does what
    M(torchlan.nanochat.verdict) has decided from what all hosts have.
  - Without C(nanochat_dataset_dir), the master downloads missing shards with nanochat's own downloader.
  - With it, the files that no host has come from that folder of the controller, each to one host. From there
    M(torchlan.nanochat.share) brings them to the others.
  - A file gets its name only after its digest was compared, so that a short one is never taken for a whole one.
  - The master trains the tokenizer where there is none; the other hosts get a copy, byte for byte.
  - What is wrong is returned under RV(causes); the task does not fail for it. What is replaced, with
    C(nanochat_dataset_repair) only, is kept beside it under another name.
options:
  settings:
    description: Settings of the host, as M(torchlan.nanochat.settings) returns them. Used on the controller only.
    type: dict
  stage:
    description:
      - V(shards) reads what is there; on the master it downloads, and rewrites files with too few row groups when
        C(nanochat_dataset_repair) is set.
      - V(receive) copies shards from the controller, and sets files aside.
      - V(train) trains the tokenizer where the host has none, and reads it for the others.
      - V(remember) remembers what M(torchlan.nanochat.share) brought and compared, so that nobody reads it again.
      - V(tokenizer) copies the tokenizer to the host.
    type: str
    choices: [shards, receive, remember, train, tokenizer]
    default: shards
  world_size:
    description: Number of ranks, for O(stage=shards). Used on the controller only.
    type: int
  plan:
    description: What to do on this host, for O(stage=receive). Used on the controller only.
    type: dict
  brought:
    description: Names of shards that were brought, for O(stage=remember). Used on the controller only.
    type: list
    elements: str
    default: []
  master:
    description:
      - Result of O(stage=train) on the host whose tokenizer is the right one, for O(stage=tokenizer).
      - Used on the controller only.
    type: dict
  base_dir:
    description: The base folder. Set by the action from O(settings).
    type: str
  data_dir:
    description: Folder of the shards; unset, nanochat's own below O(base_dir). Set by the action from O(settings).
    type: str
  own_shards:
    description: The shards are the user's own, not nanochat's. Set by the action.
    type: bool
    default: false
  step:
    description: What to do on the host. Set by the action.
    type: str
    choices: [look, ready, receive, remember, rewrite, download, train, read, write]
    default: look
  job:
    description: Work that goes on since an earlier call. Set by the action.
    type: str
  files:
    description:
      - With O(stage=remember), name, size and sha256 of all shards.
      - Otherwise set by the action, to files that were copied to the host.
    type: list
    elements: dict
    default: []
  names:
    description: Files to rewrite. Set by the action.
    type: list
    elements: str
    default: []
  row_groups:
    description: How many row groups a rewritten file has at least. Set by the action.
    type: int
  aside:
    description: Files to set aside. Set by the action.
    type: list
    elements: str
    default: []
  replace:
    description: Replace a tokenizer that differs. Set by the action.
    type: bool
    default: false
  parts:
    description: Word in the names of unfinished copies of this host. Set by the action.
    type: str
  checkout:
    description: Folder of the checkout, for nanochat's own programs. Set by the action.
    type: str
  python:
    description: Interpreter of the environment, for nanochat's own programs. Set by the action.
    type: str
  shards:
    description: Number of training shards to download; 0 for none. Set by the action.
    type: int
    default: 0
  tokenizer_args:
    description: Arguments for C(scripts.tok_train). Set by the action.
    type: list
    elements: str
    default: []
  tokenizer:
    description: Digests that the host's tokenizer files should have, by name. Set by the action.
    type: dict
  env:
    description: Environment for nanochat's own programs, as JSON. Set by the action.
    type: str
extends_documentation_fragment:
  - torchlan.nanochat.attributes
"""

EXAMPLES = r"""
- name: What every host has
  torchlan.nanochat.dataset:
    settings: "{{ preflight_settings.settings }}"
    world_size: "{{ preflight_verdict.plan.world_size }}"
  register: dataset_shards

- name: The tokenizer of the master
  torchlan.nanochat.dataset:
    settings: "{{ preflight_settings.settings }}"
    stage: train
  when: inventory_hostname == 'workstation'
  register: dataset_trained

- name: The same tokenizer for the others
  torchlan.nanochat.dataset:
    settings: "{{ preflight_settings.settings }}"
    stage: tokenizer
    master: "{{ hostvars['workstation'].dataset_trained }}"
  register: dataset_tokenizer
"""

RETURN = r"""
causes:
  description: What is wrong.
  type: list
  elements: dict
  returned: always
folder:
  description: Folder of the shards.
  type: str
  returned: always
files:
  description: The host's shards, each with C(name), C(size), C(sha256) and C(row_groups).
  type: list
  elements: dict
  returned: for stage V(shards)
tokenizer:
  description: Digests of the host's tokenizer files by name; null for a file that is not there.
  type: dict
  returned: always
actions:
  description: What was done, or would be done in check mode.
  type: list
  elements: str
  returned: always
  sample: ["copied 2 shards", "trained the tokenizer"]
"""

import errno
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils import (
    background,
    data_files,
    data_programs,
    data_tokenizer,
)
from ansible_collections.torchlan.nanochat.plugins.module_utils.data_host import DataHost

STEPS = {
    "look": data_files.look,
    "ready": data_files.ready,
    "receive": data_files.receive,
    "remember": data_files.remember,
    "rewrite": data_files.rewrite,
    "download": data_programs.download,
    "train": data_programs.train,
    "read": data_tokenizer.read,
    "write": data_tokenizer.write,
}
STAGES = ["shards", "receive", "remember", "train", "tokenizer"]
_PATH_ERRORS = (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EPERM)


def do(host: DataHost) -> dict[str, Any]:
    """The step that the action asks for."""
    try:
        return STEPS[host.given["step"]](host)
    except TimeoutError as problem:
        host.bad("run_in_progress", str(problem), "wait for the other launch")
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            host.bad("disk_full", str(problem))
        else:
            host.bad("path_invalid" if problem.errno in _PATH_ERRORS else "data_missing", str(problem))
    return host.result(files=[])


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict"},
            "stage": {"type": "str", "choices": STAGES, "default": "shards"},
            "world_size": {"type": "int"},
            "plan": {"type": "dict"},
            "brought": {"type": "list", "elements": "str", "default": []},
            "master": {"type": "dict"},
            "base_dir": {"type": "str"},
            "data_dir": {"type": "str"},
            "own_shards": {"type": "bool", "default": False},
            "step": {"type": "str", "choices": list(STEPS), "default": "look"},
            "job": {"type": "str"},
            "files": {"type": "list", "elements": "dict", "default": []},
            "names": {"type": "list", "elements": "str", "default": []},
            "row_groups": {"type": "int"},
            "aside": {"type": "list", "elements": "str", "default": []},
            "replace": {"type": "bool", "default": False},
            "parts": {"type": "str"},
            "checkout": {"type": "str"},
            "python": {"type": "str"},
            "shards": {"type": "int", "default": 0},
            "tokenizer_args": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "tokenizer": {"type": "dict", "no_log": False},
            # A dictionary that is not logged would censor every equal piece of the result.
            "env": {"type": "str", "no_log": True},
        },
        supports_check_mode=True,
    )
    params, check_mode = module.params, module.check_mode
    if not params["base_dir"]:
        module.fail_json(msg="base_dir is required; the action plugin of the same name sets it")
    if check_mode or params["step"] in ("ready", "remember", "read"):
        module.exit_json(**do(DataHost(params, check_mode)))
    module.exit_json(**background.follow(params["job"], lambda progress: do(DataHost(params, False, progress))))


if __name__ == "__main__":
    main()
