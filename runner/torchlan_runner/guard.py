# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard: a small process beside each worker that outlives it. It ends what hangs, and writes down why.

It hears its worker's beats through a socket pair and the other guards through rank 0's, which writes cluster.json. No
thread inside a worker could do this: it stops with its process, and can't end its agent. C(ward.py) starts it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from torchlan_runner import room, watch
from torchlan_runner.beat import FINAL, write_atomically
from torchlan_runner.peers import Center, Outer
from torchlan_runner.plan import Plan, read_plan
from torchlan_runner.processes import RUN_DIR, Process, environment, left_of
from torchlan_runner.sockets import tcp_sockets
from torchlan_runner.transport import Lines

TICK = 0.25
SECOND = 1.0
LEAVES = 5.0  # seconds for a worker that has said its last word
AGENT_ENDS = 6.0  # seconds an agent has after its worker failed, then after SIGTERM: its exit barrier ignores that
AGENT_TERM = 3.0
BARRIER = 15.0  # seconds an agent may wait for the others after all workers have ended well; torchrun would take 300
LOOKS, DELETES = 10.0, 30.0  # seconds after its worker in which a guard is not kept by a slow disk
LEFT_FAILED, LEFT_FINISHED = 2.0, 30.0  # seconds for what the worker left: a tracker may still be sending


