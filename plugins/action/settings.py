# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.settings: the variables of one host, converted and checked, on the controller."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.torchlan.nanochat.plugins.filter.cluster import cluster
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import settings
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import connection_of


class ActionModule(ActionBase):
    """Needs no connection; never fails for what a variable holds."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = task_vars["inventory_hostname"]
        values: dict[str, Any] = {}
        causes: list[dict[str, Any]] = []
        for name in settings.spec():
            if name in task_vars:
                try:
                    values[name] = self._templar.template(task_vars[name])
                except AnsibleError as problem:
                    why = "(hidden)" if name == settings.SECRET else problem
                    causes.append(cause("setting_invalid", f"{host}: {name} cannot be templated: {why}", host=host))
        coerced, problems = settings.coerce(values, host)
        coerced["host"] = host
        try:
            coerced["nanochat_hosts"] = cluster(task_vars["groups"], coerced.get("nanochat_hosts"))
        except AnsibleError as problem:
            causes.append(cause("group_missing", str(problem)))
            coerced["nanochat_hosts"] = [host]  # somebody has to be asked, so that this is said
        # Known or not is all that is said about it.
        names = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")
        given = self._play_context.become_pass or any(task_vars.get(name) for name in names)
        coerced["become_password"] = bool(given)
        coerced["ssh"] = _ssh_words(host, connection_of(self._templar, task_vars))
        result.update(changed=False, settings=coerced, causes=causes + problems)
        return result


def _ssh_words(host: str, connection: dict[str, Any]) -> list[str]:
    """How a person reaches this host from the controller; empty for a local connection."""
    if str(connection.get("ansible_connection", "ssh")) in ("local", "ansible.builtin.local"):
        return []
    target = str(connection.get("ansible_host", host))
    user = connection.get("ansible_user")
    port = connection.get("ansible_port")
    return ["ssh", *(["-p", str(port)] if port else []), "-t", f"{user}@{target}" if user else target]
