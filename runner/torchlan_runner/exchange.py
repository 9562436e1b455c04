# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""reduce_scatter_tensor and all_gather_into_tensor at the speed of the wire, which Gloo's own reach only half.

Gloo's algorithms send and receive in turns; here every rank sends to and receives from all its peers at once, in
chunks, so that both directions of a link are full. Between two hosts each byte goes once: one rank receives it for its
whole host and passes it on inside, and what a host adds up leaves it as one sum. Sums are formed in the order of ranks
inside a host, then in the order of hosts: every run gives the same bits, and two ranks give those of Gloo.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import itertools
import queue
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist

from torchlan_runner.plan import Plan
from torchlan_runner.watch import BUSY

TIMEOUT = timedelta(seconds=BUSY)  # rank 0 may sample and save alone for minutes while the others wait
CHUNK = 1 << 20  # bytes
SMALL = 1 << 16  # bytes of the whole tensor, below which Gloo is as fast; between two ranks up to four times as much
_FIRST_TAG = 1 << 16  # the tags below are a script's own
_CLOSE_S = 5.0  # what is still under way at the end has lost its peer
_NUMBERS = 4096  # exchanges that may be under way at the same time, by far
# A work handle of a chunk and the chunk: torch does not keep the memory of what it still sends.
Transfer = tuple[Any, torch.Tensor]
_SUMMED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Layout:
    """Which rank is on which host, and who works for whom."""

    def __init__(self, rank: int, hosts: Sequence[int]) -> None:
        """
        :param hosts: the host of every rank, by rank.
        """
        self.rank, self.world = rank, len(hosts)
        self._host = list(hosts)
        self.ranks: dict[int, list[int]] = {}  # host -> its ranks
        for one, host in enumerate(hosts):
            self.ranks.setdefault(host, []).append(one)
        self.mine = self.ranks[hosts[rank]]
        self.peers = [one for one in self.mine if one != rank]
        self.away = [one for one in range(self.world) if one not in self.mine]

    def partner(self, rank: int, host: int) -> int:
        """The rank of that host that receives for all what comes from this rank, and adds up what goes to it."""
        there = self.ranks[host]
        return there[self.ranks[self._host[rank]].index(rank) % len(there)]

    def partners(self) -> list[int]:
        """On each other host, the partner of this rank."""
        return [self.partner(self.rank, host) for host in self.ranks if host != self._host[self.rank]]

    def here(self, rank: int) -> int:
        """This host's partner of a rank on another host."""
        return self.partner(rank, self._host[self.rank])


class Handle:
    """A work handle, as torch's own. The rest of its job is done by whoever comes first: who waits, or a thread."""

    def __init__(self, job: Iterator[None], aside: Callable[[Handle], None]) -> None:
        self._job: Iterator[None] | None = job
        self._aside: Callable[[Handle], None] | None = aside
        self._claim = threading.Lock()
        self._done = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        with self._claim:
            job, self._job = self._job, None
        if job is None:
            return
        try:
            with torch.no_grad():
                next(job, None)
        except BaseException as error:  # whoever waits gets it
            self._error = error
        self._done.set()

    def wait(self, timeout: Any = None) -> bool:
        seconds = timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout
        if seconds:
            self.begin_aside()
            if not self._done.wait(seconds):
                raise RuntimeError("the exchange was not done within %s s" % seconds)
        else:
            if self._aside is not None:
                self.run()
            self._done.wait()
        if self._error is not None:
            raise self._error
        return True

    def begin_aside(self) -> None:
        """Leave the rest to the thread, where something has to go on while nobody waits."""
        aside, self._aside = self._aside, None
        if aside is not None:
            aside(self)

    def is_completed(self) -> bool:
        self.begin_aside()
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error


