# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The secret of an exchange of files between hosts, from its public name."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import exchange

DOCUMENTATION = r"""
name: exchange_token
short_description: The secret of an exchange of files between hosts
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Gives the secret that the hosts of an exchange know each other by, from the name that
    M(torchlan.nanochat.verdict) gave the exchange and a key of the controller's user.
  - Give it to a parameter that is not logged. So the secret is in no registered variable.
options:
  _input:
    description: Name of the exchange.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Offer what this host has
  torchlan.nanochat.share:
    step: offer
    token: "{{ preflight_verdict.data.exchange_name | torchlan.nanochat.exchange_token }}"
"""

RETURN = r"""
_value:
  description: Hexadecimal digits.
  type: str
"""


def exchange_token(name: str) -> str:
    """The secret.

    :raises AnsibleFilterError: the verdict of this exchange was not made by this user on this controller.
    """
    try:
        return exchange.token(str(name))
    except ValueError as problem:
        raise AnsibleFilterError(str(problem)) from problem


class FilterModule:
    """Entry point of the plugin loader."""

    def filters(self) -> dict[str, Any]:
        return {"exchange_token": exchange_token}
