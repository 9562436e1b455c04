# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait on the master for proof or a cause, whichever comes first."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause, errors
from ansible_collections.torchlan.nanochat.plugins.module_utils.messages import HEALS
from ansible_collections.torchlan.nanochat.plugins.module_utils.proof import (
    FAILED,
    PROVEN,
    judge,
    megabytes,
    ranks_of,
    sockets_of,
)
from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import (
    RunPaths,
    cluster_beats,
    inspect_run,
    log_tail,
    read_plan,
    telling_line,
)
from ansible_collections.torchlan.nanochat.plugins.module_utils.sockets import tcp_sockets

_LOOK_EVERY_S = 0.5
# Agents import torch before they can join, which takes a busy host a while; torchrun's own limit counts from then on.
_IMPORT_S = 20.0
# As long a healthy torchrun may need to end after its workers; in its exit barrier it waits for 300 s.
_ENDING_S = 15.0
_JOINED = re.compile(r"(\d+)/(\d+) clients joined")
_STEP_LINE = re.compile(r"^step\s+(\d+)/(\d+)\b(?:.*?\bloss:\s*(\S+))?")
# Causes that a run which just ended could show by mistake: its connections go before it does.
_BY_SOCKETS = ("not_distributed", "too_few_bytes", "wrong_interface")


@dataclass(frozen=True)
class Question:
    """What is waited for."""

    paths: RunPaths
    attempt: str
    wait_s: float = 5.0
    min_steps: int = 2
    expected_bytes_per_step: int | None = None
    runner: bool = True
    join_timeout: float = 20.0
    first_step_timeout: float = 900.0
    since_unix: float | None = None
    world_size: int | None = None


@dataclass
class Answer:
    """What one look showed."""

    phase: str
    progress: str
    done: bool = False
    causes: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class _Seen:
    """One look at everything there is on the master, in the order that lets bytes only be ahead of steps."""

    info: dict[str, Any]
    plan: dict[str, Any]
    sockets: list[dict[str, Any]]
    sockets_by_rank: dict[int, list[dict[str, Any]]]
    ranks: list[dict[str, Any]]
    world_size: int
    step: int
    step_of: int | None
    loss: str | None
    verdict: dict[str, Any]

    @property
    def workers(self) -> list[dict[str, Any]]:
        return [entry for entry in self.info["processes"] if entry["role"] == "worker"]


def wait(question: Question) -> dict[str, Any]:
    """Look again and again until something is decided, the phase changes, or C(wait_s) is over."""
    end = time.monotonic() + question.wait_s
    first_phase: str | None = None
    doubted = False
    while True:
        seen = _look(question)
        answer = _answer(question, seen)
        if answer.done and answer.phase == "failed" and not doubted and _may_be_the_end(seen, answer):
            doubted = True
            time.sleep(_LOOK_EVERY_S)
            continue
        first_phase = first_phase or answer.phase
        if answer.done or answer.phase != first_phase or time.monotonic() + _LOOK_EVERY_S > end:
            return {
                "phase": answer.phase,
                "progress": answer.progress,
                "done": answer.done,
                "causes": answer.causes,
                "state": seen.info["state"],
                "exit_code": seen.info["exit_code"],
                "cluster": seen.info["cluster"],
                "sockets": seen.sockets,
                "evidence": seen.verdict["evidence"],
                "log_tail": seen.info["log_tail"],
            }
        time.sleep(_LOOK_EVERY_S)


def log_step(lines: list[str]) -> tuple[int, int | None, str | None]:
    """Steps done, steps in all and loss by the last step line; nanochat counts from 0 and prints after the step."""
    for line in reversed(lines):
        match = _STEP_LINE.match(line.strip())
        if match:
            return int(match[1]) + 1, int(match[2]), match[3]
    return 0, None, None


def addresses_by_rank(plan: dict[str, Any]) -> dict[int, str]:
    """The address of each rank's host, in the order in which torchrun hands out ranks."""
    addresses: dict[int, str] = {}
    for node in _nodes(plan):
        for _local_rank in range(int(node.get("nproc") or 1)):
            addresses[len(addresses)] = str(node.get("address") or "")
    return addresses


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    nodes = [node for node in plan.get("nodes") or [] if isinstance(node, dict)]
    return sorted(nodes, key=lambda node: int(node.get("node_rank") or 0))