class Exchange:
    """Issues exchanges and finishes them, in one order, in a thread of its own."""

    def __init__(self, layout: Layout, wire: torch.dtype | None = None) -> None:
        """
        :param wire: what float32 gradients are rounded to on their way; sums are formed in float32 all the same.
        """
        self.layout, self._wire = layout, wire
        self._isend, self._irecv = dist.isend, dist.irecv
        self._number = 0
        self._handles: queue.SimpleQueue[Handle | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="torchlan-exchange", daemon=True)
        self._thread.start()
        atexit.register(self._close)

    def start(self, job: Iterator[None]) -> Handle:
        """Everything up to the job's first C(yield) happens now: posting costs no time, waiting does."""
        with torch.no_grad():
            next(job)
        handle = Handle(job, self._handles.put)
        if self.layout.peers:  # they wait for what this rank adds up and passes on
            handle.begin_aside()
        return handle

    def all_gather(self, output: torch.Tensor, own: torch.Tensor) -> Iterator[None]:
        layout, tag = self.layout, self._tags()
        slices = _flat(output).view(torch.uint8).chunk(layout.world)
        mine = _flat(own).view(torch.uint8)
        under_way: list[Transfer] = []
        passed_on = []
        # Receives first: that one is ready for a chunk is said in line with the data of the other direction.
        for origin in layout.away:
            by = layout.here(origin)
            if by == layout.rank:
                passed_on.append([(origin, *one) for one in self._receive(slices[origin], origin, tag(origin))])
            else:
                under_way += self._receive(slices[origin], by, tag(origin))
        for peer in layout.peers:
            under_way += self._receive(slices[peer], peer, tag(peer))
        for to in [*layout.partners(), *layout.peers]:
            under_way += self._send(mine, to, tag(layout.rank))
        if slices[layout.rank].data_ptr() != mine.data_ptr():
            slices[layout.rank].copy_(mine)
        yield
        for origin, work, part in _in_turn(passed_on):
            _finish(work)
            for peer in layout.peers:
                under_way += self._send(part, peer, tag(origin))
        _wait(under_way)

    def reduce_scatter(self, output: torch.Tensor, whole: torch.Tensor, average: bool) -> Iterator[None]:
        layout, tag = self.layout, self._tags()
        slices, result = _flat(whole).chunk(layout.world), _flat(output)
        narrow = self._wire if whole.dtype == torch.float32 and self._wire else whole.dtype
        given = [part.to(narrow) if number != layout.rank else part for number, part in enumerate(slices)]
        buffer = functools.partial(torch.empty, result.numel(), dtype=narrow)
        under_way: list[Transfer] = []
        inside = {peer: self._receive(buffer(), peer, tag(layout.rank)) for peer in layout.peers}
        outside = {rank: self._receive(buffer(), rank, tag(layout.rank)) for rank in layout.partners()}
        # What this rank adds up for ranks of other hosts, of what its peers give for them.
        sums = [
            (to, {peer: self._receive(buffer(), peer, tag(to)) for peer in layout.peers})
            for to in layout.away
            if layout.here(to) == layout.rank and layout.peers
        ]
        for to in layout.away:
            by = layout.here(to)
            if by != layout.rank or not layout.peers:
                under_way += self._send(given[to], by if by != layout.rank else to, tag(to))
        for peer in layout.peers:
            under_way += self._send(given[peer], peer, tag(peer))
        yield
        for to, from_peers in sums:
            for number, own in enumerate(_chunks(slices[to], narrow)):
                under_way += self._send(self._sum(own, from_peers, number).to(narrow), to, tag(to))
        hosts = [layout.ranks[host] for host in layout.ranks]
        for number, (target, own) in enumerate(zip(_chunks(result, narrow), _chunks(slices[layout.rank], narrow))):
            parts = []
            for ranks in hosts:
                if layout.rank in ranks:
                    parts.append(self._sum(own, inside, number))
                else:
                    (arriving,) = [outside[rank] for rank in ranks if rank in outside]
                    work, part = arriving[number]
                    _finish(work)
                    parts.append(part.to(result.dtype))
            total = functools.reduce(torch.add, parts)
            target.copy_(total.div_(layout.world) if average else total)
        _wait(under_way)

    def _sum(self, own: torch.Tensor, given: dict[int, list[Transfer]], number: int) -> torch.Tensor:
        """A chunk of all ranks of this host, added in their order."""
        parts = []
        for rank in self.layout.mine:
            if rank == self.layout.rank:
                parts.append(own)
            else:
                work, part = given[rank][number]
                _finish(work)
                parts.append(part.to(own.dtype))
        return functools.reduce(torch.add, parts)

    def _tags(self) -> Callable[[int], int]:
        """Tags of the next exchange, one for each rank that a slice is of. All ranks issue exchanges in one order."""
        self._number = (self._number + 1) % _NUMBERS
        first = _FIRST_TAG + self._number * self.layout.world
        return lambda rank: first + rank

    def _send(self, tensor: torch.Tensor, to: int, tag: int) -> list[Transfer]:
        return [(self._isend(part, to, tag=tag), part) for part in _chunks(tensor, tensor.dtype)]

    def _receive(self, tensor: torch.Tensor, source: int, tag: int) -> list[Transfer]:
        return [(self._irecv(part, source, tag=tag), part) for part in _chunks(tensor, tensor.dtype)]

    def _close(self) -> None:
        """Python ends its daemon threads where they stand; inside torch's C++ that would abort the whole process."""
        self._handles.put(None)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while True:
            handle = self._handles.get()
            if handle is None:
                return
            handle.run()
            del handle  # or the last exchange's memory stays until the next


