# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Training processes on this host that the collection did not start, of any user, by what /proc shows.

Own processes are known by torchrun's variables in their environment, other people's by their command line alone.
"""

from __future__ import annotations

import os
import pwd
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import read_text
from ansible_collections.torchlan.nanochat.plugins.module_utils.run_processes import RUN_DIR_VARIABLE

_MOST = 20
_SCRIPTS = ("scripts.base_train", "scripts.mid_train", "scripts.chat_sft", "torch.distributed.run", "torchrun")


def trainers() -> list[dict[str, Any]]:
    """Each with C(pid), C(ppid), C(user), C(command), and C(orphan): its launcher is gone."""
    found: list[dict[str, Any]] = []
    for name in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
        folder = "/proc/" + name
        try:
            with open(folder + "/cmdline", "rb") as file:
                argv = os.fsdecode(file.read(4096)).split("\0")[:-1]
            if not argv or ("python" not in os.path.basename(argv[0]) and not _is_training(argv)):
                continue
            environ = _environ(folder)
            if environ is not None and RUN_DIR_VARIABLE.encode() in environ:
                continue  # the collection's own: node.run and node.other_runs have them
            is_worker = environ is not None and b"TORCHELASTIC_RUN_ID" in environ and b"RANK" in environ
            if not is_worker and not _is_training(argv):
                continue
            with open(folder + "/stat", encoding="ascii", errors="replace") as file:
                state, ppid = file.read().rpartition(")")[2].split()[:2]
            uid = os.stat(folder).st_uid
        except (OSError, ValueError):
            continue  # it has just ended
        if state == "Z":
            continue
        found.append(
            {
                "pid": int(name),
                "ppid": int(ppid),
                "user": _user(uid),
                "command": " ".join(argv)[:200],
                # only a worker of torchrun is known to have had a parent
                "orphan": is_worker and _reaps(ppid),
            }
        )
    return found[:_MOST]


def _reaps(pid: str) -> bool:
    """Whether this process is one that takes over children whose parents have ended."""
    return pid == "1" or read_text(f"/proc/{pid}/comm") == "systemd"


def _is_training(argv: list[str]) -> bool:
    words = [word.rpartition("/")[2] for word in argv[:6]]
    python = any("python" in word or word == "torchrun" for word in words[:2])
    return python and any(word in _SCRIPTS for word in words)


def _environ(folder: str) -> set[bytes] | None:
    """Names of the variables; C(None) for another user's process."""
    try:
        with open(folder + "/environ", "rb") as file:
            return {entry.partition(b"=")[0] for entry in file.read(1 << 20).split(b"\0")}
    except OSError:
        return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
