# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a checkpoint from one host to another, over TCP, between two ranks that agreed. Whole or not at all."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import threading

_CHUNK = 1 << 20
_SILENT = 60.0  # seconds without a byte
_NO_FILE = (1 << 64) - 1


class Giver:
    """Serves the named files of one folder to whoever knows the token, until it is closed."""

    def __init__(self, folder: str, names: list[str], address: str, token: str) -> None:
        self.folder, self.names, self.token = folder, frozenset(names), token
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind((address, 0))
        self._listener.listen(64)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="torchlan-giver", daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _peer = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(_SILENT)
                with connection.makefile("rb") as asked:
                    token, _space, name = asked.readline(4096).decode().strip().partition(" ")
                if not hmac.compare_digest(token, self.token) or name not in self.names:
                    connection.sendall(struct.pack(">Q", _NO_FILE))
                    return
                with open(os.path.join(self.folder, name), "rb") as file:
                    left = os.fstat(file.fileno()).st_size
                    connection.sendall(struct.pack(">Q", left))
                    digest = hashlib.sha256()
                    while left and (chunk := file.read(min(_CHUNK, left))):
                        digest.update(chunk)
                        connection.sendall(chunk)
                        left -= len(chunk)
                connection.sendall(digest.digest())
            except (OSError, ValueError):
                pass  # the other side says what it missed


def fetch(name: str, folder: str, address: str, port: int, token: str) -> int:
    """Get one file; it has its name only when it is whole.

    :returns: its size.
    :raises OSError: it did not come, or not whole.
    """
    os.makedirs(folder, exist_ok=True)
    part = os.path.join(folder, ".%s.%d.part" % (name, os.getpid()))
    try:
        with socket.create_connection((address, port), timeout=_SILENT) as connection, open(part, "wb") as file:
            connection.sendall(("%s %s\n" % (token, name)).encode())
            (size,) = struct.unpack(">Q", _exactly(connection, 8))
            if size == _NO_FILE:
                raise OSError("%s:%d does not give %s" % (address, port, name))
            digest, left = hashlib.sha256(), size
            while left:
                chunk = connection.recv(min(_CHUNK, left))
                if not chunk:
                    raise OSError("%s ended %d bytes early" % (name, left))
                digest.update(chunk)
                file.write(chunk)
                left -= len(chunk)
            if _exactly(connection, 32) != digest.digest():
                raise OSError("%s came damaged" % name)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, os.path.join(folder, name))
        return int(size)
    except BaseException:
        try:
            os.unlink(part)
        except OSError:
            pass
        raise


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        chunk = connection.recv(count - len(found))
        if not chunk:
            raise OSError("the connection ended early")
        found += chunk
    return found
