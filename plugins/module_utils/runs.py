# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run's files on one host, and the state that its files and processes show together."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from dataclasses import dataclass
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import run_evidence
from ansible_collections.torchlan.nanochat.plugins.module_utils.run_processes import (
    Process,
    all_processes,
    processes,
)

NAME = re.compile(r"[A-Za-z0-9_-]+")
LOG_LINES = 30
_FRAME = re.compile(r"\s*(frame #\d+|<omitting|File \"|[=\-]{5,}|\^+\s*$)")
_ERROR = re.compile(r"\w*(Error|Exception|Interrupt)\b|\berror:|No such file|not found|No module named", re.ASCII)
_LOG_BYTES = 65536
_JSON_BYTES = 16 * 1024 * 1024
# Between tmux's start and torchrun's, and between the workers' end and torchrun's, a healthy run lacks a part.
_STARTING_S = 15.0
_ENDING_S = 15.0


@dataclass(frozen=True)
class RunPaths:
    """Where the files of this node's part of a run are."""

    base_dir: str
    run: str
    node_rank: int

    @classmethod
    def of(cls, base_dir: str, run: str, node_rank: int) -> RunPaths:
        """
        :param base_dir: may begin with C(~).
        :raises ValueError: a name that cannot be part of a path and of a tmux target.
        """
        if not NAME.fullmatch(run):
            raise ValueError("run name %r: only letters, digits, - and _ are possible" % run)
        return cls(os.path.realpath(os.path.expanduser(base_dir)), run, node_rank)

    @property
    def run_dir(self) -> str:
        return os.path.join(self.base_dir, "runs", self.run)

    @property
    def current(self) -> str:
        return os.path.join(self.run_dir, "current-%d" % self.node_rank)

    @property
    def session(self) -> str:
        return "%s-%d" % (self.run, self.node_rank)

    @property
    def tail_command(self) -> str:
        return "tail -F " + shlex.quote(os.path.join(self.current, "train.log"))

    def node_dir(self, attempt: str) -> str:
        if not NAME.fullmatch(attempt):
            raise ValueError("attempt %r: only letters, digits, - and _ are possible" % attempt)
        return os.path.join(self.run_dir, "attempts", attempt, "node-%d" % self.node_rank)

    def attempts(self) -> list[str]:
        """The attempts that this node has a folder of, oldest first."""
        try:
            names = sorted(os.listdir(os.path.join(self.run_dir, "attempts")))
        except OSError:
            return []
        return [name for name in names if NAME.fullmatch(name) and os.path.isdir(self.node_dir(name))]

    def current_attempt(self) -> str | None:
        """The attempt that C(current-R) names, else the newest."""
        try:
            parts = os.readlink(self.current).rstrip("/").split("/")
        except OSError:
            parts = []
        if len(parts) >= 2 and NAME.fullmatch(parts[-2]) and os.path.isdir(self.node_dir(parts[-2])):
            return parts[-2]
        attempts = self.attempts()
        return attempts[-1] if attempts else None


def inspect_run(base_dir: str, run: str, node_rank: int, attempt: str | None = None) -> dict[str, Any]:
    """Everything about this node's part of a run. Reads only; a broken file is as good as none.

    :param attempt: this one instead of the current one; the state is then that of this attempt.
    :returns: C(state) is one of absent, alive, half_alive, finished, failed, stopped. Processes of other attempts of
        the same run are listed too, and make a run that is not alive half alive.
    """
    paths = RunPaths.of(base_dir, run, node_rank)
    found = processes(paths.base_dir, run, node_rank)
    if attempt is None:
        attempt = _attempt_to_show(paths, found)
    else:
        found = [process for process in found if process.where.attempt == attempt]
    node_dir = paths.node_dir(attempt) if attempt else None
    exists = node_dir is not None and os.path.isdir(node_dir)
    if node_dir is None or not (exists or found):
        return _result(paths, "absent")
    record = read_json(os.path.join(node_dir, "run.json"))
    exit_code = read_exit_code(node_dir)
    stopped = read_text(os.path.join(node_dir, "stopped"))
    beats = read_beats(node_dir)
    result = _result(paths, _state(attempt, found, exit_code, stopped, record, beats))
    result.update(
        attempt=attempt,
        record=record,
        exit_code=exit_code,
        stopped=stopped.strip() if stopped is not None else None,
        from_before_reboot=bool(record and record.get("boot_id") and record["boot_id"] != boot_id()),
        processes=[process.as_dict() for process in found],
        beats=beats,
        cluster=read_json(os.path.join(node_dir, "cluster.json")),
        restarts=read_json(os.path.join(node_dir, "restarts.json")),
        log_tail=log_tail(os.path.join(node_dir, "train.log")),
        node_dir=node_dir,
    )
    if result["state"] in ("failed", "half_alive"):
        lines = log_tail(os.path.join(node_dir, "train.log"), run_evidence.LINES)
        result["evidence"] = run_evidence.evidence(node_dir, record, lines)
    return result


def other_runs(base_dir: str, exclude: str, attempt: str | None = None) -> list[dict[str, Any]]:
    """Live runs of the collection on this host, by this user, other than one.

    :param exclude: name of the run to leave out, when it is below C(base_dir) or of the given attempt: hosts of one
        cluster may share a machine, with a folder each.
    """
    base_dir = os.path.realpath(os.path.expanduser(base_dir))
    runs: dict[str, dict[str, Any]] = {}
    for process in all_processes():
        where = process.where
        same_place = os.path.realpath(where.base_dir) == base_dir or where.attempt == attempt
        if where.run == exclude and same_place:
            continue
        entry = runs.setdefault(
            where.path,
            {
                "run": where.run,
                "attempt": where.attempt,
                "node_rank": where.node_rank,
                "base_dir": where.base_dir,
                "pids": [],
            },
        )
        entry["pids"].append(process.pid)
    return [runs[path] for path in sorted(runs)]


