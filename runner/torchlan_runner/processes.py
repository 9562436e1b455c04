# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Other processes of this host, as a guard sees and signals them: never one that only has the number of another."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

RUN_DIR = "TORCHLAN_RUN_DIR"


class Process:
    """One process, held by its pidfd where the kernel has these, and by its start time."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self.handle: int | None = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        except OSError:
            self.handle = None
        self._started = (stat(pid) or ("", 0, 0))[2]

    def look(self) -> tuple[str, int] | None:
        """State letter and CPU time in ticks; None when it has ended, whoever has its number now."""
        now = stat(self.pid)
        if now is None or now[0] in "ZX" or now[2] != self._started:
            return None
        return now[0], now[1]

    def send(self, number: int) -> None:
        if self.look() is None:
            return
        try:
            if self.handle is not None and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(self.handle, number)
            else:
                os.kill(self.pid, number)
        except OSError:
            pass


def stat(pid: int) -> tuple[str, int, int] | None:
    """State, CPU time and start time."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[11]) + int(fields[12]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def environment(pid: int) -> dict[bytes, bytes]:
    """Empty when it is gone or somebody else's."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {}
    return {name: value for name, sign, value in (entry.partition(b"=") for entry in entries) if sign}


def left_of(run_dir: str, rank: int) -> list[int]:
    """What a rank's worker has started and not ended: data loaders, compile workers. A guard has no RANK."""
    return [pid for pid, env in _of_run(run_dir) if env.get(b"RANK") == b"%d" % rank]


def of_ranks(run_dir: str) -> list[int]:
    """The ranks of a host's part of a run, what they have started, and their guards; not its shell and its agent."""
    return [pid for pid, env in _of_run(run_dir) if b"RANK" in env or _is_guard(pid)]


def _of_run(run_dir: str) -> Iterator[tuple[int, dict[bytes, bytes]]]:
    """Whatever else lives of a host's part of a run, with its environment."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            env = environment(int(name))
            if env.get(RUN_DIR.encode()) == os.fsencode(run_dir) and (stat(int(name)) or ("Z",))[0] not in "ZX":
                yield int(name), env


def _is_guard(pid: int) -> bool:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return b"torchlan_runner.guard" in file.read()
    except OSError:
        return False


def interface_problem(name: str | None) -> str | None:
    """What is wrong with a network interface of this host; None when nothing is, or nobody named one."""
    if not name or name == "lo":
        return None
    folder = "/sys/class/net/" + name
    try:
        with open(folder + "/flags") as file:
            up = int(file.read(), 16) & 1
        if not up:
            return "interface %s is down" % name
        with open(folder + "/operstate") as file:
            state = file.read().strip()
    except FileNotFoundError:
        return "there is no interface %s any more" % name
    except (OSError, ValueError):
        return None
    return "interface %s has no carrier (%s)" % (name, state) if state in ("down", "lowerlayerdown") else None
