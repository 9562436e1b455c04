#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which runs the host's own package manager."""

from __future__ import annotations

DOCUMENTATION = r"""
module: packages
short_description: Install the system packages that a host lacks
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Runs M(ansible.builtin.apt) or M(ansible.builtin.dnf) for what is missing, as root. It is the only task of the
    collection that becomes root, and only where something is missing.
  - What is wrong is returned under RV(causes); the task does not fail for it.
options:
  needed:
    description: What is missing, by the names that M(torchlan.nanochat.node_info) uses.
    type: list
    elements: str
    choices: [tmux, git, compiler, headers, venv]
    required: true
  manager:
    description: The host's package manager.
    type: str
    required: true
extends_documentation_fragment:
  - torchlan.nanochat.attributes
attributes:
  action:
    description: Runs on the controller and uses other modules on the host.
    support: full
"""

EXAMPLES = r"""
- name: System packages
  torchlan.nanochat.packages:
    needed: "{{ preflight_verdict.packages[inventory_hostname].needed }}"
    manager: "{{ preflight_verdict.packages[inventory_hostname].manager }}"
  register: install_packages
  vars:
    ansible_become: true
"""

RETURN = r"""
causes:
  description: What is wrong.
  type: list
  elements: dict
  returned: always
packages:
  description: What was installed, or would be in check mode.
  type: list
  elements: str
  returned: always
"""
