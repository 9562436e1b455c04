# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many row groups a parquet file has, from its footer, without pyarrow.

Rank r of nanochat reads row groups r, r + world, …: a file with fewer row groups than ranks starves a rank. The footer
is a Thrift structure in the compact protocol; only the way to field 4 (the row groups) is understood.
"""

from __future__ import annotations

import os
import struct

_MAGIC = b"PAR1"
_GUESS = 1 << 16
_MOST = 1 << 28
_DEEPEST = 32
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
_VARINTS = (4, 5, 6)


def row_groups(path: str) -> int | None:
    """Number of row groups.

    :returns: C(0) for a file that begins as parquet and whose end is missing or unreadable: it was cut short. C(None)
        for a file that is something else.
    """
    with open(path, "rb") as file:
        if file.read(4) != _MAGIC:
            return None
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _GUESS))
        tail = file.read()
        if size < 12 or tail[-4:] != _MAGIC:
            return 0
        length = struct.unpack("<I", tail[-8:-4])[0]
        if not 0 < length <= min(size - 12, _MOST):
            return 0
        if length + 8 > len(tail):
            file.seek(size - 8 - length)
            tail = file.read(length + 8)
    try:
        return _Compact(tail[-8 - length : -8]).count_of_field(4)
    except (ValueError, IndexError):
        return 0


class _Compact:
    """Reads one structure of Thrift's compact protocol, front to back."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def count_of_field(self, wanted: int) -> int:
        """Length of the list that is this field of the outermost structure; 0 where it has none."""
        field = 0
        while True:
            head = self._byte()
            if head == _STOP:
                return 0
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            if field == wanted and head & 15 == _LIST:
                return self._list_head()[0]
            self._skip(head & 15, 0)

    def _byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number without an end")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _list_head(self) -> tuple[int, int]:
        """Count and type of the elements."""
        head = self._byte()
        count = head >> 4
        return (self._varint() if count == 15 else count), head & 15

    def _forward(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise ValueError("it ends within a value")

    def _skip(self, kind: int, depth: int, element: bool = False) -> None:
        """Pass one value. A boolean is part of its field's head, but a byte as an element."""
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        if kind in (_TRUE, _FALSE):
            self._forward(int(element))
        elif kind == _BYTE:
            self._forward(1)
        elif kind in _VARINTS:
            self._varint()
        elif kind == _DOUBLE:
            self._forward(8)
        elif kind == _BINARY:
            self._forward(self._varint())
        elif kind in (_LIST, _SET):
            count, inner = self._list_head()
            for _number in range(count):
                self._skip(inner, depth + 1, element=True)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            for _number in range(count):
                self._skip(kinds >> 4, depth + 1, element=True)
                self._skip(kinds & 15, depth + 1, element=True)
        elif kind == _STRUCT:
            while True:
                head = self._byte()
                if head == _STOP:
                    return
                if not head >> 4:
                    self._zigzag()
                self._skip(head & 15, depth + 1)
        else:
            raise ValueError(f"there is no type {kind}")
