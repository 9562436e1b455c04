# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.watch: asks the master for its picture of the run until the run ends, and shows it."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.utils.display import Display

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import terminal, watching
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import RemoteAction, short

_EVERY_S = 2
# So long a master that has answered before may be away.
_AWAY_S = 60


class ActionModule(RemoteAction):
    """One command of the shell each time, over the connection that stays open; needs no module on the host."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        self._watch = watching.Watch(args["run"])
        self._master = str(self._task.delegate_to or self._task_host)
        self._drawn = 0
        command = watching.command(args["base_dir"], args["run"])
        answered = time.time()
        away = False
        while True:
            try:
                done = self._low_level_execute_command(command, sudoable=False)  # or ssh would make a terminal
            except AnsibleConnectionFailure as problem:
                why = self._away(time.time() - answered, str(problem), away)
                away = True
            else:
                away, answered = False, time.time()
                why = self._answered(done, answered)
            if why:
                self._line(f"  {why}")
                return {"changed": False, "ended": why}
            time.sleep(_EVERY_S)

    def _answered(self, done: dict[str, Any], now: float) -> str | None:
        picture = watching.read(done["stdout"]) if done["rc"] == 0 else None
        if picture is None:
            return f"no run {self._watch.run} is found on {self._master}: {short(done['stderr'])}"
        self._watch.see(picture, now)
        self._show(now)
        return self._watch.over(now)

    def _away(self, seconds: float, problem: str, said: bool) -> str | None:
        if self._watch.picture is None:
            return f"{self._master} does not answer: {short(problem)}"
        if seconds >= _AWAY_S:
            return f"{self._master} has not answered for {seconds:.0f} s"
        if not said:
            self._line(f"  {self._master} does not answer, trying for {_AWAY_S} s: {short(problem)}")
        return None

    def _show(self, now: float) -> None:
        """In place where there is a terminal; the log of Ansible, if there is one, has lines in any case."""
        size = terminal.size()
        for line in self._watch.news(now):
            Display().display(line, log_only=size is not None)
        if size is not None:
            lines = self._watch.frame(size, now)
            Display().display(terminal.redraw(lines, self._drawn), screen_only=True, newline=False)
            self._drawn = len(lines)

    def _line(self, text: str) -> None:
        """Something that stays; what is drawn next comes below it."""
        Display().display(text)
        self._drawn = 0
