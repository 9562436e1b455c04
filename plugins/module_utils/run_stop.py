# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End this node's part of a run, whatever is left of it, and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.ports import port_state
from ansible_collections.torchlan.nanochat.plugins.module_utils.run_processes import Process, processes, send_signal
from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import RunPaths, read_exit_code, read_json
from ansible_collections.torchlan.nanochat.plugins.module_utils.tmux import Tmux

# After torchrun is gone, run.sh still writes its exit code; and killed processes need a moment to be gone.
_SCRIPT_ENDS_S = 1.0
_KILLED_GONE_S = 2.5
_PORT_FREE_S = 1.0
_LOOK_EVERY_S = 0.1


def stop(paths: RunPaths, reason: str, grace_s: float, port: int | None, check_mode: bool) -> dict[str, Any]:
    """SIGTERM, wait, SIGKILL, until nothing of the run is left here.

    An agent in torchrun's exit barrier ignores SIGTERM, a stopped worker cannot act on it, an orphan has no agent: each
    is gone at the latest after C(grace_s) and a few seconds.
    """
    found = _find(paths)
    session = _session(paths)
    result: dict[str, Any] = {
        "changed": bool(found) or session is not None,
        "ended": [_entry(process, None) for process in found],
        "left": [],
        "port_free": None,
        "causes": [],
    }
    if check_mode:
        for entry, process in zip(result["ended"], found):
            entry["signal"] = "SIGTERM" if _asked_first(process, found) else None
        return result
    _write_stopped(found, reason, result["causes"])
    ended = _end(paths, found, grace_s)
    result["ended"] = [_entry(process, ended.sent.get(process.pid)) for process in ended.seen.values()]
    result["left"] = [_entry(process, "SIGKILL") for process in ended.left]
    result["ended"] = [entry for entry in result["ended"] if entry["pid"] not in {one["pid"] for one in result["left"]}]
    # Only the session that this run's files name: another base directory may have a run of the same name.
    if session is not None:
        session.kill(paths.session)
    if result["left"]:
        pids = ", ".join(str(entry["pid"]) for entry in result["left"])
        what = "after SIGKILL still there: pid %s" % pids
        result["causes"].append(
            cause("stop_incomplete", what, "look at them: ps -o pid,stat,wchan:30,args -p %s" % pids.replace(" ", ""))
        )
    if port is not None:
        _wait_until(lambda: port_is_free(port), _PORT_FREE_S if found else 0)
        result["port_free"] = port_is_free(port)
        if not result["port_free"] and not result["left"]:
            what = "port %d is still taken: %s, not of this run" % (port, port_holder(port))
            result["causes"].append(cause("port_in_use", what, weight="warning"))
    return result


def port_is_free(port: int) -> bool:
    """Whether torchrun could listen there now: on all addresses, of both families where the host has both."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(
                    socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
                )  # TIME_WAIT is no obstacle to torchrun either
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
                probe.listen(1)
        except OSError:
            if family == socket.AF_INET or _has_ipv6():
                return False
    return True


def port_holder(port: int) -> str:
    """Who listens there, for a person."""
    holder = port_state(port)["holder"] or {}
    if not holder.get("pid"):
        return "a program of user %s" % holder["user"] if holder.get("user") else "another program"
    return "pid %s of %s, %s" % (holder["pid"], holder["user"], holder["command"])


class _Ended:
    """What was seen, what was sent, what is left."""

    def __init__(self, found: list[Process]) -> None:
        self.seen = {process.pid: process for process in found}
        self.sent: dict[int, str] = {}
        self.left: list[Process] = []

    def send(self, process: Process, number: signal.Signals) -> None:
        self.seen.setdefault(process.pid, process)
        if send_signal(process, number):
            self.sent[process.pid] = number.name


def _end(paths: RunPaths, found: list[Process], grace_s: float) -> _Ended:
    ended = _Ended(found)

    def ask() -> bool:
        """SIGTERM to everybody whose turn it is; a helper's comes when its worker is gone.

        The script is left alone as long as it has something to wait for: it records the exit code.
        """
        now = _find(paths)
        for process in now:
            if process.pid not in ended.sent and _asked_first(process, now):
                ended.send(process, signal.SIGTERM)
        return all(process.role == "session" for process in now)

    _wait_until(ask, grace_s if found else 0)
    for process in _find(paths):
        if process.role != "session":
            ended.send(process, signal.SIGKILL)
    if found:
        _wait_until(lambda: not _find(paths), _SCRIPT_ENDS_S)

    def kill_all() -> bool:
        ended.left = _find(paths)
        for process in ended.left:
            ended.send(process, signal.SIGKILL)
        return not ended.left

    _wait_until(kill_all, _KILLED_GONE_S)
    return ended


def _find(paths: RunPaths) -> list[Process]:
    return processes(paths.base_dir, paths.run, paths.node_rank)


def _asked_first(process: Process, found: list[Process]) -> bool:
    """Whether a process gets SIGTERM: a supervisor ends its agent, an agent its workers, and the rest is told."""
    if process.role == "session":
        return all(other.role == "session" for other in found)
    parent = next((other.role for other in found if other.pid == process.ppid), None)
    return process.role == "supervisor" or parent is None or (process.role == "agent" and parent != "supervisor")


def _session(paths: RunPaths) -> Tmux | None:
    """The tmux server that has this run's session, if there is one."""
    record: dict[str, Any] = {}
    current = paths.current_attempt()
    if current:
        record = read_json(os.path.join(paths.node_dir(current), "run.json")) or {}
    tmpdir = record.get("tmux_tmpdir")
    tmux = Tmux(tmpdir if isinstance(tmpdir, str) else None)
    if tmux.program is None:
        return None
    mark = tmux.mark_of(paths.session)
    if mark and os.path.realpath(mark).startswith(os.path.join(paths.run_dir, "attempts") + os.sep):
        return tmux
    return None


def _write_stopped(found: list[Process], reason: str, causes: list[dict[str, Any]]) -> None:
    """Note the reason before anything ends, so that it is there even if this module is not at the end."""
    for folder in {process.where.path for process in found}:
        if read_exit_code(folder) is not None:
            continue
        try:
            with open(os.path.join(folder, "stopped"), "w", encoding="utf-8") as file:
                file.write(reason + "\n")
        except OSError as problem:
            what = "%s cannot be written: %s" % (os.path.join(folder, "stopped"), problem.strerror)
            causes.append(cause("note", what, "nothing to do: the run is ended all the same", weight="warning"))


def _entry(process: Process, sent: str | None) -> dict[str, Any]:
    entry = process.as_dict()
    return {
        "pid": entry["pid"],
        "role": entry["role"],
        "rank": entry["rank"],
        "attempt": entry["attempt"],
        "signal": sent,
    }


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Try at least once, at most for so long."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
