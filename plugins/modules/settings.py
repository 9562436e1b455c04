#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of one host of the cluster; the action plugin of this name does the work, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: settings
short_description: Settings of one host of the cluster
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Collects every variable that the role C(torchlan.nanochat.nanochat) describes, converts it to the type
    named there, and checks it.
  - Values from the command line are strings; this is where C(-e nanochat_relaunch=true) becomes a boolean.
  - The values of C(nanochat_secret_env) are not part of the result.
options: {}
extends_documentation_fragment:
  - torchlan.nanochat.attributes.controller
"""

EXAMPLES = r"""
- name: Read the settings of every host
  torchlan.nanochat.settings:
  register: preflight_settings
"""

RETURN = r"""
settings:
  description: Every setting by its variable name, and C(host), C(ssh) and C(secret_names).
  type: dict
  returned: always
causes:
  description: What is wrong with the values of this host.
  type: list
  elements: dict
  returned: always
"""
