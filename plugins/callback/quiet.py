# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Callback torchlan.nanochat.quiet: keeps Ansible's own lines from stdout."""

from __future__ import annotations

DOCUMENTATION = r"""
name: quiet
type: stdout
short_description: Nothing on stdout but what the playbook itself prints
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - With C(ANSIBLE_STDOUT_CALLBACK=torchlan.nanochat.quiet), no names of plays and tasks and no recap are printed. What
    fails is said on stderr.
  - With C(-e nanochat_json=true), C(torchlan.nanochat.status) then prints one JSON document and nothing else.
"""

from typing import Any

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    """Everything that this class does not override is silent."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "torchlan.nanochat.quiet"

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            self._say(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._say(result)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        self._display.display("no hosts matched", stderr=True)

    def _say(self, result: Any) -> None:
        self._display.display(f"{result._host.get_name()}: {result._result.get('msg')}", stderr=True)
