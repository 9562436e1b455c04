# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths as a person writes them, made absolute for the user that this process runs as."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import read_text
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause


def absolute(name: str, text: str) -> tuple[str | None, dict[str, Any] | None]:
    """The absolute path, or C(None) and the cause. C(name) is the variable, for the person who reads the cause."""
    if "\0" in text or "\n" in text or not text.strip():
        return None, cause("path_invalid", f"{name} is {text!r}, which is no usable path")
    path = os.path.expanduser(text)
    if path.startswith("~"):
        user = text.split("/", 1)[0]
        what = f"{name} is {text!r}, and this host has no user {user[1:]!r}" if user != "~" else None
        return None, cause("path_invalid", what or f"{name} is {text!r}, and this user has no home folder")
    if not os.path.isabs(path):
        return None, cause("path_invalid", f"{name} is {text!r}, which is relative")
    return os.path.normpath(path), None


def nearest(path: str) -> str:
    """The folder that exists: C(path) itself or the closest above it."""
    while path != "/" and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def unwritable(name: str, path: str) -> dict[str, Any] | None:
    """The cause, where this user could not make files below C(path)."""
    there = nearest(path)
    if not os.path.isdir(there):
        return cause("path_invalid", f"{name} is {path}, but {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        fix = f"Name another {name}, or give this user the folder: sudo chown {os.geteuid()}: {there}"
        return cause("path_invalid", f"{name} is {path}, and this user may not write in {there}", fix)
    return None


def free_bytes(path: str) -> int | None:
    """Bytes that this user can still write there."""
    try:
        found = os.statvfs(nearest(path))
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def filesystem(path: str) -> dict[str, Any]:
    """C(type) of the file system there, and whether its disk is C(rotational), C(None) where nobody knows."""
    there = nearest(path)
    try:
        device = os.stat(there).st_dev
    except OSError:
        return {"type": None, "rotational": None}
    number = "%d:%d" % (os.major(device), os.minor(device))
    kind, longest = None, -1
    for line in (read_text("/proc/self/mountinfo", 1 << 20) or "").splitlines():
        fields, _dash, rest = line.partition(" - ")
        words = fields.split()
        if len(words) > 4 and words[2] == number and len(words[4]) > longest and rest:
            kind, longest = rest.split()[0], len(words[4])
    folder = "/sys/dev/block/" + number
    answers = [read_text(folder + name) for name in ("/queue/rotational", "/../queue/rotational")]
    known = next((answer for answer in answers if answer in ("0", "1")), None)
    return {"type": kind, "rotational": None if known is None else known == "1"}