def _look(question: Question) -> _Seen:
    paths = question.paths
    info = inspect_run(paths.base_dir, paths.run, paths.node_rank, question.attempt)
    plan = read_plan(info["node_dir"]) if info["node_dir"] else {}
    workers = [entry for entry in info["processes"] if entry["role"] == "worker"]
    cluster = info["cluster"] or {}
    world_size = int(question.world_size or cluster.get("world_size") or plan.get("world_size") or max(len(workers), 1))
    lines = log_tail(os.path.join(info["node_dir"], "train.log"), 400) if info["node_dir"] else []
    step, step_of, loss = log_step(lines)
    sockets = tcp_sockets([entry["pid"] for entry in workers])
    sockets_by_rank = sockets_of([entry for entry in workers if _still_there(entry["pid"])], sockets)
    if question.runner:
        ranks = cluster_beats(cluster) + info["beats"]
        step = max([step] + [int(beat.get("step") or 0) for beat in ranks])
        step_of = next((beat["step_of"] for beat in ranks if beat.get("step_of")), step_of)
    else:
        ranks = ranks_of(workers, plan.get("host"), paths.node_rank, step)
    verdict = judge(
        world_size,
        {"cuda": "nccl", "cpu": "gloo"}.get(str(plan.get("device"))) if not question.runner else None,
        ranks,
        sockets_by_rank,
        question.expected_bytes_per_step or plan.get("expected_bytes_per_step"),
        question.min_steps,
        question.runner,
        {int(beat["rank"]): beat["ifname"] for beat in ranks if beat.get("ifname")},
        addresses_by_rank(plan),
        _port(info),
    )
    sockets = [
        dict(one, rank=next(entry["rank"] for entry in workers if entry["pid"] == one["pid"])) for one in sockets
    ]
    return _Seen(info, plan, sockets, sockets_by_rank, ranks, world_size, step, step_of, loss, verdict)


def _answer(question: Question, seen: _Seen) -> Answer:
    ended = _of_the_end(question, seen)
    if ended:
        return ended
    verdict = seen.verdict["verdict"]
    told = errors((seen.info["cluster"] or {}).get("causes") or []) if question.runner else []
    wrong = told or (seen.verdict["causes"] if verdict == FAILED else [])
    if wrong and seen.plan.get("auto_resume") and all(one["code"] in HEALS for one in errors(wrong)):
        return Answer("restarting", "%s; it starts again by itself" % wrong[0]["what"])  # or ends, and says so
    if wrong:
        return Answer("failed", wrong[0]["what"], True, wrong)
    if verdict == PROVEN:
        return Answer("proven", _training_line(seen), True, seen.verdict["causes"])
    elapsed = time.time() - _since(question, seen)
    if question.runner and seen.ranks:
        return _of_beats(question, seen, elapsed)
    if not seen.workers:
        return _of_nobody(question, seen, elapsed)
    return _of_log(question, seen, elapsed)


