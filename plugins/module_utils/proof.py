# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether ranks train together: pure functions over what was seen. Nothing that a program prints or claims counts.

Proven means, for every rank: at least two steps; at least half of the bytes per step that synchronous training needs,
in each direction, over connections with other ranks, on the chosen interface where they cross hosts; and, with the
runner, equal parameters after a step. NCCL may use no TCP at all: there the runner's counters decide about the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.rank_links import (
    Exchange,
    address,
    connections,
    exchange,
    family,
)

PROVEN, NOT_YET, FAILED = "proven", "not_yet", "failed"
ENOUGH = 0.5
# A connection counts as a way that training takes when it carries this share of a rank's bytes.
_A_WAY = 0.1
_OVER = ("finished", "failed", "stopped")


def judge(
    world_size: int,
    backend: str | None,
    ranks: list[dict[str, Any]],
    sockets_by_rank: Mapping[Any, list[dict[str, Any]] | None] | None = None,
    expected_bytes_per_step: int | None = None,
    min_steps: int = 2,
    runner: bool = True,
    ifname_by_rank: Mapping[Any, str] | None = None,
    addresses: Mapping[Any, Any] | None = None,
    store_port: int | None = None,
) -> dict[str, Any]:
    """Judge one look at all ranks.

    :param ranks: a beat of each rank; missing ones may be left out or have the state C(missing). Without the runner
        there are no beats: C({"rank", "host", "node_rank", "step"}), where C(step) may be None for ranks that print
        nothing; rank 0's then counts, because synchronous ranks cannot be more than a step apart.
    :param sockets_by_rank: what each host's kernel shows of the worker, from C(tcp_sockets); None for a rank that was
        not looked at; its beat's own sockets serve then. Sample sockets after reading the beats, or bytes lag.
    :param expected_bytes_per_step: for each rank in each direction; a beat's C(param_bytes) is better and wins.
    :param addresses: by rank, the address or addresses of the chosen interface.
    :param store_port: the rendezvous port; connections to it are not between ranks.
    :returns: C({"verdict": "proven|not_yet|failed", "causes": […], "evidence": {…}}); the evidence says what is still
        waited for.
    """
    look = _Look(
        world_size,
        backend,
        ranks,
        sockets_by_rank,
        expected_bytes_per_step,
        min_steps,
        runner,
        ifname_by_rank,
        addresses,
        store_port,
    )
    return look.judge()


def expected_each_way(world_size: int, param_bytes: int) -> int:
    """Bytes that a rank sends, and receives, per step: for reduce_scatter and all_gather, or all_reduce."""
    return 2 * (world_size - 1) * param_bytes // world_size if world_size > 1 else 0


def ranks_of(
    processes: list[dict[str, Any]], host: str | None, node_rank: int, step: int | None = None
) -> list[dict[str, Any]]:
    """Without the runner: the ranks that a host's workers are.

    :param processes: of C(inspect_run).
    :param step: of rank 0's last step line, for the host that has rank 0; None elsewhere.
    """
    return [
        {
            "rank": entry["rank"],
            "host": host,
            "node_rank": node_rank,
            "state": "training",
            "step": step,
            "pid": entry["pid"],
        }
        for entry in processes
        if entry["role"] == "worker" and entry["rank"] is not None
    ]


