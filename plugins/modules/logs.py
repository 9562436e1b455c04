#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show logs; the action plugin of this name does the work, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: logs
short_description: Show and follow the logs of all hosts as one
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Reads the end of a host's C(train.log), shows what was read of all hosts in the order of time, follows what comes.
  - Times are those at which the runner saw the log grow, once a second, by the controller's clock. Without the runner
    there are none.
options:
  run:
    description: Name of the run. Needed with O(base_dir).
    type: str
  base_dir:
    description: Folder on the host that has the runs in C(runs/). A leading C(~) is the user's home folder.
    type: str
  node_rank:
    description: The host's place in the cluster. Needed with O(base_dir).
    type: int
  lines:
    description: So many of the last lines.
    type: int
    default: 100
  raw:
    description: Show all lines, and not only those that say something.
    type: bool
    default: false
  after:
    description:
      - Follow from where an earlier read ended (RV(attempt) and RV(next) of that one), until the run has ended on this
        host. A host that is away is asked until it is back; no line is lost or repeated.
      - As many hosts are followed as C(forks) allows.
    type: dict
  show:
    description: What was read, by host. Shown in the order of time; no host is asked.
    type: dict
extends_documentation_fragment:
  - torchlan.nanochat.attributes.shows
"""

EXAMPLES = r"""
- name: Read the end of every log
  torchlan.nanochat.logs:
    run: first
    base_dir: ~/.cache/nanochat
    node_rank: "{{ node_rank }}"
    lines: 50
  register: logs_read

- name: Show them in the order of time
  torchlan.nanochat.logs:
    show: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'logs_read'))) }}"
  run_once: true
"""

RETURN = r"""
entries:
  description: Lines, each a list of its unix time or none, its rank or none, and its text.
  type: list
  elements: list
  returned: when a log was read
  sample: [[1796644465.5, 1, 'step 00004/00020 (20.00%) | loss: 5.0563']]
next:
  description: Where the next read begins, in bytes.
  type: int
  returned: when a log was read or followed
attempt:
  description: The attempt whose log it is.
  type: str
  returned: when a log was read or followed
ended:
  description: Whether this host's part of the run has ended.
  type: bool
  returned: when a log was read or followed
shown:
  description: Hosts whose lines were shown.
  type: list
  elements: str
  returned: with O(show)
"""
