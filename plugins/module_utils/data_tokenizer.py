# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps of the module C(dataset) that bring the tokenizer from one host to the others, byte for byte."""

from __future__ import annotations

import base64
import os
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import in_use
from ansible_collections.torchlan.nanochat.plugins.module_utils.data_host import (
    TOKENIZER_FILES,
    DataHost,
    keep_old,
    take,
)
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import locked


def place_tokenizer(host: DataHost, made: dict[str, str]) -> None:
    """Rename both files into place; half a tokenizer that was there is kept under another name."""
    os.makedirs(host.tokenizer_folder, exist_ok=True)
    for name in TOKENIZER_FILES:
        place = os.path.join(host.tokenizer_folder, name)
        if keep_old(place) and os.path.lexists(place):
            os.unlink(place)
    for name in reversed(TOKENIZER_FILES):
        os.replace(made[name], os.path.join(host.tokenizer_folder, name))


def read(host: DataHost) -> dict[str, Any]:
    """The tokenizer's files, for the controller."""
    content = {}
    for name in TOKENIZER_FILES:
        with open(os.path.join(host.tokenizer_folder, name), "rb") as file:
            content[name] = base64.b64encode(file.read()).decode()
    return host.result(content=content)


def write(host: DataHost) -> dict[str, Any]:
    """Take the copied files; another tokenizer is replaced only when that was asked for, and kept."""
    host.causes += in_use.of_data(host.base, host.folder)
    wanted = host.given["tokenizer"]
    here = host.tokenizer()
    if host.causes or here == wanted:
        return host.result(needs_tokenizer=False)
    different = [name for name in TOKENIZER_FILES if here[name] not in (None, wanted[name])]
    if different and not host.given.get("replace"):
        name = different[0]
        path, mine = os.path.join(host.tokenizer_folder, name), (here[name] or "")[:12]
        fix = "-e nanochat_dataset_repair=true replaces it; the old one is kept beside it"
        host.bad("tokenizer_differs", f"{path} is {mine} here and {wanted[name][:12]} on the master", fix)
        return host.result(needs_tokenizer=False)
    if host.check_mode:
        host.actions.append("copied the tokenizer")
        return host.result(needs_tokenizer=False)
    if not host.given["files"]:
        return host.result(needs_tokenizer=True)
    os.makedirs(host.tokenizer_folder, exist_ok=True)
    with locked(host.base):
        for entry in host.given["files"]:
            if host.tokenizer()[entry["name"]] == entry["sha256"]:
                continue
            problem = take(entry, os.path.join(host.tokenizer_folder, entry["name"]))
            if problem:
                host.bad("tokenizer_missing", "{} arrived damaged: {}".format(entry["name"], problem), "run it again")
    if not host.causes:
        host.actions.append("copied the tokenizer")
    return host.result(needs_tokenizer=False)
