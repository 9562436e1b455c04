# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Between guards: one JSON object a line over plain TCP, rank 0 in the middle. Nothing here ever blocks.

torchrun's store is for start-up only: with a dead link its calls ignore their timeouts.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from torchlan_runner.sockets import parse_info

MAX_LINE = 1 << 20
WAITING = 1 << 16  # with so many bytes unsent, what can be said again later is left out
RETRY = 1.0
CONNECT = 2.0
LOST = 2  # so often doubled, the kernel's time between two tries says that nothing gets through


class Lines:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.open = True
        self._in = b""
        self._out = b""

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def waiting(self) -> bool:
        return self.open and bool(self._out)

    def send(self, message: Mapping[str, Any], must: bool = False) -> None:
        if self.open and (must or len(self._out) < WAITING):
            self._out += json.dumps(message).encode("utf-8") + b"\n"
            self.flush()

    def flush(self) -> None:
        while self._out and self.open:
            try:
                self._out = self._out[self.socket.send(self._out) :]
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have come; afterwards C(open) is false when that was all."""
        found: list[dict[str, Any]] = []
        while self.open:
            try:
                data = self.socket.recv(1 << 16)
            except (BlockingIOError, InterruptedError):
                return found
            except OSError:
                data = b""
            lines = (self._in + data).split(b"\n")
            self._in = lines.pop()
            for line in lines:
                try:
                    message = json.loads(line.decode("utf-8"))
                except ValueError:
                    message = None
                if isinstance(message, dict):
                    found.append(message)
                else:
                    data = b""
            if not data or len(self._in) > MAX_LINE:
                self.close()
        return found

    def unanswered(self) -> bool:
        """Whether the other host's kernel does not even acknowledge what was sent."""
        try:
            info = parse_info(self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))
        except OSError:
            return True
        return bool(info.get("unacked")) and info.get("backoff", 0) >= LOST

    def close(self) -> None:
        self.open = False
        self.socket.close()


class Members:
    """Rank 0's end: whoever says the token is a member, known by its rank."""

    def __init__(self, listener: socket.socket, token: str, run_id: str) -> None:
        listener.setblocking(False)
        self.listener, self.token, self.run_id = listener, token, run_id
        self.lines: dict[int, Lines] = {}
        self._strangers: list[Lines] = []

    def readers(self) -> list[Any]:
        return [self.listener, *self._strangers, *self.lines.values()]

    def writers(self) -> list[Any]:
        return [line for line in self.lines.values() if line.waiting]

    def receive(self) -> list[tuple[int, dict[str, Any]]]:
        self._accept()
        found: list[tuple[int, dict[str, Any]]] = []
        for line in list(self._strangers):
            messages = line.receive()
            if messages:
                self._strangers.remove(line)
                rank = self._rank(messages[0])
                if rank is None:
                    line.close()
                    continue
                if rank in self.lines:
                    self.lines[rank].close()
                self.lines[rank] = line
                found.extend((rank, message) for message in messages)
            elif not line.open:
                self._strangers.remove(line)
        for rank, line in list(self.lines.items()):
            found.extend((rank, message) for message in line.receive())
            if not line.open:
                del self.lines[rank]
        return found

    def send(self, message: Mapping[str, Any], must: bool = False) -> None:
        for line in list(self.lines.values()):
            line.send(message, must)

    def flush(self) -> None:
        for line in self.lines.values():
            line.flush()

    def unanswered(self, rank: int) -> bool:
        return rank not in self.lines or self.lines[rank].unanswered()

    def close(self) -> None:
        for line in (*self._strangers, *self.lines.values()):
            line.close()
        self.listener.close()

    def _accept(self) -> None:
        while len(self._strangers) < 256:
            try:
                connection, _peer = self.listener.accept()
            except OSError:
                return
            self._strangers.append(Lines(connection))

    def _rank(self, hello: Mapping[str, Any]) -> int | None:
        rank = hello.get("rank")
        good = hello.get("token") == self.token and hello.get("run") == self.run_id and isinstance(rank, int)
        return rank if good else None


class Link:
    """The other ranks' end: connects, and connects again."""

    def __init__(self, where: Mapping[str, Any], run_id: str, rank: int) -> None:
        self.where = dict(where)
        self._hello = {"token": where["token"], "run": run_id, "rank": rank, "pid": os.getpid()}
        self._line: Lines | None = None
        self._joined = False
        self._try_at = 0.0
        self.refused_since: float | None = None  # nobody listens there any more, by time.monotonic()

    @property
    def joined(self) -> bool:
        return self._line is not None and self._joined and self._line.open

    def readers(self) -> list[Any]:
        return [self._line] if self._line is not None and self.joined else []

    def writers(self) -> list[Any]:
        return [self._line] if self._line is not None and (not self._joined or self._line.waiting) else []

    def receive(self) -> list[dict[str, Any]]:
        """What has come; (re)connects when there is no connection."""
        if self._line is None:
            self._begin()
        elif not self._joined:
            self._finish()
        if self._line is None or not self._joined:
            return []
        found = self._line.receive()
        if found:
            self.refused_since = None
        if not self._line.open:
            self._failed(errno.ECONNRESET)
        return found

    def send(self, message: Mapping[str, Any], must: bool = False) -> None:
        if self._line is not None and self._joined:
            self._line.send(message, must)

    def flush(self) -> None:
        if self._line is not None and self._joined:
            self._line.flush()

    def unanswered(self) -> bool:
        return self._line is None or not self._joined or self._line.unanswered()

    def close(self) -> None:
        if self._line is not None:
            self._line.close()

    def _begin(self) -> None:
        if time.monotonic() < self._try_at:
            return
        family = socket.AF_INET6 if ":" in self.where["address"] else socket.AF_INET
        self._line, self._joined = Lines(socket.socket(family, socket.SOCK_STREAM)), False
        self._try_at = time.monotonic() + CONNECT
        code = self._line.socket.connect_ex((self.where["address"], self.where["port"]))
        if code not in (0, errno.EINPROGRESS):
            self._failed(code)
        else:
            self._finish()

    def _finish(self) -> None:
        line = self._line
        if line is None:
            return
        code = line.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._failed(code)
            return
        try:
            line.socket.getpeername()
        except OSError:  # not yet
            if time.monotonic() > self._try_at:
                self._failed(errno.ETIMEDOUT)
            return
        self._joined = True
        line.send(self._hello, must=True)

    def _failed(self, code: int) -> None:
        if code in (errno.ECONNREFUSED, errno.ECONNRESET):
            self.refused_since = self.refused_since or time.monotonic()
        else:
            self.refused_since = None
        if self._line is not None:
            self._line.close()
        self._line, self._joined = None, False
        self._try_at = time.monotonic() + RETRY