def install(plan: Plan) -> None:
    """Replace the two collectives where the plan says so, and Gloo is what they would use."""
    hosts = [node.node_rank for node in plan.nodes for _local_rank in range(node.nproc)]
    if plan.device == "cpu" and plan.raw.get("exchange", True) and len(hosts) == plan.env_world_size:
        wire = torch.bfloat16 if plan.raw.get("wire_dtype") == "bfloat16" else None
        replace(Layout(plan.rank, hosts), wire)


def replace(layout: Layout, wire: torch.dtype | None = None) -> None:
    """By their old and their new names; what this module can't do goes to the original."""
    if layout.world == 1:
        return
    exchange = Exchange(layout, wire)

    def reduce_scatter(output: torch.Tensor, whole: torch.Tensor, op: Any) -> Iterator[None] | None:
        usable = (
            _fits(whole, output, layout) and whole.dtype in _SUMMED and op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)
        )
        return exchange.reduce_scatter(output, whole, op == dist.ReduceOp.AVG) if usable else None

    def all_gather(output: torch.Tensor, own: torch.Tensor, _op: Any) -> Iterator[None] | None:
        return exchange.all_gather(output, own) if _fits(output, own, layout) else None

    for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
        _wrap(name, exchange, reduce_scatter)
    for name in ("all_gather_into_tensor", "all_gather_single"):
        _wrap(name, exchange, all_gather)


def _wrap(name: str, exchange: Exchange, job_for: Callable[..., Iterator[None] | None]) -> None:
    original = getattr(dist, name, None)
    if original is None:
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # dynamo sees the original only
            return original(*args, **kwargs)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return original(*args, **kwargs)
        first, second = list(given.values())[:2]
        whole_world = given.get("group") in (None, dist.group.WORLD)
        usable = (
            whole_world and isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and _gloo(exchange)
        )
        job = job_for(first, second, given.get("op", dist.ReduceOp.SUM)) if usable else None
        if job is None:
            return original(*args, **kwargs)
        handle = exchange.start(job)
        if given.get("async_op"):
            return handle
        handle.wait()
        return None

    setattr(dist, name, collective)


def _gloo(exchange: Exchange) -> bool:
    return bool(
        dist.is_initialized() and dist.get_backend() == "gloo" and dist.get_world_size() == exchange.layout.world
    )


def _fits(whole: torch.Tensor, part: torch.Tensor, layout: Layout) -> bool:
    """Nothing in it differs between ranks: either all take this way or none."""
    return (
        whole.device.type == part.device.type == "cpu"
        and whole.dtype == part.dtype
        and whole.is_contiguous()
        and part.is_contiguous()
        and whole.numel() == part.numel() * layout.world
        and whole.numel() * whole.element_size() >= SMALL * (4 if layout.world == 2 else 1)
    )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1)


def _chunks(tensor: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Cut as it is for the way: a chunk there has C(CHUNK) bytes."""
    return list(tensor.split(CHUNK // dtype.itemsize))


def _in_turn(lists: list[list[Any]]) -> Iterator[Any]:
    """The first of each, then the second of each: what several hosts send comes in about this order."""
    for items in itertools.zip_longest(*lists):
        yield from (item for item in items if item is not None)


def _wait(transfers: list[Transfer]) -> None:
    for work, _part in transfers:
        _finish(work)


def _finish(work: Any) -> None:
    """With its own limit a transfer has that of the time when Gloo connected, whatever the group's is since."""
    work.wait(TIMEOUT)
