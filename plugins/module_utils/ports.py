# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is a TCP port free here, and who holds it."""

from __future__ import annotations

import os
import pwd
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.sockets import listeners


def port_state(port: int) -> dict[str, Any]:
    """C({port, free, holder}). Without root the holder's pid is known for own processes only, its user always."""
    try:
        found = listeners(port)
    except OSError:
        return {"port": port, "free": None, "holder": None}
    if not found:
        return {"port": port, "free": True, "holder": None}
    # The same program often listens on IPv4 and IPv6: the entry that knows more.
    entry = max(found, key=lambda one: one["pid"] is not None)
    pid = entry["pid"]
    holder = {
        "pid": pid,
        "command": entry["command"],
        "user": _user(entry["uid"]),
        "run_dir": _run_dir(pid) if pid else None,
    }
    return {"port": port, "free": False, "holder": holder}


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _run_dir(pid: int) -> str | None:
    """The run that the holder belongs to, if it is one of ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read(1 << 20).split(b"\0")
    except OSError:
        return None
    found = next((word for word in words if word.startswith(b"TORCHLAN_RUN_DIR=")), None)
    return os.fsdecode(found.partition(b"=")[2]) if found else None
