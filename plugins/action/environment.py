# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.environment: turns settings into arguments, and brings what a host cannot get itself."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import fetched, source, tools
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.deliver import DeliveringAction, pip_arguments


class ActionModule(DeliveringAction):
    """The words of the user stay separate words all the way."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        settings = args["settings"]
        try:
            module_args = self._arguments(args, settings)
            result = self._with_tools(module_args, task_vars)
            if args.get("step") in ("fetch", "make") and _codes(result) == ["index_unreachable"]:
                result = self._from_here(module_args, result, args.get("commit"), task_vars)
        except source.SourceError as problem:
            return {"changed": False, "causes": [problem.cause]}
        return result

    def _arguments(self, args: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        variables = settings["nanochat_install_env"]
        self.extra = "gpu" if settings["nanochat_device_type"] == "cuda" else "cpu"
        self.settings = settings
        module_args: dict[str, Any] = {
            "path": settings["nanochat_dir"],
            "base_dir": settings["nanochat_base_dir"],
            "method": settings["nanochat_install_method"],
            "source": settings["nanochat_source"],
            "python": settings["nanochat_python"],
            "torch": settings["nanochat_torch"],
            "extra": self.extra,
            "pip_args": pip_arguments([str(word) for word in settings["nanochat_pip_args"]]),
            "env": json.dumps(variables) if variables else None,
            "requirements": args.get("requirements") or [],
            **{name: args[name] for name in ("step", "pack", "manifest") if name in args},
        }
        own = settings["nanochat_source"] == "git" and settings["nanochat_install_method"] == "pip"
        if own and not module_args["requirements"]:
            found = source.resolve(settings["nanochat_repo"], args.get("commit") or settings["nanochat_version"])
            module_args["requirements"] = found.requirements(settings["nanochat_torch"], self.extra)
        return module_args

    def _with_tools(self, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Run the module; what it lacks is brought, and it is asked again."""
        if module_args.get("step") != "look":
            self._bring_pip(module_args)
        result = self.patient(module_args, task_vars)
        if result.get("lacking") != "uv":
            return result
        binary = tools.uv(result["platform"])
        self.say(f"bringing {os.path.basename(os.path.dirname(binary))} to the host")
        module_args["uv"] = self.deliver(binary, "uv", executable=True)
        return self.patient(module_args, task_vars)

    def _bring_pip(self, module_args: dict[str, Any]) -> None:
        """pip is small, and one version of it everywhere is worth more than asking first."""
        pip = tools.pip() if module_args["method"] == "pip" or module_args["source"] == "smoke" else None
        if pip and module_args["method"] != "existing" and not self._task.check_mode:
            module_args["pip"] = self.deliver(pip, os.path.basename(pip))

    def _from_here(
        self, module_args: dict[str, Any], failed: dict[str, Any], commit: str | None, task_vars: dict[str, Any]
    ) -> dict[str, Any]:
        """The host reaches no index: the controller gets the files for it."""
        self.say("the host reaches no index; this controller fetches for it")
        platform = failed["platform"]
        try:
            if module_args["method"] == "uv" and module_args["source"] == "git":
                found = source.resolve(self.settings["nanochat_repo"], commit or self.settings["nanochat_version"])
                folder = fetched.uv_cache(found, self.extra, platform, self.settings["nanochat_install_env"])
            else:
                wanted = module_args["requirements"] or [module_args["torch"] or "torch", "numpy"]
                words, env = module_args["pip_args"], self.settings["nanochat_install_env"]
                folder = fetched.wheels(wanted, platform, words, env)
        except fetched.FetchError as problem:
            return {**failed, "causes": [*failed["causes"], problem.cause]}
        manifest = fetched.manifest(folder)
        text = f"sending {len(manifest)} file(s), {sum(entry['size'] for entry in manifest) / 1e6:.0f} MB"
        self.say(text)
        with fetched.packed(folder, manifest) as archive, self.ticking(text):
            incoming = self.deliver(archive, "fetched.tar")
        arrived = {**module_args, "step": "fetch", "incoming": incoming, "manifest": manifest}
        result = self.patient(arrived, task_vars)
        if module_args.get("step") == "fetch" or not result["changed"]:
            return result
        return self._with_tools(module_args, task_vars)


def _codes(result: dict[str, Any]) -> list[str]:
    return [entry["code"] for entry in result["causes"] if entry["weight"] == "error"]
