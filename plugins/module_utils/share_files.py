# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of an exchange on one host: their names, and what is there of those that are not whole yet.

A file that is not whole lives in a hidden folder of its destination, so that the last step is a rename: C(KEY.part) is
its data, C(KEY.4194304.map) has one byte a piece. A byte cannot be torn, and it is written after the data of its piece
was flushed, so that a map never claims what is not there, whatever is killed or loses power.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterable
from typing import NamedTuple

HIDDEN = ".torchlan-share"
PIECE_BYTES = 4 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
_DONE = 1


class DiskError(Exception):
    """The folder of this host cannot be written; C(problem) is the system's error."""

    def __init__(self, problem: OSError) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Entry(NamedTuple):
    """One file of an exchange, the same on all hosts. Its digest came over ssh and is what the content must have."""

    name: str
    size: int
    sha256: str

    @property
    def pieces(self) -> int:
        """How many it has; an empty file has none."""
        return -(-self.size // PIECE_BYTES)

    def span(self, piece: int) -> tuple[int, int]:
        """First byte of a piece, and the first after it."""
        return piece * PIECE_BYTES, min(self.size, (piece + 1) * PIECE_BYTES)


def resolve(folder: str, name: str) -> str:
    """The path of a file of an exchange.

    :raises ValueError: the name does not stay in the folder.
    """
    words = name.split("/")
    if "\0" in name or HIDDEN in words or any(word in ("", ".", "..") for word in words):
        raise ValueError(f"{name!r} is no name of a file below {folder}")
    path = os.path.join(folder, name)
    if not os.path.realpath(path).startswith(os.path.realpath(folder).rstrip("/") + "/"):
        raise ValueError(f"{name!r} is a link that leaves {folder}")
    return path


class Part:
    """What this host has of one file. Pieces are written by many threads, each piece by one at a time."""

    def __init__(self, folder: str, entry: Entry) -> None:
        self.entry = entry
        # Two files of an exchange may have the same content.
        self.key = hashlib.sha256(os.fsencode(entry.name)).hexdigest()[:8] + "-" + entry.sha256
        self.path = os.path.join(folder, HIDDEN, self.key + ".part")
        self._map = os.path.join(folder, HIDDEN, f"{self.key}.{PIECE_BYTES}.map")
        self.done = self._load()
        self.hashed = 0  # pieces, from the first on
        self._hash = hashlib.sha256()
        self.unsaved: list[int] = []
        self._files: tuple[int, int] | None = None
        self._lock = threading.Lock()  # of what opens, closes and flushes

    def _load(self) -> bytearray:
        try:
            size = os.stat(self.path).st_size
            with open(self._map, "rb") as file:
                saved = file.read(self.entry.pieces).ljust(self.entry.pieces, b"\0")
        except OSError:
            return bytearray(self.entry.pieces)
        return bytearray(
            _DONE if byte == _DONE and self.entry.span(piece)[1] <= size else 0 for piece, byte in enumerate(saved)
        )

    @property
    def bytes_done(self) -> int:
        return sum(stop - start for start, stop in map(self.entry.span, self.pieces(True)))

    def pieces(self, done: bool) -> list[int]:
        """The pieces that are here, or those that are not."""
        return [piece for piece, byte in enumerate(self.done) if (byte == _DONE) is done]

    def covers(self, start: int, stop: int) -> bool:
        """Whether all of a range of bytes is here."""
        pieces = self.done[start // PIECE_BYTES : -(-stop // PIECE_BYTES)]
        return 0 <= start < stop <= self.entry.size and all(pieces)

    def write(self, offset: int, data: memoryview) -> None:
        """Put bytes of a piece that is not done in their place.

        :raises DiskError: they could not be written.
        """
        try:
            handle = self._open()[0]
            while data:
                written = os.pwrite(handle, data, offset)
                data, offset = data[written:], offset + written
        except OSError as problem:
            raise DiskError(problem) from problem

    def _open(self) -> tuple[int, int]:
        files = self._files
        if files is not None:
            return files  # without the lock, which a flush holds for long
        with self._lock:
            if self._files is None:
                os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
                data = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                os.truncate(data, self.entry.size)
                saved = os.open(self._map, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                os.pwrite(saved, bytes(self.done), 0)  # what was read is believed, and nothing else that is there
                os.truncate(saved, self.entry.pieces)
                self._files = data, saved
            return self._files

    def finish(self, piece: int) -> None:
        """All bytes of the piece were written."""
        self.done[piece] = _DONE
        self.unsaved.append(piece)

    def save(self) -> None:
        """Flush the data of finished pieces, then note them in the map.

        :raises DiskError: the flush failed; the pieces are not noted.
        """
        with self._lock:
            count = len(self.unsaved)  # more may come while these are flushed
            if self._files is None or not count:
                return
            try:
                os.fdatasync(self._files[0])
                for piece in self.unsaved[:count]:
                    os.pwrite(self._files[1], bytes([_DONE]), piece)
            except OSError as problem:
                raise DiskError(problem) from problem
            del self.unsaved[:count]

    def hash_next(self) -> bool:
        """Read the next piece for the digest. False: it is not here yet, or there is no other."""
        if self.hashed == self.entry.pieces or not self.done[self.hashed]:
            return False
        at, stop = self.entry.span(self.hashed)
        handle = self._open()[0]
        while at < stop:
            block = os.pread(handle, min(_BLOCK_BYTES, stop - at), at)
            if not block:
                break  # somebody cut it; the digest will tell
            self._hash.update(block)
            at += len(block)
        self.hashed += 1
        return True

    def digest(self) -> str:
        """Of what was read so far."""
        return self._hash.hexdigest()

    def discard(self) -> None:
        """Forget all pieces."""
        with self._lock:
            self._remove()
            self.done = bytearray(self.entry.pieces)
            self.hashed, self._hash, self.unsaved = 0, hashlib.sha256(), []

    def place(self, path: str, replace: bool) -> None:
        """Give the file its name. What has that name is kept under another one, where it may be replaced.

        :raises FileExistsError: there is a file of that name, which may not be replaced.
        :raises DiskError: the data could not be flushed.
        """
        self._open()  # an empty file was not written to
        self.save()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if replace and os.path.lexists(path):
            os.rename(path, old_name(path))
        with self._lock:
            try:
                os.link(self.path, path)  # a rename would overwrite what came meanwhile
            except FileExistsError:
                raise
            except OSError:  # a file system without links
                if os.path.lexists(path):
                    raise FileExistsError(path) from None
                os.rename(self.path, path)
            self._remove()

    def _remove(self) -> None:
        for handle in self._files or ():
            os.close(handle)
        self._files = None
        for path in (self._map, self.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def old_name(path: str) -> str:
    """Where a replaced file goes: C(x.parquet.old) is no shard for nanochat, nor a wheel for pip."""
    number, name = 1, path + ".old"
    while os.path.lexists(name):
        number += 1
        name = f"{path}.old{number}"
    return name


class Workplace:
    """The hidden folder of a destination, held by one process at a time, on whatever host.

    :raises BlockingIOError: another process holds it.
    """

    @staticmethod
    def path(folder: str) -> str:
        return os.path.join(folder, HIDDEN)

    def __init__(self, folder: str) -> None:
        self.folder = self.path(folder)
        self._path = os.path.join(self.folder, "lock")
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        self.handle = self._hold()

    def _hold(self) -> int:
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(handle), os.stat(self._path)):
                        return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # its last holder has removed it

    def clean(self, parts: Iterable[Part]) -> None:
        """Remove what is there of files that nobody wants any more."""
        wanted = {part.key for part in parts}
        for name in os.listdir(self.folder):
            if name.endswith((".part", ".map")) and name.partition(".")[0] not in wanted:
                os.unlink(os.path.join(self.folder, name))

    def leave(self) -> None:
        """Let go; nothing stays but what is left of files that are not whole."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)
        os.close(self.handle)
