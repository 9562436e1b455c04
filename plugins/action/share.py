# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.share: asks the host's agent until the host has all files, and tells how far it is."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import RemoteAction

_LINE_S = 5.0  # between two lines of one host; more with many hosts, so that all of them print about one a second


class ActionModule(RemoteAction):
    """Each question waits on the host, for something to happen there; here nothing sleeps."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        host = str(task_vars["inventory_hostname"])
        name = str(args.get("name") or "files")
        args.setdefault("self", host)
        result = self.remote({**args, "wait_s": 0}, task_vars)
        last = 0.0
        while result.get("state") == "working":
            now = time.monotonic()
            if not last or now - last >= max(_LINE_S, len(args["offers"])):
                self._display.display(f"{host}: {line(name, result['progress'])}")
                last = now
            result = self.remote(args, task_vars)
        for entry in result["causes"]:
            entry["host"] = entry["host"] or host
        return result


def line(name: str, progress: dict[str, Any]) -> str:
    """How far a host is, such as C(shards 3 of 6, 214 MB of 560 MB, 112 MB/s, 3 s left)."""
    done, total, speed = progress["bytes_done"], progress["bytes"], progress["bytes_per_second"]
    text = f"{name} {progress['files_done']} of {progress['files']}, {done / 1e6:.0f} MB of {total / 1e6:.0f} MB"
    if speed > 0:
        text += f", {speed / 1e6:.0f} MB/s, {(total - done) / speed:.0f} s left"
    return text