def boot_id() -> str:
    """Another one after each start of this host. In a container only the start of its first process tells."""
    first = (read_text("/proc/1/stat") or "").rpartition(")")[2].split()
    return (read_text("/proc/sys/kernel/random/boot_id") or "").strip() + "".join(first[19:20] and ["-" + first[19]])


def read_text(path: str, limit: int = 1024 * 1024) -> str | None:
    """The beginning of a file; None when it cannot be read. The kernel refuses reads of several megabytes in /proc."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return None


def read_json(path: str) -> dict[str, Any] | None:
    """The object in a file; None when there is no such file, or when it holds anything else."""
    text = read_text(path, _JSON_BYTES)
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_exit_code(node_dir: str) -> int | None:
    try:
        return int((read_text(os.path.join(node_dir, "exit_code")) or "").strip())
    except ValueError:
        return None


def read_beats(node_dir: str) -> list[dict[str, Any]]:
    """The latest beat of every rank of this node, by rank."""
    folder = os.path.join(node_dir, "beats")
    try:
        names = [name for name in os.listdir(folder) if re.fullmatch(r"rank-\d+\.json", name)]
    except OSError:
        return []
    beats = [read_json(os.path.join(folder, name)) for name in names]
    good = [beat for beat in beats if beat is not None and _is_beat(beat)]
    return sorted(good, key=lambda beat: int(beat["rank"]))


def read_plan(node_dir: str) -> dict[str, Any]:
    """What the ranks were told (C(TORCHLAN_PLAN) in the env file); empty when it is not there."""
    text = read_text(os.path.join(node_dir, "env")) or ""
    match = re.search(r"^export TORCHLAN_PLAN=", text, re.MULTILINE)
    if not match:
        return {}
    try:
        # The quoted JSON is one line; other values may hold newlines, so no line of the file is looked at alone.
        words = shlex.split(text[match.end() :].split("\n", 1)[0])
        plan = json.loads(words[0])
    except (ValueError, IndexError, RecursionError):
        return {}
    return plan if isinstance(plan, dict) else {}


def log_tail(path: str, lines: int = LOG_LINES) -> list[str]:
    """The last lines of a log. Of a line that was overwritten by a progress bar, what was last on the screen."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    shown = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n"))
    return [line[:2000] for line in shown if line][-lines:]


def telling_line(lines: list[str]) -> str | None:
    """The line of a log's end that says most: the last one that names an error, else the last that is no frame."""
    own = [line for line in lines if not _FRAME.match(line)]
    errors = [line for line in own if _ERROR.search(line)]
    chosen = errors[-1:] or own[-1:] or lines[-1:]
    return chosen[0].strip()[:300] if chosen else None


def cluster_beats(cluster: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The beats that rank 0 has collected; of a broken file, those that are whole."""
    ranks = (cluster or {}).get("ranks")
    return [beat for beat in ranks if isinstance(beat, dict) and _is_beat(beat)] if isinstance(ranks, list) else []


def _is_beat(value: dict[str, Any]) -> bool:
    return isinstance(value.get("rank"), int) and isinstance(value.get("time", 0), (int, float, type(None)))


def _attempt_to_show(paths: RunPaths, found: list[Process]) -> str | None:
    current = paths.current_attempt()
    living = {process.where.attempt for process in found}
    if living and current not in living:
        agents = [process.where.attempt for process in found if process.role == "agent"]
        # A start that broke before it moved the link: what is alive counts.
        if agents or current is None:
            return max(agents or living)
    return current


def _state(
    attempt: str | None,
    found: list[Process],
    exit_code: int | None,
    stopped: str | None,
    record: dict[str, Any] | None,
    beats: list[dict[str, Any]],
) -> str:
    roles = [process.role for process in found if process.where.attempt == attempt]
    if exit_code is None and "supervisor" in roles:
        return "alive"  # also between two starts
    if exit_code is None and "agent" in roles and not _in_exit_barrier(roles, beats):
        return "alive"
    if exit_code is None and roles and set(roles) == {"session"} and _just_started(record):
        return "alive"
    leftovers = [process for process in found if process.role not in ("session", "guard")]
    if leftovers or (found and exit_code is None):
        return "half_alive"
    if exit_code == 0:
        return "finished"
    return "stopped" if stopped is not None else "failed"


def _in_exit_barrier(roles: list[str], beats: list[dict[str, Any]]) -> bool:
    """torchrun waits up to 300 s for the other agents after its workers have ended, and ignores SIGTERM."""
    if "worker" in roles or not beats:
        return False
    return time.time() - max(_number(beat.get("time")) for beat in beats) > _ENDING_S


def _just_started(record: dict[str, Any] | None) -> bool:
    return 0 <= time.time() - _number((record or {}).get("started_unix")) < _STARTING_S


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _result(paths: RunPaths, state: str) -> dict[str, Any]:
    return {
        "state": state,
        "attempt": None,
        "record": None,
        "exit_code": None,
        "stopped": None,
        "from_before_reboot": False,
        "processes": [],
        "beats": [],
        "cluster": None,
        "restarts": None,
        "log_tail": [],
        "evidence": None,
        "node_dir": None,
        "session": paths.session,
        "tail": paths.tail_command,
    }
