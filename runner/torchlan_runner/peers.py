# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a guard knows of the other ranks: rank 0's guard everything, the others' whether rank 0's is there."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from torchlan_runner import room, watch
from torchlan_runner.beat import FINAL, write_atomically
from torchlan_runner.cluster import compose, ends
from torchlan_runner.plan import EXIT_CODE, Plan
from torchlan_runner.processes import interface_problem
from torchlan_runner.transport import Link, Members

LOST_AFTER = 3.0  # seconds after which a guard whose connection closed does not come back
SETTLE = 1.0  # seconds for a better reason than that a rank lost another one


class Center:
    """Rank 0's view: all beats, all signs, and the word that ends the run."""

    def __init__(self, plan: Plan, limits: watch.Limits, listener: socket.socket | None) -> None:
        self.plan, self.limits, self._listener = plan, limits, listener
        self.members: Members | None = None
        self.beats: dict[int, dict[str, Any]] = {}
        self.reason: dict[str, Any] | None = None
        self.over = plan.env_world_size == 1
        self.oldest = 0  # the step before which no checkpoint is needed
        self._whole: dict[int, list[str]] = {}  # files of checkpoints that are whole, by rank
        self._signs: dict[int, dict[str, Any]] = {}
        self._heard: dict[int, float] = {}
        self._closed: dict[int, float] = {}
        self._gone: set[int] = set()  # ranks whose worker has ended, by their guard
        self._failed_at: float | None = None

    def where(self, where: Mapping[str, Any]) -> None:
        if self._listener is not None:
            self.members = self.members or Members(self._listener, where["token"], self.plan.run_id)

    def readers(self) -> list[Any]:
        return self.members.readers() if self.members else []

    def writers(self) -> list[Any]:
        return self.members.writers() if self.members else []

    def flush(self) -> None:
        if self.members:
            self.members.flush()

    def receive(self, now: float) -> None:
        for rank, message in self.members.receive() if self.members else []:
            self._heard[rank] = now
            self._closed.pop(rank, None)
            self._take(rank, message)
        for rank in self._heard:
            if self.members and rank not in self.members.lines:
                self._closed.setdefault(rank, now)

    def _take(self, rank: int, message: Mapping[str, Any]) -> None:
        if isinstance(message.get("beat"), dict):
            self.beats[rank] = message["beat"]
            if message["beat"].get("state") in FINAL:
                self.write()
        if isinstance(message.get("signs"), dict):
            self._signs[rank] = message["signs"]
        if isinstance(message.get("whole"), list):
            self._whole[rank] = message["whole"]
            self.oldest = room.oldest_kept(self._whole, self.plan.env_world_size, room.keeps(self.plan))
        if message.get("gone"):
            self._gone.add(rank)
        if isinstance(message.get("end"), dict) and self.reason is None:
            self.reason = message["end"]

    def beat(self, beat: dict[str, Any]) -> None:
        self._take(0, {"beat": beat})

    def whole(self, names: list[str]) -> None:
        if names != self._whole.get(0, []):
            self._take(0, {"whole": names})

    def signs(self, signs: dict[str, Any], now: float) -> None:
        self._signs[0] = signs
        if self.members:
            self.members.send({"alive": round(now, 2), "oldest": self.oldest})

    def gone(self) -> None:
        self._gone.add(0)

    def look(self, now: float) -> dict[str, Any] | None:
        """Why the run has to end; None as long as it has not."""
        if self.reason is not None:
            return self.reason
        self.over = len(self._gone) >= self.plan.env_world_size
        if self.over and self.members:
            self.members.send({"over": True, "oldest": self.oldest}, must=True)
        return self._of_failed(now) or self._of_silent(now) or watch.stuck(
            self.plan, self.limits, self.beats, self._signs
        )  # fmt: skip

    def _of_failed(self, now: float) -> dict[str, Any] | None:
        """A rank that said that it fails takes the others with it."""
        failed = [beat for beat in self.beats.values() if beat.get("state") in ("failed", "stopped")]
        if not failed:
            return None
        self._failed_at = self._failed_at or now
        if all(beat.get("exit_code") == EXIT_CODE for beat in failed) and now - self._failed_at < LOST_AFTER:
            return None  # the ranks don't agree, and each is about to say so
        causes = [entry for entry in self.picture()["causes"] if ends(entry) and entry["code"] != "parameters_differ"]
        causes.sort(key=lambda entry: entry["weight"] != "error")
        if causes and causes[0]["code"] != "peer_lost":
            return causes[0]
        # Whom it lost may be known in a moment: by its own last word, or because its guard does not come back.
        if now - self._failed_at < SETTLE + (LOST_AFTER if self._closed else 0):
            return None
        return causes[0] if causes else watch.died(self.plan, failed[0], failed[0]["rank"])

    def _of_silent(self, now: float) -> dict[str, Any] | None:
        for rank, heard in self._heard.items():
            if rank in self._gone and self.beats.get(rank, {}).get("state") == "finished":
                continue
            silent = now - heard
            if rank in self._closed and now - self._closed[rank] > LOST_AFTER:
                self.beats[rank] = dict(self.beats.get(rank, {"rank": rank}), state="failed")
                return watch.died(self.plan, self.beats[rank], rank)
            if silent >= self.limits.hang and self.members:
                problem = interface_problem(self.plan.ifname)
                if problem:
                    return watch.own_link_lost(self.plan, problem, silent)
                return watch.silent(self.plan, rank, silent, self.members.unanswered(rank))
        return None

    def end(self, reason: dict[str, Any]) -> None:
        self.reason = reason
        if self.members:
            self.members.send({"end": reason}, must=True)
        self.write()

    def picture(self) -> dict[str, Any]:
        return compose(self.plan, self.beats, self.reason)

    def write(self) -> None:
        if not self.plan.run_dir:
            return
        text = json.dumps(self.picture())
        try:
            write_atomically(os.path.join(self.plan.run_dir, "cluster.json"), text)
        except OSError:
            pass

    def close(self) -> None:
        if self.members:
            self.members.close()


