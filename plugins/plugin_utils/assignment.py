# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One candidate per host, so that all of them fit together and cost little."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

# Far more than a LAN needs: after the first narrowing, the first way down is nearly always a whole answer.
_MOST_STEPS = 20000

Fits = Callable[[str, int, str, int], bool]


def assign(costs: Mapping[str, Sequence[float]], fits: Fits) -> dict[str, int] | None:
    """An index per host, or C(None) when nothing fits. The cheapest, unless the search becomes long.

    :param costs: of every candidate of every host.
    :param fits: whether candidate i of one host reaches candidate j of another; asked in both directions.
    """
    hosts = sorted(costs, key=lambda host: len(costs[host]))
    domains = {host: (1 << len(costs[host])) - 1 for host in hosts}
    search = _Search(hosts, costs, _compatible(hosts, costs, fits))
    if all(domains.values()) and search.narrow(domains):
        search.go(0, domains, {}, 0.0)
    return search.best


def _compatible(hosts: list[str], costs: Mapping[str, Sequence[float]], fits: Fits) -> dict[tuple[str, int, str], int]:
    """For a host's candidate and another host: which of its candidates fit, as bits."""
    table: dict[tuple[str, int, str], int] = {}
    for a in hosts:
        for b in hosts:
            for i in range(len(costs[a])) if a != b else ():
                bits = 0
                for j in range(len(costs[b])):
                    if fits(a, i, b, j) and fits(b, j, a, i):
                        bits |= 1 << j
                table[a, i, b] = bits
    return table


class _Search:
    """Depth first, cheapest first, with look-ahead and a bound on the costs."""

    def __init__(
        self, hosts: list[str], costs: Mapping[str, Sequence[float]], compatible: Mapping[tuple[str, int, str], int]
    ) -> None:
        self._hosts = hosts
        self._costs = costs
        self._compatible = compatible
        self._steps = 0
        self._best_cost = float("inf")
        self.best: dict[str, int] | None = None

    def narrow(self, domains: dict[str, int]) -> bool:
        """Take out what fits with nothing of some other host; False when a host is left without any."""
        changed = True
        while changed:
            changed = False
            for a in self._hosts:
                for i in _bits(domains[a]):
                    if any(not self._compatible[a, i, b] & domains[b] for b in self._hosts if b != a):
                        domains[a] &= ~(1 << i)
                        changed = True
                if not domains[a]:
                    return False
        return True

    def go(self, depth: int, domains: Mapping[str, int], picked: dict[str, int], cost: float) -> None:
        if depth == len(self._hosts):
            if cost < self._best_cost:
                self._best_cost, self.best = cost, dict(picked)
            return
        host, rest = self._hosts[depth], self._hosts[depth + 1 :]
        for i in sorted(_bits(domains[host]), key=lambda index: self._costs[host][index]):
            self._steps += 1
            if self._steps > _MOST_STEPS:
                return
            left = {b: domains[b] & self._compatible[host, i, b] for b in rest}
            if not all(left.values()):
                continue
            least = sum(min(self._costs[b][j] for j in _bits(left[b])) for b in rest)
            if cost + self._costs[host][i] + least < self._best_cost:
                picked[host] = i
                self.go(depth + 1, left, picked, cost + self._costs[host][i])
                del picked[host]


def _bits(value: int) -> list[int]:
    return [index for index in range(value.bit_length()) if value >> index & 1]
