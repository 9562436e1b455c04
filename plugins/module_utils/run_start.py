# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start this node's part of a run in tmux, and see that its agent lives."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import json
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import packages
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.run_evidence import oom_kills
from ansible_collections.torchlan.nanochat.plugins.module_utils.run_processes import RUN_DIR_VARIABLE, processes
from ansible_collections.torchlan.nanochat.plugins.module_utils.run_stop import port_holder, port_is_free
from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import (
    RunPaths,
    boot_id,
    inspect_run,
    log_tail,
    read_exit_code,
    read_text,
    telling_line,
)
from ansible_collections.torchlan.nanochat.plugins.module_utils.session import facts as login_facts
from ansible_collections.torchlan.nanochat.plugins.module_utils.tmux import Tmux, TmuxError

# How long until torchrun is there; a shell and a 0600 file are all that come before it.
_AGENT_WITHIN_S = 15.0
# How long an agent is watched after it was seen: an interpreter without torch ends within this time.
_AGENT_STAYS_S = 1.0
_LOOK_EVERY_S = 0.05
_SCREEN_WITHIN_S = 1.0


@dataclass(frozen=True)
class Order:
    """What to start."""

    paths: RunPaths
    attempt: str
    script: str
    env: str
    record: dict[str, Any]
    runner: str | None = None
    port: int | None = None

    @property
    def node_dir(self) -> str:
        return self.paths.node_dir(self.attempt)


def start(order: Order, check_mode: bool) -> dict[str, Any]:
    """Start the run, or say by causes why not. Never touches a run that is alive."""
    tmux = Tmux()
    result: dict[str, Any] = {
        "changed": False,
        "attempt_dir": order.node_dir,
        "session": order.paths.session,
        "attach": tmux.attach_command(order.paths.session),
        "tail": order.paths.tail_command,
        "log_tail": [],
        "causes": [],
    }
    now = inspect_run(order.paths.base_dir, order.paths.run, order.paths.node_rank)
    if now["state"] == "alive" and now["attempt"] == order.attempt:
        return result
    result["diff"] = _diff(order)
    result["causes"] = _obstacles(order, tmux, now)
    if result["causes"] or check_mode:
        result["changed"] = not result["causes"]
        return result
    try:
        with _one_start_at_a_time(order.paths):
            _write(order, tmux)
            result["changed"] = True
            result.update(_launch(order, tmux))
    except _Busy:
        what = "another start of run %s is at work on this host" % order.paths.run
        result["causes"] = [cause("run_in_progress", what, "wait for it; then look with status.yml")]
    except OSError as problem:
        where = problem.filename or order.paths.base_dir
        what = "%s cannot be written: %s" % (where, problem.strerror)
        result["causes"] = [
            cause("path_invalid", what, "make room or correct its owner; see: df -h %s" % shlex.quote(str(where)))
        ]
    return result


def _obstacles(order: Order, tmux: Tmux, now: dict[str, Any]) -> list[dict[str, Any]]:
    """Why this run cannot start here."""
    causes = []
    if tmux.program is None:
        causes.append(cause("tmux_missing", "tmux is not installed", packages.hint(["tmux"])))
    pids = ", ".join(str(entry["pid"]) for entry in now["processes"])
    if now["state"] == "alive":
        what = "attempt %s of run %s is alive here (pid %s)" % (now["attempt"], order.paths.run, pids)
        causes.append(cause("run_in_progress", what))
    elif now["state"] == "half_alive":
        what = "parts of run %s are still here without the whole (pid %s)" % (order.paths.run, pids)
        causes.append(cause("half_alive", what))
    elif os.path.exists(os.path.join(order.node_dir, "run.json")):
        what = "attempt %s was started here before: %s" % (order.attempt, order.node_dir)
        causes.append(cause("start_failed", what, "launch again: a new attempt gets a name of its own"))
    session = order.paths.session
    if not causes and tmux.exists(session) and not tmux.pane_is_dead(session):
        what = "tmux session %s is in use by something else (%s)" % (session, tmux.mark_of(session) or "not a run")
        fix = "end it there (tmux -L torchlan kill-session -t '=%s:'), or choose another nanochat_run" % session
        causes.append(cause("run_in_progress", what, fix))
    if order.port is not None and order.paths.node_rank == 0 and not causes and not port_is_free(order.port):
        causes.append(cause("port_in_use", "port %d is taken: %s" % (order.port, port_holder(order.port))))
    return causes


def _diff(order: Order) -> dict[str, str]:
    """The change of C(run.sh) against the attempt before; never the environment's values."""
    old = order.paths.current_attempt()
    before = os.path.join(order.paths.node_dir(old), "run.sh") if old else ""
    return {
        "before": read_text(before) or "" if before else "",
        "after": order.script,
        "before_header": before or "(no attempt before)",
        "after_header": os.path.join(order.node_dir, "run.sh"),
    }


class _Busy(Exception):
    """Another start holds the lock."""


