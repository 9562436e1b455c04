# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shards and tokenizers on the controller."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import manifest as remembering
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import sha256_file, write_atomic
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.source import cache_folder, exclusive


class ShardsError(Exception):
    """The folder cannot be used; carries the cause."""

    def __init__(self, what: str, fix: str | None = None) -> None:
        super().__init__(what)
        self.cause = cause("data_missing", what, fix)


def manifest(folder: str, cache: str | None = None, say: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """Name, size, sha256 and row groups of every shard of a folder on the controller.

    What was read is remembered; the first host's task reads, others wait for it.

    :param folder: absolute path.
    :param say: told now and then how far it is.
    :raises ShardsError: there is nothing that nanochat could train from.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))
        names = [name for name in names if os.path.isfile(os.path.join(folder, name))]
    except OSError as problem:
        raise ShardsError(
            f"nanochat_dataset_dir: {folder}: {problem.strerror}", "a folder of *.parquet here"
        ) from problem
    odd = [name for name in names if not name.isprintable()]
    if odd:
        raise ShardsError(f"nanochat_dataset_dir: {folder} has a file with an unusable name: {odd[0]!r}", "rename it")
    if len(names) < 2:
        what = (
            f"nanochat_dataset_dir: {folder} has {len(names)} *.parquet; nanochat needs two, the last is for validation"
        )
        raise ShardsError(what)
    memory = cache_folder(cache)
    lock = hashlib.sha256(os.fsencode(folder)).hexdigest()[:24] + ".lock"
    try:
        with exclusive(os.path.join(memory, "manifests", lock), timeout=7200):
            found = remembering.complete(memory, folder, say)
    except OSError as problem:
        raise ShardsError(f"nanochat_dataset_dir: {problem}", "make it readable here") from problem
    return [one.as_dict() for one in found if one.name in names]


def known_digest(folder: str, cache: str | None = None) -> str | None:
    """One digest of the shards of a folder on the controller, without reading them.

    :returns: a text that equals no digest while some were not read as they are now; C(None) when there are none.
    """
    found = remembering.remembered(cache_folder(cache), folder)
    if any(one.sha256 is None for one in found):
        return "not read yet"
    return remembering.digest(found) if found else None


def known(folder: str, cache: str | None = None) -> list[dict[str, Any]]:
    """The shards of a folder on the controller without reading them; their digests where they were read before.

    :raises ShardsError: there is nothing that nanochat could train from.
    """
    found = remembering.remembered(cache_folder(cache), folder)
    if len(found) < 2:
        return manifest(folder, cache)
    return [one.as_dict() for one in found]


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
