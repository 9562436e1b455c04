#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch a run until it ends; the action plugin of this name does the work, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: watch
short_description: Show a run as it goes, until it ends
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Asks the master every two seconds for what rank 0 knows of all ranks, and shows it. Other hosts are not asked.
  - On a terminal the picture is redrawn in its place. Elsewhere there is a line when something has changed, for a new
    step at most every ten seconds, so that it can go to a log.
  - Comes back when the run has ended, when nothing new has come for 30 seconds, or when the master has not answered
    for 60 seconds. None of that fails the task. Ctrl-C ends the playbook, and leaves the run alone.
options:
  run:
    description: Name of the run.
    type: str
    required: true
  base_dir:
    description: Folder on the master that has the runs in C(runs/). A leading C(~) is the user's home folder.
    type: str
    required: true
extends_documentation_fragment:
  - torchlan.nanochat.attributes.shows
"""

EXAMPLES = r"""
- name: Watch it until it ends
  torchlan.nanochat.watch:
    run: first
    base_dir: ~/.cache/nanochat
  when: node_rank == 0
"""

RETURN = r"""
ended:
  description: Why there was nothing more to watch.
  type: str
  returned: always
  sample: 'the run has ended: exit code 0'
"""
