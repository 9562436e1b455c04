# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shards and tokenizer below the base folder, by names, sizes and digests: enough to compare hosts."""

from __future__ import annotations

import hashlib
import os
import zipfile
from typing import Any

# nanochat's own folders, the newer first: it falls back to the older one where only that exists.
_FOLDERS = ("base_data_climbmix", "base_data")
_MOST_LISTED = 1000
_ITEM_BYTES = {b"IntStorage": 4, b"LongStorage": 8, b"ShortStorage": 2}


def default_folder(base_dir: str) -> str:
    """Where nanochat looks when NANOCHAT_DATA_DIR is not set."""
    folders = [os.path.join(base_dir, name) for name in _FOLDERS]
    return next((folder for folder in folders if os.path.isdir(folder)), folders[0])


def facts(base_dir: str, data_dir: str) -> dict[str, Any]:
    shards = _shards(data_dir) if data_dir else []
    # The last shard is the validation set: it is always listed.
    listed = shards if len(shards) <= _MOST_LISTED else shards[: _MOST_LISTED - 1] + shards[-1:]
    return {
        "dir": data_dir,
        "shards": len(shards),
        "bytes": sum(size for _name, size in shards),
        "manifest": manifest(shards) if shards else None,
        "list": [[name.encode("utf-8", "replace").decode(), size] for name, size in listed],
        "tokenizer": _tokenizer(os.path.join(base_dir, "tokenizer") if base_dir else os.devnull),
    }


def manifest(shards: list[tuple[str, int]]) -> str:
    """One digest of all names and sizes."""
    lines = (f"{name}\0{size}\n" for name, size in sorted(shards))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _shards(folder: str) -> list[tuple[str, int]]:
    """The files that nanochat would read, in its order."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.stat().st_size) for entry in entries if entry.name.endswith(".parquet"))
    except OSError:
        return []


def _tokenizer(folder: str) -> dict[str, Any]:
    pickle, tensor = os.path.join(folder, "tokenizer.pkl"), os.path.join(folder, "token_bytes.pt")
    digests = [_sha256(pickle), _sha256(tensor)]
    return {
        "present": None not in digests,
        "sha256": digests[0],
        "token_bytes_sha256": digests[1],
        "vocab_size": _vocabulary(tensor) if digests[1] else None,
    }


def _sha256(path: str) -> str | None:
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
