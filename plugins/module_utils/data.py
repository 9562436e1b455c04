# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shards and tokenizer below the base folder, by names, sizes and digests: enough to compare hosts."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import manifest, parquet

# nanochat's own folders, the newer first: it falls back to the older one where only that exists.
_FOLDERS = ("base_data_climbmix", "base_data")
_SHARD = re.compile(r"shard_(\d{5})\.parquet\Z")
_MOST_LISTED = 300
_ITEM_BYTES = {b"IntStorage": 4, b"LongStorage": 8, b"ShortStorage": 2}


def default_folder(base_dir: str) -> str:
    """Where nanochat looks when NANOCHAT_DATA_DIR is not set."""
    folders = [os.path.join(base_dir, name) for name in _FOLDERS]
    return next((folder for folder in folders if os.path.isdir(folder)), folders[0])


def facts(base_dir: str, data_dir: str) -> dict[str, Any]:
    """What is there, without reading a shard: digests are those that the module C(dataset) has remembered."""
    shards = manifest.remembered(base_dir, data_dir) if data_dir else []
    # The last shard is the validation set: it is always listed.
    listed = shards if len(shards) <= _MOST_LISTED else shards[: _MOST_LISTED - 1] + shards[-1:]
    return {
        "dir": data_dir,
        "shards": len(shards),
        "bytes": sum(one.size for one in shards),
        "manifest": manifest.digest(shards) if shards else None,
        "unread": sum(one.sha256 is None for one in shards),
        "list": [
            [one.name.encode("utf-8", "replace").decode(), one.size, one.sha256, one.row_groups] for one in listed
        ],
        "row_groups": _row_groups(data_dir, shards),
        "tokenizer": _tokenizer(os.path.join(base_dir, "tokenizer") if base_dir else os.devnull),
    }


def _row_groups(folder: str, shards: list[manifest.Shard]) -> dict[str, Any]:
    """Of the validation file, and the fewest and the most of the training files; C(None) where nothing is known."""
    training = [one.row_groups for one in shards[:-1] if one.row_groups is not None]
    validation = shards[-1].row_groups if shards else None
    if shards and shards[-1].sha256 is None:
        try:
            validation = parquet.row_groups(os.path.join(folder, shards[-1].name))
        except OSError:
            validation = None
    return {
        "validation": validation,
        "fewest": min(training) if training else None,
        "most": max(training) if training else None,
    }


def _tokenizer(folder: str) -> dict[str, Any]:
    pickle, tensor = os.path.join(folder, "tokenizer.pkl"), os.path.join(folder, "token_bytes.pt")
    digests = [sha256_or_none(pickle), sha256_or_none(tensor)]
    return {
        "present": None not in digests,
        "sha256": digests[0],
        "token_bytes_sha256": digests[1],
        "vocab_size": _vocabulary(tensor) if digests[1] else None,
    }


def sha256_or_none(path: str) -> str | None:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return None
    return digest.hexdigest()


def _vocabulary(path: str) -> int | None:
    """Length of the one tensor in token_bytes.pt, from the sizes in its zip file: nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            described = archive.read(infos["data.pkl"])
            size = infos["data/0"].file_size
    except (OSError, KeyError, zipfile.BadZipFile, RuntimeError):
        return None
    for word, item_bytes in _ITEM_BYTES.items():
        if word in described:
            return size // item_bytes
    return None


def lacks_shards(names: list[str], wanted: int) -> bool:
    """Whether fewer training shards of nanochat's own data set are here than wanted, by their names in order.

    A folder with data of the user's is left alone.
    """
    if len(names) < 2:
        return True
    matches = [_SHARD.match(name) for name in names]
    numbers = [int(match.group(1)) for match in matches if match]
    training = len(numbers) - 1
    if len(numbers) != len(names) or numbers[:-1] != list(range(training)) or numbers[-1] == training:
        return False  # the downloader leaves a gap before its last shard, the validation set
    return training < wanted