def _of_the_end(question: Question, seen: _Seen) -> Answer | None:
    """The answer when the master's part is not, or no longer, alive."""
    info, state = seen.info, seen.info["state"]
    known = errors((info["cluster"] or {}).get("causes") or []) if question.runner else []
    known = known or (seen.verdict["causes"] if seen.verdict["verdict"] == FAILED else [])
    said = telling_line(info["log_tail"])
    last = "; its log: %s" % said if said else ""
    if state == "absent":
        what = "attempt %s of run %s was not started here" % (question.attempt, question.paths.run)
        return Answer("failed", what, True, [cause("run_absent", what)])
    if state == "finished":
        if seen.verdict["verdict"] == PROVEN:
            return Answer("proven", "finished; " + _training_line(seen), True, seen.verdict["causes"])
        waiting = "; ".join(seen.verdict["evidence"]["waiting_for"][:3])
        return Answer(
            "finished", "finished before enough was seen%s" % (": " + waiting if waiting else ""), True, known
        )
    if state == "stopped":
        what = "the run was stopped: %s" % (info["stopped"] or "no reason given")
        return Answer("failed", what, True, known or [cause("not_proven", what)])
    if state == "failed":
        code = info["exit_code"]
        joined = next((found for found in map(_JOINED.search, reversed(info["log_tail"])) if found), None)
        if joined and not known and joined[1] != joined[2]:
            return _nobody(question, seen, "%s of %s hosts joined" % (joined[1], joined[2]))
        what = "torchrun on the master %s%s" % ("ended with exit code %d" % code if code else "was killed", last)
        return Answer("failed", known[0]["what"] if known else what, True, known or [cause("rank_died", what)])
    if state == "half_alive" and not any(entry["role"] == "agent" for entry in info["processes"]):
        what = "the agent on the master is gone, parts of the run are left (pid %s)%s" % (
            ", ".join(str(entry["pid"]) for entry in info["processes"]), last,
        )  # fmt: skip
        return Answer("failed", what, True, known or [cause("rank_died", what)])
    return None


def _of_beats(question: Question, seen: _Seen, elapsed: float) -> Answer:
    beats: dict[int, dict[str, Any]] = {}
    for beat in seen.ranks:
        rank = beat.get("rank")
        if isinstance(rank, int) and (rank not in beats or (beat.get("time") or 0) >= (beats[rank].get("time") or 0)):
            beats[rank] = beat
    missing = [rank for rank in range(seen.world_size) if beats.get(rank, {}).get("state", "missing") == "missing"]
    if missing:
        names = ", ".join(_rank_name(rank, beats.get(rank), seen.plan) for rank in missing)
        line = "%d of %d ranks are here; waiting for %s" % (seen.world_size - len(missing), seen.world_size, names)
        # The runner names who has not joined; this is for the case that it cannot.
        if elapsed > 2 * question.join_timeout + 2 * _IMPORT_S:
            what = "%s did not join within %d s" % (names, elapsed)
            return Answer("failed", what, True, [cause("rank_missing", what, rank=missing[0])])
        return Answer("waiting_for_ranks", line)
    if all(beat.get("state") == "finished" for beat in beats.values()):
        waiting = "; ".join(seen.verdict["evidence"]["waiting_for"][:3])
        return Answer("finished", "all ranks finished before enough was seen: %s" % waiting, True)
    early = {
        state: [_rank_name(rank, beats[rank], seen.plan) for rank in sorted(beats) if beats[rank].get("state") == state]
        for state in ("starting", "agreeing", "connecting", "compiling")
    }
    for state, those in early.items():
        if those:
            phase = "compiling" if state == "compiling" else "waiting_for_ranks"
            return _within_limits(question, seen, elapsed, phase, "%s: %s" % (state, ", ".join(those)))
    return _within_limits(question, seen, elapsed, "training", _training_line(seen, beats))


def _of_nobody(question: Question, seen: _Seen, elapsed: float) -> Answer:
    """No worker on the master: the agents have not met, so no runner can speak; or all is over but the agent."""
    if seen.step:
        line = "the master's workers have ended, torchrun waits for the other hosts"
        quiet = time.time() - _changed(os.path.join(str(seen.info["node_dir"]), "train.log")) > _ENDING_S
        return Answer("finished" if quiet else "training", line, quiet)
    count = len(_nodes(seen.plan)) or seen.plan.get("nnodes")
    if elapsed <= question.join_timeout + _IMPORT_S:
        return Answer("waiting_for_ranks", "the agents of %s hosts are looking for each other" % (count or "the"))
    return _nobody(question, seen, "nobody joined the master's agent within %d s" % elapsed)


def _nobody(question: Question, seen: _Seen, what: str) -> Answer:
    others = [
        "%s (node_rank %s)" % (node.get("host"), node.get("node_rank"))
        for node in _nodes(seen.plan)
        if node.get("node_rank") != question.paths.node_rank
    ]
    if others:
        what += "; expected: " + ", ".join(others)
    fix = (
        "look at train.log on those hosts: is their agent alive, can it reach the master's port, is node_rank its own?"
    )
    return Answer("failed", what, True, [cause("rank_missing", what, fix)])


