# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Room for the next checkpoint on every host: older ones go, and a host that is about to lack it says so.

What goes is decided where all hosts are heard, in rank 0's guard, by what each of them has whole. A thread in the guard
of each host's first rank looks and deletes: a disk may take its time, and neither training nor guards wait for it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from torchlan_runner import checkpoints
from torchlan_runner.beat import FINAL, Beat
from torchlan_runner.plan import Plan, cause, options, warn

INTERVAL = 1.0
MARGIN = 1.05
DELETES = 5.0  # seconds in which older checkpoints may still make room for the next one


def oldest_kept(have: Mapping[int, Iterable[str]], world: int, keep: int) -> int:
    """The step before which no checkpoint is needed: that of the oldest of the newest C(keep) ones that are whole.

    :param have: names of whole files by node rank.
    :returns: 0 as long as there are not so many.
    """
    files = {node: dict.fromkeys(names) for node, names in have.items()}
    steps = {step for names in files.values() for step in map(checkpoints.step_of, names) if step is not None}
    left = keep
    for step in sorted(steps, reverse=True) if keep > 0 else ():
        left -= checkpoints.choose(files, world, step, {}).step == step
        if left == 0:
            return step
    return 0


class Keeper:
    """One host's checkpoints: knows which files are whole, deletes those of steps that are not needed any more."""

    def __init__(self, folder: str, run: str, say: Callable[[str], None]) -> None:
        self.folder, self.run, self._say = folder, run, say
        self.whole: list[str] = []
        self.settled = False  # nothing is written any more, and all was looked at
        self._oldest = self._deleted = 0
        self._known: dict[str, tuple[tuple[int, int], bool | None]] = {}  # name -> size and time, whether it is whole
        self._said: set[str] = set()
        self._over = False
        self._wake = threading.Event()

    def start(self) -> None:
        try:
            threading.Thread(target=self._run, name="torchlan-room", daemon=True).start()
        except RuntimeError as problem:
            self._say("no thread that deletes checkpoints: %s" % problem)

    @property
    def busy(self) -> bool:
        return self._oldest > self._deleted

    def drop_before(self, step: int) -> None:
        if step > self._oldest:
            self._oldest = step
            self._wake.set()

    def settle(self) -> None:
        """The ranks of this host have ended: what is not whole now never will be."""
        if not self._over:
            self._over = True
            self._wake.set()

    def look(self, over: bool = False) -> None:
        known: dict[str, tuple[tuple[int, int], bool | None]] = {}
        for name in checkpoints.names(self.folder):
            path = os.path.join(self.folder, name)
            mark = _mark(path)
            if mark is None:
                continue
            before, whole = self._known.get(name, (None, None))
            if before != mark:
                whole = None
            if whole is None and (over or before == mark):  # else it may still be written
                whole = checkpoints.broken(path) is None
            known[name] = (mark, whole)
        self._known = known
        self.whole = sorted(name for name, (_mark, whole) in known.items() if whole)

    def delete(self) -> None:
        """Files as they were when they were looked at: another start may have written new ones of that name."""
        oldest, gone = self._oldest, set()
        if checkpoints.owner(self.folder) == self.run:
            for name, (mark, _whole) in self._known.items():
                step = checkpoints.step_of(name)
                path = os.path.join(self.folder, name)
                if step is not None and step < oldest and _mark(path) == mark:
                    try:
                        os.unlink(path)
                        gone.add(step)
                    except FileNotFoundError:
                        pass  # hosts may share the folder
                    except OSError as problem:
                        self._tell("can't delete %s: %s" % (path, problem))
        if gone:
            text = ", ".join(str(step) for step in sorted(gone))
            self._say("deleted checkpoints of step %s (nanochat_keep_checkpoints)" % text)
        self._deleted = oldest

    def _run(self) -> None:
        while True:
            self._wake.clear()
            over = self._over
            try:
                if not self.settled:
                    self.look(over)
                if self.busy:
                    self.delete()
            except Exception as problem:
                self._tell("checkpoints in %s: %s: %s" % (self.folder, type(problem).__name__, problem))
            self.settled = over
            self._wake.wait(INTERVAL)

    def _tell(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


class Forecast:
    """In a host's first rank, looked at with every beat: whether the next save finds room."""

    def __init__(self, beat: Beat, folder: str, last: int | None) -> None:
        """:param last: the step after which nothing is saved, if it is known."""
        self.beat, self.folder, self.last = beat, folder, last
        self._short_since: float | None = None

    def look(self, _beat: Mapping[str, Any] | None = None) -> None:
        found, now = self._short(), time.monotonic()
        if found is None:
            self._short_since = self.beat.passing = None
            return
        self._short_since = self._short_since or now
        if self.beat.passing is None:
            if keeps(self.beat.plan) and now - self._short_since < DELETES:
                return
            warn(found["what"])
        self.beat.passing = found

    def _short(self) -> dict[str, Any] | None:
        plan = self.beat.plan
        sizes = own_bytes(self.folder, plan)
        if not sizes or (self.last is not None and max(sizes) >= self.last):
            return None
        needed = int(MARGIN * max(sizes.values()))
        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        if free >= needed:
            return None
        what = "%s: %s has %s free, and the next checkpoint needs %s" % (
            plan.host, self.folder, _size(free), _size(needed),
        )  # fmt: skip
        fix = "on %s, before the next save: free %s there (du -xh --max-depth=2 %s | sort -h | tail)" % (
            plan.host, _size(needed - free), os.path.dirname(os.path.dirname(self.folder)),
        )  # fmt: skip
        if not keeps(plan):
            fix += "; nanochat_keep_checkpoints deletes older ones from the next launch on"
        return cause("disk_will_fill", what, fix, host=plan.host, rank=plan.rank, weight="warning")


def own_ranks(plan: Plan) -> list[int]:
    first = plan.first_rank(plan.node_rank)
    return list(range(first, first + next((n.nproc for n in plan.nodes if n.node_rank == plan.node_rank), 1)))


def ended(plan: Plan) -> bool:
    """Whether all ranks of this host have said their last word, or their guards for them."""
    try:
        for rank in own_ranks(plan):
            with open("%s/beats/rank-%d.json" % (plan.run_dir, rank), encoding="utf-8") as file:
                if json.load(file).get("state") not in FINAL:
                    return False
    except (OSError, ValueError):
        return False
    return True


def own_bytes(folder: str, plan: Plan) -> dict[int, int]:
    """What this host's ranks wrote of the two newest steps; the newest may still be written."""
    ranks, present = own_ranks(plan), checkpoints.names(folder)
    steps = {step for step in map(checkpoints.step_of, present) if step is not None}
    sizes = {}
    for step in sorted(steps)[-2:]:
        own = checkpoints.needed(step, ranks)[2 if ranks[0] else 0 :]
        sizes[step] = sum((_mark(os.path.join(folder, name)) or (0, 0))[0] for name in own)
    return {step: size for step, size in sizes.items() if size}


def keeps(plan: Plan) -> int:
    """How many whole checkpoints are kept; 0 for all."""
    return int(plan.raw.get("keep_checkpoints") or 0)


def install(beat: Beat, folder: str, args: list[str]) -> None:
    steps = options(args).get("--num-iterations", "")
    beat.listeners.append(Forecast(beat, folder, int(steps) if steps.isdigit() else None).look)


def _mark(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _size(count: float) -> str:
    return "%.1f GB" % (count / 1e9) if count >= 1e9 else "%.1f MB" % (count / 1e6)
