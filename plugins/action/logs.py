# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.logs: reads a host's log, shows what was read of all hosts, follows what comes."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.utils.display import Display

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import logs
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import Lost, RemoteAction, short

_EVERY_S = 2
_SPEC: dict[str, dict[str, Any]] = {
    "run": {"type": "str"},
    "base_dir": {"type": "str"},
    "node_rank": {"type": "int"},
    "lines": {"type": "int", "default": 100},
    "raw": {"type": "bool", "default": False},
    "after": {"type": "dict"},
    "show": {"type": "dict"},
}


class ActionModule(RemoteAction):
    """C(show) is for the controller alone, C(after) goes on, without both the end of the log is read."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        _result, args = self.validate_argument_spec(
            argument_spec=_SPEC, required_one_of=[("show", "base_dir")], required_by={"base_dir": ("run", "node_rank")}
        )
        if args["show"] is not None:
            return _show(args["show"], args["lines"])
        self._args, self._host = args, str(task_vars["inventory_hostname"])
        if args["after"] is not None:
            return self._follow(args["after"]["attempt"], int(args["after"]["next"]))
        part = self._ask("", 0)
        found, end = logs.entries(part, time.time(), args["raw"])
        return {
            "changed": False,
            "entries": logs.as_data(found[-args["lines"] :]),
            "next": end,
            "attempt": part.attempt,
            "ended": part.ended,
        }

    def _follow(self, attempt: str, start: int) -> dict[str, Any]:
        """Until the run has ended here. A host that is away is asked until it is back, and goes on where it was."""
        away_since: float | None = None
        while True:
            try:
                part = self._ask(attempt, start)
            except AnsibleConnectionFailure as problem:
                if away_since is None:
                    Display().display(f"{self._host} does not answer, asking until it does: {short(str(problem))}")
                away_since = away_since or time.time()
            else:
                if away_since is not None:
                    Display().display(f"{self._host} answers again after {time.time() - away_since:.0f} s")
                    away_since = None
                found, end = logs.entries(part, time.time(), self._args["raw"], begun=True)
                for entry in found:
                    Display().display(logs.line(self._host, entry))
                if part.ended and (part.attempt, end) == (attempt, start):
                    return {"changed": False, "next": end, "attempt": attempt, "ended": True}
                attempt, start = part.attempt, end
            time.sleep(_EVERY_S)

    def _ask(self, attempt: str, start: int) -> logs.Part:
        args = self._args
        command = logs.command(args["base_dir"], args["run"], args["node_rank"], args["lines"], attempt, start)
        done = self._low_level_execute_command(command, sudoable=False)
        part = logs.read(done["stdout"]) if done["rc"] == 0 else None
        if part is None:
            what = f"{self._host}: no log of run {args['run']}: {short(done['stderr'] or done['stdout'])}"
            raise Lost(cause("run_absent", what, host=self._host, weight="warning"))
        return part


def _show(read: dict[str, Any], lines: int) -> dict[str, Any]:
    """What all hosts gave, and why others gave nothing."""
    found = {host: logs.from_data(one["entries"]) for host, one in read.items() if "entries" in one}
    for text in logs.merged(found, lines):
        Display().display(text)
    for one in read.values():
        if "nanochat_lost" in one:
            Display().warning(one["nanochat_lost"]["what"])
    return {"changed": False, "shown": sorted(found)}
