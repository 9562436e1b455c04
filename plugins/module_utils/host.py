# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this host is: its names, its user, its system, its graphics cards."""

from __future__ import annotations

import glob
import hashlib
import os
import platform
import pwd
import shutil
import socket
import sys
import threading
import time
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import firewall, session
from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import Asked, read_text
from ansible_collections.torchlan.nanochat.plugins.module_utils.limits import cpus, memory, strain, ulimits


def identity() -> str:
    """Equal for two inventory hosts exactly when they share one kernel and one network namespace.

    Containers of one image and cloned machines share C(machine-id), and the first namespace of every machine has nearly
    the same number: only the boot id tells them apart.
    """
    facts = (read_text("/proc/sys/kernel/random/boot_id"), machine_id(), netns())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def machine_id() -> str | None:
    return read_text("/etc/machine-id") or read_text("/var/lib/dbus/machine-id")


def netns() -> str | None:
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return None


class OwnName:
    """What this host's own name resolves to, asked in a thread: a resolver without a server takes many seconds."""

    def __init__(self) -> None:
        self._addresses: list[str] | None = None
        self._thread = threading.Thread(target=self._resolve, daemon=True)
        self._thread.start()

    def _resolve(self) -> None:
        found: list[str] = []
        try:
            for entry in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
                address = str(entry[4][0])
                if address not in found:
                    found.append(address)
        except (OSError, UnicodeError):
            pass
        self._addresses = found

    def addresses(self, limit_s: float = 0.5) -> list[str] | None:
        """Empty where the name is unknown, C(None) where no answer came in time."""
        self._thread.join(limit_s)
        return self._addresses


def facts() -> dict[str, Any]:
    uid = os.geteuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    kernel = platform.release()
    return {
        "hostname": socket.gethostname(),
        "user": user,
        "uid": uid,
        "is_root": uid == 0,
        "home": os.path.expanduser("~"),
        "identity": identity(),
        "machine_id": machine_id(),
        "boot_id": read_text("/proc/sys/kernel/random/boot_id"),
        "netns": netns(),
        "system": _system(),
        "machine": platform.machine(),
        "kernel": kernel,
        "container": _in_container(),
        "wsl": "microsoft" in kernel.lower(),
        "python": {"executable": sys.executable, "version": platform.python_version()},
        "clock_unix": time.time(),
        **cpus(),
        **memory(),
        **strain(),
        "ulimits": ulimits(),
        "session": session.facts(user),
        "firewall": firewall.facts(),
    }


def _system() -> str:
    for line in (read_text("/etc/os-release") or read_text("/usr/lib/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip().strip("\"'")
    return platform.system()


def _in_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    if read_text("/run/systemd/container"):
        return True
    groups = read_text("/proc/1/cgroup") or ""
    return any(word in groups for word in ("/docker", "/lxc", "/kubepods", "/libpod"))


class Gpus:
    """Names of the NVIDIA cards in reach; C(nvidia-smi) is slow and asked only without the driver's files."""

    def __init__(self) -> None:
        self._asked: Asked | None = None
        self._names: list[str] = []
        infos = sorted(glob.glob("/proc/driver/nvidia/gpus/*/information"))
        for info in infos:
            name, minor = _gpu(read_text(info) or "")
            # A container sees all cards of its host in /proc and only its own in /dev.
            if name and (minor is None or os.path.exists("/dev/nvidia" + minor)):
                self._names.append(name)
        smi = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/lib/wsl/lib")
        if not infos and smi:
            self._asked = Asked([smi, "--query-gpu=name", "--format=csv,noheader"], limit_s=5.0)

    def names(self) -> list[str]:
        if self._asked is not None:
            text, _problem = self._asked.answer()
            self._asked = None
            self._names = [line.strip() for line in (text or "").splitlines() if line.strip()]
        return self._names


def _gpu(text: str) -> tuple[str | None, str | None]:
    """Name and minor number from the driver's C(information) file."""
    name = minor = None
    for line in text.splitlines():
        key, _colon, value = line.partition(":")
        if key.strip() == "Model":
            name = value.strip()
        elif key.strip() == "Device Minor":
            minor = value.strip()
    return name, minor
