# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.checkout: sends the host the commits it lacks."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import source
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.deliver import DeliveringAction


class ActionModule(DeliveringAction):
    """Asks the host first: most launches have nothing to send."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        settings = args["settings"]
        try:
            found = source.resolve(settings["nanochat_repo"], args.get("commit") or settings["nanochat_version"])
            module_args = {"path": settings["nanochat_dir"], "commit": found.commit, "origin": found.url}
            result = self.remote(module_args, task_vars)
            if not result.get("needs_bundle"):
                return result
            bundle = found.bundle(result["have"])
            try:
                module_args.update(bundle=self.deliver(bundle, "commits.bundle"), shallow=found.shallow_commits())
            finally:
                os.unlink(bundle)
            return self.remote(module_args, task_vars)
        except source.SourceError as problem:
            return {"changed": False, "causes": [problem.cause]}
