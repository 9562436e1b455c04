# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.environment: turns settings into the module's arguments."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import source
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.deliver import pip_arguments
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import RemoteAction


class ActionModule(RemoteAction):
    """One remote task; the words of the user stay separate words all the way."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        settings = args["settings"]
        variables = settings["nanochat_install_env"]
        extra = "gpu" if settings["nanochat_device_type"] == "cuda" else "cpu"
        module_args = {
            "path": settings["nanochat_dir"],
            "method": settings["nanochat_install_method"],
            "source": settings["nanochat_source"],
            "python": settings["nanochat_python"],
            "torch": settings["nanochat_torch"],
            "extra": extra,
            "pip_args": pip_arguments([str(word) for word in settings["nanochat_pip_args"]]),
            "env": json.dumps(variables) if variables else None,
            "requirements": args.get("requirements") or [],
        }
        own = settings["nanochat_source"] == "git" and settings["nanochat_install_method"] == "pip"
        if own and not module_args["requirements"]:
            try:
                found = source.resolve(settings["nanochat_repo"], args.get("commit") or settings["nanochat_version"])
                module_args["requirements"] = found.requirements(settings["nanochat_torch"], extra)
            except source.SourceError as problem:
                return {"changed": False, "causes": [problem.cause]}
        return self.remote(module_args, task_vars)
