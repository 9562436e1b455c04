#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the report and show it; the action plugin of this name does the work, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write the report, show one screen, and fail when it is not good
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Writes C(report.json) below C(nanochat_report_dir) and prints one readable screen.
  - Fails unless the playbook reached what it is for.
    For a launch that is the verdict C(proven), or C(planned) in check mode.
options:
  verdict:
    description: The last verdict.
    type: dict
    required: true
  of:
    description: Which playbook reports.
    type: str
    choices: [launch, preflight, install, dataset, status, logs, collect, stop]
    default: launch
extends_documentation_fragment:
  - torchlan.nanochat.attributes.controller
"""

EXAMPLES = r"""
- name: Report
  torchlan.nanochat.report:
    verdict: "{{ verify_verdict }}"
  run_once: true
"""

RETURN = r"""
report:
  description: The content of C(report.json).
  type: dict
  returned: always
report_file:
  description: Where it was written.
  type: str
  returned: when it was written
"""
