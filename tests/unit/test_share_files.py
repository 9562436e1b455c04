# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of files on the disk, and who takes which piece from whom."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from share_hosts import content

from ansible_collections.torchlan.nanochat.plugins.module_utils.share_files import (
    HIDDEN,
    PIECE_BYTES,
    DiskError,
    Entry,
    Part,
    Workplace,
    old_name,
)
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_plan import Plan

DATA = content(3 * PIECE_BYTES + 5)
ENTRY = Entry("x.parquet", len(DATA), hashlib.sha256(DATA).hexdigest())


def filled(folder: Path, *pieces: int, save: bool = True) -> Part:
    part = Part(str(folder), ENTRY)
    for piece in pieces:
        start, stop = ENTRY.span(piece)
        part.write(start, memoryview(DATA)[start:stop])
        part.finish(piece)
    if save:
        part.save()
    return part


def saved(folder: Path) -> list[int]:
    return Part(str(folder), ENTRY).pieces(True)


def the_map(folder: Path) -> Path:
    (path,) = (folder / HIDDEN).glob("*.map")
    return path


def test_pieces_are_kept(tmp_path: Path) -> None:
    assert (ENTRY.pieces, ENTRY.span(0), ENTRY.span(3)) == (4, (0, PIECE_BYTES), (3 * PIECE_BYTES, len(DATA)))
    part = filled(tmp_path, 3, 1)
    assert (part.pieces(True), part.pieces(False), part.bytes_done) == ([1, 3], [0, 2], PIECE_BYTES + 5)
    assert part.covers(PIECE_BYTES, PIECE_BYTES + 9) and part.covers(3 * PIECE_BYTES, len(DATA))
    assert not part.covers(0, 1) and not part.covers(PIECE_BYTES, 2 * PIECE_BYTES + 1)
    assert not part.covers(3 * PIECE_BYTES, len(DATA) + 1) and not part.covers(9, 9) and not part.covers(-1, 5)
    assert saved(tmp_path) == [1, 3]
    again = filled(tmp_path, 0, 2)
    while again.hash_next():
        pass
    assert (again.hashed, again.digest()) == (4, ENTRY.sha256)
    again.place(str(tmp_path / "x.parquet"), False)
    assert (tmp_path / "x.parquet").read_bytes() == DATA
    assert list((tmp_path / HIDDEN).iterdir()) == []


def test_the_digest_waits_for_the_next_piece(tmp_path: Path) -> None:
    part = filled(tmp_path, 0, 2)
    assert [part.hash_next(), part.hash_next(), part.hashed] == [True, False, 1]


def test_nothing_is_claimed_before_it_was_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real = os.pwrite

    def pwrite(handle: int, data: Any, offset: int) -> int:
        order.append("map" if os.readlink(f"/proc/self/fd/{handle}").endswith(".map") else "data")
        return real(handle, data, offset)

    part = filled(tmp_path, 0)
    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fdatasync", lambda _handle: order.append("flush"))
    part.write(PIECE_BYTES, memoryview(DATA)[PIECE_BYTES : 2 * PIECE_BYTES])
    part.finish(1)
    assert saved(tmp_path) == [0]  # a crash now
    part.save()
    assert order == ["data", "flush", "map"]

    def broken(_handle: int) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "fdatasync", broken)
    part.finish(2)
    with pytest.raises(DiskError):
        part.save()
    assert saved(tmp_path) == [0, 1]


@pytest.mark.parametrize(
    ("written", "pieces"),
    [(b"\1\0\1\1", [0, 2, 3]), (b"\1\1", [0, 1]), (b"", []), (b"\2\xff1\1", [3]), (b"\1" * 100, [0, 1, 2, 3])],
)
def test_a_torn_map(tmp_path: Path, written: bytes, pieces: list[int]) -> None:
    filled(tmp_path, 0, 1, 2, 3)
    the_map(tmp_path).write_bytes(written)
    assert saved(tmp_path) == pieces
    filled(tmp_path, 0)  # what was not believed is not believed later either
    assert saved(tmp_path) == sorted({0, *pieces})


@pytest.mark.parametrize(("size", "pieces"), [(0, []), (2 * PIECE_BYTES, [0, 1]), (len(DATA) - 1, [0, 1, 2])])
def test_data_that_is_shorter_than_the_map(tmp_path: Path, size: int, pieces: list[int]) -> None:
    part = filled(tmp_path, 0, 1, 2, 3)
    os.truncate(part.path, size)
    assert saved(tmp_path) == pieces
    the_map(tmp_path).unlink()
    assert saved(tmp_path) == []


