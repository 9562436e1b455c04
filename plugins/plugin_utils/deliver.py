# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of the action plugins that bring files to a host."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

from ansible.errors import AnsibleError

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import Lost, RemoteAction


class DeliveringAction(RemoteAction):
    """Files go to the task's temporary folder on the host, which C(run) removes; the module takes them from there."""

    def deliver(self, source: str | bytes, name: str, executable: bool = False) -> str:
        """Copy a file of the controller (a path) or bytes to the host; the path there.

        :param name: file name there; other characters than the plain ones are replaced.
        :param executable: whether the host may run it.
        :raises Lost: the connection broke.
        """
        try:
            if not self._connection._shell.tmpdir:
                self._make_tmp_path()
            folder = self._connection._shell.tmpdir
            path = str(self._connection._shell.join_path(folder, re.sub(r"[^A-Za-z0-9._-]", "_", name)))
            self.put(source, path)
            # With become, the module runs as another user than the one that copied.
            self._fixup_perms2([folder, path], execute=executable)
        except AnsibleError as problem:
            raise Lost(
                cause("host_unreachable", f"the copy of {name} broke: {' '.join(str(problem).split())}")
            ) from problem
        return path

    @property
    def same_user(self) -> bool:
        """Whether copies and the module are the same user's, so that a copy may go straight to its place."""
        return self._connection.become is None


def pip_arguments(words: list[str]) -> list[str]:
    """Arguments as pip gets them.

    From the command line all of them come as one string, and people write C(--index-url URL) as one item of a list.
    An item that is an option and holds whitespace is split as a shell would, unless the whitespace is in its value.
    """
    result: list[str] = []
    for word in words:
        if word.startswith("-") and re.match(r"[^\s=]+\s|.*\s-", word, re.DOTALL):
            result += shlex.split(word)
        else:
            result.append(word)
    return result


def first_error(causes: list[dict[str, Any]]) -> bool:
    """Whether one of the causes stops the work."""
    return any(entry["weight"] == "error" for entry in causes)


def absolute(path: str) -> str:
    """A path of the controller as the user means it: relative to the folder the user is in."""
    return os.path.abspath(os.path.expanduser(path))
