# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.verdict: judges what all hosts answered, once, on the controller."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import data_stages, install_stages, stages

# Registered by the tasks that ask the hosts; the verdict reads them of all hosts.
REGISTERED = (
    "preflight_settings",
    "preflight_node",
    "preflight_links",
    "preflight_exchange",
    "preflight_exchanged",
    *install_stages.TASKS,
    *data_stages.TASKS,
    "launch_links",
    "launch_started",
    "verify_rendezvous",
    "verify_node",
    "stop_ended",
)


# What a stage hands on to the next; the rest of a registered result is Ansible's own.
KEPT = frozenset(
    (
        "plan",
        "partial",
        "check",
        "measured",
        "exchange",
        "collective",
        "needs",
        "packages",
        "sharing",
        "wheels",
        "exchange_name",
        "causes",
        "commit",
        "requirements",
        "manifest",
        "go",
        "start",
        "todo",
        "attempt",
        "action",
        "config",
        "fingerprint",
        "network",
        "starts",
        "peers",
        "data",
        "offers",
        "software",
        "verdict",
        "run_state",
        "evidence",
        "beats",
        "end",
        "folders",
        "last_words",
        "sample",
        "ended",
        "host_runs",
        "other_runs",
    )
)


class ActionModule(ActionBase):
    """Reads C(hostvars) of the whole cluster; runs once, without a connection."""

    _requires_connection = False
    _VALID_ARGS = frozenset(("stage", "previous"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        view = view_of(task_vars, bool(self._task.check_mode))
        state = dict(self._task.args.get("previous") or {})
        stage = self._task.args["stage"]
        kept = {"causes": [], **{key: value for key, value in state.items() if key in KEPT}}
        # After a refusal the stages that follow have nothing to judge.
        new = stages.STAGES[stage](view, kept) if kept.get("go", True) else kept
        new["times"] = [*state.get("times", []), [stage, time.time()]]
        result.update(changed=False, **new)
        return result


def view_of(task_vars: dict[str, Any], check_mode: bool) -> stages.View:
    """The cluster and what its hosts answered, from the variables of any of its hosts."""
    hostvars = task_vars["hostvars"]
    cluster = list(task_vars["preflight_settings"]["settings"]["nanochat_hosts"])
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name in REGISTERED:
        for host in cluster:
            answer = hostvars[host].get(name) if host in hostvars else None
            if isinstance(answer, dict) and not answer.get("skipped"):
                results.setdefault(name, {})[host] = answer
    return stages.View(cluster, task_vars["groups"], results, check_mode)
