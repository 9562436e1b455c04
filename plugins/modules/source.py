#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: source
short_description: Find the one commit of nanochat that all hosts get
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Resolves C(nanochat_version) of C(nanochat_repo) to a full commit, on the controller.
  - Copies of git URLs are kept below C(~/.cache/torchlan/repos). A full commit that is there needs no network.
  - What is wrong is returned under RV(causes); the task does not fail for it.
options:
  settings:
    description: Settings of a host, as M(torchlan.nanochat.settings) returns them.
    type: dict
    required: true
  commit:
    description: Used instead of C(nanochat_version) when it is not empty.
    type: str
attributes:
  action:
    description: Has a corresponding action plugin, which does all the work on the controller.
    support: full
  check_mode:
    description: Can run in check mode and predict changes.
    support: full
  diff_mode:
    description: Can show differences.
    support: none
"""

EXAMPLES = r"""
- name: Source
  torchlan.nanochat.source:
    settings: "{{ nanochat_settings.settings }}"
  register: install_source
"""

RETURN = r"""
causes:
  description: What is wrong, and warnings such as uncommitted changes of a checkout on the controller.
  type: list
  elements: dict
  returned: always
commit:
  description: The full commit; null with C(nanochat_source=smoke), or when it is not known.
  type: str
  returned: always
"""
