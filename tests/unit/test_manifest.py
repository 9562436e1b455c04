# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was read is remembered until it changes; nothing is read twice, and nothing changed is believed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from parquet_files import write_parquet

from ansible_collections.torchlan.nanochat.plugins.module_utils import data, manifest, shared_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture()
def base(tmp_path: Path) -> Path:
    return tmp_path / "ba se"


@pytest.fixture()
def folder(base: Path) -> Path:
    for number in range(4):
        write_parquet(base / "data" / f"shard_{number:05d}.parquet", 8, b"%d" % number)
    return base / "data"


def complete(base: Path, folder: Path) -> list[manifest.Shard]:
    return manifest.complete(str(base), str(folder))


def known(base: Path, folder: Path) -> list[bool]:
    return [one.sha256 is not None for one in manifest.remembered(str(base), str(folder))]


def test_a_look_reads_nothing_and_writes_nothing(base: Path, folder: Path) -> None:
    assert known(base, folder) == [False] * 4
    assert sorted(os.listdir(base)) == ["data"]
    assert manifest.remembered(str(base), str(base / "nothing")) == []


def test_what_was_read_is_remembered(base: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first = manifest.complete(str(base), str(folder), said.append)
    assert [one.sha256 for one in first] == [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())
    ]
    assert {one.row_groups for one in first} == {8}
    assert said[0] == "reading shard_00000.parquet, 0.0 of 0.0 GB" and len(said) == 4
    monkeypatch.setattr(manifest, "read", lambda path: pytest.fail(f"{path} is read again"))
    assert complete(base, folder) == first == manifest.remembered(str(base), str(folder))


def test_one_flipped_byte_is_seen_under_the_old_size_and_time(base: Path, folder: Path) -> None:
    before = manifest.digest(complete(base, folder))
    path = folder / "shard_00001.parquet"
    stat = path.stat()
    with open(path, "r+b") as file:
        file.seek(4)
        file.write(b"?")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    assert known(base, folder) == [True, False, True, True]
    after = complete(base, folder)
    assert manifest.digest(after) != before and known(base, folder) == [True] * 4


def test_files_that_go_and_come(base: Path, folder: Path) -> None:
    complete(base, folder)
    (folder / "shard_00000.parquet").unlink()
    write_parquet(folder / "shard_00009.parquet", 3)
    assert known(base, folder) == [True, True, True, False]
    assert [one.row_groups for one in complete(base, folder)] == [8, 8, 8, 3]
    (folder / "shard_00002.parquet").rename(folder / "shard_00002.parquet.old")
    assert len(complete(base, folder)) == 3


def test_folders_do_not_forget_each_other_and_hosts_believe_each_other(
    base: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_parquet(base / "other" / "shard_00000.parquet", 1).parent
    complete(base, folder)
    complete(base, other)
    assert known(base, folder) == [True] * 4 and known(base, other) == [True]
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: type(uname)(("Linux", "laptop", *uname[2:])))
    assert known(base, folder) == [True] * 4, "another host of the same base folder has read them"
    write_parquet(folder / "shard_00009.parquet", 3)
    complete(base, folder)
    assert len(os.listdir(base / ".torchlan-digests")) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"folders": []}', '{"folders": {"x": 1}}'])
def test_a_damaged_memory_is_no_memory(content: str, base: Path, folder: Path) -> None:
    complete(base, folder)
    (memory,) = (base / ".torchlan-digests").iterdir()
    memory.write_text(content, encoding="utf-8")
    assert known(base, folder) == [False] * 4
    complete(base, folder)
    assert known(base, folder) == [True] * 4


def test_what_was_brought_is_not_read_again(base: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "read", lambda path: pytest.fail(f"{path} is read"))
    manifest.remember(str(base), str(folder), {"shard_00001.parquet": "f" * 64, "gone.parquet": "0" * 64})
    assert [one.sha256 for one in manifest.remembered(str(base), str(folder))] == [None, "f" * 64, None, None]


def test_a_file_that_nobody_may_read(base: Path, folder: Path) -> None:
    (folder / "shard_00003.parquet").unlink()
    (folder / "shard_00003.parquet").mkdir()
    with pytest.raises(IsADirectoryError):
        complete(base, folder)


def test_facts(base: Path, folder: Path) -> None:
    write_parquet(folder / "shard_00000.parquet", 4, b"x")
    write_parquet(folder / "shard_00003.parquet", 2, b"x")
    before = data.facts(str(base), str(folder))
    assert (before["shards"], before["unread"]) == (4, 4)
    assert before["row_groups"] == {"validation": 2, "fewest": None, "most": None}, "one footer is read in any case"
    complete(base, folder)
    after = data.facts(str(base), str(folder))
    assert (after["unread"], after["row_groups"]) == (0, {"validation": 2, "fewest": 4, "most": 8})
    assert after["manifest"] != before["manifest"]
    assert after["list"][0][2] == hashlib.sha256((folder / "shard_00000.parquet").read_bytes()).hexdigest()


def test_where_a_folder_really_is(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    here = shared_folder.identity(str(folder))
    assert shared_folder.identity(str(tmp_path / "link")) == here != shared_folder.identity(str(tmp_path))
    assert shared_folder.identity(str(folder / "not" / "yet")) not in (
        here,
        shared_folder.identity(str(folder / "not")),
    )
    mounts = tmp_path / "mounts"
    point = str(folder).replace(" ", "\\040")
    network = f"36 35 0:50 /export {point} rw - nfs4 nas:/vol rw,addr=192.0.2.1\n"
    mounts.write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + network, encoding="utf-8")
    on_network = shared_folder.identity(str(folder / "data"), str(mounts))
    other = tmp_path / "elsewhere"
    other.mkdir()
    mounts.write_text(network.replace(point, str(other)), encoding="utf-8")
    assert shared_folder.identity(str(other / "data"), str(mounts)) == on_network, "by the export, not by the path"
