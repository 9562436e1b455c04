# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules for software and data share on a host: paths, locks, programs, digests."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_CREDENTIALS = re.compile(r"(://)[^/@\s]+@")
_DISTRIBUTION = re.compile(r"(.+?)-([^-]+)\.(?:dist|egg)-info\Z")


def expand(path: str) -> str:
    """An absolute path without C(~); links stay what they are."""
    return os.path.abspath(os.path.expanduser(path))


def redact(text: str) -> str:
    """The text without the user and password of an URL."""
    return _CREDENTIALS.sub(r"\1***@", text)


def last_lines(text: str, count: int = 12, width: int = 300) -> str:
    """The last lines of a program's output that say something, without credentials."""
    lines = [line.rstrip()[-width:] for line in re.split(r"[\r\n]+", redact(text)) if line.strip()]
    return "\n".join(lines[-count:])


def sha256_file(path: str) -> str:
    """Digest of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def write_atomic(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write a file so that a reader, or a crash, sees the old or the new content and nothing between."""
    handle, temporary = tempfile.mkstemp(prefix=".torchlan-", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def run(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout: float | None = None,
) -> tuple[int, str]:
    """Run a program without a shell and without a terminal.

    :param env: added to this process's environment.
    :returns: exit code and output, both streams in one. 127: it could not be run, 124: it
        took too long.
    """
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            list(argv),
            env={**os.environ, **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
    except OSError as problem:
        return 127, f"{argv[0]}: {problem.strerror or problem}"
    except subprocess.TimeoutExpired as problem:
        return 124, "{}: no end after {} s\n{}".format(
            argv[0], timeout, (problem.stdout or b"").decode("utf-8", "replace")
        )
    return done.returncode, done.stdout.decode("utf-8", "replace")


@contextlib.contextmanager
def locked(path: str, timeout: float = 900.0) -> Iterator[None]:
    """Hold the lock for a path: one host at a time where homes are shared, one launch at a time elsewhere.

    The lock file lives in the user's cache, so that nothing is left beside the user's files.

    :raises TimeoutError: another process held it all the time.
    """
    folder = expand("~/.cache/torchlan/locks")
    name = hashlib.sha256(os.path.realpath(path).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    try:
        os.makedirs(folder, exist_ok=True)
        handle = os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield  # a home that cannot be written is used by nobody else either
        return
    try:
        end = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as problem:
                if problem.errno not in (errno.EAGAIN, errno.EACCES):
                    break  # a file system without locks
                if time.monotonic() > end:
                    raise TimeoutError(f"another launch has been working on {path} for {timeout:.0f} s") from problem
                time.sleep(0.2)
        yield
    finally:
        os.close(handle)


def distributions(prefix: str) -> dict[str, str]:
    """Version of every distribution of a virtual environment by normalised name, from the names of its folders."""
    found: dict[str, str] = {}
    for lib in ("lib", "lib64"):
        root = os.path.join(prefix, lib)
        for python in _names(root):
            if not python.startswith("python"):
                continue
            for name in _names(os.path.join(root, python, "site-packages")):
                match = _DISTRIBUTION.match(name)
                if match:
                    found[normalised(match.group(1))] = match.group(2)
    return found


def normalised(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def answer(changed: bool, causes: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A module's result; what is wrong is data in it."""
    return {"changed": changed, "causes": causes, **more}
