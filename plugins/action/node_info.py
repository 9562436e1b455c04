# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.node_info: its module, with failure as data."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import RemoteAction


class ActionModule(RemoteAction):
    """Runs the module; a host that is lost is in the result, not an error."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """When it was asked and had answered, by the controller's clock, is part of the answer."""
        before = time.time()
        return {**super().work(args, task_vars), "asked": [before, time.time()]}
