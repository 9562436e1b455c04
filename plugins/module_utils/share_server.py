# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The giving side of an exchange, HTTP/1.1: the same port for the other hosts and for this host's controller.

C(GET /3) with C(Range) gives bytes of the file with that index in the exchange; 202: not here yet, but soon, 503: not
here, and nothing gets on, 410: never. C(POST /peers) tells who takes part, C(POST /finished) that a host needs nothing
more, C(GET /state) how far this one is. Without the token the answer is 403, whatever the request.
"""

from __future__ import annotations

import hmac
import io
import json
import re
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Callable

from ansible_collections.torchlan.nanochat.plugins.module_utils.share_exchange import Exchange, Gone, NotYet

TOKEN_HEADER = "X-Torchlan-Token"  # noqa: S105
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})\Z")
_FILE = re.compile(r"/(\d{1,9})\Z")
_SEND_BYTES = 1024 * 1024
_MOST_BODY = 64 * 1024 * 1024
_STRANGER_S = 10


class Server(ThreadingHTTPServer):
    """Listens on one port of one address. C(exchange) and C(tell) are set before it serves."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    exchange: Exchange
    tell: Callable[[str, dict[str, Any]], None]

    def __init__(self, address: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, 0), _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's asks the resolver for a name

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away is no news, and there is nowhere to tell it."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = default_request_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = _STRANGER_S
    server: Server
    _known = False

    def setup(self) -> None:
        super().setup()
        # The kernel finds out about peers that vanish; a connection that only waits is fine.
        for level, name, value in (
            (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
            (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
            (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
            (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        ):
            if hasattr(socket, name):
                self.connection.setsockopt(level, getattr(socket, name), value)

    def finish(self) -> None:
        if self._known:
            with self.server.exchange.changed:
                self.server.exchange.connected -= 1
        super().finish()

    def log_message(self, *_arguments: Any) -> None:
        pass

    def send_error(self, *_arguments: Any, **_more: Any) -> None:
        """Whatever is wrong with a request, a stranger learns nothing from it."""
        self.close_connection = True
        self._answer(403)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _admitted(self) -> bool:
        given = (self.headers.get(TOKEN_HEADER) or "").encode("latin-1", "replace")
        if not hmac.compare_digest(given, self.server.exchange.token.encode()):
            self.send_error(403)
            return False
        if not self._known:
            self._known = True
            with self.server.exchange.changed:
                self.server.exchange.connected += 1
        self.connection.settimeout(self.server.exchange.limits.stall)
        return True

    def handle_one_request(self) -> None:
        self.connection.settimeout(None if self._known else _STRANGER_S)
        super().handle_one_request()

    def do_GET(self) -> None:
        if not self._admitted():
            return
        path, _mark, query = self.path.partition("?wait=")
        file = _FILE.match(path)
        if file:
            self._give(int(file.group(1)))
        elif path == "/state":
            state = self.server.exchange.state(min(float(query or 0), 30))
            self._answer(200, json.dumps(state).encode())
            if state["state"] != "working":
                with self.server.exchange.changed:
                    self.server.exchange.asked = True
                    self.server.exchange.changed.notify_all()
        else:
            self._answer(404)

    def _give(self, index: int) -> None:
        wanted = _RANGE.match(self.headers.get("Range") or "")
        if not wanted:
            self._answer(416)
            return
        start, stop = int(wanted.group(1)), int(wanted.group(2)) + 1
        try:
            file = self.server.exchange.open(index, start, stop)
        except NotYet as problem:
            self._answer(202 if problem.moving else 503)
        except Gone as problem:
            self._answer(410, str(problem).encode())
        else:
            with file:
                self.send_response_only(206)
                self.send_header("Content-Length", str(stop - start))
                self.end_headers()
                self._send(file, start, stop)

    def _send(self, file: io.FileIO, start: int, stop: int) -> None:
        while start < stop:
            count = self.connection.sendfile(file, start, min(stop - start, _SEND_BYTES))
            if not count:
                self.close_connection = True  # the file was cut: too few bytes must look like it
                return
            self.server.exchange.gave(count)
            start += count

    def do_POST(self) -> None:
        if not self._admitted():
            return
        length = int(self.headers.get("Content-Length") or 0)
        if length > _MOST_BODY:
            self.send_error(413)
            return
        body = json.loads(self.rfile.read(length))
        if self.path == "/peers":
            self.server.tell(str(body["self"]), body["offers"])
        elif self.path == "/finished":
            self.server.exchange.peer_finished(str(body["host"]))
        self._answer(200, b"{}")
