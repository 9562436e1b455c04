# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.rendezvous: asks the master until there is proof or a cause, and says what it awaits."""

from __future__ import annotations

import time
from typing import Any

from ansible.utils.display import Display

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import RemoteAction

# One answer of the module takes at most this long, so that a person sees a line now and then.
_POLL_S = 5
# What the module itself may need beyond the limits that it was given, before we stop believing it.
_SLACK_S = 60


class ActionModule(RemoteAction):
    """The module looks for a few seconds; this repeats it."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        display = Display()
        args = {"wait_s": _POLL_S, "since_unix": time.time(), **args}
        started = time.monotonic()
        limit = int(args["join_timeout"]) + int(args["first_step_timeout"]) + _SLACK_S
        said = None
        while True:
            result = self.remote(args, task_vars)
            if result["progress"] != said:
                said = result["progress"]
                display.display(f"  {time.monotonic() - started:5.0f} s  {said}")
            if result["done"] or self._task.check_mode:
                return result
            if time.monotonic() - started > limit:
                what = f"nothing was decided within {limit} s; last seen: {said}"
                result["causes"] = [*result["causes"], cause("start_timeout", what)]
                return result