@contextlib.contextmanager
def _one_start_at_a_time(paths: RunPaths) -> Iterator[None]:
    os.makedirs(paths.run_dir, exist_ok=True)
    handle = os.open(os.path.join(paths.run_dir, ".start-%d" % paths.node_rank), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _Busy() from None
        except OSError:  # file systems without locks
            pass
        yield
    finally:
        os.close(handle)


def _write(order: Order, tmux: Tmux) -> None:
    node_dir = order.node_dir
    os.makedirs(os.path.join(node_dir, "beats"), exist_ok=True)
    _put(os.path.join(node_dir, "env"), order.env.encode(), 0o600)
    _put(os.path.join(node_dir, "run.sh"), order.script.encode(), 0o755)
    if order.runner:
        _put(os.path.join(node_dir, "runner.zip"), base64.b64decode(order.runner), 0o644)
    record = dict(
        order.record,
        boot_id=boot_id(),
        started_unix=round(time.time(), 3),
        oom_kills=oom_kills(),
        session=order.paths.session,
        tmux_tmpdir=tmux.tmpdir or "",
    )
    _put(os.path.join(node_dir, "run.json"), (json.dumps(record, indent=1, sort_keys=True) + "\n").encode(), 0o644)
    link = order.paths.current
    temporary = "%s.%d" % (link, os.getpid())
    os.symlink(os.path.relpath(node_dir, order.paths.run_dir), temporary)
    os.replace(temporary, link)


def _put(path: str, content: bytes, mode: int) -> None:
    """Write a file that is whole from the start and never, not even empty, readable by more than its mode says."""
    temporary = "%s.%d" % (path, os.getpid())
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
    os.replace(temporary, path)


def _launch(order: Order, tmux: Tmux) -> dict[str, Any]:
    session = order.paths.session
    if tmux.exists(session):  # its program has ended, or _obstacles had refused
        tmux.kill(session)
    command = ["env", "%s=%s" % (RUN_DIR_VARIABLE, order.node_dir), "bash", os.path.join(order.node_dir, "run.sh")]
    try:
        tmux.start(session, order.node_dir, command, order.node_dir)
    except TmuxError as problem:
        return _failed(order, tmux, "tmux: %s" % problem)
    problem_text = _await_agent(order, tmux)
    if problem_text:
        return _failed(order, tmux, problem_text)
    return {"causes": _logout_warning(session)}


def _await_agent(order: Order, tmux: Tmux) -> str | None:
    """Wait until torchrun is there and has begun to import torch, or the pane has ended.

    :returns: what went wrong, None when nothing did.
    """
    started = time.monotonic()
    seen_at: float | None = None
    while True:
        now = time.monotonic()
        agents = [
            process
            for process in processes(order.paths.base_dir, order.paths.run, order.paths.node_rank)
            if process.role == "agent" and process.where.attempt == order.attempt
        ]
        if agents:
            seen_at = seen_at or now
            if now - seen_at > _AGENT_STAYS_S or _has_torch(agents[0].pid):
                return None
        else:
            over = tmux.pane_is_dead(order.paths.session)  # asked first: the exit code is written before that
            code = read_exit_code(order.node_dir)
            if code == 0:
                return None
            if code is not None:
                return "torchrun ended at once with exit code %d" % code
            if over:
                return "run.sh ended at once"
            if now - started > _AGENT_WITHIN_S:
                return "no torchrun within %d s" % _AGENT_WITHIN_S
        time.sleep(_LOOK_EVERY_S)


def _has_torch(pid: int) -> bool:
    """Whether the process has loaded torch's libraries, so that its environment is a usable one."""
    return "/libtorch" in (read_text("/proc/%d/maps" % pid) or "")


def _failed(order: Order, tmux: Tmux, what: str) -> dict[str, Any]:
    """The cause with the last lines; a dead pane is not left behind, the log is."""
    log = os.path.join(order.node_dir, "train.log")
    lines = log_tail(log) or _last_screen(tmux, order.paths.session)
    alive = processes(order.paths.base_dir, order.paths.run, order.paths.node_rank)
    if not alive:
        tmux.kill(order.paths.session)
    said = telling_line(lines)
    if said:
        what += "; its log: %s" % said
    fix = "read %s; by hand: bash %s" % (shlex.quote(log), shlex.quote(os.path.join(order.node_dir, "run.sh")))
    return {"log_tail": lines, "causes": [cause("start_failed", what, fix)]}


def _last_screen(tmux: Tmux, session: str) -> list[str]:
    """What the pane shows; tmux can call it dead shortly before it has read the last of it."""
    deadline = time.monotonic() + _SCREEN_WITHIN_S
    while True:
        lines = [line for line in tmux.screen(session) if not line.startswith("Pane is dead")]
        if lines or time.monotonic() > deadline:
            return lines
        time.sleep(_LOOK_EVERY_S)


def _logout_warning(session: str) -> list[dict[str, Any]]:
    """logind can end everything of a user at logout, the tmux server included."""
    user = os.environ.get("USER") or str(os.geteuid())
    found = login_facts(user)
    if not (found["kills_at_logout"] and found["in_login_session"]) or found["linger"]:
        return []
    what = "logind ends all processes of %s at logout (KillUserProcesses=yes), session %s too" % (user, session)
    return [cause("killed_at_logout", what, "sudo loginctl enable-linger %s" % shlex.quote(user), weight="warning")]


def decode_error(runner: str | None) -> str | None:
    """What is wrong with a base64 text; None when nothing is."""
    try:
        base64.b64decode(runner or "", validate=True)
    except (binascii.Error, ValueError) as problem:
        return str(problem)
    return None
