# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The taking side of an exchange: connections to every other host, each with a thread that asks for pieces."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any, Callable

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_exchange import Exchange, Gone, NotYet
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_files import DiskError
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_server import TOKEN_HEADER

_CONNECTIONS = 2  # to each host: while one waits for an answer, the other one has the link
_CONNECT_S = 3
_BLOCK_BYTES = 256 * 1024
_STRIKES = 3
_REST_S = (0.5, 1, 2, 5)


class Link:
    """One kept connection to an agent.

    Everything raises C(OSError) or C(http.client.HTTPException) where the connection breaks.
    """

    def __init__(self, address: str, port: int, token: str, stall_s: float) -> None:
        self._connection = http.client.HTTPConnection(address, port, timeout=_CONNECT_S)
        self._headers = {TOKEN_HEADER: token}
        self._stall_s = stall_s

    def close(self) -> None:
        self._connection.close()

    def _request(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        if self._connection.sock is None:
            self._connection.connect()
            if self._connection.sock is not None:
                self._connection.sock.settimeout(self._stall_s)
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, {**self._headers, **headers})
        return self._connection.getresponse()

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """A question with a short answer."""
        with self._request(method, path, body) as response:
            text = response.read()
        if response.status != 200:
            raise ConnectionError(f"the agent answers {response.status}")
        return dict(json.loads(text))

    def bytes(self, index: int, start: int, stop: int) -> http.client.HTTPResponse:
        """Bytes of a file, to be read to their end.

        :raises Gone, NotYet: the host does not have them.
        """
        response = self._request("GET", f"/{index}", Range=f"bytes={start}-{stop - 1}")
        if response.status == 206 and response.length == stop - start:
            return response
        text = response.read(1000).decode("utf-8", "replace")
        if response.status in (202, 503):
            raise NotYet(response.status == 202)
        if response.status == 410:
            raise Gone(text)
        raise ConnectionError(f"the agent answers {response.status}")


class Peer:
    """Another host of the exchange. C(strikes) are failures in a row, of all its connections."""

    def __init__(self, name: str, address: str, port: int) -> None:
        self.name, self.address, self.port = name, address, port
        self.strikes = 0


class Fetcher:
    """Fetches what this host lacks, once it is told from whom."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._offers: dict[str, Any] = {}
        self.threads: list[threading.Thread] = []

    def tell(self, own: str, offers: dict[str, Any]) -> None:
        """Start, unless it was told already.

        :param offers: per host, C(address), C(port) and C(have), names of files.
        """
        numbers = {entry.name: index for index, entry in enumerate(self._exchange.entries)}
        have = {host: {numbers[name] for name in offer["have"] if name in numbers} for host, offer in offers.items()}
        have[own] = set(self._exchange.have)
        peers = [Peer(name, str(one["address"]), int(one["port"])) for name, one in offers.items() if name != own]
        if not self._exchange.tell(own, have):
            return
        self._offers = offers
        works: list[Callable[[], None]] = [self._exchange.verify, self._exchange.save]
        works += [self._worker(peer, first=not number) for peer in peers for number in range(_CONNECTIONS)]
        for work in works:
            thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except DiskError as problem:
            self._exchange.disk_failed(problem.problem)
        except Exception as problem:  # a thread that is silently missing would be waited for
            what = f"{type(problem).__name__}: {problem}"
            self._exchange.fail(cause("transfer_failed", what, host=self._exchange.own))

    def _worker(self, peer: Peer, first: bool) -> Callable[[], None]:
        def work() -> None:
            link = Link(peer.address, peer.port, self._exchange.token, self._exchange.limits.stall)
            greeting = {"self": peer.name, "offers": self._offers}
            while not self._exchange.finished:
                try:
                    # Whoever is told first tells the others: the controller may have no fork free for them.
                    if first:
                        link.ask("POST", "/peers", greeting)
                    self._take(peer, link)
                except (OSError, http.client.HTTPException, ValueError) as problem:
                    link.close()
                    self._strike(peer, f"{type(problem).__name__}: {problem}")
            for _attempt in range(2 if first else 0):  # the kept connection may be gone
                try:
                    link.ask("POST", "/peers", greeting)
                    link.ask("POST", "/finished", {"host": self._exchange.own})
                    break
                except (OSError, http.client.HTTPException, ValueError):
                    link.close()
            link.close()

        return work

    def _take(self, peer: Peer, link: Link) -> None:
        """Fetch pieces from a host until this host has all it needs or the connection breaks."""
        exchange = self._exchange
        view = memoryview(bytearray(_BLOCK_BYTES))
        while True:
            work = self._next(peer)
            if work is None:
                return
            index, piece = work
            try:
                self._bring(peer, link, index, piece, view)
            except Gone as problem:
                exchange.lacks(peer.name, index, piece, str(problem))
            except NotYet as problem:
                self._give_back(peer, index, piece)
                if not problem.moving:
                    self._strike(peer, "it does not get on itself")
            except BaseException:
                self._give_back(peer, index, piece)
                raise
            else:
                peer.strikes = 0

    def _next(self, peer: Peer) -> tuple[int, int] | None:
        exchange = self._exchange
        with exchange.changed:
            while exchange.plan is not None and not exchange.finished:
                work = exchange.plan.take(peer.name)
                if work is not None:
                    return work
                exchange.changed.wait()
        return None

    def _bring(self, peer: Peer, link: Link, index: int, piece: int, view: memoryview) -> None:
        part = self._exchange.parts[index]
        at, stop = part.entry.span(piece)
        response = link.bytes(index, at, stop)
        while at < stop:
            count = response.readinto(view[: stop - at])
            if not count:
                raise ConnectionError("the connection ended in the middle of a piece")
            part.write(at, view[:count])
            self._exchange.got(peer.name, count)
            at += count
        self._exchange.finish(index, piece)

    def _give_back(self, peer: Peer, index: int, piece: int) -> None:
        with self._exchange.changed:
            if self._exchange.plan is not None:
                self._exchange.plan.give_back(index, piece, peer.name)
            self._exchange.changed.notify_all()

    def _strike(self, peer: Peer, problem: str) -> None:
        """Something failed: let the peer rest, and after some times let others do its share."""
        exchange = self._exchange
        with exchange.changed:
            exchange.problems[peer.name] = problem
            peer.strikes += 1
            if peer.strikes >= _STRIKES and exchange.plan is not None:
                exchange.plan.orphan(peer.name)
                exchange.changed.notify_all()
            exchange.changed.wait_for(lambda: exchange.finished, _REST_S[min(peer.strikes, len(_REST_S)) - 1])
