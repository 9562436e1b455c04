# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which live runs use a checkout or a data folder: those files are not to be changed now.

Looked at on the host right before a change: what an earlier task saw may have started or ended since.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.run_processes import Process, all_processes

_DATA_VARIABLES = ("NANOCHAT_BASE_DIR", "NANOCHAT_DATA_DIR")


def of_checkout(path: str) -> list[dict[str, Any]]:
    """Causes for the runs that work in this folder, or with a Python below it."""
    return _causes((process for process in all_processes() if _works_in(process, path)), path)


def of_data(*paths: str) -> list[dict[str, Any]]:
    """Causes for the runs with one of these as base or data folder. The smoke workload reads neither."""
    wanted = {os.path.realpath(path) for path in paths}
    found = [process for process in all_processes() if wanted & _data_folders(process.pid)]
    smoke = {process.where.path for process in found if any(word.startswith("torchlan_smoke") for word in process.argv)}
    return _causes((process for process in found if process.where.path not in smoke), paths[0])


def _works_in(process: Process, path: str) -> bool:
    places = [process.argv[0]] if process.argv else []
    try:
        places.append(os.readlink(f"/proc/{process.pid}/cwd"))
    except OSError:
        pass
    # The interpreter of a virtual environment is a link: only its folder tells whose it is.
    folders = [os.path.realpath(os.path.dirname(place)) for place in places if os.path.isabs(place)]
    folders += [os.path.realpath(place) for place in places[1:]]
    root = os.path.realpath(path)
    return any(folder == root or folder.startswith(root.rstrip("/") + "/") for folder in folders)


def _data_folders(pid: int) -> set[str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return set()
    names = tuple(os.fsencode(name) + b"=" for name in _DATA_VARIABLES)
    return {os.path.realpath(os.fsdecode(entry.partition(b"=")[2])) for entry in entries if entry.startswith(names)}


def _causes(processes: Iterable[Process], path: str) -> list[dict[str, Any]]:
    runs: dict[str, list[int]] = {}
    for process in processes:
        runs.setdefault(process.where.run, []).append(process.pid)
    return [
        cause(
            "run_in_progress",
            f"run {run} is alive and uses {path} (process {', '.join(str(pid) for pid in pids[:5])})",
            f"ansible-playbook torchlan.nanochat.stop -e nanochat_run={run}   (or wait for its end)",
        )
        for run, pids in sorted(runs.items())
    ]
