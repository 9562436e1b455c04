# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network namespaces for tests: small hosts on this machine, with cables between them. Needs root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

_PATHS = [path for path in sys.path if path]


def why_not() -> str | None:
    """Why this machine cannot have them."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the program ip"
    name = f"tl-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return "no network namespaces here: " + tried.stderr.strip()
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None


class Lab:
    """Namespaces with short names, removed with everything in them."""

    def __init__(self) -> None:
        self._made: list[str] = []
        self._cables = 0

    def host(self, name: str) -> str:
        full = f"tl-{os.getpid()}-{name}"
        run("ip", "netns", "add", full)
        self._made.append(full)
        self.ip(full, "link", "set", "lo", "up")
        return full

    def ip(self, host: str, *words: str) -> None:
        run("ip", "-n", host, *words)

    def cable(self, a: str, a_name: str, a_address: str, b: str, b_name: str, b_address: str) -> None:
        """A veth pair, both ends up and with an address."""
        self._cables += 1
        ends = [(a, a_name, a_address), (b, b_name, b_address)]
        temporary = [f"tl{os.getpid() % 100000}{side}{self._cables}" for side in "ab"]
        run("ip", "link", "add", temporary[0], "type", "veth", "peer", "name", temporary[1])
        for (host, name, address), there in zip(ends, temporary):
            run("ip", "link", "set", there, "netns", host, "name", name)
            self.ip(host, "address", "add", address, "dev", name, *(["nodad"] if ":" in address else []))
            self.ip(host, "link", "set", name, "up")

    def python(self, host: str, code: str, *arguments: str) -> Any:
        """Run code inside; it prints one JSON value."""
        argv = ["ip", "netns", "exec", host, sys.executable, "-c", code, *arguments]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(_PATHS)}
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def remove(self) -> None:
        for name in self._made:
            for pid in run("ip", "netns", "pids", name).split():
                os.kill(int(pid), 9)
            run("ip", "netns", "del", name)


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout


@pytest.fixture(name="lab")
def lab_fixture() -> Any:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    lab = Lab()
    try:
        yield lab
    finally:
        lab.remove()
