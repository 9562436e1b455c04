# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""System packages: what they are called, and the one command that installs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import Asked

# by what is needed, then by package manager
NAMES: dict[str, dict[str, str]] = {
    "tmux": {},
    "git": {},
    "compiler": {"apt-get": "g++", "dnf": "gcc-c++", "zypper": "gcc-c++", "pacman": "gcc", "apk": "g++"},
    "headers": {"apt-get": "python3-dev", "dnf": "python3-devel", "zypper": "python3-devel", "apk": "python3-dev"},
    "venv": {"apt-get": "python3-venv"},
}
INSTALL = {
    "apt-get": ["apt-get", "install", "-y"],
    "dnf": ["dnf", "install", "-y"],
    "zypper": ["zypper", "install", "-y"],
    "pacman": ["pacman", "-S", "--noconfirm"],
    "apk": ["apk", "add"],
}
# whose modules are part of ansible-core
DRIVEN = ("apt-get", "dnf")
SHOWN = {
    "tmux": "tmux",
    "git": "git",
    "compiler": "a C++ compiler",
    "headers": "Python's C headers",
    "venv": "venv",
}
_FOLDERS = ("/usr/bin", "/bin", "/sbin", "/usr/local/bin")


def manager(folders: Iterable[str] = _FOLDERS) -> str | None:
    """The package manager of this host."""
    return next((name for name in INSTALL if shutil.which(name, path=os.pathsep.join(folders))), None)


def names(needed: Iterable[str], of: str) -> list[str]:
    """What a package manager calls them, each once."""
    return list(dict.fromkeys(NAMES[entry].get(of, _same_as(entry)) for entry in needed))


def _same_as(entry: str) -> str:
    return {"headers": "python3", "venv": "python3"}.get(entry, entry)


def command(needed: Iterable[str], of: str | None) -> str:
    """The one command that an administrator of the host runs."""
    if of is None:
        return f"install {', '.join(needed)}"
    return f"sudo {' '.join([*INSTALL[of], *names(needed, of)])}"


def hint(needed: Iterable[str]) -> str:
    """The same, for this host."""
    return command(needed, manager())


def privilege() -> str:
    """How this user becomes root: C(root), C(sudo) without a password, C(password), or C(none).

    Only asked where something is to be installed: sudo tells the administrator of everyone whom it refuses.
    """
    if os.geteuid() == 0:
        return "root"
    if shutil.which("sudo", path=os.pathsep.join(_FOLDERS)) is None:
        return "none"
    text, problem = Asked(["sudo", "-n", "true"], 10.0).answer()
    if text is not None:
        return "sudo"
    return "password" if "password" in problem else "none"