class Outer:
    """The other ranks' view."""

    def __init__(self, plan: Plan, limits: watch.Limits) -> None:
        self.plan, self.limits = plan, limits
        self.link: Link | None = None
        self.over = False
        self.reason: dict[str, Any] | None = None
        self.oldest = 0
        self._whole: list[str] = []
        self._heard: float | None = None
        self._beat: dict[str, Any] | None = None
        self._joined = False
        self._gone = False

    def where(self, where: Mapping[str, Any]) -> None:
        self.link = self.link or Link(where, self.plan.run_id, self.plan.rank)

    def readers(self) -> list[Any]:
        return self.link.readers() if self.link else []

    def writers(self) -> list[Any]:
        return self.link.writers() if self.link else []

    def flush(self) -> None:
        if self.link:
            self.link.flush()

    def receive(self, now: float) -> None:
        if self.link is None:
            return
        for message in self.link.receive():
            self._heard = now
            self.over = self.over or bool(message.get("over"))
            self.oldest = message.get("oldest", self.oldest)
            if isinstance(message.get("end"), dict) and self.reason is None:
                self.reason = message["end"]
        if self.link.joined and not self._joined:  # anew: what rank 0 may have missed
            if self._beat:
                self.link.send({"beat": self._beat}, must=True)
            if self._whole:
                self.link.send({"whole": self._whole}, must=True)
            if self._gone:
                self.link.send({"gone": True}, must=True)
            if self.reason:
                self.link.send({"end": self.reason}, must=True)
        self._joined = self.link.joined

    def beat(self, beat: dict[str, Any]) -> None:
        self._beat = beat
        if self.link:
            self.link.send({"beat": beat}, must=beat.get("state") in FINAL)

    def whole(self, names: list[str]) -> None:
        if names != self._whole:
            self._whole = names
            if self.link:
                self.link.send({"whole": names}, must=True)

    def signs(self, signs: dict[str, Any], now: float) -> None:
        if self.link:
            self.link.send({"signs": signs})

    def gone(self) -> None:
        self._gone = True
        if self.link:
            self.link.send({"gone": True}, must=True)

    def look(self, now: float) -> dict[str, Any] | None:
        """Rank 0's word, or that rank 0 is not there any more. Before it was heard once, who starts ranks judges."""
        if self.reason is not None or self.link is None or self._heard is None:
            return self.reason
        refused = self.link.refused_since
        if refused is not None and time.monotonic() - refused > LOST_AFTER:
            return watch.died(self.plan, {"pid": "unknown", "state": "unknown", "step": "unknown"}, 0)
        silent = now - self._heard
        if silent >= self.limits.hang:
            problem = interface_problem(self.plan.ifname)
            if problem:
                return watch.own_link_lost(self.plan, problem, silent)
            return watch.silent(self.plan, 0, silent, self.link.unanswered())
        return None

    def end(self, reason: dict[str, Any]) -> None:
        self.reason = reason
        if self.link:
            self.link.send({"end": reason}, must=True)

    def write(self) -> None:
        return

    def close(self) -> None:
        if self.link:
            self.link.flush()
            self.link.close()
