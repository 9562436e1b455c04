# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process on a host that gives and takes files of an exchange, on its own after the module that started it ended.

So all hosts transfer at the same time, whatever C(forks) is. There is one for a folder; a new one ends the one before,
which is known by its process id and start time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import threading
import time
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.detached import detach
from ansible_collections.torchlan.nanochat.plugins.module_utils.host import identity
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_exchange import Exchange
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_fetch import Fetcher
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_files import Workplace
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_server import Server
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import expand, write_atomic

_LOOK_S = 1.0
_END_S = 5.0


def state_file(folder: str) -> str:
    """Where the agent of a folder is noted. Homes and folders may be shared by hosts."""
    text = identity() + "\0" + os.path.realpath(folder)
    name = hashlib.sha256(os.fsencode(text)).hexdigest()[:24]
    return expand(f"~/.cache/torchlan/share/{name}.json")


def start(exchange: Exchange, address: str) -> int:
    """Start the agent; the port it listens on. Call it before any thread exists: it forks.

    :raises BlockingIOError: a process that is not known works in the folder.
    :raises OSError: the address is not one of this host's, or the folder or the home cannot be written.
    """
    note = state_file(exchange.folder)
    os.makedirs(os.path.dirname(note), mode=0o700, exist_ok=True)
    server = Server(address)
    try:
        workplace = workplace_for(exchange)
    except OSError:
        server.server_close()
        raise
    port = int(server.server_address[1])
    ready, told = os.pipe()

    def live() -> None:
        signal.signal(signal.SIGTERM, _terminated)
        write_atomic(note, json.dumps({"pid": os.getpid(), "started": _started(os.getpid())}).encode(), 0o600)
        os.write(told, b"1")
        os.close(told)
        _live(exchange, server, workplace, note)

    detach(live, [server.fileno(), told, *([workplace.handle] if workplace else [])], "torchlan-share")
    os.close(told)
    with os.fdopen(ready, "rb") as answer:
        alive = answer.read()
    server.server_close()
    if workplace:
        os.close(workplace.handle)  # the agent holds it on
    if not alive:
        raise OSError(f"the agent could not write {note}")
    return port


def workplace_for(exchange: Exchange) -> Workplace | None:
    """The hidden folder, without what an earlier exchange left for files that nobody wants now."""
    if not exchange.parts and not os.path.isdir(Workplace.path(exchange.folder)):
        return None
    workplace = Workplace(exchange.folder)
    workplace.clean(exchange.parts.values())
    return workplace


def end_old(folder: str) -> None:
    """End the agent of a folder, if there is one."""
    note = state_file(folder)
    try:
        with open(note, encoding="utf-8") as file:
            seen = json.load(file)
        pid, started = int(seen["pid"]), str(seen["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + _END_S
        while _started(pid) == started and time.monotonic() < until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(0.05)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(note)


def _started(pid: int) -> str | None:
    """When a process started, in ticks since boot; C(None): it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        # As long as one of its threads is in a flush, even a killed process keeps its sockets and locks.
        ended = fields[0] in "ZX" and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return None
    return None if ended else fields[19]


def _terminated(_number: int, _frame: Any) -> None:
    raise SystemExit


def _live(exchange: Exchange, server: Server, workplace: Workplace | None, note: str) -> None:
    try:
        signal.alarm(int(exchange.limits.whole) + 60)  # ends it, whatever happens
        fetcher = Fetcher(exchange)
        server.exchange, server.tell = exchange, fetcher.tell
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while exchange.look_after():
            with exchange.changed:
                exchange.changed.wait(_LOOK_S)
        until = time.monotonic() + _END_S
        for thread in fetcher.threads:  # they still tell their peers that this host is done
            thread.join(max(0.0, until - time.monotonic()))
    finally:
        if workplace:
            workplace.leave()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(note)
