# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.page: metrics.csv and report.html of what was collected, and what to say about it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import collected, metrics, page, screen


class ActionModule(ActionBase):
    """Runs once, without a connection."""

    _requires_connection = False
    _VALID_ARGS = frozenset(("run", "folder", "collected", "causes", "checkpoints"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        run, folder = str(args["run"]), collected.run_folder(args["folder"], str(args["run"]))
        lost = [one["nanochat_lost"]["what"] for one in args["collected"].values() if "nanochat_lost" in one]
        brought = {host: one for host, one in args["collected"].items() if one.get("attempts")}
        for what in lost:
            Display().warning(what)
        attempts = sorted({attempt for one in brought.values() for attempt in one["attempts"]})
        if not attempts:
            return {**result, "changed": False, "failed": True, "msg": f"no host gave anything of run {run}"}
        lines = [
            "",
            f"run {run}, attempt {', '.join(attempts)}: from {len(brought)} of {len(args['collected'])} hosts",
        ]
        lines += [f"  {one['folder']}: {one['files']} files, {screen.size(one['bytes'])}" for one in brought.values()]
        lines += _checkpoint(args.get("checkpoints") or {})
        changed = False
        if not self._task.check_mode:
            made, changed = _write(run, folder, attempts, args.get("causes") or [])
            lines += made
        if args.get("causes"):
            lines += ["", *screen.causes(args["causes"])]
        Display().display("\n".join([*lines, ""]))
        result.update(changed=changed, attempts=attempts, folder=str(folder))
        return result


def _checkpoint(found: dict[str, dict[str, Any]]) -> list[str]:
    """What became of the checkpoint that was asked for."""
    asked = [one for one in found.values() if "chosen" in one]
    for one in found.values():
        if "nanochat_lost" in one:
            Display().warning(one["nanochat_lost"]["what"])
    if not asked:
        return []
    first = asked[0]
    why = "; ".join(first["why_not"][:3])
    if first["chosen"] is None:
        Display().warning(f"no checkpoint was brought: {why}")
        return []
    newer = f" (newer ones are not whole: {why})" if why else ""
    return [f"  {first['folder']}: step {first['chosen']}{newer}"]


def _write(run: str, folder: Path, attempts: list[str], causes: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Write both files; returns lines about them, and whether they changed."""
    parts = metrics.parts(folder / "collected", attempts)
    rows = sorted((row for part in parts for row in part.rows), key=lambda row: row.time or 0)
    file = folder / "metrics.csv"
    changed = collected.write_text(file, metrics.as_csv(rows))
    lines = [f"  {file}: {len(rows):,} rows"]
    config = dict(metrics.configuration(parts))
    try:
        report = _report(folder, attempts[-1])
        text = page.make(run, rows, metrics.events(parts), report, causes, config, time.time())
    except page.NoPlotly:
        return [
            *lines,
            f"  no report.html: its charts need plotly here: {sys.executable} -m pip install plotly",
        ], changed
    file = folder / "report.html"
    collected.write_text(file, text)
    return [*lines, f"  {file}: open it in a browser; it needs no network"], changed


def _report(folder: Path, attempt: str) -> dict[str, Any]:
    """The report of this attempt's launch, empty where there is none here."""
    for name in (f"report-{attempt}.json", "report.json"):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and found.get("attempt") == attempt:
            return found
    return {}
