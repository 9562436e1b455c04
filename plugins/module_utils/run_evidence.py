# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run that broke left on one host: the end of its log, torchrun's table of failures, the kernel's kills."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.messages import STARTS_AGAIN, is_noise

# So many lines of the log are looked at, and so many go to the controller.
LINES = 400
_SENT = 120
_LAST = 10
_REPORTED = re.compile(r"\] failed \(exitcode: -?\d+\) local_rank: ")
_FAILURE = re.compile(
    r"^  time +: (?P<time>\S+)\n(?:  host +: .*\n)?  rank +: (?P<rank>\d+) \(local_rank: \d+\)\n"
    r"  exitcode +: (?P<exit_code>-?\d+) \(pid: (?P<pid>\d+)\).*\n(?:  error_file: .*\n)?  traceback : (?P<says>.*)$",
    re.MULTILINE,
)
_NO_WORD = "To enable traceback see:"
_KILLED = re.compile(r"Killed process (\d+) \(")


def evidence(node_dir: str, record: dict[str, Any] | None, lines: list[str]) -> dict[str, Any]:
    """Everything about the end of this node's part of a run.

    :param record: of the start; its C(oom_kills) is the kernel's count at that time.
    :param lines: the last C(LINES) lines of its log.
    """
    lines = _of_last_start(lines)
    before, now = (record or {}).get("oom_kills"), oom_kills()
    return {
        "log": [line for line in lines if not is_noise(line)][-_SENT:],
        "last_words": last_words(lines),
        "failures": failures(lines),
        "ended_unix": _changed(os.path.join(node_dir, "exit_code")),
        "oom_kills": max(0, now - before) if isinstance(before, int) and now is not None else None,
        "oom_pids": oom_pids(),
    }


def _of_last_start(lines: list[str]) -> list[str]:
    """What a run that started again by itself has written since."""
    starts = [number for number, line in enumerate(lines) if line.startswith("[torchlan] %s" % STARTS_AGAIN)]
    return lines[starts[-1] :] if starts else lines


def last_words(lines: list[str]) -> list[str]:
    """What the workers wrote last: the log up to where torchrun reports their end, without noise."""
    end = next((number for number, line in enumerate(lines) if _REPORTED.search(line)), len(lines))
    return [line for line in lines[:end] if not is_noise(line)][-_LAST:]


def failures(lines: list[str]) -> list[dict[str, Any]]:
    """torchrun's table: C(rank), C(pid), C(exit_code) (negative for a signal), C(time) and what it C(says), or None."""
    found = []
    for match in _FAILURE.finditer("\n".join(lines)):
        try:
            when: float | None = time.mktime(time.strptime(match["time"], "%Y-%m-%d_%H:%M:%S"))
        except (ValueError, OverflowError):
            when = None
        says = None if match["says"].startswith((_NO_WORD, "Signal ")) else match["says"].strip()
        numbers = {name: int(match[name]) for name in ("rank", "pid", "exit_code")}
        found.append({**numbers, "time": when, "says": says})
    return found


def oom_kills() -> int | None:
    """How many processes the kernel has killed for want of memory since it started; None where it does not tell."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except (OSError, ValueError):
        return None


def oom_pids() -> list[int]:
    """Those that its log still names, where this user may read it; their numbers are the host's, not a container's."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    found = []
    try:
        while True:
            try:
                match = _KILLED.search(os.read(handle, 8192).decode("utf-8", "replace"))
            except BrokenPipeError:  # a record was overwritten meanwhile
                continue
            if match:
                found.append(int(match[1]))
    except OSError:  # EAGAIN: that was all
        return found
    finally:
        os.close(handle)


def _changed(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None
