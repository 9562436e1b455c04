# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work that may take minutes: in a process of its own, watched by short calls.

The first call of a module starts the work and waits some seconds for it, so that quick work ends in that call. Else the
result is C({"job": …, "progress": …}) and the caller asks again with the job. A connection that breaks in between does
no harm. Work that nobody asks for any more ends itself, with all its children.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.detached import detach
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import expand, redact, write_atomic

PATIENCE_S = 4.0  # of one call
ABANDONED_S = 90.0  # without a call
_STALE_S = 86400.0
_JOB = re.compile(r"[0-9a-f]{16}\Z")


class Progress:
    """What the work is at, for whoever asks: a text, and how much is in a folder that it fills."""

    def __init__(self) -> None:
        self.text = ""
        self.folder: str | None = None

    def say(self, text: str) -> None:
        """Name what is being done now."""
        self.text = " ".join(redact(text).split())[:80]

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str | None = None) -> tuple[int, str]:
        """Like C(workdir.run), with the program's newest line as progress."""
        lines: list[str] = []
        try:
            # run_command of AnsibleModule would keep the lines until the end.
            with subprocess.Popen(  # pylint: disable=ansible-bad-function
                list(argv),
                env={**os.environ, **(env or {})},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as process:
                for raw in process.stdout or ():
                    line = raw.decode("utf-8", "replace").rstrip("\r\n")
                    lines.append(line)
                    if line.strip():
                        self.say(line)
        except OSError as problem:
            return 127, f"{argv[0]}: {problem.strerror or problem}"
        return process.returncode, "\n".join(lines)

    def shown(self, seconds: float) -> str:
        """One line for a person."""
        words = [self.text or "working"]
        if self.folder:
            words.append(f"{folder_bytes(self.folder) / 1e6:.0f} MB")
        return ", ".join([*words, f"{seconds:.0f} s"])


def folder_bytes(folder: str) -> int:
    """Size of all files below a folder that is being changed."""
    total = 0
    for path, _folders, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def follow(
    job: str | None, work: Callable[[Progress], dict[str, Any]], patience_s: float = PATIENCE_S
) -> dict[str, Any]:
    """Start the work, or go on waiting for it.

    :param job: C(None) to start, else what the call before returned.
    :param work: returns plain data; runs in another process.
    :returns: what C(work) returned, or C({"job", "progress"}) while it goes on.
    :raises RuntimeError: the work ended without a result.
    """
    root = expand("~/.cache/torchlan/jobs")
    if job is None:
        job = _start(root, work)
    elif not _JOB.match(job):
        raise RuntimeError(f"{job!r} is no job")
    folder = os.path.join(root, job)
    until = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(OSError):
            os.utime(os.path.join(folder, "asked"))
        result = _read(os.path.join(folder, "result"))
        if result is None and not _alive(folder):
            result = _read(os.path.join(folder, "result")) or {"crash": "it was ended from outside"}
        if result is not None:
            shutil.rmtree(folder, ignore_errors=True)
            if "crash" in result:
                raise RuntimeError(str(result["crash"]))
            return result
        if time.monotonic() > until:
            progress = _read(os.path.join(folder, "progress")) or {}
            return {"job": job, "progress": str(progress.get("text", "starting"))}
        time.sleep(0.05)


def _start(root: str, work: Callable[[Progress], dict[str, Any]]) -> str:
    os.makedirs(root, mode=0o700, exist_ok=True)
    for name in os.listdir(root):
        old = os.path.join(root, name)
        with contextlib.suppress(OSError):
            if time.time() - os.stat(old).st_mtime > _STALE_S:
                shutil.rmtree(old, ignore_errors=True)
    job = secrets.token_hex(8)
    folder = os.path.join(root, job)
    os.mkdir(folder, 0o700)
    with open(os.path.join(folder, "asked"), "wb"):
        pass
    # The lock is held as long as the work lives, and by nobody else: its children don't inherit it.
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _flock(lock)
    detach(lambda: _live(folder, work), [lock], "torchlan-work")
    os.close(lock)
    return job


def _live(folder: str, work: Callable[[Progress], dict[str, Any]]) -> None:
    progress = Progress()
    threading.Thread(target=_watch, args=(folder, progress), daemon=True).start()
    try:
        result = work(progress)
    except BaseException:  # whatever it is, the one who waits is told
        result = {"crash": traceback.format_exc()}
    with contextlib.suppress(OSError):
        write_atomic(os.path.join(folder, "result"), json.dumps(result).encode(), 0o600)


def _watch(folder: str, progress: Progress) -> None:
    """Publish the progress each second; end the whole process group once nobody asks."""
    began = time.monotonic()
    while True:
        time.sleep(1)
        try:
            silent = time.time() - os.stat(os.path.join(folder, "asked")).st_mtime
            text = progress.shown(time.monotonic() - began)
            write_atomic(os.path.join(folder, "progress"), json.dumps({"text": text}).encode(), 0o600)
        except FileNotFoundError:
            silent = ABANDONED_S + 1
        except OSError:
            continue  # a full disk is the work's to report
        if silent > ABANDONED_S:
            shutil.rmtree(folder, ignore_errors=True)
            os.killpg(0, signal.SIGKILL)


def _alive(folder: str) -> bool:
    """Whether the work's process holds its lock."""
    try:
        handle = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _flock(handle)
    finally:
        os.close(handle)


def _flock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
