# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which piece a host takes from whom.

The hosts that lack a file share its pieces out among themselves: each fetches its own share from a host that has the
file, and the rest from the hosts whose share it is. So every piece leaves the first host about once, and the hosts'
links are used both ways. A piece whose owner does not get on is an orphan, fetched from a host that has the file.

Not safe for threads; the caller holds a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

_ORPHANS = ""  # no host has this name


class Plan:
    """The pieces that this host lacks and nobody is fetching for it now.

    :param own: this host's name.
    :param have: per host, the files that it holds whole.
    :param lacking: per file that this host lacks, the pieces of it that it lacks.
    """

    def __init__(self, own: str, have: Mapping[str, set[int]], lacking: Mapping[int, list[int]]) -> None:
        self._own = own
        self.originals: dict[int, list[str]] = {}
        self._holders: dict[int, list[str]] = {}
        self._queues: dict[int, dict[str, deque[int]]] = {}
        for index in sorted(lacking):
            self.originals[index] = sorted(host for host in have if index in have[host])
            self._holders[index] = self.originals[index]
            owners = sorted(host for host in have if index not in have[host])
            queues: dict[str, deque[int]] = {name: deque() for name in (*owners, _ORPHANS)}
            for piece in lacking[index]:
                queues[owners[(index + piece) % len(owners)]].append(piece)
            self._queues[index] = queues

    def take(self, host: str) -> tuple[int, int] | None:
        """File and piece to be fetched from a host now; the caller gives it back if that fails."""
        for index, queues in self._queues.items():
            for name in (self._own, _ORPHANS) if host in self._holders[index] else (host,):
                if queues.get(name):
                    return index, queues[name].popleft()
        return None

    def give_back(self, index: int, piece: int, host: str) -> None:
        """It could not be fetched from this host; the next one to try may be the same."""
        queues = self._queues.get(index)
        if queues is not None:
            queues[host if host in queues else _ORPHANS].appendleft(piece)

    def orphan(self, host: str) -> None:
        """Nothing more is expected from a host that lacked files itself."""
        for queues in self._queues.values():
            if host in queues and host != self._own:
                queues[_ORPHANS].extend(queues[host])
                queues[host].clear()

    def alone(self, index: int, host: str, count: int) -> None:
        """Fetch all pieces of a file again, from one of the hosts that had it."""
        self._holders[index] = [host]
        self._queues[index] = {self._own: deque(range(count))}
        self._queues[index][_ORPHANS] = deque()

    def without(self, index: int, host: str) -> bool:
        """A host does not have the file after all. False: so nobody has it."""
        for hosts in (self.originals, self._holders):
            hosts[index] = [name for name in hosts[index] if name != host]
        return bool(self._holders[index])

    def end(self, index: int) -> None:
        """The file is whole, or given up."""
        self._queues.pop(index, None)
