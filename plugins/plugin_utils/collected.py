# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run on the controller: C(RUN/collected/HOST/ATTEMPT) and C(RUN/checkpoints), and how files come there."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ansible_collections.torchlan.nanochat.plugins.module_utils import checkpoints
from ansible_collections.torchlan.nanochat.plugins.module_utils.collecting import PIECE
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import sha256_file

_TEXT = re.compile(r"(?:beats/)?[A-Za-z0-9_.-]+\Z")
_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
ABOUT = "collected.json"


class Changed(Exception):
    """The file on the host is not what it was when it was looked at."""


class Busy(Exception):
    """Another process brings the file."""


def run_folder(report_dir: str, run: str) -> Path:
    if not _NAME.match(run):
        raise ValueError(f"{run!r} is no name of a run")
    return Path(os.path.expanduser(report_dir)) / run


def host_folder(report_dir: str, run: str, host: str) -> Path:
    """Names of an inventory may hold anything."""
    return run_folder(report_dir, run) / "collected" / (re.sub(r"[^\w.-]", "_", host).lstrip(".") or "_")


def unpack(packed: str) -> dict[str, str]:
    """The small files of an attempt, by names that stay in its folder.

    :raises ValueError: the host sent something else.
    """
    try:
        found = json.loads(zlib.decompress(base64.b64decode(packed)))
    except zlib.error as problem:
        raise ValueError(str(problem)) from problem
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise ValueError("no files")
    wrong = [name for name in found if not _TEXT.match(name) or ".." in name]
    if wrong:
        raise ValueError(f"a file named {wrong[0]!r}")
    return found


def write_text(path: Path, text: str) -> bool:
    """Whether it was something new."""
    content = text.encode("utf-8", "surrogateescape")
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)
    return True


def same(path: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the file is here."""
    return path.is_file() and path.stat().st_size == wanted["size"] and sha256_file(str(path)) == wanted["sha256"]


def bring(path: Path, wanted: Mapping[str, Any], read: Callable[[int, int], bytes]) -> int:
    """Bring a file, going on with what came of it before; it has its name when its digest is right.

    :param wanted: C(size) and C(sha256).
    :param read: gives so many bytes from an offset on.
    :returns: bytes that were read.
    :raises Changed: the file is another one now.
    :raises Busy: another process brings it.
    """
    if same(path, wanted):
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    fetched = 0
    with _alone(part) as file:
        if same(path, wanted):  # another process was faster
            part.unlink()
            return 0
        if not file.tell() and path.is_file() and path.stat().st_size < wanted["size"]:
            with open(path, "rb") as before:  # a log that has grown since
                shutil.copyfileobj(before, file)
        began = file.tell()
        if began > wanted["size"]:
            file.truncate(0)
            began = 0
        fetched += _fill(file, wanted["size"], read)
        whole = same(part, wanted)
        if began and not whole:
            file.truncate(0)  # it began as another file
            fetched += _fill(file, wanted["size"], read)
            whole = same(part, wanted)
        if not whole:
            part.unlink()
            raise Changed(path.name)
        part.replace(path)
    return fetched


@contextlib.contextmanager
def _alone(part: Path) -> Iterator[BinaryIO]:
    """The file, at its end, for one process at a time: a worker of a playbook that was killed goes on for a while.

    :raises Busy: another one has it.
    """
    with open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise Busy from problem
        except OSError:
            pass  # a file system without locks
        if not part.exists() or not os.path.samestat(os.fstat(file.fileno()), part.stat()):
            raise Busy  # it got its name in this moment
        yield file


def _fill(file: BinaryIO, size: int, read: Callable[[int, int], bytes]) -> int:
    fetched = 0
    while (at := file.seek(0, os.SEEK_END)) < size:
        data = read(at, min(PIECE, size - at))
        if not data:
            break
        file.write(data)
        file.flush()
        fetched += len(data)
    file.flush()
    return fetched


def content(folder: Path) -> tuple[int, int]:
    """How many files there are, and how many bytes they have."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".part"]
    return len(sizes), sum(sizes)


def choice(collected: Mapping[str, Mapping[str, Any]], wanted: str) -> checkpoints.Choice:
    """The checkpoint to bring, and which node gives which file of it.

    :param collected: what C(collect) returned, by host; what dead hosts gave has no C(checkpoints).
    :param wanted: C(latest) or a step.
    """
    if not (wanted == "latest" or wanted.isdigit()):
        return checkpoints.Choice(skipped=[f"checkpoints={wanted} is neither latest nor a step"])
    answered = {
        one["node_rank"]: (host, one["checkpoints"]) for host, one in collected.items() if one.get("checkpoints")
    }
    worlds = [found["world"] for _node, (_host, found) in sorted(answered.items()) if found["world"]]
    if not worlds:
        return checkpoints.Choice(skipped=["no host that answered knows how many ranks the run has"])
    step = int(wanted) if wanted.isdigit() else None
    have = {node: found["files"] for node, (_host, found) in answered.items()}
    chosen = checkpoints.choose(have, worlds[0], step, {node: host for node, (host, _found) in answered.items()})
    if chosen.step is None and not chosen.skipped:
        chosen.skipped.append("there is none" if step is None else f"there is none of step {step}")
    return chosen
