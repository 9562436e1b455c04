# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a node as root: lists the processes of one run, and their established TCP connections as `ss` sees them.

On purpose nothing of the collection is used here: the tests must not share an error with what they check.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

run = sys.argv[1]
found: dict = {}
for folder in Path("/proc").iterdir():
    if not folder.name.isdigit():
        continue
    try:
        pairs = (item.partition("=") for item in (folder / "environ").read_bytes().decode(errors="replace").split("\0"))
        environ = {name: value for name, _, value in pairs}
        argv = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        state, ppid = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        continue
    if state != "Z" and f"/runs/{run}/" in environ.get("TORCHLAN_RUN_DIR", ""):
        rank = environ.get("RANK")
        found[int(folder.name)] = {
            "pid": int(folder.name),
            "ppid": int(ppid),
            "argv": argv,
            "rank": None if rank is None else int(rank),
            "state": state,
            "names": sorted(environ),
            "sockets": [],
        }

lines = subprocess.run(
    ["ss", "-O", "-tniHp", "state", "established"], capture_output=True, text=True, check=True
).stdout.splitlines()
for line in lines:
    local, peer = (end.replace("[::ffff:", "").replace("]", "") for end in line.split()[2:4])
    counters = {key: int(value) for key, value in re.findall(r"\b(bytes_sent|bytes_acked|bytes_received):(\d+)", line)}
    for pid in re.findall(r"pid=(\d+)", line):
        if int(pid) in found:
            found[int(pid)]["sockets"].append({"local": local, "remote": peer, **counters})

print(json.dumps(sorted(found.values(), key=lambda process: process["pid"])))
