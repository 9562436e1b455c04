# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment that uv makes from the lock file of the checkout.

One host fills a cache of uv's from the indexes; the others get that cache and sync without the network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import software
from ansible_collections.torchlan.nanochat.plugins.module_utils.background import Progress
from ansible_collections.torchlan.nanochat.plugins.module_utils.environments import (
    OLDEST,
    Environment,
    Lacking,
    Stop,
    digest,
)
from ansible_collections.torchlan.nanochat.plugins.module_utils.interpreters import Python, best, interpreters
from ansible_collections.torchlan.nanochat.plugins.module_utils.pip_environment import NO_WAY_OUT
from ansible_collections.torchlan.nanochat.plugins.module_utils.wheelhouse import UV_CACHE
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import distributions, last_lines, write_atomic

_CACHE = "uv-cache"
_WHOLE = ".torchlan-whole"


class UvEnvironment(Environment):
    """C(uv sync --frozen), once with the network and then without."""

    method = "uv"

    def wanted(self) -> list[str]:
        lock = os.path.join(self.path, "uv.lock")
        return ["uv.lock " + _digest_of_file(lock), "extra " + self.extra]

    @property
    def extra(self) -> str:
        """The optional group of nanochat's pyproject.toml."""
        return str(self.given.get("extra") or "cpu")

    def action(self) -> str:
        self.base = self._base()
        if not os.path.exists(os.path.join(self.path, "pyproject.toml")):
            if self.check_mode:
                return "create"
            raise Stop("install_failed", f"{self.path} has no pyproject.toml, so uv has nothing to install")
        if not distributions(self.venv):
            return "create"
        marker, current = self.marker(), Python(self.python)
        fits = marker is not None and marker.get("digest") == digest(self.wanted(), current.version)
        return "none" if fits else "update"

    def _base(self) -> Python:
        """The host's own Python where it will do: uv would download another one, from yet another place."""
        if self.given.get("python"):
            python = Python(self.given_python())
            if python.problem:
                raise Stop("environment_missing", f"nanochat_python: {python.path} does not run: {python.problem}")
            self.check_age(python)
            return python
        found = [python for python in (Python(path) for path in interpreters()) if python.version >= OLDEST]
        if found:
            return best(found)
        raise Stop(
            "environment_missing",
            "this host has no Python 3.10 or newer for nanochat",
            "install a newer python3, or set nanochat_python",
        )

    def _uv(self) -> str:
        uv = self.given.get("uv") or software.tools()["uv"]
        if not uv:
            raise Lacking("uv")
        return str(uv)

    def _sync(self, progress: Progress, *more: str) -> None:
        """Run uv sync, which leaves what fits."""
        env = {"UV_NO_PROGRESS": "1", "UV_PROJECT_ENVIRONMENT": self.venv, "UV_CACHE_DIR": self._cache, **self.env}
        argv = [self._uv(), "sync", "--frozen", "--extra", self.extra, "--python", self.chosen.path, *more]
        os.environ.pop("VIRTUAL_ENV", None)
        code, text = progress.run(argv, env=env, cwd=self.path)
        if code:
            code_ = "index_unreachable" if NO_WAY_OUT.search(text) else "install_failed"
            raise Stop(code_, f"uv sync ended with {code}:\n{last_lines(text)}")

    @property
    def _cache(self) -> str:
        """In the base folder, beside the environment where that is on the same disk: uv links files then."""
        return os.path.join(self.house.folder, _CACHE)

    def fetch(self, progress: Progress) -> None:
        house = self.house
        os.makedirs(house.folder, exist_ok=True)
        self._sync(progress)
        write_atomic(os.path.join(self._cache, _WHOLE), b"")
        if not self.given.get("pack"):
            return
        progress.say("packing uv's cache for the other hosts")
        packed = os.path.join(house.folder, UV_CACHE)
        with tarfile.open(packed + ".part", "w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(self._cache, _CACHE)
        os.replace(packed + ".part", packed)
        house.seal([UV_CACHE])

    def install(self, progress: Progress) -> None:
        packed = self.house.paths(UV_CACHE)
        if packed and not os.path.exists(os.path.join(self._cache, _WHOLE)):
            progress.say("unpacking uv's cache")
            work = self._cache + ".part"
            shutil.rmtree(work, ignore_errors=True)
            with tarfile.open(packed[0]) as archive:
                # Older Pythons know no filter; that the archive is ours is known from its digest.
                safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                archive.extractall(work, **safe)  # noqa: S202
            write_atomic(os.path.join(work, _CACHE, _WHOLE), b"")
            # What this host could get by itself is in the way, and is a part of it.
            shutil.rmtree(self._cache, ignore_errors=True)
            os.replace(os.path.join(work, _CACHE), self._cache)
            os.rmdir(work)
        if not os.path.isdir(self._cache):
            raise Stop("install_failed", f"{self.house.folder} lacks uv's cache for this environment", "run it again")
        self._sync(progress, "--offline")
        self.finish(progress)


def _digest_of_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return "missing"
