# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Row groups from footers, without pyarrow; a file that ends short is never taken for whole."""

from __future__ import annotations

import base64
import random
import zlib
from pathlib import Path

import pytest
from parquet_files import write_parquet

from ansible_collections.torchlan.nanochat.plugins.module_utils import parquet


@pytest.mark.parametrize("count", [0, 1, 8, 14, 15, 300, 20_000])
def test_row_groups(count: int, tmp_path: Path) -> None:
    assert parquet.row_groups(str(write_parquet(tmp_path / "a.parquet", count))) == count


@pytest.mark.parametrize("content", [b"", b"PA", b'{"text": "x"}\n' * 100])
def test_what_is_no_parquet_is_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    assert parquet.row_groups(str(tmp_path / "a")) is None


def test_a_file_that_ends_short(tmp_path: Path) -> None:
    content = write_parquet(tmp_path / "a.parquet", 8).read_bytes()
    for length in (4, 5, 11, 12, len(content) // 2, len(content) - 9, len(content) - 8, len(content) - 1):
        (tmp_path / "b").write_bytes(content[:length])
        assert parquet.row_groups(str(tmp_path / "b")) == 0, length


def test_any_footer_ends(tmp_path: Path) -> None:
    """Damage within the footer gives some number, at once; the digest is what finds it."""
    content = bytearray(write_parquet(tmp_path / "a.parquet", 8).read_bytes())
    noise = random.Random(1)
    for _turn in range(300):
        changed = bytearray(content)
        for _change in range(3):
            changed[noise.randrange(8, len(changed) - 8)] = noise.randrange(256)
        (tmp_path / "b").write_bytes(changed)
        found = parquet.row_groups(str(tmp_path / "b"))
        assert found is not None and found >= 0


# 10 documents in row groups of 4, as pyarrow 26.0.1 wrote them
PYARROW = (
    "eNqNkUFrwjAYhr+WEMLwuC8YyKGXBg9VrE63gRfBy2CHsn9QusBW0NZatx38NTv6W/aj9tVd/A7KIAl5ePO8gSRbvqQIeMBDgoo2"
    "EqUFgJCmCm5ofa2K/dpv2mjMKGU0YTT9X+EdoxmjOaN76lnhKkHBCwUvfGD0iMIkM+jLXfHm1zmGgL047IvWf7UxPHcd+tYsjHVg"
    "sWdiCeYvRNBKfwc0nHqydCOQu9CZkcaB6jQKlevOwFX7GFzRj8FFX+hSl+4nPLMHJ1t0dqkFZbqEQVTnzXbv22FR18O8aarP6MM3"
    "u/dqE03mo/EoNdaenh0go2/+BeA/WSw="
)


def test_as_pyarrow_writes_it(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(zlib.decompress(base64.b64decode(PYARROW)))
    assert parquet.row_groups(str(tmp_path / "a.parquet")) == 3
