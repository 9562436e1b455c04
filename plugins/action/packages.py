# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.packages: Ansible's own modules, with failure as data."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import packages
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import Lost, RemoteAction

_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "apt-get": (
        "ansible.builtin.apt",
        {"update_cache": True, "cache_valid_time": 3600, "install_recommends": False, "lock_timeout": 300},
    ),
    "dnf": ("ansible.builtin.dnf", {"install_weak_deps": False, "lock_timeout": 300}),
}


class ActionModule(RemoteAction):
    """The other package managers have no module in ansible-core: their command is named instead."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        needed, manager = list(args["needed"]), args["manager"]
        names = packages.names(needed, manager)
        found: dict[str, Any] = {"changed": True, "causes": [], "packages": names}
        if self._task.check_mode:
            return found
        fix = packages.command(needed, manager)
        if manager not in _OPTIONS:
            what = f"{', '.join(names)} are missing, and {manager} is not driven by this collection"
            return {**found, "changed": False, "causes": [cause("packages_missing", what, fix)]}
        self.say(f"installing {', '.join(names)} with {manager}")
        module, options = _OPTIONS[manager]
        try:
            with self.ticking(f"{manager} works"):
                result = self.remote({"name": names, **options}, task_vars, module)
        except Lost as lost:
            if lost.cause["code"] != "module_failed":
                raise
            return {**found, "changed": False, "causes": [cause("packages_missing", lost.cause["what"], fix)]}
        return {**found, "changed": bool(result.get("changed"))}
