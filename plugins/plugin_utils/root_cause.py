# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a run broke: of all that its hosts and ranks say, the earliest error that is not the echo of another one.

When one rank breaks, the others report that their peer is gone, torchrun ends its other workers by signals, and the log
that a person opens first is usually the wrong one. Pure; nothing here talks to a host.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import messages
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause

# Clocks that differ by more are not compared as they are.
_CLOCKS_S = 30.0
# What is said of single ranks and hosts as long as nobody knows better.
_VAGUE = frozenset(("exception", "rank_died", "peer_lost", "not_proven", "rank_missing", "store_lost"))
_OF_RANK = re.compile(r"^\[(?:default|rank)?(\d+)\]: ?(.*)$")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?:: .*)?$")
_ENDED_BY_GUARD = 79  # ENDED_CODE of the runner
_SHOWN = 400
_LINES = 8


@dataclass
class Finding:
    """One thing that went wrong in a rank or an agent."""

    cause: dict[str, Any]
    when: float  # seconds since 1970, by the master's clock; infinite when it is not known
    consequence: bool


def explain(
    nodes: Mapping[str, Mapping[str, Any]], beats: Mapping[int, Mapping[str, Any]], told: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The causes of a run that broke: the root, what was found by other means, and one line about what followed.

    :param nodes: C(node_info) of every host that answers, the master first.
    :param beats: newest beat of every rank.
    :param told: what ranks, guards and the judge of the proof have said.
    """
    clock = _Clock(nodes)
    told = [_named(entry) for entry in told]
    found = [finding for rank, beat in sorted(beats.items()) for finding in _of_beat(rank, beat, clock)]
    spoken = {finding.cause["rank"] for finding in found}
    # Of a rank that its guard ended, the table only repeats what the guard has told.
    spoken |= {rank for rank, beat in beats.items() if any(map(_is_sure, beat.get("causes") or []))}
    for host, node in nodes.items():
        ended = node["run"].get("evidence") or {}
        found += [
            _of_failure(host, failure, ended, clock)
            for failure in ended.get("failures", [])
            if failure["rank"] not in spoken and failure["exit_code"] != _ENDED_BY_GUARD
        ]
    kept = [entry for entry in told if entry["code"] not in _VAGUE or not found]
    if not any(not finding.consequence for finding in found) and not any(_is_error(entry) for entry in kept):
        heard = {finding.cause["host"] for finding in found}
        found += [
            finding for host, node in nodes.items() if host not in heard for finding in _of_host(host, node, clock)
        ]
    found = _once(found, kept)
    found.sort(key=lambda finding: (finding.consequence, finding.when))
    if not found:
        return kept
    first = found[0]
    if any(_is_error(entry) for entry in kept):
        # Somebody knows better than an echo, and an error before it is the cause of it.
        ahead = [] if first.consequence else [first.cause]
        rest = found[1:] if ahead else found
    else:
        ahead, rest = [first.cause], found[1:]
    return [*ahead, *kept, *_followed(rest)]


def restarts(runs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a run has done about its failures by itself, by the host that knows most of them.

    :param runs: C(node.run) of C(node_info) by host.
    """
    known = [run["restarts"] for run in runs.values() if run.get("restarts")]
    if not known:
        return []
    state = max(known, key=lambda one: len(one["failures"]))
    last, done = state["failures"][-1], len(state["failures"]) - bool(state["gave_up"])
    when = time.strftime("%H:%M:%S", time.localtime(last["time"]))
    what = f"it broke at step {last['step']}, {when}: {last['what']} ({last['code']})"
    if state["gave_up"]:
        fix = f"not started again: {state['gave_up']}"
    elif state["next_unix"]:
        at = time.strftime("%H:%M:%S", time.localtime(state["next_unix"]))
        fix = f"nothing to do: it starts again at {at}"
    else:
        fix = "nothing to do: it goes on from its newest whole checkpoint"
    text = f"started again by itself {done} of at most {state['limit']} times; {what}"
    return [cause("restarted", text, fix, weight="note")]


def last_words(nodes: Mapping[str, Mapping[str, Any]], causes: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The end of the log where the first error was, by host; of all broken hosts when no host is known."""
    root = next((entry["host"] for entry in causes if _is_error(entry)), None)
    found = {
        host: (node["run"].get("evidence") or {}).get("last_words") or node["run"]["log_tail"][-_LINES:]
        for host, node in nodes.items()
        if node["run"]["state"] in ("failed", "half_alive") and root in (host, None)
    }
    return {host: [messages.readable(line) for line in lines] for host, lines in found.items() if lines}


def _named(entry: dict[str, Any]) -> dict[str, Any]:
    """An exception that others tell of, by the name of its message."""
    known = messages.classify(entry["what"]) if entry["code"] == "exception" else None
    if known is None or known.consequence:
        return entry
    who, _colon, line = entry["what"].partition(": ")
    return {**entry, "code": known.code, "what": f"{who}: {known.what} ({line})", "fix": known.fix}


def _is_error(entry: Mapping[str, Any]) -> bool:
    return bool(entry["weight"] == "error")


def _is_sure(entry: Mapping[str, Any]) -> bool:
    return _is_error(entry) and entry["code"] not in _VAGUE


def _once(found: list[Finding], kept: list[dict[str, Any]]) -> list[Finding]:
    """Without what was told already, and each rank's own reason once."""
    seen = {(entry["code"], entry["host"], entry["rank"]) for entry in kept}
    result = []
    for finding in found:
        key = (finding.cause["code"], finding.cause["host"], finding.cause["rank"])
        if key not in seen:
            seen.add(key)
            result.append(finding)
    return result


def _followed(rest: Iterable[Finding]) -> list[dict[str, Any]]:
    """What broke because of it, in one line."""
    names: dict[str, list[str]] = {}
    for finding in rest:
        rank, host = finding.cause["rank"], finding.cause["host"]
        names.setdefault(finding.cause["code"], []).append(f"rank {rank} on {host}" if rank is not None else str(host))
    parts = [f"{code}: {', '.join(dict.fromkeys(those))}" for code, those in names.items()]
    return [cause("note", "what followed from it: " + "; ".join(parts), weight="note")] if parts else []


class _Clock:
    """Times of all hosts by one clock, the master's."""

    def __init__(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        clocks = {host: node["host"].get("clock_unix") for host, node in nodes.items()}
        first = next((value for value in clocks.values() if value), None)
        # Hosts are asked within seconds of each other: a small difference says nothing.
        self._ahead = {
            host: value - first if value and first and abs(value - first) > _CLOCKS_S else 0.0
            for host, value in clocks.items()
        }

    def of(self, host: str | None, when: Any) -> float:
        return float(when) - self._ahead.get(str(host), 0.0) if isinstance(when, (int, float)) else math.inf


def _of_beat(rank: int, beat: Mapping[str, Any], clock: _Clock) -> list[Finding]:
    error = beat.get("error") or {}
    # A signal that came after its exception did not break it.
    sure = [entry for entry in beat.get("causes") or [] if _is_sure(entry) and entry["code"] != "ended_from_outside"]
    if not error or sure:
        return []
    text = f"{error.get('type', 'error')}: {error.get('message') or ''}"
    return [_of_text(text, beat.get("host"), rank, clock.of(beat.get("host"), error.get("time")))]


def _of_text(text: str, host: str | None, rank: int | None, when: float) -> Finding:
    known = messages.classify(text)
    line = messages.readable(next((part.strip() for part in text.splitlines() if part.strip()), ""))[:_SHOWN]
    who = f"rank {rank} on {host}" if rank is not None else str(host)
    if known is None:
        fix = f"the traceback is in train.log on {host}"
        return Finding(cause("exception", f"{who}: {line}", fix, host=host, rank=rank), when, False)
    entry = cause(known.code, f"{who}: {known.what} ({line})", known.fix, host=host, rank=rank)
    return Finding(entry, when, known.consequence)


def _of_failure(host: str, failure: Mapping[str, Any], ended: Mapping[str, Any], clock: _Clock) -> Finding:
    """A line of torchrun's table, for a rank that could not speak for itself."""
    rank, code, when = failure["rank"], failure["exit_code"], clock.of(host, failure["time"])
    if failure["says"]:
        return _of_text(failure["says"], host, rank, when)
    if code < 0:
        return _of_signal(host, rank, -code, failure["pid"], ended, when)
    text = _exception_of(rank, ended.get("log", []))
    if text:
        return _of_text(text, host, rank, when)
    what = f"rank {rank} on {host}: it ended with exit code {code}"
    return Finding(cause("rank_died", what, f"look at train.log on {host}", host=host, rank=rank), when, False)


def _of_signal(
    host: str, rank: int | None, number: int, pid: int | None, ended: Mapping[str, Any], when: float
) -> Finding:
    who = f"rank {rank} on {host}" if rank is not None else f"{host}: the agent"
    if number == 9 and (pid in ended.get("oom_pids", []) or ended.get("oom_kills")):
        sure = pid in ended.get("oom_pids", [])
        log = f"its log names pid {pid}" if sure else f"it killed {ended['oom_kills']} since this run began there"
        what = f"{who}: the kernel ended it for want of memory (SIGKILL; {log})"
        fix = "halve device-batch-size, or max-seq-len, or depth; end what else uses memory there; add swap"
        return Finding(cause("out_of_memory", what, fix, host=host, rank=rank), when, False)
    known = messages.SIGNALS.get(number, messages.Signal(f"signal {number} ended it", "who sent it?"))
    return Finding(cause(known.code, f"{who}: {known.what}", known.fix, host=host, rank=rank), when, known.consequence)


def _exception_of(rank: int, log: list[str]) -> str | None:
    """The exception that this rank wrote; a host's only rank may write without its number."""
    own, bare = None, None
    for line in log:
        match = _OF_RANK.match(line)
        text = match[2] if match else line
        if _EXCEPTION.match(text):
            if match is None and "ChildFailedError" not in text:
                bare = text
            elif match and int(match[1]) == rank:
                own = text
    return own or bare


def _of_host(host: str, node: Mapping[str, Any], clock: _Clock) -> list[Finding]:
    """A host whose ranks left no word: what its agent says, or how that ended."""
    run = node["run"]
    ended = run.get("evidence") or {}
    when = clock.of(host, ended.get("ended_unix"))
    for line in ended.get("log", []):
        known = messages.classify(line)
        if known:
            return [_of_text(line, host, None, when)]
    code = run.get("exit_code")
    if run["state"] not in ("failed", "half_alive") or code == 0:
        return []
    if code is None and any(process["role"] == "agent" for process in run.get("processes") or []):
        return []  # it waits for the other agents
    if code is None or code > 128:
        return [_of_signal(host, None, 9 if code is None else code - 128, None, ended, when)]
    last = next((line.strip() for line in reversed(ended.get("log", [])) if _EXCEPTION.match(line.strip())), None)
    what = f"{host}: torchrun ended with exit code {code}" + (f"; its log: {last[:_SHOWN]}" if last else "")
    return [Finding(cause("rank_died", what, f"look at train.log on {host}", host=host), when, False)]