def test_discarded_pieces_do_not_come_back(tmp_path: Path) -> None:
    part = filled(tmp_path, 0, 1, 2, 3)
    while part.hash_next():
        pass
    part.discard()
    assert (part.pieces(True), part.hashed, saved(tmp_path)) == ([], 0, [])
    part.save()
    assert list((tmp_path / HIDDEN).iterdir()) == []


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.parquet"
    target.write_bytes(b"mine")
    part = filled(tmp_path, 0, 1, 2, 3)

    def no_links(_source: str, _target: str) -> None:
        raise OSError(errno.EPERM, "no links here")

    with pytest.raises(FileExistsError):
        part.place(str(target), False)
    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(FileExistsError):
        part.place(str(target), False)
    assert target.read_bytes() == b"mine" and saved(tmp_path) == [0, 1, 2, 3]
    part.place(str(target), True)
    assert target.read_bytes() == DATA
    assert (tmp_path / "x.parquet.old").read_bytes() == b"mine"
    assert old_name(str(target)) == f"{target}.old2"


def test_the_folder_is_held_by_one(tmp_path: Path) -> None:
    first = Workplace(str(tmp_path))
    with pytest.raises(BlockingIOError):
        Workplace(str(tmp_path))
    part = filled(tmp_path, 0)
    (tmp_path / HIDDEN / "0-0.part").write_bytes(b"x")
    (tmp_path / HIDDEN / "0-0.1.map").write_bytes(b"x")
    first.clean([part])
    assert saved(tmp_path) == [0]
    first.leave()
    assert sorted(path.suffix for path in (tmp_path / HIDDEN).iterdir()) == [".map", ".part"]
    second = Workplace(str(tmp_path))
    second.clean([])
    second.leave()
    assert list(tmp_path.iterdir()) == []


# ---- the plan ----


def taken(plan: Plan, host: str) -> list[tuple[int, int]]:
    return list(iter(lambda: plan.take(host), None))


def shared() -> Plan:
    """b, c and d lack a file of six pieces that a and e have; this is b's view."""
    return Plan("b", {"a": {0}, "b": set(), "c": set(), "d": set(), "e": {0}}, {0: list(range(6))})


def test_every_piece_is_taken_once_from_its_owner() -> None:
    plan = shared()
    assert plan.take("a") == (0, 0)
    assert plan.take("e") == (0, 3)
    assert [taken(plan, host) for host in "cdae"] == [[(0, 1), (0, 4)], [(0, 2), (0, 5)], [], []]


def test_receivers_agree_about_owners() -> None:
    have: dict[str, set[int]] = {"a": {0, 1}, "b": set(), "c": {1}, "d": set()}
    plans = {host: Plan(host, have, {0: [0, 1, 2], 1: [0, 1, 2]}) for host in "bd"}
    own = {host: set(taken(plan, "a")) for host, plan in plans.items()}
    assert own["b"] & own["d"] == set()
    assert set(taken(plans["b"], "d")) == own["d"]
    assert set(taken(plans["d"], "b")) == own["b"]


def test_pieces_of_a_dead_owner_are_orphans() -> None:
    plan = shared()
    assert plan.take("c") == (0, 1)
    plan.give_back(0, 1, "c")
    assert plan.take("c") == (0, 1)  # one failure is none
    plan.give_back(0, 1, "c")
    plan.orphan("c")
    assert taken(plan, "c") == []
    assert taken(plan, "a") == [(0, 0), (0, 3), (0, 1), (0, 4)]
    plan.give_back(0, 4, "a")
    assert plan.take("e") == (0, 4)


def test_a_host_that_does_not_have_the_file_after_all() -> None:
    plan = shared()
    assert plan.without(0, "a") is True
    assert taken(plan, "a") == []
    assert plan.without(0, "e") is False
    plan.end(0)
    plan.give_back(0, 3, "e")
    assert [taken(plan, host) for host in "abcde"] == [[]] * 5


def test_a_wrong_file_comes_from_one_host_again() -> None:
    plan = shared()
    plan.alone(0, "e", 6)
    assert [taken(plan, host) for host in "acd"] == [[]] * 3
    assert taken(plan, "e") == [(0, piece) for piece in range(6)]
