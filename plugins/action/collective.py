# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.collective: hands the program to the module, and waits for its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import RemoteAction

_SCRIPT = Path(__file__).resolve().parents[2] / "runner" / "torchlan_collective.py"


class ActionModule(RemoteAction):
    """Starting does not wait: with few forks, the others are not started yet."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        if args.get("job"):
            return self.patient(args, task_vars)
        return self.remote({**args, "script": _SCRIPT.read_text(encoding="utf-8")}, task_vars)
