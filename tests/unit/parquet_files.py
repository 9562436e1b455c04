# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files with the outer shape of parquet, made without pyarrow: any bytes, and a footer as writers write it."""

from __future__ import annotations

import struct
from pathlib import Path


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def number(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def text(value: bytes) -> bytes:
    return varint(len(value)) + value


def many(kind: int, items: list[bytes]) -> bytes:
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([15 << 4 | kind]) + varint(len(items))
    return head + b"".join(items)


def footer(row_groups: int, rows: int = 100) -> bytes:
    """FileMetaData: every kind of value that the compact protocol has is somewhere before field 4."""
    element = b"\x15\x02" + b"\x38" + text(b"schema") + b"\x15" + number(1) + b"\x00"
    # a boolean in a field's head, a double, a map, a byte, a set of booleans, a field with a long step
    odd = b"\x11" + b"\x17" + bytes(8) + b"\x1b\x01\x88" + text(b"k") + text(b"v") + b"\x13\x07"
    odd += b"\x1a" + many(1, [b"\x01", b"\x02"]) + b"\x06" + number(300) + number(-5) + b"\x00"
    column = b"\x26" + number(8) + b"\x00"
    group = b"\x19" + many(12, [column]) + b"\x16" + number(1000) + b"\x16" + number(rows) + b"\x00"
    return (
        b"\x15" + number(2) + b"\x19" + many(12, [element, odd] * 9) + b"\x16" + number(rows)
        + b"\x19" + many(12, [group] * row_groups) + b"\x28" + text(b"a test") + b"\x00"
    )  # fmt: skip


def write_parquet(path: Path, row_groups: int, body: bytes = b"text") -> Path:
    """A file whose footer names so many row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    end = footer(row_groups)
    path.write_bytes(b"PAR1" + body + end + struct.pack("<I", len(end)) + b"PAR1")
    return path
