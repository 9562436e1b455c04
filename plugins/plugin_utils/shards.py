# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shards and tokenizers on the controller."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import sha256_file, write_atomic
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.source import cache_folder, exclusive


class ShardsError(Exception):
    """The folder cannot be used; carries the cause."""

    def __init__(self, what: str, fix: str | None = None) -> None:
        super().__init__(what)
        self.cause = cause("data_missing", what, fix)


def manifest(folder: str, cache: str | None = None) -> list[dict[str, Any]]:
    """Name, size and sha256 of every shard of a folder on the controller.

    Digests are remembered by name, size and time of change; the first host's task computes them, others wait for it.

    :param folder: absolute path.
    :raises ShardsError: there is nothing that nanochat could train from.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))
        names = [name for name in names if os.path.isfile(os.path.join(folder, name))]
    except OSError as problem:
        raise ShardsError(
            f"nanochat_dataset_dir: {folder}: {problem.strerror}", "a folder of *.parquet here"
        ) from problem
    odd = [name for name in names if not name.isprintable() or any(0xDC80 <= ord(letter) <= 0xDCFF for letter in name)]
    if odd:
        raise ShardsError(f"nanochat_dataset_dir: {folder} has a file with an unusable name: {odd[0]!r}", "rename it")
    if len(names) < 2:
        what = (
            f"nanochat_dataset_dir: {folder} has {len(names)} *.parquet; nanochat needs two, the last is for validation"
        )
        raise ShardsError(what)
    memory = Path(cache_folder(cache), "manifests", hashlib.sha256(os.fsencode(folder)).hexdigest()[:24] + ".json")
    with exclusive(str(memory.with_suffix(".lock"))):
        try:
            known = json.loads(memory.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        fresh: dict[str, list[Any]] = {}
        for name in names:
            path = os.path.join(folder, name)
            stat = os.stat(path)
            signature = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
            entry = known.get(name) if isinstance(known, dict) else None
            same = isinstance(entry, list) and entry[:-1] == signature
            fresh[name] = entry if same and entry else [*signature, sha256_file(path)]
        if fresh != known:
            write_atomic(str(memory), json.dumps(fresh).encode())
    return [{"name": name, "size": entry[0], "sha256": entry[-1]} for name, entry in fresh.items()]


def tokenizer_folder(digests: dict[str, str], cache: str | None = None) -> str:
    """Where the controller keeps the tokenizer with these digests."""
    key = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:24]
    return os.path.join(cache_folder(cache), "tokenizers", key)


def keep_tokenizer(digests: dict[str, str], content: dict[str, bytes], cache: str | None = None) -> None:
    """Keep a tokenizer on the controller.

    :raises ValueError: the content is not what the digests say.
    """
    for name, digest in digests.items():
        if hashlib.sha256(content[name]).hexdigest() != digest:
            raise ValueError(f"{name} changed while it was read")
    folder = tokenizer_folder(digests, cache)
    os.makedirs(folder, exist_ok=True)
    for name, bytes_ in content.items():
        write_atomic(os.path.join(folder, name), bytes_)


def kept_tokenizer(digests: dict[str, str], cache: str | None = None) -> dict[str, str] | None:
    """Paths of the files of a tokenizer that the controller has, whole; by name."""
    folder = tokenizer_folder(digests, cache)
    paths = {name: os.path.join(folder, name) for name in digests}
    try:
        whole = all(sha256_file(path) == digests[name] for name, path in paths.items())
    except OSError:
        return None
    return paths if whole else None


def difference(mine: list[list[Any]], masters: list[list[Any]]) -> str | None:
    """How two lists of shards differ, in words; C(None) when they are equal."""
    here, there = {str(name): int(size) for name, size in mine}, {str(name): int(size) for name, size in masters}
    if here == there:
        return None
    first = min(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))

    def size(of: dict[str, int]) -> str:
        return f"{of[first]} bytes" if first in of else "missing"

    return f"{len(here)} shards here, {len(there)} on the master; {first}: {size(here)} here, {size(there)} there"
