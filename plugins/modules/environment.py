#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the Python environment of a host, or check the one that exists."""

from __future__ import annotations

DOCUMENTATION = r"""
module: environment
short_description: Make the Python environment of a host, or check the one that exists
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - With O(method=pip), makes the virtual environment C(.venv) in the folder of the checkout and installs the
    requirements into it. What was installed is noted in C(.venv/.torchlan.json), last, so that an interrupted
    installation is done again.
  - With O(method=uv), runs C(uv sync --frozen) in the checkout.
  - With O(method=existing), changes nothing.
  - The files come from the indexes to one host's wheelhouse, a folder below O(base_dir) with a manifest of sizes and
    checksums; M(torchlan.nanochat.share) brings them to the others. A host that reaches no index gets them from the
    controller. pip and uv come from the controller where a host has none.
  - Work that takes more than some seconds goes on in the background; the action shows its progress until it ends.
  - What is wrong is returned under RV(causes); the task does not fail for it.
options:
  settings:
    description: Settings of the host, as M(torchlan.nanochat.settings) returns them. Used on the controller only.
    type: dict
  step:
    description:
      - V(make) does everything on this host alone.
      - V(look) says what is needed and changes nothing. V(fetch) fills the wheelhouse, V(install) makes the
        environment from it, without the network.
    type: str
    choices: [make, look, fetch, install]
    default: make
  manifest:
    description: What another host's wheelhouse holds, each file of which was brought here, for V(install).
    type: list
    elements: dict
    default: []
  pack:
    description: With O(method=uv) and V(fetch), pack uv's cache into one file for other hosts.
    type: bool
    default: false
  commit:
    description:
      - The commit whose requirements O(method=pip) installs where O(requirements) is empty. Used on the controller.
      - Unset, C(nanochat_version) is resolved.
    type: str
  requirements:
    description: Requirements for O(method=pip). Empty, those in the pyproject.toml of O(commit).
    type: list
    elements: str
    default: []
  path:
    description: The folder of the checkout. Set by the action from O(settings).
    type: str
  base_dir:
    description: The base folder, below which the wheelhouse is. Set by the action from O(settings).
    type: str
    default: ~/.cache/nanochat
  pip:
    description: A wheel or zip file of pip that was copied to the host. Set by the action.
    type: str
  uv:
    description: A uv that was copied to the host. Set by the action.
    type: str
  incoming:
    description: Archive with the files of O(manifest) that the controller copied to the host. Set by the action.
    type: str
  job:
    description: The work of an earlier call to wait for. Set by the action.
    type: str
  method:
    description: How the environment is made. Set by the action from O(settings).
    type: str
    choices: [uv, pip, existing]
  source:
    description: What is to be trained. Set by the action from O(settings).
    type: str
    choices: [git, smoke]
    default: git
  python:
    description:
      - The interpreter of the environment that exists already, or for O(method=pip) the one to make it with.
      - Unset, O(method=pip) takes the host's C(python3), or else the newest Python that can make virtual environments.
    type: str
  torch:
    description: Requirement of torch for O(source=smoke). Set by the action from O(settings).
    type: str
  extra:
    description: Optional group of nanochat's pyproject.toml for O(method=uv). Set by the action from O(settings).
    type: str
    choices: [cpu, gpu]
    default: cpu
  pip_args:
    description: More arguments for pip. Set by the action from O(settings).
    type: list
    elements: str
    default: []
  env:
    description: Environment of the download, as JSON. Set by the action from O(settings).
    type: str
extends_documentation_fragment:
  - torchlan.nanochat.attributes
"""

EXAMPLES = r"""
- name: Environment
  torchlan.nanochat.environment:
    settings: "{{ preflight_settings.settings }}"
    requirements: "{{ preflight_verdict.requirements[inventory_hostname] | default([]) }}"
  register: install_environment
"""

RETURN = r"""
causes:
  description: What is wrong.
  type: list
  elements: dict
  returned: always
python:
  description: The interpreter of the environment.
  type: str
  returned: always
version:
  description: Its version.
  type: str
  returned: when it is known
torch:
  description: Version of its torch.
  type: str
  returned: when it has one
action:
  description: What was done, or would be done in check mode and by V(look).
  type: str
  returned: always
  sample: create
needed:
  description: Whether the environment is to be made or changed.
  type: bool
  returned: with V(look)
key:
  description: One word for what the wheelhouse is for. Hosts with the same one install the same files.
  type: str
  returned: when the interpreter is known
folder:
  description: The wheelhouse.
  type: str
  returned: when the interpreter is known
files:
  description: Name, size and sha256 of each of its files; null when it is not whole.
  type: list
  elements: dict
  returned: when the interpreter is known
platform:
  description: What decides which files fit, with C(python), C(machine), C(libc) and C(libc_version).
  type: dict
  returned: when the interpreter is known
lacking:
  description: V(pip) or V(uv), when the controller has to bring it first.
  type: str
  returned: when it is so
job:
  description: The work that goes on, with its C(progress).
  type: str
  returned: while it goes on
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils import background, environments
from ansible_collections.torchlan.nanochat.plugins.module_utils.pip_environment import PipEnvironment
from ansible_collections.torchlan.nanochat.plugins.module_utils.uv_environment import UvEnvironment

KINDS = {"pip": PipEnvironment, "uv": UvEnvironment, "existing": environments.Existing}


def environment(given: dict[str, Any], check_mode: bool = False) -> environments.Environment:
    """The kind that the settings ask for; the smoke workload needs no checkout, so uv has nothing to read for it."""
    smoke = given.get("source") == "smoke" and given["method"] == "uv"
    return KINDS["pip" if smoke else given["method"]](given, check_mode)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict"},
            "step": {"type": "str", "choices": ["make", "look", "fetch", "install"], "default": "make"},
            "manifest": {"type": "list", "elements": "dict", "default": []},
            "pack": {"type": "bool", "default": False},
            "commit": {"type": "str"},
            "requirements": {"type": "list", "elements": "str", "default": []},
            "path": {"type": "str"},
            "base_dir": {"type": "str", "default": "~/.cache/nanochat"},
            "method": {"type": "str", "choices": ["uv", "pip", "existing"]},
            "source": {"type": "str", "choices": ["git", "smoke"], "default": "git"},
            "python": {"type": "str"},
            "torch": {"type": "str"},
            "extra": {"type": "str", "choices": ["cpu", "gpu"], "default": "cpu"},
            "pip_args": {"type": "list", "elements": "str", "default": []},
            # A dictionary that is not logged would censor every equal piece of the result.
            "env": {"type": "str", "no_log": True},
            "pip": {"type": "str"},
            "uv": {"type": "str"},
            "incoming": {"type": "str"},
            "job": {"type": "str"},
        },
        supports_check_mode=True,
    )
    given = module.params
    if not given["path"] or not given["method"]:
        module.fail_json(msg="path and method are required; the action plugin of the same name sets them")
    wanted = environment(given, module.check_mode)
    if module.check_mode or given["step"] == "look":
        module.exit_json(**wanted.step("look", background.Progress()))
    try:
        module.exit_json(**background.follow(given["job"], lambda progress: wanted.step(given["step"], progress)))
    except RuntimeError as problem:
        module.fail_json(msg=str(problem))


if __name__ == "__main__":
    main()
