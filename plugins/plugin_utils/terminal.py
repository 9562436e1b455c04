# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The terminal of the person who started the playbook.

Tasks run in forks whose stdout is /dev/null. The strategy loads an action plugin, and this module with it, before it
forks: here stdout is still the user's. Where that should ever change, there is no terminal, and plain lines follow.
"""

from __future__ import annotations

import io
import os
import sys


def _stdout() -> int | None:
    """A copy of stdout that forks inherit and programs that they start do not."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what a fork gives to Display is in a pipe or a CI log at once
    try:
        return os.dup(1)
    except OSError:
        return None


_STDOUT = _stdout()


def size() -> os.terminal_size | None:
    """Columns and lines as they are now; None where nothing can be drawn in place.

    AWX gives its playbooks a terminal and keeps what is written to it as lines.
    """
    if _STDOUT is None or os.environ.get("TERM", "dumb") == "dumb" or "AWX_ISOLATED_DATA_DIR" in os.environ:
        return None
    try:
        columns, lines = os.get_terminal_size(_STDOUT)
    except OSError:
        return None
    return os.terminal_size((columns or 80, lines or 24))


def redraw(lines: list[str], before: int) -> str:
    """What a terminal is sent to show these lines in the place of the C(before) lines above the cursor."""
    up = f"\x1b[{before}F" if before else ""
    return up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
