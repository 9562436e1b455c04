# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps a host's part of a run going: starts torchrun, and starts it again after what may have healed by then.

One such process stands above the agent of every host, and none of them needs a controller or another one. Guards end a
run on all hosts together and give all the same reason, so all come to the same decision; who is first waits C(MEET)
seconds in torchrun's rendezvous. torchrun's own C(--max-restarts) ends with the agent of the master, whose store the
others need, and its c10d rendezvous gives out ranks anew, so that the optimizer's parts would have to travel.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from torchlan_runner import messages
from torchlan_runner.beat import write_atomically
from torchlan_runner.cluster import error_cause, is_consequence
from torchlan_runner.plan import warn
from torchlan_runner.processes import RUN_DIR, Process, of_ranks
from torchlan_runner.watch import reached

MEET = 600.0  # seconds for a host to come back: a reboot, a cable
SPEAK = 60.0  # then a rank must have said something; torch's store forgets its timeouts on a dead link
FIRST, LONGEST = 5.0, 60.0  # seconds before a start: the others' agents, and the old store, must be gone
LEAVES = 20.0  # for what is left of the last start; its guards end it
TERM = 10.0  # for torchrun to end its workers
_CONF = "--rdzv-conf=timeout="


class Supervisor:
    def __init__(self, times: int, command: list[str], environ: Mapping[str, str]) -> None:
        self.times, self.command, self.environ = times, command, dict(environ)
        self.run_dir = self.environ[RUN_DIR]
        self.failures: list[dict[str, Any]] = []
        self._told_to_end = threading.Event()
        self._agent: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """:returns: the exit code of the last torchrun, 128 + N for signal N."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        while True:
            began = time.time()
            code = self._once()
            if code == 0 or self._told_to_end.is_set() or os.path.exists(os.path.join(self.run_dir, "stopped")):
                return code
            self._wait_for_the_rest()
            self.failures.append(failure(self.run_dir, began, code))
            why = hopeless(self.failures, self.times)
            if why:
                self._write(gave_up=why)
                warn("does not start again: %s" % why)
                return code
            pause = pause_before(self.failures)
            self._forget()
            self._write(next_unix=round(time.time() + pause, 3))
            if self._told_to_end.wait(pause):
                return code
            last = self.failures[-1]
            told = (len(self.failures), self.times, last["code"], last["what"])
            warn("%s, %d of at most %d times, after %s: %s" % (messages.STARTS_AGAIN, *told))
            self._write()

    def _once(self) -> int:
        command, environ = self.command, self.environ
        if self.failures:
            plan = {**json.loads(environ["TORCHLAN_PLAN"]), "resume": "auto"}
            environ = {**environ, "TORCHLAN_PLAN": json.dumps(plan)}
            command = [_CONF + "%d" % MEET if word.startswith(_CONF) else word for word in command]
        self._agent = subprocess.Popen(command, env=environ)
        deadline = time.monotonic() + MEET + SPEAK if self.failures else math.inf
        told = False
        while True:
            try:
                code = self._agent.wait(0.25)
                return 128 - code if code < 0 else code
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if self._told_to_end.is_set() and not told:
                told, deadline = True, now + TERM
                self._agent.terminate()
            elif now > deadline and (told or not _beats(self.run_dir)):
                self._agent.kill()

    def _end(self, _number: int, _frame: Any) -> None:
        self._told_to_end.set()

    def _wait_for_the_rest(self) -> None:
        end = time.monotonic() + LEAVES
        while True:
            left = of_ranks(self.run_dir)
            if not left:
                return
            if time.monotonic() > end:
                for pid in left:
                    Process(pid).send(signal.SIGKILL)
            time.sleep(0.1)

    def _forget(self) -> None:
        """The ranks of the start that failed are no news any more; C(rank-N.jsonl) and the log keep their history."""
        for path in (*_beat_files(self.run_dir), os.path.join(self.run_dir, "cluster.json")):
            try:
                os.unlink(path)
            except OSError:
                pass

    def _write(self, next_unix: float | None = None, gave_up: str | None = None) -> None:
        state = {"limit": self.times, "failures": self.failures, "next_unix": next_unix, "gave_up": gave_up}
        try:
            write_atomically(os.path.join(self.run_dir, "restarts.json"), json.dumps(state))
        except OSError as problem:
            warn("restarts.json: %s" % problem)


def failure(run_dir: str, since: float, exit_code: int) -> dict[str, Any]:
    """Why a start ended: what its guards have said, else what a rank of this host has said, else torchrun's exit code.

    :param since: unix time of the start.
    """
    beats = [beat for beat in _beats(run_dir) if (beat.get("time") or 0) >= since]
    # The guards' reason first: it is the same on all hosts, and so is what follows from it.
    found = [entry for beat in beats for entry in beat.get("causes") or [] if entry["weight"] == "error"]
    found += [error_cause(beat) for beat in beats if beat.get("error") and not is_consequence(beat["error"])]
    found.sort(key=lambda entry: entry["code"] == "ended_from_outside")  # torchrun ends the others so
    nobody = "torchrun ended with exit code %d before a rank could say why" % exit_code
    root = found[0] if found else {"code": "rank_died", "what": nobody}
    known = messages.classify(root["what"]) if root["code"] == "exception" else None
    return {
        "time": round(time.time(), 3),
        "code": known.code if known else root["code"],
        "what": root["what"],
        "step": max((reached(beat) or 0 for beat in beats), default=0),
        "exit_code": exit_code,
    }


def hopeless(failures: list[dict[str, Any]], times: int) -> str | None:
    """Why another start would be in vain; None when it may work."""
    last = failures[-1]
    if last["code"] not in messages.HEALS:
        return "%s does not heal by itself: %s" % (last["code"], last["what"])
    if len(failures) > times:
        return "%d starts after the first were all that nanochat_auto_resume allows" % times
    before = failures[-2] if len(failures) > 1 else {}
    same = all(before.get(name) == last[name] for name in ("code", "what", "step"))
    return "the same exception at the same step: %s" % last["what"] if same and last["code"] == "exception" else None


def pause_before(failures: list[dict[str, Any]]) -> float:
    """Seconds before the next start: twice as long after each one that came no further than the one before."""
    pause = FIRST
    for before, after in zip(failures, failures[1:]):
        pause = min(LONGEST, 2 * pause) if after["step"] <= before["step"] else FIRST
    return pause


def _beat_files(run_dir: str) -> list[str]:
    folder = os.path.join(run_dir, "beats")
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith("rank-") and name.endswith(".json"))
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names]


def _beats(run_dir: str) -> list[dict[str, Any]]:
    found = []
    for path in _beat_files(run_dir):
        try:
            with open(path, encoding="utf-8") as file:
                found.append(json.load(file))
        except (OSError, ValueError):
            pass
    return found


def main() -> None:
    """C(--times=N -- COMMAND…)"""
    first, dashes, *command = sys.argv[1:]
    if dashes != "--" or not command:
        raise SystemExit("usage: python -m torchlan_runner.again --times=N -- COMMAND…")
    sys.exit(Supervisor(int(first.partition("=")[2]), command, os.environ).run())


if __name__ == "__main__":
    main()
