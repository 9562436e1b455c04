# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.report: report.json, one screen, and the one explicit failure of a playbook."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.torchlan.nanochat.plugins.action.verdict import view_of
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause, errors
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import report, screen


class ActionModule(ActionBase):
    """Runs once, without a connection; fails unless what the playbook is for was reached."""

    _requires_connection = False
    _VALID_ARGS = frozenset(("verdict", "of"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        state = self._task.args["verdict"]
        of = self._task.args.get("of", "launch")
        check_mode = bool(self._task.check_mode)
        view = view_of(task_vars, check_mode)
        settings = view.settings
        made = report.build(state, view.results, check_mode or of == "preflight")
        file = None
        if made["run"] and of == "launch":
            folder = view.shared["nanochat_report_dir"]
            try:
                file = _write(made, folder, made["run"])
            except OSError as problem:
                what = f"report.json cannot be written below {folder}: {problem.strerror}"
                made["causes"].append(
                    cause("path_invalid", what, "nanochat_report_dir: a folder of yours", weight="warning")
                )
        if of == "preflight":
            _write_check(made, state, view.shared["nanochat_preflight_json"])
        if of == "status" and view.shared["nanochat_json"]:
            text = json.dumps({**made, "verdict": None}, default=str)  # a look at it judges nothing
        else:
            text = screen.SCREENS[of](made, state, settings, file)
        Display().display(text)
        failed = not screen.succeeded(of, made, state)
        result.update(changed=False, failed=failed)
        if failed:
            # Ansible prints the whole result of a failed task: the screen above says it better.
            headline = screen.headline(made) if of == "launch" else f"{of} did not succeed"
            result["msg"] = f"{headline}. {len(errors(made['causes']))} errors, listed above."
        else:
            result.update(report=made, report_file=file)
        return result


def _write_check(made: dict[str, Any], state: dict[str, Any], file: str | None) -> None:
    """The preflight for machines, where nanochat_preflight_json asks for it."""
    if not file:
        return
    content = {"schema": made["schema"], "run": made["run"], "ready": not errors(made["causes"])}
    content.update(causes=made["causes"], links=state.get("measured") or [], collective=state.get("collective"))
    content.update(timings_s=made["timings_s"])
    path = Path(os.path.expanduser(file))
    try:
        _put(path, content)
    except OSError as problem:
        what = f"nanochat_preflight_json={file} cannot be written: {problem.strerror}"
        made["causes"].append(cause("path_invalid", what, "name a file in a folder of yours", weight="warning"))


def _write(made: dict[str, Any], folder: str, run: str) -> str:
    """Write report.json below the user's folder.

    report.json is that of the newest launch, refused ones included; each attempt's last one stays under its own name.
    """
    path = Path(os.path.expanduser(folder)) / run / "report.json"
    for name in ["report.json", *([f"report-{made['attempt']}.json"] if made["attempt"] else [])]:
        _put(path.with_name(name), made)
    return str(path)


def _put(path: Path, content: dict[str, Any]) -> None:
    """Atomic, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    new.replace(path)
