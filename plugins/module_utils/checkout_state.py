# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checkout of nanochat: which commit, and is it changed. Nothing is written, also not git's index."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import Asked, read_text

MARKER = ".torchlan-commit"
_MOST_NAMES = 10
# What an installation without a checkout leaves in the folder.
_OWN = {".venv", MARKER}


class Checkout:
    """Asks git early; C(facts) reads the answer."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._asked: Asked | None = None
        git = shutil.which("git")
        if git and os.path.exists(os.path.join(folder, ".git")):
            # The owner may be another user: old versions of git accept that only with an explicit GIT_DIR, new ones
            # also by safe.directory. The repository's configuration must not start programs for us.
            argv = [git, "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", folder]
            argv += ["status", "--porcelain=v2", "--branch", "--untracked-files=no", "-z"]
            env = {"GIT_OPTIONAL_LOCKS": "0", "GIT_DIR": os.path.join(folder, ".git"), "GIT_WORK_TREE": folder}
            self._asked = Asked(argv, 10.0, env)

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = {"state": "absent", "commit": None, "dirty": None, "dirty_files": []}
        try:
            names = set(os.listdir(self._folder))
        except OSError:
            if os.path.lexists(self._folder):
                found["state"] = "other"
            return found
        if ".git" in names:
            found["state"] = "git"
            text = self._asked.answer()[0] if self._asked else None
            if text is None:
                # no git, or a git that does not trust the owner and ignores safe.directory on its command line
                found["commit"] = _commit_by_files(os.path.join(self._folder, ".git"))
            else:
                found.update(parse_status(text))
        elif MARKER in names:
            found["state"] = "git"
            found["commit"] = _commit(read_text(os.path.join(self._folder, MARKER)) or "")
        elif names - _OWN:
            found["state"] = "other"
        return found


def parse_status(text: str) -> dict[str, Any]:
    """C(git status --porcelain=v2 --branch -z) as commit, dirty and some names."""
    commit: str | None = None
    names: list[str] = []
    entries = iter(text.split("\0"))
    for entry in entries:
        if entry.startswith("# branch.oid "):
            commit = _commit(entry[13:])
        elif entry[:2] in ("1 ", "2 ", "u "):
            fields = {"1": 8, "2": 9, "u": 10}[entry[0]]
            names.append(entry.split(" ", fields)[-1])
            if entry[0] == "2":
                next(entries, None)  # the old name of a renamed file
    safe = [name.encode("utf-8", "replace").decode() for name in names[:_MOST_NAMES]]
    return {"commit": commit, "dirty": bool(names), "dirty_files": safe}


def _commit(text: str) -> str | None:
    words = text.split()
    return words[0] if words and re.match(r"[0-9a-f]{40,64}$", words[0]) else None


def _commit_by_files(git_dir: str) -> str | None:
    """HEAD's commit from the files below .git, also of a linked worktree."""
    if os.path.isfile(git_dir):
        words = (read_text(git_dir) or "").partition("gitdir:")[2].strip()
        git_dir = os.path.normpath(os.path.join(os.path.dirname(git_dir), words))
    head = read_text(os.path.join(git_dir, "HEAD")) or ""
    if not head.startswith("ref:"):
        return _commit(head)
    ref = head[4:].strip()
    common = os.path.normpath(os.path.join(git_dir, read_text(os.path.join(git_dir, "commondir")) or "."))
    for folder in (git_dir, common):
        found = _commit(read_text(os.path.join(folder, ref)) or "")
        if found:
            return found
    for line in (read_text(os.path.join(common, "packed-refs"), 1 << 22) or "").splitlines():
        commit, _space, name = line.partition(" ")
        if name == ref:
            return _commit(commit)
    return None
