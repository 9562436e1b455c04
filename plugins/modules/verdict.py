#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what all hosts of the cluster answered; the action plugin of this name does the work, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: verdict
short_description: Judge what all hosts of the cluster answered
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Reads the registered results of every host of the cluster, also of dead ones, and decides once.
  - Never fails. M(torchlan.nanochat.report) ends a playbook.
options:
  stage:
    description: What to judge.
    type: str
    required: true
    choices:
      - inventory
      - check
      - checked
      - exchanged
      - part
      - some
      - look
      - idle
      - paths
      - software
      - wheels
      - wheels_offered
      - shards
      - shards_offered
      - prepared
      - network
      - started
      - proof
      - status
      - ended
  previous:
    description: The verdict of the stage before.
    type: dict
extends_documentation_fragment:
  - torchlan.nanochat.attributes.controller
"""

EXAMPLES = r"""
- name: Judge what the hosts say
  torchlan.nanochat.verdict:
    stage: look
    previous: "{{ preflight_verdict }}"
  run_once: true
  register: preflight_verdict
"""

RETURN = r"""
go:
  description: Whether the tasks that follow may run.
  type: bool
  returned: always
causes:
  description: Everything that was found so far.
  type: list
  elements: dict
  returned: always
plan:
  description: The run over all hosts, with its derived figures.
  type: dict
  returned: when the settings can be used
todo:
  description: Hosts that need C(install) or C(dataset).
  type: dict
  returned: after the stage look
verdict:
  description: C(proven), C(failed) or C(unverified).
  type: str
  returned: after the stage proof
"""
