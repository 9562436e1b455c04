# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a run hangs, and when it only takes its time. Rules over what guards see; nothing here looks or acts by itself.

A waiting collective alone never ends a run: rank 0 evaluates, samples and saves alone for minutes. It takes a worker
that does not run, a guard that is not heard, packets that nobody acknowledges, or a run in which everybody waits and no
byte moves. One that waits for a rank which does something else has a longer limit, C(BUSY).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torchlan_runner.plan import Plan, cause

BUSY = 1800.0  # as long as Gloo itself waits (exchange.py), after which it would end the run without a reason
AWAKE = 1.0
SUSPICIOUS = 2.0  # seconds in one collective from which on the sockets are looked at
_STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "D": "waiting for a disk or a network file system",
    "S": "sleeping",
    "R": "ready, but it gets no CPU",
}


class Limits:
    """Seconds until a hang is one, so that all has ended within C(nanochat_hang_timeout)."""

    def __init__(self, plan: Plan) -> None:
        whole = max(1.0, float(plan.raw.get("hang_timeout") or 60))
        self.ask = min(2.0, 0.1 * whole)  # for the worker to go by itself
        self.hang = whole - min(5.0, 0.2 * whole)
        self.busy = max(BUSY, whole)


class Clock:
    """Seconds in which this process was awake: who was paused must not blame the others for what it missed."""

    def __init__(self) -> None:
        self.now = 0.0
        self._last = time.monotonic()

    def tick(self) -> None:
        real = time.monotonic()
        self.now += min(real - self._last, AWAKE)
        self._last = real


class Own:
    """A guard's own worker."""

    def __init__(self, plan: Plan, limits: Limits) -> None:
        self.plan, self.limits = plan, limits
        self.beat: dict[str, Any] = {}
        self.heard_at = 0.0
        self.moved_at = 0.0  # a byte on any connection with another worker
        self._cpu = -1
        self._cpu_at = 0.0
        self._bytes: dict[tuple[Any, ...], tuple[int, float]] = {}
        self._wait: tuple[Any, ...] = ()
        self._wait_at = 0.0

    def heard(self, beat: dict[str, Any], now: float) -> None:
        self.beat, self.heard_at = beat, now
        wait = (beat.get("waiting_in") or {}).get("n"), beat.get("collectives_begun"), beat.get("state")
        if wait != self._wait:
            self._wait, self._wait_at = wait, now

    def waiting(self, now: float) -> float:
        """Seconds in one and the same collective."""
        return now - self._wait_at if self._wait and self._wait[0] is not None else 0.0

    def suspicious(self, now: float) -> bool:
        return self.waiting(now) > SUSPICIOUS or now - self.heard_at > SUSPICIOUS

    def frozen(self, state: str, cpu: int, now: float) -> dict[str, Any] | None:
        """It neither beats nor computes. One that computes and lets no thread of its own run has the longer limit."""
        if cpu != self._cpu:
            self._cpu, self._cpu_at = cpu, now
        silent = now - self.heard_at
        limit = self.limits.hang if now - self._cpu_at >= self.limits.hang - AWAKE else self.limits.busy
        if self.beat.get("state") == "starting":
            limit += self.plan.join_timeout  # it reads its libraries, which a cold disk takes long for
        if not self.beat or silent < limit:
            return None
        plan = self.plan
        what = "rank %d on %s (pid %s) stands still since %s, at step %s: %s (state %s)" % (
            plan.rank, plan.host, self.beat.get("pid"), clock_time(silent), reached(self.beat),
            _STATES.get(state, "unknown"), state,
        )  # fmt: skip
        fix = {
            "T": "who stopped it (kill -STOP, Ctrl-Z, a debugger)? Nothing in the run does",
            "D": "look at that host's disks and mounts: dmesg, df",
        }.get(state.upper(), "look at that host: memory and swap (free -m), load (uptime), dmesg")
        return cause("rank_frozen", what, fix, host=plan.host, rank=plan.rank)

    def sockets(self, found: list[dict[str, Any]], now: float) -> dict[str, Any] | None:
        """Counters of connections with other workers; a cause when one only repeats what nobody acknowledges."""
        limit = self.limits.hang
        for entry in found:
            if entry["bytes_sent"] is None or self.plan.master_port in (entry["local_port"], entry["remote_port"]):
                continue
            key = (entry["local"], entry["local_port"], entry["remote"], entry["remote_port"])
            total = entry["bytes_sent"] + entry["bytes_received"]
            known, since = self._bytes.get(key, (-1, now))
            if total != known:
                self._bytes[key] = (total, now)
                self.moved_at = now
                continue
            lost = entry.get("timer") == 1 and entry.get("unacked", 0) > 0 and entry.get("backoff", 0) >= 2
            if lost and now - since >= limit:
                return link_lost(self.plan, self._rank_at(entry["remote"]), now - since, entry["remote"])
        return None

    def signs(self, now: float) -> dict[str, Any]:
        """For rank 0: seconds in one collective, and in which no byte moved."""
        return {"waiting": self.waiting(now), "still": now - self.moved_at if self._bytes else None}

    def _rank_at(self, address: str) -> int | None:
        node = next((node for node in self.plan.nodes if node.address == address), None)
        return self.plan.first_rank(node.node_rank) if node else None


