# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Beats of all ranks to rank 0 over plain TCP: the store is for start-up only (its calls ignore timeouts).

In a module of its own because a separate guard process is to take it over.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable

TIMEOUT = 1.0
RETRY = 2.0
MAX_LINE = 1 << 20


class Receiver:
    """Rank 0's end. Keeps the newest beat of every rank, and when its connection ended."""

    def __init__(self, address: str, run_id: str) -> None:
        self.run_id = run_id
        self.token = secrets.token_hex(8)
        self.beats: dict[int, dict[str, Any]] = {}
        self.gone: dict[int, float] = {}  # rank -> when its connection closed
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind((address, 0))
        self._listener.listen(256)
        self._listener.setblocking(False)
        self.address, self.port = address, self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="torchlan-receive", daemon=True)
        self._thread.start()

    def where(self) -> dict[str, Any]:
        return {"address": self.address, "port": self.port, "token": self.token}

    def close(self) -> None:
        self._stop = True
        self._thread.join(1)

    def _run(self) -> None:
        pending: dict[int, bytes] = {}
        ranks: dict[int, int] = {}
        while not self._stop:
            for key, _events in self._selector.select(0.25):
                if key.fileobj is self._listener:
                    try:
                        connection, _peer = self._listener.accept()
                    except OSError:
                        continue
                    connection.setblocking(False)
                    pending[connection.fileno()] = b""
                    self._selector.register(connection, selectors.EVENT_READ)
                    continue
                connection = key.fileobj  # type: ignore[assignment]
                number = connection.fileno()
                try:
                    data = connection.recv(1 << 16)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                lines = (pending[number] + data).split(b"\n")
                pending[number] = lines.pop()
                good = True
                for line in lines:
                    good = (not line or self._take(line, number, ranks)) and good
                if not data or not good or len(pending[number]) > MAX_LINE:
                    if number in ranks:
                        self.gone[ranks.pop(number)] = time.time()
                    del pending[number]
                    self._selector.unregister(connection)
                    connection.close()

    def _take(self, line: bytes, number: int, ranks: dict[int, int]) -> bool:
        try:
            message = json.loads(line.decode("utf-8"))
            if number not in ranks:  # the first line says who it is
                if message.get("token") != self.token or message.get("run") != self.run_id:
                    return False
                ranks[number] = int(message["rank"])
                self.gone.pop(ranks[number], None)
            else:
                self.beats[ranks[number]] = message
            return True
        except (ValueError, KeyError, TypeError, AttributeError):
            return False


class Sender:
    """The other ranks' end: sends each beat, drops what can't be sent, connects again."""

    def __init__(
        self, where: Mapping[str, Any], run_id: str, rank: int, connected: Callable[[int], None] = lambda port: None
    ) -> None:
        self.where, self.run_id, self.rank = dict(where), run_id, rank
        self._connected = connected
        self._socket: socket.socket | None = None
        self._retry_at = 0.0
        self._lock = threading.Lock()

    def send(self, beat: Mapping[str, Any], hurry: bool = False) -> bool:
        with self._lock:
            data = (json.dumps(beat) + "\n").encode("utf-8")
            for _attempt in range(2 if hurry else 1):
                try:
                    if self._socket is None:
                        if time.monotonic() < self._retry_at and not hurry:
                            return False
                        self._connect()
                    assert self._socket is not None
                    self._socket.sendall(data)
                    return True
                except OSError:
                    self._drop()
            return False

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _connect(self) -> None:
        self._socket = socket.create_connection((self.where["address"], self.where["port"]), TIMEOUT)
        self._socket.settimeout(TIMEOUT)
        self._connected(self._socket.getsockname()[1])
        hello = {"token": self.where["token"], "run": self.run_id, "rank": self.rank, "pid": os.getpid()}
        self._socket.sendall((json.dumps(hello) + "\n").encode("utf-8"))

    def _drop(self) -> None:
        self._retry_at = time.monotonic() + RETRY
        if self._socket is not None:
            try:
                self._socket.close()
            except OSError:
                pass
            self._socket = None