class Guard:
    def __init__(self, plan: Plan, worker: int, agent: int, channel: Lines, listener: socket.socket | None) -> None:
        self.plan = plan
        self.limits = watch.Limits(plan)
        self.clock = watch.Clock()
        self.own = watch.Own(plan, self.limits)
        self.channel = channel
        self.peers: Center | Outer = Center(plan, self.limits, listener) if plan.rank == 0 else Outer(plan, self.limits)
        self.worker = Process(worker)
        # A worker that was started without torchrun has a parent that is none of the run's.
        ours = environment(agent).get(RUN_DIR.encode()) == os.fsencode(plan.run_dir or "/")
        self.agent = Process(agent) if ours else None
        self.reason: dict[str, Any] | None = None  # why the run is ended
        self.kill_at = 0.0
        self.gone_at: float | None = None  # when the worker had ended
        self.told_to_leave = False
        self.keeper: room.Keeper | None = None
        self._said_gone = False
        self._over_at: float | None = None  # when there was nothing more for the agent to wait for
        self._second = 0.0
        self._sent_to_agent: list[int] = []

    def run(self) -> None:
        while not self.over():
            self._wait()
            self.clock.tick()
            now = self.clock.now
            if self.channel.open:
                for message in self.channel.receive():
                    self._hear(message, now)
            self.peers.receive(now)
            if self.gone_at is None:
                self._look(now)
            else:
                self._clean(now)
            every_second = now - self._second >= SECOND
            if every_second:
                self._second = now
                self.peers.signs(self.own.signs(now), now)
            if self.reason is None and not self.peers.over:
                reason = self.peers.look(now)
                if reason:
                    self.end(reason, now)
            self._keep(now)
            if every_second:
                self.peers.write()
        self.peers.write()
        self.peers.close()

    def over(self) -> bool:
        """Nobody of this rank is left, and nobody needs this guard."""
        if self.gone_at is None:
            return False
        now = self.clock.now
        agent_gone = self.agent is None or self.agent.look() is None
        settled = self.peers.over or now - self.gone_at > (2 * SECOND if self.reason else self.limits.hang)
        if self.told_to_leave or (self.reason and agent_gone):
            settled = settled or now - self.gone_at > SECOND
        if self.keeper and not self.told_to_leave:
            deletes = self.keeper.busy and now - self.gone_at < DELETES
            settled = settled and self._said_gone and not deletes
        return settled and (agent_gone or self.told_to_leave) and not self._left()

    def end(self, reason: dict[str, Any], now: float) -> None:
        """The run is over, for every rank: the first reason counts."""
        if self.reason is not None:
            return
        self.reason = reason
        self.peers.end(reason)
        self._say("ends rank %d on %s: %s: %s" % (self.plan.rank, self.plan.host, reason["code"], reason["what"]))
        if self.gone_at is None and self.own.beat.get("state") in FINAL:
            self.kill_at = now + LEAVES  # it ends by itself, with its own reason and exit code
        elif self.gone_at is None:
            self._write_error_file(reason)
            self.channel.send({"end": reason}, must=True)
            self.kill_at = now + self.limits.ask

    # ---- the worker ----

    def _wait(self) -> None:
        handles = [self.worker.handle] if self.worker.handle is not None and self.gone_at is None else []
        readers = [*handles, *([self.channel] if self.channel.open else []), *self.peers.readers()]
        writers = [*([self.channel] if self.channel.waiting else []), *self.peers.writers()]
        try:
            select.select(readers, writers, [], TICK)
        except (OSError, ValueError):  # one of them was closed just now
            time.sleep(0.01)
        self.channel.flush()
        self.peers.flush()

    def _hear(self, message: Mapping[str, Any], now: float) -> None:
        if message.get("where"):
            self.peers.where(message["where"])
        if message.get("saves") and self.keeper is None:
            self.keeper = room.Keeper(message["saves"], self.plan.run, self._say)
            self.keeper.start()
        beat = message.get("beat")
        if isinstance(beat, dict):
            self.own.heard(beat, now)
            self.peers.beat(beat)

    def _look(self, now: float) -> None:
        seen = self.worker.look()
        if seen is None:
            self._worker_gone(now)
            return
        if self.reason is not None:
            if now >= self.kill_at:
                self.worker.send(signal.SIGKILL)
            return
        if self.own.beat.get("state") in FINAL:
            return  # it is on its way out
        found = None
        if self.agent is not None and self.agent.look() is None:
            found = watch.agent_lost(self.plan, self.agent.pid)
        found = found or self.own.frozen(seen[0], seen[1], now)
        if not found and now - self._second >= SECOND and self.own.suspicious(now):
            found = self._sockets(now)
        if found:
            self.end(found, now)

    def _sockets(self, now: float) -> dict[str, Any] | None:
        try:
            return self.own.sockets(tcp_sockets([self.worker.pid]), now)
        except OSError:
            return None

    def _worker_gone(self, now: float) -> None:
        """Its last word may still be in the channel; if there was none, this is it."""
        if self.channel.open:
            for message in self.channel.receive():
                self._hear(message, now)
        self.gone_at = now
        beat = self.own.beat
        if beat.get("state") not in FINAL:
            reason = self.reason or watch.died(self.plan, beat, self.plan.rank)
            state = "failed" if reason["weight"] == "error" else "stopped"
            beat = dict(beat, state=state, time=time.time(), causes=[*beat.get("causes", []), reason])
            beat.setdefault("rank", self.plan.rank)
            self.own.heard(beat, now)
            self._write_beat(beat)
            self.peers.beat(beat)
            if self.reason is None:
                self.end(reason, now)

    def _keep(self, now: float) -> None:
        """Says what is whole here, hears what nobody needs any more; what a finished worker saved last, before it is
        said to be gone: then all may leave."""
        settled = True
        if self.keeper:
            if self.gone_at is not None and room.ended(self.plan):
                self.keeper.settle()
            settled = self.keeper.settled or self.own.beat.get("state") != "finished"
            self.peers.whole(self.keeper.whole)
            self.keeper.drop_before(self.peers.oldest)
        if self.gone_at is not None and not self._said_gone and (settled or now - self.gone_at > LOOKS):
            self._said_gone = True
            self.peers.gone()

    def _clean(self, now: float) -> None:
        """After the worker: what it left, and an agent that does not see that all is over."""
        assert self.gone_at is not None
        failed = self.reason is not None or self.own.beat.get("state") != "finished"
        since = now - self.gone_at
        grace = LEFT_FAILED if failed else LEFT_FINISHED
        for pid in self._left() if since > 0.5 else []:
            Process(pid).send(signal.SIGKILL if since > 2 * grace else signal.SIGTERM if since > grace else 0)
        if self._over_at is None and (failed or self.peers.over):
            self._over_at = now
        if self.agent is None or self._over_at is None:
            return
        since, patience = now - self._over_at, AGENT_ENDS if failed else BARRIER
        if since > patience:
            number = signal.SIGKILL if since > patience + AGENT_TERM else signal.SIGTERM
            if number not in self._sent_to_agent and self.agent.look() is not None:
                self._sent_to_agent.append(number)
                self._say("ends the agent (pid %d), which did not end by itself: %s" % (self.agent.pid, number.name))
                self.agent.send(number)

    def _left(self) -> list[int]:
        return left_of(self.plan.run_dir, self.plan.rank) if self.plan.run_dir else []

    # ---- files ----

    def _write_error_file(self, reason: Mapping[str, Any]) -> None:
        """What torchrun shows as the last line of its table, also for a process that was killed."""
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if not path or os.path.exists(path):
            return
        mine = reason["rank"] == self.plan.rank
        text = "%s%s: %s" % ("" if mine else "ended with the run: ", reason["code"], reason["what"])
        message = {"message": text, "extraInfo": {"timestamp": str(int(time.time())), "py_callstack": text}}
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomically(path, json.dumps({"message": message}))
        except OSError:
            pass

    def _write_beat(self, beat: Mapping[str, Any]) -> None:
        if self.plan.run_dir:
            try:
                write_atomically("%s/beats/rank-%d.json" % (self.plan.run_dir, self.plan.rank), json.dumps(beat))
            except OSError:
                pass

    def _say(self, text: str) -> None:
        """Into the log's file: a pipe would be kept open, and may have lost its reader."""
        if self.plan.run_dir:
            try:
                with open(os.path.join(self.plan.run_dir, "train.log"), "a", encoding="utf-8") as file:
                    file.write("[torchlan] guard: %s\n" % text)
            except OSError:
                pass


def main() -> None:
    """C(ward.py) gives the descriptors of the channel and of rank 0's listener, and says the rest in the first line."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    channel = Lines(socket.socket(fileno=int(sys.argv[2])))
    listener = socket.socket(fileno=int(sys.argv[3])) if int(sys.argv[3]) >= 0 else None
    select.select([channel], [], [], 30)
    first, *more = channel.receive() or [{}]
    if "environ" not in first:
        return
    plan = read_plan({**os.environ, **first["environ"]})
    guard = Guard(plan, first["worker"], first["agent"], channel, listener)
    signal.signal(signal.SIGTERM, lambda *_args: setattr(guard, "told_to_leave", True))
    try:
        for message in (first, *more):
            guard._hear(message, 0.0)
        guard.run()
    except Exception as error:  # its worker starts another one
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = "%s:%d" % (frame.tb_frame.f_code.co_name, frame.tb_lineno) if frame else "?"
        guard._say("%s: %s (%s)" % (type(error).__name__, error, where))
        raise
