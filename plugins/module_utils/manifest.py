# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names, sizes, digests and row groups of the shards in a folder, remembered so that nothing is read twice.

What was read is remembered by size, inode, and times of change and of the inode's change: nobody sets the last one, so
a byte that was changed under the old size and time is seen. The memory is a file below the base folder, one per host
name: hosts that share the folder read each other's and write their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import parquet
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import locked, write_atomic

_MEMORY = ".torchlan-digests"
_BLOCK = 1 << 20
_SAVE_EVERY_S = 10.0
# Two writes within one tick of the kernel's clock leave the same times.
_TICK_S = 0.02


@dataclass(frozen=True)
class Shard:
    """One file that nanochat reads; C(None) is what nobody has read yet, or for C(row_groups) no parquet at all."""

    name: str
    size: int
    sha256: str | None = None
    row_groups: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for results."""
        return {"name": self.name, "size": self.size, "sha256": self.sha256, "row_groups": self.row_groups}


def digest(shards: Iterable[Shard]) -> str:
    """One digest of all names, sizes and contents; where a content is not known, its place is empty."""
    lines = (f"{one.name}\0{one.size}\0{one.sha256 or ''}\n" for one in sorted(shards, key=lambda one: one.name))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def remembered(base_dir: str, folder: str) -> list[Shard]:
    """What is in the folder, in nanochat's order, without reading a file."""
    found = _signatures(folder)
    if not found:
        return []
    known = _known(base_dir, folder)
    return [_shard(name, signature, known) for name, signature in found.items()]


def complete(base_dir: str, folder: str, say: Callable[[str], None] | None = None, write: bool = True) -> list[Shard]:
    """What is in the folder, reading what is not remembered.

    :param say: told now and then how much was read, as a text.
    :param write: remember it; what cannot be written down is read again next time.
    :raises OSError: a file cannot be read.
    """
    before = remembered(base_dir, folder)
    total = sum(one.size for one in before if one.sha256 is None)
    fresh: dict[str, list[Any]] = {}
    done, saved = 0, time.monotonic()
    for one in before:
        if one.sha256 is None:
            if say:
                say(f"reading {one.name}, {done / 1e9:.1f} of {total / 1e9:.1f} GB")
            entry = read(os.path.join(folder, one.name))
            fresh[one.name] = entry
            done += one.size
            if write and time.monotonic() - saved > _SAVE_EVERY_S:
                _save(base_dir, folder, fresh)
                saved = time.monotonic()
    if fresh and write:
        _save(base_dir, folder, fresh)
    return [_entry(one.name, fresh[one.name]) if one.name in fresh else one for one in before]


def remember(base_dir: str, folder: str, digests: dict[str, str]) -> None:
    """Remember files that were compared with these digests right before they got their names."""
    fresh = {}
    for name, sha256 in digests.items():
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            groups = parquet.row_groups(path)
            fresh[name] = [*_signature(os.stat(path)), sha256, groups]
    if fresh:
        _save(base_dir, folder, fresh)


def read(path: str) -> list[Any]:
    """Signature, digest and row groups of a file; again when it was written meanwhile.

    :raises OSError: it cannot be read, or is written all the time.
    """
    for _attempt in range(3):
        with open(path, "rb") as file:
            before = os.fstat(file.fileno())
            age = time.time() - before.st_ctime
            if 0 <= age < _TICK_S:
                time.sleep(_TICK_S)
            content = hashlib.sha256()
            for block in iter(lambda: file.read(_BLOCK), b""):
                content.update(block)
            groups = parquet.row_groups(path)
        signature = _signature(before)
        if signature == _signature(os.stat(path)):
            return [*signature, content.hexdigest(), groups]
    raise OSError(f"{path} is being written by another program")


def _signature(stat: os.stat_result) -> list[int]:
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _signatures(folder: str) -> dict[str, list[int]]:
    """The files that nanochat would read, in its order."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".parquet"):
                    with contextlib.suppress(OSError):  # it may be gone by now
                        found[entry.name] = _signature(entry.stat())
    except OSError:
        return {}
    return dict(sorted(found.items()))


def _shard(name: str, signature: list[int], known: dict[str, list[list[Any]]]) -> Shard:
    for entry in known.get(name, []):
        if entry[:4] == signature:
            return _entry(name, entry)
    return Shard(name, signature[0])


def _entry(name: str, entry: list[Any]) -> Shard:
    return Shard(name, entry[0], entry[4], entry[5])


def _own(base_dir: str) -> str:
    host = re.sub(r"[^A-Za-z0-9._-]", "_", os.uname().nodename) or "host"
    return os.path.join(base_dir, _MEMORY, host + ".json")


def _known(base_dir: str, folder: str) -> dict[str, list[list[Any]]]:
    """Every entry that a host of this base folder wrote about a file of the shard folder, by name."""
    place = os.path.realpath(folder)
    found: dict[str, list[list[Any]]] = {}
    try:
        names = sorted(os.listdir(os.path.join(base_dir, _MEMORY)))
    except OSError:
        return {}
    for name in names:
        if not name.endswith(".json"):
            continue
        for shard, entry in _load(os.path.join(base_dir, _MEMORY, name)).get(place, {}).items():
            if isinstance(entry, list) and len(entry) == 6:
                found.setdefault(shard, []).append(entry)
    return found


def _load(path: str) -> dict[str, dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    folders = value.get("folders") if isinstance(value, dict) else None
    return folders if isinstance(folders, dict) and all(isinstance(one, dict) for one in folders.values()) else {}


def _save(base_dir: str, folder: str, fresh: dict[str, list[Any]]) -> None:
    """Add entries to this host's memory, and forget files of the folder that are gone."""
    path = _own(base_dir)
    with contextlib.suppress(OSError, TimeoutError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with locked(path, timeout=60):
            folders = _load(path)
            place = os.path.realpath(folder)
            merged = {**folders.get(place, {}), **fresh}
            folders[place] = {
                name: entry for name, entry in merged.items() if os.path.lexists(os.path.join(folder, name))
            }
            write_atomic(path, json.dumps({"schema": 1, "folders": folders}).encode())
