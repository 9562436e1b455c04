# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Pythons of a host, and which one an environment is made with."""

from __future__ import annotations

import glob
import json
import os
import re
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import expand, last_lines, run

_ABOUT = (
    "import json, platform, sys\n"
    "try:\n import venv\n able = True\nexcept ImportError:\n able = False\n"
    "print(json.dumps([list(sys.version_info[:3]), able, sys.executable, platform.machine(), platform.libc_ver()]))"
)


class Python:
    """An interpreter and what it said about itself."""

    def __init__(self, path: str) -> None:
        self.path = path
        code, text = run([path, "-I", "-c", _ABOUT], timeout=60)
        self.problem = last_lines(text, 1) if code else None
        self.version: tuple[int, ...] = ()
        self.makes_venvs = False
        self.machine = ""
        self.libc: tuple[str, str] = ("", "")
        if code == 0:
            try:
                version, self.makes_venvs, _executable, self.machine, libc = json.loads(text.strip().splitlines()[-1])
                self.version, self.libc = tuple(version), (libc[0], libc[1])
            except (ValueError, IndexError, TypeError):
                self.problem = f"it printed {last_lines(text, 1)!r}"

    @property
    def shown(self) -> str:
        """The version as people write it."""
        return ".".join(str(part) for part in self.version)

    @property
    def minor(self) -> str:
        """The version that decides which wheels fit, such as C(3.11)."""
        return ".".join(str(part) for part in self.version[:2])

    @property
    def platform(self) -> dict[str, str]:
        """What decides which wheels fit; equal for hosts that can share them."""
        return {"python": self.minor, "machine": self.machine, "libc": self.libc[0], "libc_version": self.libc[1]}


def interpreters() -> list[str]:
    """Every python3 of this host, C(python3) first; version managers without their shims, which may be broken."""
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    folders += [folder for folder in ("/usr/local/bin", "/usr/bin", expand("~/.local/bin")) if folder not in folders]
    found: dict[str, str] = {}
    first = next(
        (path for path in (os.path.join(folder, "python3") for folder in folders) if os.access(path, os.X_OK)), None
    )
    paths = [first] if first else []
    paths += [path for folder in folders for path in sorted(glob.glob(os.path.join(glob.escape(folder), "python3*")))]
    paths += glob.glob(expand("~/.pyenv/versions/*/bin/python3")) + glob.glob(
        expand("~/.local/share/uv/python/*/bin/python3")
    )
    for path in paths:
        shim = os.sep + "shims" + os.sep in path and path != first
        if re.fullmatch(r"python3(\.\d+)?", os.path.basename(path)) and os.access(path, os.X_OK) and not shim:
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def best(pythons: list[Python]) -> Python:
    """C(python3) is what people mean and has the headers that compiling needs; else the newest."""
    return next(
        (python for python in pythons if os.path.basename(python.path) == "python3"),
        max(pythons, key=lambda python: python.version),
    )


def same_minor(marker: dict[str, Any] | None, python: Python) -> bool:
    """Whether an environment was made with this minor version."""
    return [int(part) for part in (marker or {}).get("python", [])[:2]] == list(python.version[:2])
