# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether what a user starts over ssh lives on after the logout, as logind is configured. No root, no program."""

from __future__ import annotations

import glob
import os
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import read_text


def facts(user: str) -> dict[str, Any]:
    return {
        "kills_at_logout": _kills_user_processes(),
        "in_login_session": "/session-" in (read_text("/proc/self/cgroup") or ""),
        "linger": os.path.exists("/var/lib/systemd/linger/" + user),
    }


def _kills_user_processes() -> bool:
    """KillUserProcesses of the last file that says it; compiled in is no."""
    files = ["/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf"]
    for folder in ("/usr/lib", "/run", "/etc"):
        files += sorted(glob.glob(folder + "/systemd/logind.conf.d/*.conf"))
    kills = False
    for path in files:
        for line in (read_text(path) or "").splitlines():
            key, _sign, value = line.partition("=")
            if key.strip() == "KillUserProcesses":
                kills = value.strip().lower() in ("yes", "true", "on", "1")
    return kills
