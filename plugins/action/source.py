# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.source: one commit for all hosts. Works on the controller only."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import source


class ActionModule(ActionBase):
    """Needs no connection."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        settings = self._task.args["settings"]
        result.update(changed=False, commit=None, causes=[])
        if settings["nanochat_source"] != "git":
            return result
        try:
            found = source.resolve(
                settings["nanochat_repo"], self._task.args.get("commit") or settings["nanochat_version"]
            )
            result.update(commit=found.commit, causes=found.causes)
        except source.SourceError as problem:
            result["causes"] = [problem.cause]
        return result
