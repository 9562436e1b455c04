# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that an environment is made from: fetched by one host over the slow line, by the others over the LAN.

A wheelhouse is a folder below the base folder, named by what its files are for. Its manifest is written last: without
one, and with a file of another size, it is not whole. For pip it holds wheels, for uv one archive of uv's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import sha256_file, write_atomic

_MANIFEST = ".manifest.json"
UV_CACHE = "uv-cache.tar"


def key_of(method: str, wanted: list[str], platform: dict[str, str]) -> str:
    """One word for what the files are for. Hosts with the same one make equal environments from the same files."""
    fits = [platform["python"], platform["machine"], platform["libc"]]
    text = json.dumps([method, sorted(wanted), fits])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Wheelhouse:
    """The files for one kind of environment on this host."""

    def __init__(self, base_dir: str, key: str) -> None:
        self.root = os.path.join(base_dir, "wheels")
        self.folder = os.path.join(self.root, key)

    def files(self) -> list[dict[str, Any]] | None:
        """Name, size and sha256 of every file, or C(None) when it is not whole."""
        try:
            with open(os.path.join(self.folder, _MANIFEST), encoding="utf-8") as file:
                manifest = json.load(file)
            sizes = {entry["name"]: os.path.getsize(os.path.join(self.folder, entry["name"])) for entry in manifest}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not manifest or any(sizes[entry["name"]] != entry["size"] for entry in manifest):
            return None
        return list(manifest)

    def paths(self, suffix: str) -> list[str]:
        """The files that the manifest names, by their ending."""
        return [os.path.join(self.folder, e["name"]) for e in self.files() or [] if e["name"].endswith(suffix)]

    def seal(self, names: list[str]) -> None:
        """Everything is here: write the manifest of these files."""
        manifest = []
        for name in sorted(names):
            path = os.path.join(self.folder, name)
            manifest.append({"name": name, "size": os.path.getsize(path), "sha256": sha256_file(path)})
        self.accept(manifest)

    def accept(self, manifest: list[dict[str, Any]]) -> None:
        """Remember what another host said of the files, each of which was compared when it came."""
        os.makedirs(self.folder, exist_ok=True)
        write_atomic(os.path.join(self.folder, _MANIFEST), json.dumps(manifest, indent=1).encode())
