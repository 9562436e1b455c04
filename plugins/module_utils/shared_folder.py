# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a folder really is, so that hosts can tell that they look at the same one."""

from __future__ import annotations

import hashlib
import os
import re

from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import read_text
from ansible_collections.torchlan.nanochat.plugins.module_utils.paths import nearest

_NETWORKED = re.compile(r"nfs|cifs|smb|ceph|gluster|lustre|gpfs|beegfs|afs|9p|virtiofs|fuse\.(?!fuseblk)")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def identity(folder: str, mounts: str = "/proc/self/mountinfo") -> str:
    """Equal on two hosts when they see the same folder; it need not exist yet.

    On a network file system it is the export's name and the path in it, else the kernel's numbers: a cloned disk has
    the same names and numbers as its original, but not the same kernel.
    """
    path = os.path.realpath(folder)
    root, kind, source, point = _mount(path, mounts)
    if _NETWORKED.search(kind):
        words = [kind, source, os.path.normpath(os.path.join(root, os.path.relpath(path, point)))]
    else:
        there = nearest(path)
        stat = os.stat(there)
        boot = read_text("/proc/sys/kernel/random/boot_id") or ""
        words = [boot, str(stat.st_dev), str(stat.st_ino), os.path.relpath(path, there)]
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _mount(path: str, mounts: str) -> tuple[str, str, str, str]:
    """Root, kind, source and place of the mount that holds the path; the last one where several lie over each other."""
    best = ("/", "", "", "/")
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return best
    for line in lines:
        before, _dash, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or len(kinds) < 2:
            continue
        point = _plain(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[3]):
            best = (_plain(fields[3]), kinds[0], _plain(kinds[1]), point)
    return best


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), text)
