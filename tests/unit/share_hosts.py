# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that share files: a folder and an agent each, all on this machine, or each in a network namespace."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

from ansible_collections.torchlan.nanochat.plugins.module_utils import share_agent
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_fetch import Link
from ansible_collections.torchlan.nanochat.plugins.modules import share

TOKEN = "0123456789abcdef" * 2
ENTRY = (
    "import json, sys; from ansible_collections.torchlan.nanochat.plugins.modules import share;"
    "from ansible_collections.torchlan.nanochat.plugins.module_utils.share_exchange import Limits;"
    "step, params, limits = json.loads(sys.stdin.read());"
    "print(json.dumps(share.offer(params, False, Limits(**limits)) if step == 'offer' else share.fetch(params, False)))"
)

Files = list[dict[str, Any]]


def content(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def entry(name: str, data: bytes) -> dict[str, Any]:
    return {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def make(folder: Path, sizes: dict[str, int]) -> Files:
    """Files with these sizes, all with contents of their own."""
    files = []
    for number, (name, size) in enumerate(sizes.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(size, number))
        files.append(entry(name, path.read_bytes()))
    return files


def names(files: Files) -> list[str]:
    return [str(one["name"]) for one in files]


class Host:
    """One host. C(inside) are words in front of a command, which make it run in a namespace."""

    def __init__(self, name: str, folder: Path, address: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        self.name, self.folder, self.address, self._inside = name, folder, address, inside
        self.port = 0

    def run(self, step: str, params: dict[str, Any], limits: dict[str, float] | None = None) -> dict[str, Any]:
        """As a module does it. An offer forks, and therefore comes from a process of its own."""
        if step == "fetch" and not self._inside:
            return share.fetch({"token": TOKEN, **params}, False)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        argv = [*self._inside, sys.executable, "-c", ENTRY]
        text = json.dumps([step, {"folder": str(self.folder), "token": TOKEN, **params}, limits or {}])
        done = subprocess.run(argv, input=text, stdout=subprocess.PIPE, text=True, env=env, timeout=60, check=True)
        return dict(json.loads(done.stdout))

    def offer(
        self, files: Files, have: Sequence[str] = (), replace: Sequence[str] = (), **limits: float
    ) -> dict[str, Any]:
        params = {"address": self.address, "files": files, "have": list(have), "replace": list(replace)}
        result = self.run("offer", params, limits)
        self.port = result["port"]
        return result

    def fetch(self, offers: dict[str, Any], wait_s: float = 0) -> dict[str, Any]:
        return self.run("fetch", {"self": self.name, "offers": offers, "wait_s": wait_s})

    def until_done(self, offers: dict[str, Any]) -> dict[str, Any]:
        result = self.fetch(offers, 5)
        while result["state"] == "working":
            result = self.fetch(offers, 5)
        return result

    def state(self) -> dict[str, Any]:
        """The agent's own account; it is not asked for the result by that while it works."""
        link = Link(self.address, self.port, TOKEN, 5)
        try:
            return link.ask("GET", "/state")
        finally:
            link.close()

    @property
    def note(self) -> Path:
        return Path(share_agent.state_file(str(self.folder)))

    def pid(self) -> int:
        return int(json.loads(self.note.read_text())["pid"])

    def kill(self) -> None:
        """As a crash does it."""
        pid = self.pid()
        os.kill(pid, signal.SIGKILL)
        until_gone(pid)


def alive(pid: int) -> bool:
    return share_agent._started(pid) is not None


def until_gone(pid: int) -> None:
    until(lambda: not alive(pid))


def until(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """Wait for something that is to come."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def offers_of(hosts: Sequence[Host], have: dict[str, Sequence[str]]) -> dict[str, Any]:
    return {
        host.name: {"address": host.address, "port": host.port, "have": list(have.get(host.name, ()))} for host in hosts
    }


class Cable:
    """Between two hosts, as a proxy: it can be cut or held after a number of bytes of the answers."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.limit: int | None = None
        self.passed = 0
        self.cuts = 0
        self.cutting = False
        self.held = threading.Event()
        self._free = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def release(self) -> None:
        self.limit = None
        self._free.set()

    def close(self) -> None:
        self._listening.close()
        self.release()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listening.accept()[0]
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near, socket.create_connection(("127.0.0.1", self._to)) as far:
            while True:
                for one in select.select([near, far], [], [])[0]:
                    data = one.recv(65536)
                    if not data:
                        return
                    if one is far:
                        self.passed += len(data)
                        if self.limit is not None and self.passed > self.limit:
                            if self.cutting:
                                self.limit, self.cuts = None, self.cuts + 1
                                return
                            self.held.set()
                            self._free.wait()
                    (far if one is near else near).sendall(data)


@contextlib.contextmanager
def cable(host: Host) -> Iterator[Cable]:
    made = Cable(host.port)
    try:
        yield made
    finally:
        made.close()
