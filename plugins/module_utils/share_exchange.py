# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the threads of one host's agent share: the files, who has what, how far it is, what is wrong."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_files import DiskError, Entry, Part, resolve
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_plan import Plan


class Limits(NamedTuple):
    """All in seconds."""

    stall: float = 10  # a connection that gives nothing is dropped
    piece: float = 3  # a request waits for a piece that is not here yet
    give_up: float = 30  # nothing comes from anybody
    idle: float = 30  # done, and no peer is connected
    controller: float = 300  # done or not yet told, and the controller does not ask
    whole: float = 12 * 3600


class Gone(Exception):
    """This host does not have the file, and will not."""


class NotYet(Exception):
    """This host does not have these bytes yet; C(moving): but it gets on."""

    def __init__(self, moving: bool) -> None:
        super().__init__("no such piece yet")
        self.moving = moving


class Exchange:
    """One exchange, as one host sees it. C(changed) guards all of it and tells of every change."""

    def __init__(
        self,
        folder: str,
        entries: Sequence[Entry],
        have: set[int],
        replace: set[str],
        token: str,
        limits: Limits | None = None,
    ) -> None:
        self.folder, self.entries, self.have, self.token = folder, entries, have, token
        self.limits = limits or Limits()
        self.changed = threading.Condition()
        self.parts = {index: Part(folder, entry) for index, entry in enumerate(entries) if index not in have}
        self.wanted = set(self.parts)  # neither brought nor given up
        self.plan: Plan | None = None  # until the peers are known
        self.own = ""
        self.peers: set[str] = set()
        self.finished_peers: set[str] = set()
        self.problems: dict[str, str] = {}  # the last one with each peer
        self.connected = 0  # connections that have shown the token
        self.asked = False  # the controller has the result
        self._replace = replace
        self._brought: list[str] = []
        self._causes: list[dict[str, Any]] = []
        self._tried: dict[int, str] = {}  # files that were wrong, and who alone gives them now
        self._bytes_from: dict[str, int] = {}
        self._sent = 0
        now = time.monotonic()
        self._begun = self._ended = self._moved = self._seen = now
        self._until = now + self.limits.whole
        self._speed: deque[tuple[float, int]] = deque(maxlen=6)

    # ---- the peers ----

    def tell(self, own: str, have: dict[str, set[int]]) -> bool:
        """Who has what. False: that is known already."""
        with self.changed:
            if self.plan is not None:
                return False
            self.own, self.peers = own, set(have) - {own}
            self._begun = self._ended = self._moved = time.monotonic()
            self._speed.append((self._begun, 0))
            self.plan = Plan(own, have, {index: part.pieces(False) for index, part in self.parts.items()})
            for index in sorted(self.wanted):
                if not self.plan.originals[index]:
                    self._lost(index, "no host of the exchange has it")
            self.changed.notify_all()
            return True

    @property
    def finished(self) -> bool:
        """Nothing more is wanted by this host; it may still have to give."""
        return self.plan is not None and not self.wanted

    def peer_finished(self, host: str) -> None:
        with self.changed:
            self.finished_peers.add(host)
            self.changed.notify_all()

    # ---- giving ----

    def open(self, index: int, start: int, stop: int) -> io.FileIO:
        """A file that has these bytes, and more it need not have. Waits for them a moment.

        :raises Gone, NotYet: it cannot be had.
        """
        if not 0 <= index < len(self.entries):
            raise Gone("no such file")
        entry, part = self.entries[index], self.parts.get(index)
        with self.changed:
            if part is not None and index in self.wanted:
                self.changed.wait_for(lambda: part.covers(start, stop) or index not in self.wanted, self.limits.piece)
            if part is not None and index in self.wanted:
                if not part.covers(start, stop):
                    raise NotYet(time.monotonic() - self._moved < self.limits.piece)
                with contextlib.suppress(FileNotFoundError):  # it is being named right now
                    return io.FileIO(part.path)
            elif index not in self.have:
                raise Gone(f"{entry.name!r} is given up")
        try:
            file = io.FileIO(resolve(self.folder, entry.name))
        except (OSError, ValueError) as problem:
            raise Gone(str(problem)) from problem
        size = os.fstat(file.fileno()).st_size
        if size == entry.size and 0 <= start < stop <= size:
            return file
        file.close()
        raise Gone(f"{entry.name!r} has {size} bytes, not {entry.size}")

    def gave(self, count: int) -> None:
        with self.changed:
            self._sent += count

    # ---- taking ----

    def got(self, host: str, count: int) -> None:
        """Bytes came, of a piece that may not become whole."""
        with self.changed:
            self._moved = time.monotonic()
            self._bytes_from[host] = self._bytes_from.get(host, 0) + count

    def finish(self, index: int, piece: int) -> None:
        with self.changed:
            self.parts[index].finish(piece)
            self.changed.notify_all()

    def lacks(self, host: str, index: int, piece: int, why: str) -> None:
        """A host that should have a file does not."""
        with self.changed:
            if self.plan is None or index not in self.wanted:
                return
            self.plan.give_back(index, piece, host)
            if host not in self.plan.originals[index]:
                self.plan.orphan(host)
            elif not self.plan.without(index, host):
                self._lost(index, f"{host}: {why}")
            self.changed.notify_all()

    def save(self) -> None:
        """Note what is done, as long as there is something to do. For a thread of its own."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.finished or any(part.unsaved for part in self.parts.values()))
                ended, unsaved = self.finished, [part for part in self.parts.values() if part.unsaved]
            for part in unsaved:
                part.save()
            if ended:
                return

    def verify(self) -> None:
        """Read what has come, in order, and name each file when it is right. For a thread of its own."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.finished or bool(self._readable()))
                if self.finished:
                    return
                index = self._readable()[0]
            part = self.parts[index]
            part.hash_next()
            if part.hashed == part.entry.pieces:
                self._conclude(index, part)

    def _readable(self) -> list[int]:
        if self.plan is None:
            return []
        parts = ((index, self.parts[index]) for index in sorted(self.wanted))
        return [index for index, part in parts if part.hashed == part.entry.pieces or part.done[part.hashed]]

    def _conclude(self, index: int, part: Part) -> None:
        entry, digest = part.entry, part.digest()
        if digest != entry.sha256:
            part.discard()
            self._again(index, digest)
            return
        try:
            part.place(resolve(self.folder, entry.name), entry.name in self._replace)
        except FileExistsError:
            what = f"{os.path.join(self.folder, entry.name)} came meanwhile, from somebody else"
            self._give_up(index, cause("file_differs", what, host=self.own))
            return
        except ValueError as problem:
            self._give_up(index, cause("path_invalid", str(problem), host=self.own))
            return
        except OSError as problem:
            raise DiskError(problem) from problem
        with self.changed:
            self.have.add(index)
            self._brought.append(entry.name)
            self._end(index)

    def _again(self, index: int, digest: str) -> None:
        """The content is wrong: take all of it from each host that had it whole, until it is right from one."""
        with self.changed:
            if self.plan is None:
                return
            originals = self.plan.originals[index]
            left = [host for host in originals if host > self._tried.get(index, "")]
            if left:
                self._tried[index] = left[0]
                self.plan.alone(index, left[0], self.entries[index].pieces)
                self.changed.notify_all()
                return
            entry, host = self.entries[index], self._tried.get(index)
            what = f"{entry.name!r} from {host} has sha256 {digest}, and should have {entry.sha256}"
            fix = f"Compare the file on {host} with its source; it changed after it was looked at, or the disk is bad"
            self._give_up(index, cause("content_differs", what, fix, host=self.own))

    # ---- what goes wrong ----

    def _lost(self, index: int, why: str) -> None:
        what = f"{self.entries[index].name!r} could not be fetched; {why}"
        self._give_up(index, cause("transfer_failed", what, host=self.own))

    def _give_up(self, index: int, why: dict[str, Any]) -> None:
        with self.changed:
            self._causes.append(why)
            self._end(index)

    def _end(self, index: int) -> None:
        self.wanted.discard(index)
        if self.plan is not None:
            self.plan.end(index)
        self._ended = self._moved = time.monotonic()
        self.changed.notify_all()

    def fail(self, why: dict[str, Any]) -> None:
        """Give up all that is not here."""
        with self.changed:
            if not self.wanted:
                return
            self._causes.append(why)
            for index in list(self.wanted):
                self._end(index)

    def disk_failed(self, problem: OSError) -> None:
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
        what = f"writing in {self.folder} failed: {problem.strerror or problem}"
        self.fail(cause("disk_full" if full else "transfer_failed", what, host=self.own))

    def look_after(self) -> bool:
        """Called about once a second: give up what does not move. False: nobody needs this agent any more."""
        now = time.monotonic()
        with self.changed:
            if self._speed and now - self._speed[-1][0] >= 1:
                self._speed.append((now, sum(self._bytes_from.values())))
            if self.connected:
                self._seen = now
            lacking = [index for index in self.wanted if not all(self.parts[index].done)]
            if self.plan is not None and lacking and now - self._moved > self.limits.give_up:
                told = "; ".join(f"{host}: {text}" for host, text in sorted(self.problems.items()))
                what = f"nothing came for {self.limits.give_up:.0f} s, and {len(lacking)} file(s) are not whole: "
                self.fail(cause("transfer_failed", what + (told or "all hosts were silent"), host=self.own))
            quiet = now - max(self._seen, self._moved)
            if now > self._until:
                return False
            if self.plan is None or (self.finished and not self.asked):
                return quiet <= self.limits.controller
            if self.finished and self.peers <= self.finished_peers:
                return False
            return bool(self.wanted) or quiet <= self.limits.idle

    def state(self, wait: float = 0) -> dict[str, Any]:
        """How far this host is; waits up to C(wait) seconds for the end."""
        with self.changed:
            self.changed.wait_for(lambda: self.finished, wait)
            lacking = sum(self.parts[index].entry.size - self.parts[index].bytes_done for index in self.wanted)
            total = sum(part.entry.size for part in self.parts.values())
            now = self._ended if self.finished else time.monotonic()
            then, before = self._speed[0] if self._speed else (now, 0)
            return {
                "state": "working" if not self.finished else "failed" if self._causes else "complete",
                "files": len(self.parts),
                "files_done": len(self._brought),
                "bytes": total,
                "bytes_done": total - lacking,
                "bytes_per_second": (sum(self._bytes_from.values()) - before) / (now - then) if now > then else 0.0,
                "brought": list(self._brought),
                "bytes_from": dict(self._bytes_from),
                "sent": self._sent,
                "transfer_seconds": round(now - self._begun, 3),
                "causes": list(self._causes),
            }
