# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps of the module C(dataset) about shards: look, take what was copied, set aside, rewrite."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import data_programs as programs
from ansible_collections.torchlan.nanochat.plugins.module_utils import in_use, manifest
from ansible_collections.torchlan.nanochat.plugins.module_utils.data_host import DataHost, keep_old, take
from ansible_collections.torchlan.nanochat.plugins.module_utils.paths import free_bytes
from ansible_collections.torchlan.nanochat.plugins.module_utils.shared_folder import identity

ASIDE = ".torchlan-aside"
_REWRITTEN = ".torchlan-rewritten-"


def look(host: DataHost) -> dict[str, Any]:
    """What is here. What nobody has read is read, but not in check mode."""
    if host.check_mode:
        shards = manifest.remembered(host.base, host.folder)
    else:
        shards = manifest.complete(host.base, host.folder, host.progress.say)
    odd = [one.name for one in shards if not one.name.isprintable()]
    if odd:
        host.bad("path_invalid", f"{host.folder} has a file with an unusable name: {odd[0]!r}", "rename it")
    return host.result(
        files=[one.as_dict() for one in shards if one.name not in odd],
        folder_id=identity(host.folder),
        free_bytes=free_bytes(host.folder),
        busy=in_use.of_data(host.base, host.folder),
        needs_download=bool(host.given.get("shards")) and programs.needs_download(host),
    )


def ready(host: DataHost) -> dict[str, Any]:
    """Make the folder ready for copies: what is left of a broken one goes, what is too many is set aside."""
    host.causes += in_use.of_data(host.base, host.folder)
    if host.causes:
        return host.result()
    os.makedirs(host.folder, exist_ok=True)
    for name in os.listdir(host.folder):
        if host.given.get("parts") and name.startswith(host.given["parts"]):
            os.unlink(os.path.join(host.folder, name))
    for name in host.given.get("aside") or []:
        os.makedirs(os.path.join(host.folder, ASIDE), exist_ok=True)
        place = os.path.join(host.folder, ASIDE, name)
        keep_old(place)
        os.replace(os.path.join(host.folder, name), place)
        host.actions.append(f"set {name} aside")
    return host.result()


def receive(host: DataHost) -> dict[str, Any]:
    """Take copied files into place, each only if it is what it should be."""
    done = {}
    for number, entry in enumerate(host.given["files"]):
        host.progress.say(f"comparing {entry['name']}, {number + 1} of {len(host.given['files'])}")
        what = take(entry, os.path.join(host.folder, entry["name"]))
        if what:
            fix = "run it again: only what is missing is sent"
            host.bad("data_missing", "{} arrived damaged: {}".format(entry["name"], what), fix)
        else:
            done[entry["name"]] = entry["sha256"]
    if done:
        manifest.remember(host.base, host.folder, done)
        host.actions.append(f"copied {len(done)} shard(s)")
    return host.result()


def remember(host: DataHost) -> dict[str, Any]:
    """Remember the digests of files that another module brought and compared; no one reads them again for that."""
    wanted = {entry["name"]: entry for entry in host.given["files"]}
    there = {one.name: one for one in manifest.remembered(host.base, host.folder)}
    known = {
        name: entry["sha256"]
        for name, entry in wanted.items()
        if name in there and there[name].sha256 is None and there[name].size == int(entry["size"])
    }
    manifest.remember(host.base, host.folder, known)
    return host.result()


def rewrite(host: DataHost) -> dict[str, Any]:
    """Write files anew with more row groups; the old ones are kept beside them."""
    host.causes += in_use.of_data(host.base, host.folder)
    groups = host.given["row_groups"]
    for name in [] if host.causes or host.check_mode else os.listdir(host.folder):
        if name.startswith(_REWRITTEN):  # of a call that was ended from outside
            os.unlink(os.path.join(host.folder, name))
    for number, name in enumerate(host.given["names"]):
        action = f"rewrote {name} into {groups} or more row groups"
        if host.causes or host.check_mode:
            host.actions += [] if host.causes else [action]
            continue
        host.progress.say(f"rewriting {name}, {number + 1} of {len(host.given['names'])}")
        if not host.able("row_groups_few", f"{name} has too few row groups"):
            break
        place = os.path.join(host.folder, name)
        handle, part = tempfile.mkstemp(prefix=_REWRITTEN, suffix=".part", dir=host.folder)
        os.close(handle)
        try:
            status, said = host.program(programs.REWRITE, [place, part, str(groups)], {})
            if status:
                host.bad("row_groups_few", f"{name} could not be rewritten: {said}", "rewrite it by hand, with pyarrow")
                continue
            os.chmod(part, 0o644)
            keep_old(place)
            os.replace(part, place)
            host.actions.append(action)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(part)
    return host.result()
