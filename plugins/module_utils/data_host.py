# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the steps of the module C(dataset) share: the folders of one host, and what was found and done."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import data
from ansible_collections.torchlan.nanochat.plugins.module_utils.background import Progress
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import (
    answer,
    expand,
    last_lines,
    sha256_file,
)

OWN_FOLDER = "base_data_climbmix"
TOKENIZER_FILES = ("tokenizer.pkl", "token_bytes.pt")


class DataHost:
    """Shards and tokenizer below the folders of one host.

    :param given: the module's parameters.
    """

    def __init__(self, given: dict[str, Any], check_mode: bool = False, progress: Progress | None = None) -> None:
        self.given = given
        self.check_mode = check_mode
        self.progress = progress or Progress()
        self.base = expand(given["base_dir"])
        if given.get("data_dir"):
            self.folder = expand(given["data_dir"])
        elif given.get("own_shards"):
            self.folder = os.path.join(self.base, OWN_FOLDER)  # never mixed with an older data set of nanochat's
        else:
            self.folder = data.default_folder(self.base)
        self.tokenizer_folder = os.path.join(self.base, "tokenizer")
        self.causes: list[dict[str, Any]] = []
        self.actions: list[str] = []

    def result(self, **more: Any) -> dict[str, Any]:
        """The module's result."""
        tokenizer = self.tokenizer()
        return answer(
            bool(self.actions), self.causes, actions=self.actions, folder=self.folder, tokenizer=tokenizer, **more
        )

    def bad(self, code: str, what: str, fix: str | None = None) -> None:
        """Add a cause that stops the work."""
        self.causes.append(cause(code, what, fix))

    def shards(self) -> list[str]:
        """Names of what nanochat would read, in its order."""
        try:
            return sorted(name for name in os.listdir(self.folder) if name.endswith(".parquet"))
        except OSError:
            return []

    def tokenizer(self) -> dict[str, str | None]:
        """Digests of the tokenizer's files."""
        return {name: data.sha256_or_none(os.path.join(self.tokenizer_folder, name)) for name in TOKENIZER_FILES}

    def program(self, code: str, words: list[str], env: dict[str, str]) -> tuple[int, str]:
        """Run Python code in nanochat's environment and checkout; its exit code and the last lines that it printed."""
        variables = json.loads(self.given["env"]) if self.given.get("env") else {}
        full = {**variables, "NANOCHAT_DATA_DIR": self.folder, "PYTHONUNBUFFERED": "1", **env}
        argv = [expand(self.given["python"]), "-c", code, *words]
        status, text = self.progress.run(argv, env=full, cwd=expand(self.given["checkout"]))
        return status, f"exit code {status}\n{last_lines(text)}"

    def able(self, code: str, what: str) -> bool:
        """Whether nanochat's programs can run at all."""
        python, checkout = expand(self.given["python"]), expand(self.given["checkout"])
        if not os.path.isfile(os.path.join(checkout, "nanochat", "dataset.py")):
            self.bad(code, f"{what}, and there is no nanochat in {checkout} to do that", "run install.yml first")
        elif not os.access(python, os.X_OK):
            self.bad("environment_missing", f"{what}, and there is no {python} to do that", "run install.yml first")
        return not self.causes


def keep_old(place: str) -> str | None:
    """Give a file that is about to be replaced a second name beside it, which nanochat does not read; the name."""
    if not os.path.lexists(place):
        return None
    for number in range(1, 1000):
        old = f"{place}.old" if number == 1 else f"{place}.old{number}"
        try:
            os.link(place, old, follow_symlinks=False)
        except FileExistsError:
            continue
        except OSError:  # a file system without hard links
            if os.path.lexists(old):
                continue
            os.replace(place, old)
        return os.path.basename(old)
    raise OSError(f"{place} was replaced a thousand times; remove old copies")


def take(entry: dict[str, Any], place: str) -> str | None:
    """Move or copy one file to its place, keeping what is there; C(None), or what is wrong with it."""
    path = entry["path"]
    if not os.path.exists(path):
        return "it is not there"
    part = path
    if os.path.dirname(path) != os.path.dirname(place):
        handle, part = tempfile.mkstemp(prefix=".torchlan-", suffix=".part", dir=os.path.dirname(place))
        os.close(handle)
    try:
        size = os.path.getsize(path)
        if size != int(entry["size"]):
            return f"{size} bytes of {entry['size']}"
        if part != path:
            shutil.copyfile(path, part)
        digest = sha256_file(part)
        if digest != entry["sha256"]:
            return "its sha256 is {} instead of {}".format(digest[:12], entry["sha256"][:12])
        os.chmod(part, 0o644)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        keep_old(place)
        os.replace(part, place)
    finally:
        for leftover in (part, path):
            with contextlib.suppress(OSError):
                os.unlink(leftover)
    return None
