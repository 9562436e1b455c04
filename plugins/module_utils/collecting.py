# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run has left on a host, as it may leave the host: without the values of its secrets."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import zlib
from collections.abc import Iterable
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import checkpoints
from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import read_json, read_text

MASK = "(masked)"
LOG = "train.log"
PIECE = 16 * 1024 * 1024
_TEXTS = ("run.json", "run.sh", "train.times", "exit_code", "stopped", "restarts.json", "cluster.json")
_BEATS = re.compile(r"rank-\d+\.jsonl?\Z")
_TEXT_BYTES = 16 * 1024 * 1024
# Shorter ones would be found in any number of a log, and tell nobody anything there.
_SHORTEST = 6
_LINE_BYTES = 65536


class Attempt:
    """This host's part of an attempt."""

    def __init__(self, node_dir: str) -> None:
        self.folder = node_dir
        self.record = read_json(os.path.join(node_dir, "run.json")) or {}
        try:
            self._environment = parsed(read_text(os.path.join(node_dir, "env")) or "")
        except ValueError:
            self._environment = {}
        names = secret_names(self.record)
        # Where nobody knows which are secret, all of them are.
        self._secret = set(self._environment) if names is None else names
        self.forms = forms(value for name, value in self._environment.items() if name in self._secret)

    def texts(self) -> dict[str, str]:
        """The small files by name."""
        names = [*_TEXTS]
        try:
            beats = sorted(os.listdir(os.path.join(self.folder, "beats")))
        except OSError:
            beats = []
        names += ["beats/" + name for name in beats if _BEATS.match(name)]
        found = {name: read_text(os.path.join(self.folder, name), _TEXT_BYTES) for name in names}
        result = {name: self._masked(text) for name, text in found.items() if text is not None}
        if self._environment:
            result["env"] = self._masked(self._env())
        return result

    def _env(self) -> str:
        lines = []
        for name, value in self._environment.items():
            lines.append("export %s=%s\n" % (name, shlex.quote(MASK if name in self._secret else value)))
        return "".join(lines)

    def _masked(self, text: str) -> str:
        return masked(text.encode("utf-8", "surrogateescape"), self.forms).decode("utf-8", "replace")

    def log(self) -> list[dict[str, Any]]:
        """The log as it is now, in a list, which is empty where there is none."""
        path = os.path.join(self.folder, LOG)
        try:
            size = os.path.getsize(path)
            over = any(os.path.exists(os.path.join(self.folder, name)) for name in ("exit_code", "stopped"))
            size = size if over else whole_lines(path, size)
            return [{"name": LOG, "size": size, "sha256": digest(path, size, self.forms)}]
        except OSError:
            return []

    @property
    def tag(self) -> str | None:
        """The folder of its checkpoints."""
        try:
            tag = str(self.record["config"]["arguments"]["model-tag"])
        except (KeyError, TypeError):
            return None
        return tag if tag == os.path.basename(tag) and tag not in ("", ".", "..") else None

    @property
    def world(self) -> int | None:
        try:
            return sum(int(node["nproc"]) for node in self.record["config"]["nodes"].values())
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def secret_names(record: dict[str, Any]) -> set[str] | None:
    """Names of all secrets of a run; None where its record does not tell."""
    try:
        return {str(name) for node in record["config"]["nodes"].values() for name in node["secret_names"]}
    except (KeyError, TypeError, AttributeError):
        return None


def parsed(text: str) -> dict[str, str]:
    """The variables of an env file.

    :raises ValueError: it is none.
    """
    words = shlex.split(text, comments=True)
    if set(words[::2]) - {"export"} or len(words) % 2:
        raise ValueError("no env file")
    pairs = (word.partition("=") for word in words[1::2])
    return {name: value for name, _equals, value in pairs}


def forms(values: Iterable[str]) -> list[bytes]:
    """How the values may be written in a log or in JSON: as they are, line by line, and quoted."""
    found = set()
    for value in values:
        found.update([value, *value.splitlines(), repr(value)[1:-1], json.dumps(value)[1:-1]])
        found.add(json.dumps(value, ensure_ascii=False)[1:-1])
    encoded = {form.encode("utf-8", "surrogateescape") for form in found}
    return sorted(form for form in encoded if len(form.strip()) >= _SHORTEST)


def masked(data: bytes, secrets: list[bytes]) -> bytes:
    """The same number of bytes, with a star for each one that belongs to a secret, so that offsets mean the same."""
    result = bytearray(data)
    for form in secrets:
        at = data.find(form)
        while at >= 0:
            result[at : at + len(form)] = b"*" * len(form)
            at = data.find(form, at + 1)
    return bytes(result)


def read(path: str, offset: int, count: int, size: int, secrets: list[bytes]) -> bytes:
    """A piece of the first C(size) bytes of a file. What is masked does not depend on where a piece begins.

    :raises OSError: it cannot be read.
    """
    margin = max(map(len, secrets), default=1) - 1
    first, last = max(0, offset - margin), min(size, offset + count + margin)
    with open(path, "rb") as file:
        file.seek(first)
        window = file.read(max(0, last - first))
    return masked(window, secrets)[offset - first : offset - first + count]


def digest(path: str, size: int, secrets: list[bytes]) -> str:
    """sha256 of what C(read) gives of the first C(size) bytes."""
    found = hashlib.sha256()
    for offset in range(0, size, PIECE):
        found.update(read(path, offset, PIECE, size, secrets))
    return found.hexdigest()


def whole_lines(path: str, size: int) -> int:
    """The size without a last line that is still being written: half of a secret is not known as one."""
    first = max(0, size - _LINE_BYTES)
    with open(path, "rb") as file:
        file.seek(first)
        end = file.read(size - first).rfind(b"\n") + 1
    return first + end if end or not first else size


def look(node_dirs: dict[str, str]) -> list[dict[str, Any]]:
    """Each attempt's small files, packed for the way, and what its log is."""
    result = []
    for name, folder in node_dirs.items():
        attempt = Attempt(folder)
        packed = zlib.compress(json.dumps(attempt.texts()).encode())
        result.append({"attempt": name, "texts": base64.b64encode(packed).decode(), "files": attempt.log()})
    return result


def inventory(base_dir: str, node_dir: str) -> dict[str, Any]:
    """The run's checkpoints here: C(tag), C(world) and what is wrong with each file, None for nothing."""
    attempt = Attempt(node_dir)
    files = checkpoints.inventory(checkpoints.folder_of(base_dir, attempt.tag)) if attempt.tag else {}
    return {"tag": attempt.tag, "world": attempt.world, "files": files}
