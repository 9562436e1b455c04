# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of this rank, written about once a second to beats/rank-N.json, and told to its guard.

Nothing here may ever end or slow the training: errors are said once and swallowed.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, Callable

from torchlan_runner import pace, sockets
from torchlan_runner.plan import Plan, warn

INTERVAL = 1.0
HISTORY_BYTES = 1 << 20
FINAL = ("finished", "failed", "stopped")
KEEP_SOCKETS = 256


class Counters:
    """What the training thread changes: plain attributes, no lock, so that counting costs nothing."""

    def __init__(self) -> None:
        self.begun = 0
        self.finished = 0
        self.bytes = 0
        self.waiting_in: tuple[str, int, float] | None = None
        self.waiting_since: float | None = None  # the same on the clock that only goes forward
        self.waited = 0.0
        self.evaluating = False
        self.saving = False
        self.finished_early = False
        self.step = 0
        self.param_bytes: int | None = None
        self.checksums: dict[str, str] = {}
        self.loss: float | None = None
        self.val_bpb: float | None = None
        self.tokens_per_s: float | None = None
        self.step_of: int | None = None
        self.began_at: int | None = None  # the step that a resumed run went on from; 0 otherwise
        self.last_line: str | None = None
        self.compiling = 0


class Beat:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counters = Counters()
        self.state = "starting"
        self.backend: str | None = None
        self.error: dict[str, Any] | None = None
        self.exit_code: int | None = None
        self.causes: list[dict[str, Any]] = []
        self.passing: dict[str, Any] | None = None  # a warning about now, gone when it is no longer so
        self.agreed = False
        self.boot_id = _boot_id()
        self.started = time.time()
        self.listeners: list[Callable[[dict[str, Any]], None]] = []  # called by the thread with every beat
        self._sockets: dict[tuple[str, str], dict[str, Any]] = {}
        self._sampled = 0.0
        self._wake = threading.Event()
        self._stop = False
        self._write_lock = threading.Lock()
        self._pace = pace.Pace()
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="torchlan-beat", daemon=True)
        self._folder = os.path.join(plan.run_dir, "beats") if plan.run_dir else None

    # ---- used by the other parts ----

    def start(self) -> None:
        if self._folder:
            try:
                os.makedirs(self._folder, exist_ok=True)
            except OSError as error:
                self.say_once("beats can't be written to %s: %s" % (self._folder, error))
                self._folder = None
        self._thread.start()

    def set_state(self, state: str) -> None:
        self.state = state
        self._wake.set()

    def hurry(self) -> None:
        """Publish now instead of at the next second, with the sockets as they are."""
        self._sampled = 0.0
        self._wake.set()

    def fail(self, kind: str, message: str) -> None:
        self.error = {"type": kind, "message": message[:4000], "time": time.time()}

    def finish(self, state: str, exit_code: int | None) -> None:
        """The last beat, written in this thread."""
        self._stop = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(3)
        self.exit_code = exit_code
        self.state = state
        self.publish()

    def say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warn("rank %d on %s: %s" % (self.plan.rank, self.plan.host, text))

    def sample_sockets(self) -> None:
        """Keeps the largest counters seen of each of this process's own connections, also of those that are gone."""
        self._sampled = time.monotonic()
        try:
            seen = sockets.tcp_sockets([os.getpid()])
        except Exception as error:
            self.say_once("own sockets can't be read: %s" % error)
            return
        for old in self._sockets.values():
            old["open"] = False
        for entry in seen:
            key = (endpoint(entry["local"], entry["local_port"]), endpoint(entry["remote"], entry["remote_port"]))
            known = self._sockets.get(key)
            if known is None:
                if len(self._sockets) >= KEEP_SOCKETS:
                    continue
                known = self._sockets[key] = {
                    "local": key[0],
                    "remote": key[1],
                    "bytes_sent": 0,
                    "bytes_received": 0,
                    "use": self._use(entry["local_port"], entry["remote_port"]),
                }
            known["open"] = True
            for name in ("bytes_sent", "bytes_received"):
                known[name] = max(known[name], entry[name] or 0)

    def snapshot(self) -> dict[str, Any]:
        plan, c = self.plan, self.counters
        state = self.state
        if state in ("training", "compiling"):
            state = "compiling" if c.compiling > 0 else "training"
        waiting = c.waiting_in
        passing = self.passing if state != "finished" else None
        return {
            "schema": 1,
            "run": plan.run,
            "attempt": plan.attempt,
            "rank": plan.rank,
            "local_rank": plan.local_rank,
            "node_rank": plan.node_rank,
            "host": plan.host,
            "pid": os.getpid(),
            "world_size": plan.env_world_size,
            "time": time.time(),
            "started": self.started,
            "boot_id": self.boot_id,
            "state": state,
            "agreed": self.agreed,
            "step": c.step,
            "param_bytes": c.param_bytes,
            "backend": self.backend,
            "ifname": plan.ifname,
            "address": plan.address,
            "collectives_begun": c.begun,
            "collectives_finished": c.finished,
            "collective_bytes": c.bytes,
            "waiting_in": {"op": waiting[0], "n": waiting[1], "since": waiting[2]} if waiting else None,
            "doing": "saving" if c.saving else "evaluating" if c.evaluating else None,
            **self._figures(),
            "checksums": dict(c.checksums),
            "loss": c.loss,
            "val_bpb": c.val_bpb,
            "tokens_per_s": c.tokens_per_s,
            "step_of": c.step_of,
            "began_at": c.began_at,
            "last_line": c.last_line,
            "sockets": [s for s in list(self._sockets.values()) if s["bytes_sent"] or s["bytes_received"]],
            "error": self.error,
            "exit_code": self.exit_code,
            "causes": [*self.causes, *([passing] if passing else [])],
        }

    def _figures(self) -> dict[str, Any]:
        """On cuda a collective is only queued by its call: how long it takes can't be seen from here."""
        figures: dict[str, Any] = self._pace.look(time.monotonic(), self.counters.step, pace.waited(self.counters))
        if self.plan.device != "cpu":
            figures["communication_share"] = None
        return {**figures, "memory_bytes": pace.memory_bytes()}

    def publish(self) -> None:
        with self._write_lock:
            try:
                beat = self.snapshot()
                if self._folder:
                    self._write(beat)
            except Exception as error:
                self.say_once("beat: %s: %s" % (type(error).__name__, error))
                return
        for listener in list(self.listeners):
            try:
                listener(beat)
            except Exception as error:
                self.say_once(
                    "beat to %s: %s: %s" % (getattr(listener, "__qualname__", "?"), type(error).__name__, error)
                )

    # ---- the thread ----

    def _run(self) -> None:
        while not self._stop:
            if self.state in ("training", "compiling") and time.monotonic() - self._sampled >= INTERVAL:
                self.sample_sockets()
            self.publish()
            self._wake.wait(INTERVAL)
            self._wake.clear()

    def _write(self, beat: dict[str, Any]) -> None:
        assert self._folder is not None
        path = os.path.join(self._folder, "rank-%d.json" % self.plan.rank)
        write_atomically(path, json.dumps(beat))
        short = {
            name: beat[name]
            for name in (
                "time",
                "state",
                "step",
                "collectives_begun",
                "collectives_finished",
                "collective_bytes",
                "waiting_in",
                "communication_share",
                "tokens_per_s",
                "loss",
                "began_at",
            )
        }
        append_bounded(path + "l", json.dumps(short) + "\n")

    def _use(self, local_port: int, remote_port: int) -> str:
        if self.plan.master_port in (local_port, remote_port):
            return "store"
        return "peer"


def endpoint(address: str, port: int) -> str:
    return ("[%s]:%d" if ":" in address else "%s:%d") % (address, port)


def write_atomically(path: str, text: str) -> None:
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def append_bounded(path: str, line: str, limit: int = HISTORY_BYTES) -> None:
    """Appends a line; a file over the limit keeps its newer half."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(line)
        size = file.tell()
    if size > limit:
        with open(path, "rb") as file:
            file.seek(size - limit // 2)
            file.readline()
            rest = file.read()
        write_atomically(path, rest.decode("utf-8", "replace"))


def _boot_id() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None