def stuck(
    plan: Plan, limits: Limits, beats: Mapping[int, Mapping[str, Any]], signs: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any] | None:
    """All ranks wait in collectives and no byte moves; or some wait very long for one that never came."""
    world = plan.env_world_size
    if world < 2 or len(signs) < world or len(beats) < world:
        return None
    waiting = {rank: float(signs[rank].get("waiting") or 0) for rank in range(world)}
    still = [signs[rank].get("still") for rank in range(world)]
    everybody = min(waiting.values()) >= limits.hang and all(s is not None and s >= limits.hang for s in still)
    longest = max(waiting.values())
    if not everybody and longest < limits.busy:
        return None
    places = []
    for rank in range(world):
        within = beats[rank].get("waiting_in") or {}
        where = "waits in %s %s" % (within.get("op"), within.get("n")) if waiting[rank] else "is in none"
        places.append("rank %d on %s %s" % (rank, beats[rank].get("host"), where))
    late = min(range(world), key=lambda rank: beats[rank].get("collectives_begun") or 0)
    what = "the ranks wait for each other since %s: %s" % (clock_time(longest), "; ".join(places))
    fix = "do all ranks run the same collectives in the same order? Look at what rank %d does" % late
    return cause("collective_stuck", what, fix, host=beats[late].get("host"), rank=late)


def silent(plan: Plan, rank: int, seconds: float, unanswered: bool) -> dict[str, Any]:
    """Nothing comes from a rank's guard any more."""
    if unanswered:
        return link_lost(plan, rank, seconds)
    host = plan.place(rank)[0]
    what = "rank %d on %s: nothing comes from it since %s, though its network still answers" % (
        rank, host, clock_time(seconds),
    )  # fmt: skip
    fix = "%s is paused, suspended or overloaded: look there (uptime, free -m; docker ps)" % host
    return cause("rank_silent", what, fix, host=host, rank=rank)


def link_lost(plan: Plan, rank: int | None, seconds: float, address: str | None = None) -> dict[str, Any]:
    host, node_rank = plan.place(rank) if rank is not None else (address, None)
    address = address or (plan.address_of(node_rank) if node_rank is not None else "") or "its address"
    what = "%s no longer reaches rank %s on %s (%s) since %s: nothing that is sent there is acknowledged" % (
        plan.host, rank, host, address, clock_time(seconds),
    )  # fmt: skip
    fix = "is %s up, is its cable in, is its interface up? from %s: ping %s" % (host, plan.host, address)
    return cause("link_lost", what, fix, host=host, rank=rank)


def own_link_lost(plan: Plan, problem: str, seconds: float) -> dict[str, Any]:
    what = "rank %d on %s is cut off since %s: %s" % (plan.rank, plan.host, clock_time(seconds), problem)
    fix = "on %s: ip link show %s; is the cable in, who took it down?" % (plan.host, plan.ifname)
    return cause("link_lost", what, fix, host=plan.host, rank=plan.rank)


def agent_lost(plan: Plan, pid: int) -> dict[str, Any]:
    what = "rank %d on %s: its agent (torchrun, pid %d) ended before it" % (plan.rank, plan.host, pid)
    fix = "who ended it? look at train.log and the kernel log (out of memory?) on %s" % plan.host
    return cause("agent_lost", what, fix, host=plan.host, rank=plan.rank)


def died(plan: Plan, beat: Mapping[str, Any], rank: int) -> dict[str, Any]:
    host = plan.place(rank)[0] or beat.get("host")
    what = "rank %d on %s (pid %s) ended without a word in state %s at step %s" % (
        rank, host, beat.get("pid"), beat.get("state"), reached(beat),
    )  # fmt: skip
    fix = "it was killed, or its host went down: look at train.log and the kernel log (out of memory?) on %s" % host
    return cause("rank_died", what, fix, host=host, rank=rank)


def reached(beat: Mapping[str, Any]) -> Any:
    """The step of the whole run: a beat counts from where its start went on."""
    step = beat.get("step")
    return step + (beat.get("began_at") or 0) if isinstance(step, int) else step


def clock_time(seconds_ago: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time.time() - seconds_ago))