def sockets_of(processes: list[dict[str, Any]], sockets: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """A host's sockets by rank. A worker without any has an empty list: that it was looked at matters."""
    return {
        entry["rank"]: [one for one in sockets if one["pid"] == entry["pid"]]
        for entry in processes
        if entry["role"] == "worker" and entry["rank"] is not None
    }


def megabytes(count: int) -> str:
    return "%.1f MB" % (count / 1e6) if count >= 100000 else "%.1f kB" % (count / 1e3)


class _Look:
    def __init__(
        self,
        world_size: int,
        backend: str | None,
        ranks: list[dict[str, Any]],
        sockets: Mapping[Any, list[dict[str, Any]] | None] | None,
        expected: int | None,
        min_steps: int,
        runner: bool,
        ifnames: Mapping[Any, str] | None,
        addresses: Mapping[Any, Any] | None,
        store_port: int | None,
    ) -> None:
        self.world_size = world_size
        self.min_steps = min_steps
        self.runner = runner
        self.expected = expected
        self.store_port = store_port
        self.beats = _latest(ranks, world_size)
        self.backend = backend or next((beat["backend"] for beat in self.beats.values() if beat.get("backend")), None)
        self.ifnames = {int(rank): name for rank, name in (ifnames or {}).items()}
        self.addresses = {int(rank): _addresses(value) for rank, value in (addresses or {}).items()}
        self.seen_by_host = {
            int(rank): connections(value) for rank, value in (sockets or {}).items() if value is not None
        }
        self.seen_by_beat = {
            rank: connections(beat["sockets"])
            for rank, beat in self.beats.items()
            if isinstance(beat.get("sockets"), list)
        }
        self.known = {
            rank: self.seen_by_host.get(rank, []) + self.seen_by_beat.get(rank, [])
            for rank in {*self.seen_by_host, *self.seen_by_beat}
        }
        self.far_ends = {end.ends: rank for rank, ends in self.known.items() for end in ends}
        self.causes: list[dict[str, Any]] = []
        self.waiting: list[str] = []
        self.exchanges: dict[int, Exchange] = {}
        self.equal: dict[str, Any] | None = None

    def judge(self) -> dict[str, Any]:
        self._all_there()
        self._nobody_failed()
        self._steps()
        if self.world_size > 1:
            for rank in self.beats:
                self.exchanges[rank] = self._exchange_of(rank)
                self._bytes(rank)
                self._interface(rank)
            if self.runner:
                self._backend()
                self._equal_parameters()
        failed = bool(self.causes)
        if self.world_size == 1 and not failed:
            what = "a world of one: its steps advance, there is nobody to exchange with"
            self.causes.append(cause("world_of_one", what, weight="note"))
        verdict = FAILED if failed else NOT_YET if self.waiting else PROVEN
        return {"verdict": verdict, "causes": self.causes, "evidence": self._evidence()}

    def _all_there(self) -> None:
        missing = [rank for rank in range(self.world_size) if rank not in self.beats]
        if missing:
            self.waiting.append("rank %s not seen" % ", ".join(str(rank) for rank in missing))
        for rank, beat in self.beats.items():
            claimed = beat.get("world_size")
            if claimed is not None and claimed != self.world_size:
                what = "%s is in a world of %s, not of %d" % (self._name(rank), claimed, self.world_size)
                self._add("world_differs", what, rank)

    def _nobody_failed(self) -> None:
        """The earliest error first: what the other ranks report is mostly that this one is gone."""
        broken = [beat for beat in self.beats.values() if beat.get("state") in ("failed", "stopped")]
        for beat in sorted(broken, key=lambda beat: (not beat.get("error"), _error_time(beat))):
            rank = int(beat["rank"])
            error = beat.get("error") or {}
            if error:
                what = "%s: %s: %s" % (
                    self._name(rank),
                    error.get("type", "error"),
                    str(error.get("message", ""))[:500],
                )
                self._add("exception", what, rank)
            elif any(entry["weight"] == "error" for entry in beat.get("causes") or []):
                self.causes.extend(entry for entry in beat["causes"] if entry["weight"] == "error")  # its guard knows
            elif beat["state"] == "failed":
                code = beat.get("exit_code")
                self._add(
                    "rank_died",
                    "%s ended%s" % (self._name(rank), "" if code is None else " with exit code %s" % code),
                    rank,
                )
            else:
                self._add("not_proven", "%s was stopped" % self._name(rank), rank)

    def _steps(self) -> None:
        for rank in self.beats:
            if self._step(rank) < self.min_steps:
                self.waiting.append("%s has done %d of %d steps" % (self._name(rank), self._step(rank), self.min_steps))

    def _backend(self) -> None:
        for rank, beat in self.beats.items():
            if self._step(rank) >= self.min_steps and not beat.get("backend"):
                what = "%s has done %d steps and has no process group" % (self._name(rank), self._step(rank))
                self._add("not_distributed", what, rank)

    def _bytes(self, rank: int) -> None:
        seen, needed = self.exchanges[rank], self._needed(rank)
        steps, name = self._step(rank), self._name(rank)
        if self.backend == "nccl":
            self._bytes_of_nccl(rank, needed)
            return
        if seen.source == "none":
            self.waiting.append("the sockets of %s were not looked at" % name)
        elif not seen.connections:
            self._no_connection(rank, seen)
        elif needed is None:
            self.waiting.append("%s: the number of bytes that a step needs is not known" % name)
        elif min(seen.sent, seen.received) < needed:
            what = "%s sent %s and received %s in %d steps; synchronous training needs at least %s each way" % (
                name, megabytes(seen.sent), megabytes(seen.received), steps, megabytes(needed),
            )  # fmt: skip
            counted_by_runner = self.runner and int(self.beats[rank].get("collective_bytes") or 0) >= needed
            if not seen.counted:
                # Connections are there, their bytes are a secret of this kernel: the runner's count has to do.
                if not counted_by_runner:
                    self.waiting.append("%s: the kernel of its host does not tell how many bytes went" % name)
            elif steps < self.min_steps or self._may_be_over(rank, seen) or self._may_be_hidden(rank, seen):
                self.waiting.append(what)
            else:
                self._add("too_few_bytes", what, rank)

    def _no_connection(self, rank: int, seen: Exchange) -> None:
        beat, steps, name = self.beats[rank], self._step(rank), self._name(rank)
        if self._may_be_over(rank, seen):
            # Its connections went with it: nobody can tell any more, unless it never began a collective.
            if self.runner and steps >= self.min_steps and beat.get("collectives_begun") == 0:
                self._add("not_distributed", "%s did %d steps and not one collective" % (name, steps), rank)
            else:
                self.waiting.append("%s ended before its connections were seen" % name)
        elif self._may_be_hidden(rank, seen):
            self.waiting.append("%s: whom it is connected with is not known yet" % name)
        elif steps >= self.min_steps or (steps >= 1 and not seen.sockets):
            none = "no TCP connection at all" if not seen.sockets else "no TCP connection with another rank"
            what = "%s has done %d step%s and has %s: every rank trains a model of its own" % (
                name, steps, "" if steps == 1 else "s", none,
            )  # fmt: skip
            self._add("not_distributed", what, rank)
        else:
            self.waiting.append("%s has no connection with another rank yet" % name)

    def _may_be_over(self, rank: int, seen: Exchange) -> bool:
        """Whether this look is older or younger than the connections: the rank ended, or its own look lags behind."""
        beat = self.beats[rank]
        if beat.get("state") in _OVER:
            return True
        return self.runner and seen.source == "beat" and bool(beat.get("collectives_finished"))

    def _may_be_hidden(self, rank: int, seen: Exchange) -> bool:
        """Whether a connection of this rank may be with one that was not looked at and whose address is not known."""
        dark = [one for one in range(self.world_size) if one != rank and not self.known.get(one)]
        if not dark or not seen.sockets:
            return False
        needed = self._needed(rank)
        return any(not self.addresses.get(one) for one in dark) or (needed is not None and seen.stray >= needed)

    def _bytes_of_nccl(self, rank: int, needed: int | None) -> None:
        """InfiniBand and shared memory show no TCP bytes: the runner's count decides; without it TCP only confirms."""
        beat, name, steps = self.beats[rank], self._name(rank), self._step(rank)
        if not self.runner:
            seen = self.exchanges[rank]
            if needed is None or min(seen.sent, seen.received) < needed:
                self.waiting.append("%s: NCCL without the runner leaves nothing to see" % name)
            return
        counted = int(beat.get("collective_bytes") or 0)
        if steps >= self.min_steps and not beat.get("collectives_finished"):
            self._add("not_distributed", "%s did %d steps and finished no collective" % (name, steps), rank)
        elif needed is None:
            self.waiting.append("%s: the number of bytes that a step needs is not known" % name)
        elif counted < needed:
            what = "%s exchanged %s in %d steps; synchronous training needs at least %s" % (
                name, megabytes(counted), steps, megabytes(needed),
            )  # fmt: skip
            if steps >= self.min_steps:
                self._add("too_few_bytes", what, rank)
            else:
                self.waiting.append(what)

    def _interface(self, rank: int) -> None:
        """Where connections cross hosts, both their ends are on the chosen interfaces."""
        seen = self.exchanges[rank]
        total = seen.sent + seen.received
        for (peer, local, remote), count in sorted(seen.bytes_by_path.items()):
            if self._node(rank) == self._node(peer) or not total or count < _A_WAY * total:
                continue
            for owner, used in ((rank, local), (peer, remote)):
                chosen = {one for one in self.addresses.get(owner, set()) if family(one) == family(used)}
                if chosen and used not in chosen:
                    ifname = self.ifnames.get(owner)
                    what = "%s talks with %s over %s of %s, chosen was %s%s" % (
                        self._name(rank), self._name(peer), used, self._host(owner), ", ".join(sorted(chosen)),
                        " (%s)" % ifname if ifname else "",
                    )  # fmt: skip
                    fix = "set nanochat_socket_ifname for %s to the interface of the cluster" % self._host(owner)
                    self._add("wrong_interface", what, rank, fix)

    def _equal_parameters(self) -> None:
        sums = {rank: _checksums(beat) for rank, beat in self.beats.items()}
        if len(sums) < self.world_size or self.world_size < 2:
            return
        common = sorted(set.intersection(*(set(found) for found in sums.values())))
        for step in common:
            values = {rank: found[step] for rank, found in sums.items()}
            self.equal = {"step": step, "equal": len(set(values.values())) == 1}
            if not self.equal["equal"]:
                odd = next(rank for rank in sorted(values) if values[rank] != values[min(values)])
                what = "after step %d the parameters of %s are not those of %s" % (
                    step,
                    self._name(odd),
                    self._name(min(values)),
                )
                self._add("parameters_differ", what, odd)
                return
        if not common:
            self.waiting.append("no step yet whose parameters all ranks have compared")

    def _exchange_of(self, rank: int) -> Exchange:
        """By the host's kernel where that shows enough, else by what the rank itself saw of its sockets."""
        best: Exchange | None = None
        dark = {
            other: self.addresses.get(other, set())
            for other in range(self.world_size)
            if not self.known.get(other) and self._node(other) != self._node(rank)
        }
        for source, seen in (("host", self.seen_by_host), ("beat", self.seen_by_beat)):
            if rank in seen:
                found = exchange(rank, source, seen[rank], self.far_ends, dark, self.store_port)
                if best is None or (
                    not self._suffices(rank, best) and min(found.sent, found.received) > min(best.sent, best.received)
                ):
                    best = found
        return best or Exchange(rank, "none")

    def _suffices(self, rank: int, seen: Exchange) -> bool:
        needed = self._needed(rank)
        return needed is not None and bool(seen.connections) and min(seen.sent, seen.received) >= needed

    def _needed(self, rank: int) -> int | None:
        """Bytes each way that this rank must have exchanged at least."""
        param_bytes = self.beats[rank].get("param_bytes")
        per_step = expected_each_way(self.world_size, int(param_bytes)) if param_bytes else self.expected
        return int(ENOUGH * per_step * max(self._step(rank), 1)) if per_step else None

    def _step(self, rank: int) -> int:
        step = self.beats[rank].get("step")
        if step is None and not self.runner and 0 in self.beats:
            step = self.beats[0].get("step")
        return int(step or 0)

    def _node(self, rank: int) -> Any:
        beat = self.beats.get(rank, {})
        node = beat.get("node_rank")
        return node if node is not None else beat.get("host", "rank %d" % rank)

    def _host(self, rank: int) -> str:
        return str(self.beats.get(rank, {}).get("host") or "the host of rank %d" % rank)

    def _name(self, rank: int) -> str:
        host = self.beats.get(rank, {}).get("host")
        return "rank %d (%s)" % (rank, host) if host else "rank %d" % rank

    def _add(self, code: str, what: str, rank: int, fix: str | None = None) -> None:
        self.causes.append(cause(code, what, fix, host=self.beats[rank].get("host"), rank=rank))

    def _evidence(self) -> dict[str, Any]:
        rows = []
        for rank, beat in sorted(self.beats.items()):
            seen = self.exchanges.get(rank) or Exchange(rank, "none")
            locals_ = sorted({local for _peer, local, _remote in seen.bytes_by_path})
            rows.append(
                {
                    "rank": rank,
                    "host": beat.get("host"),
                    "step": self._step(rank),
                    "peers": seen.peers,
                    "connections": seen.connections,
                    "bytes_sent": seen.sent,
                    "bytes_received": seen.received,
                    "bytes_needed": self._needed(rank) if self.world_size > 1 else 0,
                    "collective_bytes": beat.get("collective_bytes"),
                    "addresses": locals_,
                    "interface": self.ifnames.get(rank) or beat.get("ifname"),
                    "seen_by": seen.source,
                }
            )
        return {
            "world_size": self.world_size,
            "backend": self.backend,
            "min_steps": self.min_steps,
            "runner": self.runner,
            "ranks": rows,
            "equal_parameters": self.equal,
            "waiting_for": self.waiting,
        }


def _latest(ranks: list[dict[str, Any]], world_size: int) -> dict[int, dict[str, Any]]:
    latest: dict[int, dict[str, Any]] = {}
    for beat in ranks:
        rank = beat.get("rank")
        if not isinstance(rank, int) or not 0 <= rank < world_size or beat.get("state") == "missing":
            continue
        if rank not in latest or (beat.get("time") or 0) >= (latest[rank].get("time") or 0):
            latest[rank] = beat
    return dict(sorted(latest.items()))


def _addresses(value: Any) -> set[str]:
    found = set()
    for one in value if isinstance(value, (list, tuple, set)) else [value]:
        try:
            found.add(address(str(one)))
        except ValueError:  # a name: it cannot be compared with what a kernel shows
            continue
    return found


def _checksums(beat: dict[str, Any]) -> dict[int, str]:
    """By step; what is equal before the first step comes from the same seed and proves nothing."""
    sums = beat.get("checksums") or {}
    return {int(step): str(value) for step, value in sums.items() if str(step).isdigit() and int(step) >= 1}


def _error_time(beat: dict[str, Any]) -> float:
    return float((beat.get("error") or {}).get("time") or beat.get("time") or 0)
