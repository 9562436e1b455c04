#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the page of a run; the action plugin of this name does the work, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: page
short_description: Make numbers and a page of what was collected of a run
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Writes C(metrics.csv), a row for each beat of each rank and for each step and validation of the log, and
    C(report.html), one file that needs no network, with loss, validation bpb, tokens per second, the communication
    share of each rank, what happened when, the configuration, the plan and the verdict.
  - The page needs the Python package plotly on the controller. Without it the page is left out, which is said.
  - Fails when no host gave anything.
options:
  run:
    description: Name of the run.
    type: str
    required: true
  folder:
    description: Folder on the controller, relative to the user's, that has a folder for each run.
    type: str
    required: true
  collected:
    description: What M(torchlan.nanochat.collect) returned on every host, by host.
    type: dict
    required: true
  causes:
    description: What is known of the run now, and why it broke, each with C(code), C(weight), C(what) and C(fix).
    type: list
    elements: dict
    default: []
  checkpoints:
    description: What it returned of the checkpoint, by host.
    type: dict
requirements:
  - plotly, for C(report.html)
extends_documentation_fragment:
  - torchlan.nanochat.attributes.controller
attributes:
  check_mode:
    description: Can run in check mode and writes nothing then.
    support: full
seealso:
  - module: torchlan.nanochat.collect
"""

EXAMPLES = r"""
- name: Make numbers and a page of it
  torchlan.nanochat.page:
    run: first
    folder: ./nanochat-runs
    collected: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'collect_brought'))) }}"
  run_once: true
"""

RETURN = r"""
attempts:
  description: The attempts that the page is about.
  type: list
  elements: str
  returned: success
folder:
  description: Where both files are.
  type: str
  returned: success
  sample: nanochat-runs/first
"""