def _of_log(question: Question, seen: _Seen, elapsed: float) -> Answer:
    """Without the runner: workers, their sockets and rank 0's step lines are all there is."""
    if not seen.step:
        return _within_limits(question, seen, elapsed, "compiling", "%d s, first step not done (compiling?)" % elapsed)
    if seen.step < question.min_steps:
        return _within_limits(question, seen, elapsed, "training", _training_line(seen))
    open_points = [text for text in seen.verdict["evidence"]["waiting_for"] if not text.endswith("not seen")]
    if not open_points:
        # This host has shown its part; the other hosts' sockets are the controller's to look at.
        return Answer("training", _training_line(seen) + "; now every host is looked at", True)
    if any("NCCL" in text for text in open_points):
        return Answer("unverified", open_points[0], True, [cause("not_proven", open_points[0], weight="warning")])
    return _within_limits(question, seen, elapsed, "training", "%s; %s" % (_training_line(seen), open_points[0]))


def _within_limits(question: Question, seen: _Seen, elapsed: float, phase: str, line: str) -> Answer:
    limit = question.join_timeout + question.first_step_timeout
    if not seen.step and elapsed > limit:
        what = "no step within %d s; %s" % (elapsed, line)
        return Answer("failed", what, True, [cause("start_timeout", what)])
    if seen.step and elapsed > 2 * limit:
        what = "only %d step(s) within %d s; %s" % (seen.step, elapsed, line)
        return Answer(
            "unverified", what, True, [cause("not_proven", what, "look again with status.yml", weight="warning")]
        )
    return Answer(phase, line)


def _may_be_the_end(seen: _Seen, answer: Answer) -> bool:
    """Whether missing connections may only mean that the run is just ending, so that a second look is due."""
    if seen.info["state"] != "alive" or any(one["code"] not in _BY_SOCKETS for one in answer.causes):
        return False
    return seen.step_of is None or seen.step >= seen.step_of


def _training_line(seen: _Seen, beats: dict[int, dict[str, Any]] | None = None) -> str:
    parts = ["step %d%s" % (seen.step, " of %d" % seen.step_of if seen.step_of else "")]
    loss = next((beat["loss"] for beat in seen.ranks if beat.get("loss") is not None), seen.loss)
    if loss is not None:
        parts.append("loss %s" % loss)
    rows = seen.verdict["evidence"]["ranks"]
    if seen.world_size > 1 and rows:
        parts.append("%s sent per rank" % megabytes(min(row["bytes_sent"] for row in rows)))
    for rank, beat in sorted((beats or {}).items()):
        waiting_in = beat.get("waiting_in") or {}
        seconds = time.time() - float(waiting_in.get("since") or time.time())
        if seconds > 5:
            parts.append("rank %d waits in %s since %d s" % (rank, waiting_in.get("op"), seconds))
    return ", ".join(parts)


def _rank_name(rank: int, beat: dict[str, Any] | None, plan: dict[str, Any]) -> str:
    host = (beat or {}).get("host")
    if not host:
        hosts = [node.get("host") for node in _nodes(plan) for _one in range(int(node.get("nproc") or 1))]
        host = hosts[rank] if rank < len(hosts) else None
    return "rank %d (%s)" % (rank, host) if host else "rank %d" % rank


def _since(question: Question, seen: _Seen) -> float:
    # By this host's clock, which the controller's may not be.
    recorded = (seen.info["record"] or {}).get("started_unix")
    again = (seen.info["restarts"] or {}).get("next_unix") or 0
    return max(float(recorded or question.since_unix or time.time()), again)


def _port(info: dict[str, Any]) -> int | None:
    """The rendezvous port, from what was started."""
    port = ((info["record"] or {}).get("config") or {}).get("master_port")
    return port if isinstance(port, int) else None


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _still_there(pid: int) -> bool:
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False
