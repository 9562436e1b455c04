# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an environment is made from, fetched by the controller for hosts that have no way out.

Kept on the controller, so that the next such host costs no download.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.wheelhouse import UV_CACHE
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import last_lines, sha256_file
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import tools
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.source import Source, cache_folder, exclusive

_MANIFEST = ".manifest.json"


class FetchError(Exception):
    """The controller could not fetch either; carries the cause."""

    def __init__(self, what: str, fix: str | None = None) -> None:
        super().__init__(what)
        self.cause = cause("index_unreachable", what, fix)


def wheels(requirements: list[str], platform: Mapping[str, str], pip_args: list[str], env: Mapping[str, str]) -> str:
    """Folder with wheels of everything, for a host's platform.

    :raises FetchError: some of it cannot be had as a wheel for that platform, or no index is reached.
    """
    with _kept("pip", [*sorted(requirements), *pip_args], platform) as (folder, work):
        if work is None:
            return folder
        python, minor = _python(platform["python"]), platform["python"]
        words = ["download", "--only-binary=:all:", "--progress-bar=off", "--dest", work]
        words += ["--implementation=cp", f"--python-version={minor}", f"--abi=cp{minor.replace('.', '')}"]
        words += ["--abi=abi3", "--abi=none", *tools.platform_tags(platform), *pip_args, "--", *requirements]
        code, text = tools.run_pip(words, python, env)
        if code:
            what = f"this controller could not download for Python {minor} on {platform['machine']}: {last_lines(text)}"
            raise FetchError(what, "nanochat_pip_args: --find-links with a folder of wheels on the controller")
        _finish(folder, work, sorted(name for name in os.listdir(work) if name.endswith(".whl")))
        return folder


def uv_cache(source: Source, extra: str, platform: Mapping[str, str], env: Mapping[str, str]) -> str:
    """Folder with the packed cache of uv, filled from the lock file of a commit for a host's platform.

    :raises FetchError: uv says no.
    """
    with _kept("uv", [source.read("uv.lock") or "", extra], platform) as (folder, work):
        if work is None:
            return folder
        project, cache = Path(work, "project"), Path(work, "uv-cache")
        project.mkdir()
        for name in ("pyproject.toml", "uv.lock"):
            text = source.read(name)
            if text is None:
                raise FetchError(f"{source.repo_shown} has no {name}", "nanochat_install_method: pip")
            (project / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        glibc = f"manylinux_{platform['libc_version'].replace('.', '_')}"
        target = f"{platform['machine']}-{glibc if platform['libc'] == 'glibc' else 'unknown-linux-musl'}"
        argv = [tools.uv(tools.here()), "sync", "--frozen", "--no-install-project", "--extra", extra]
        argv += ["--python", platform["python"], "--python-platform", target]
        variables = {**os.environ, **env, "UV_CACHE_DIR": str(cache), "UV_NO_PROGRESS": "1"}
        variables["UV_PROJECT_ENVIRONMENT"] = str(Path(work, "venv"))
        variables.pop("VIRTUAL_ENV", None)
        done = subprocess.run(argv, cwd=project, env=variables, capture_output=True, check=False)
        if done.returncode:
            text = last_lines((done.stdout + done.stderr).decode("utf-8", "replace"))
            raise FetchError(f"uv sync on this controller ended with {done.returncode}: {text}")
        with tarfile.open(os.path.join(work, UV_CACHE), "w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(cache, cache.name)
        _finish(folder, work, [UV_CACHE])
        return folder


def manifest(folder: str) -> list[dict[str, Any]]:
    """Name, size and sha256 of the files."""
    return list(json.loads(Path(folder, _MANIFEST).read_text(encoding="utf-8")))


@contextlib.contextmanager
def packed(folder: str, files: list[dict[str, Any]]) -> Iterator[str]:
    """One file with all of them: one copy over ssh costs less than seventy."""
    with tempfile.TemporaryDirectory(prefix=".packed-", dir=os.path.dirname(folder)) as work:
        path = os.path.join(work, "fetched.tar")
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            for entry in files:
                archive.add(os.path.join(folder, entry["name"]), entry["name"])
        yield path


@contextlib.contextmanager
def _kept(method: str, wanted: list[str], platform: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """The folder for one set of files, and a work folder beside it where it is not whole yet; one launch at a time."""
    key = hashlib.sha256(json.dumps([method, wanted, dict(platform)]).encode()).hexdigest()[:16]
    folder = os.path.join(cache_folder(), "wheels", key)
    with exclusive(folder + ".lock", timeout=7200):
        if os.path.exists(os.path.join(folder, _MANIFEST)):
            yield folder, None
            return
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=os.path.dirname(folder)) as work:
            yield folder, work


def _finish(folder: str, work: str, names: list[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    entries = []
    for name in names:
        path = os.path.join(work, name)
        entries.append({"name": name, "size": os.path.getsize(path), "sha256": sha256_file(path)})
        os.replace(path, os.path.join(folder, name))
    Path(folder, _MANIFEST).write_text(json.dumps(entries), encoding="utf-8")


def _python(minor: str) -> str:
    """An interpreter of the host's version, if there is one: pip evaluates markers with the one that runs it."""
    return shutil.which(f"python{minor}") or sys.executable
