# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker's end of its guard: starts it, sends it every beat, and ends when it says so."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from typing import Any, Callable

from torchlan_runner.agree import Board
from torchlan_runner.beat import Beat

TIMEOUT = 1.0
RESTARTS = 5
# The guard is no worker: what torchrun tells workers reaches it by the channel instead.
_OF_TORCHRUN = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
)  # fmt: skip
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from torchlan_runner.guard import main; main()"


class Ward:
    def __init__(self, beat: Beat, ended: Callable[[dict[str, Any]], None]) -> None:
        self.beat, self.plan, self._ended = beat, beat.plan, ended
        self.where: dict[str, Any] | None = None  # where rank 0's guard listens
        self._saves: str | None = None  # the folder whose older checkpoints this guard deletes
        self._listener: socket.socket | None = None
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._lock = threading.Lock()
        if self.plan.rank == 0:
            self._listen()
        with self._lock:
            self._start()
        beat.listeners.append(self.send)

    def publish(self, board: Board) -> None:
        if self._listener is not None:
            board.put("guard", self.where)

    def connect(self, board: Board) -> None:
        """For the other ranks: as soon as rank 0 has said where."""
        if self.where is None and board.has(["guard"]):
            self.where = board.get("guard")
            with self._lock:
                self._say({"where": self.where})

    def keep(self, folder: str) -> None:
        self._saves = folder
        with self._lock:
            self._say({"saves": folder})

    def send(self, beat: dict[str, Any]) -> None:
        with self._lock:
            if not self._say({"beat": beat}) and self._start():
                self._say({"beat": beat})

    def _listen(self) -> None:
        """Here, not in the guard: a second one goes on at the same place."""
        address = self.plan.address or "127.0.0.1"
        try:
            listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            listener.bind((address, 0))
            listener.listen(256)
        except OSError as error:
            self.beat.say_once("its guard can't listen on %s: %s" % (address, error))
            return
        self._listener = listener
        self.where = {"address": address, "port": listener.getsockname()[1], "token": secrets.token_hex(16)}

    def _start(self) -> bool:
        if self._starts > RESTARTS:
            return False
        self._starts += 1
        try:
            self._drop()
            ours, theirs = socket.socketpair()
            listener = self._listener.fileno() if self._listener is not None else -1
            root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-I", "-c", _CODE, root, str(theirs.fileno()), str(listener)],
                env={name: value for name, value in os.environ.items() if name not in _OF_TORCHRUN},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[fd for fd in (theirs.fileno(), listener) if fd >= 0],
                start_new_session=True,
                cwd="/",
            )
            theirs.close()
        except (OSError, subprocess.SubprocessError) as error:
            self.beat.say_once("the guard can't be started, so nothing ends this run if it hangs: %s" % error)
            return False
        if self._starts > 1:
            self.beat.say_once("the guard had ended or stopped; another one was started")
        ours.settimeout(TIMEOUT)
        self._channel = ours
        environ = {name: os.environ[name] for name in _OF_TORCHRUN if name in os.environ}
        self._say({"environ": environ, "worker": os.getpid(), "agent": os.getppid(), "where": self.where,
                   "saves": self._saves})  # fmt: skip
        threading.Thread(target=self._listen_to, args=(ours,), name="torchlan-guard", daemon=True).start()
        return True

    def _say(self, message: dict[str, Any]) -> bool:
        if self._channel is None:
            return False
        try:
            self._channel.sendall(json.dumps(message).encode("utf-8") + b"\n")
            return True
        except OSError:
            self._drop()
            return False

    def _drop(self) -> None:
        """Before another one comes: a guard that was stopped must not wake up beside it."""
        if self._channel is not None:
            try:
                self._channel.shutdown(socket.SHUT_RDWR)  # wakes the thread that listens to it
            except OSError:
                pass
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                pass
            self._process = None

    def _listen_to(self, channel: socket.socket) -> None:
        text = b""
        while True:
            try:
                data = channel.recv(1 << 16)
            except socket.timeout:
                continue
            except OSError:
                return
            if not data:
                return
            text += data
            if text.endswith(b"\n"):
                try:
                    self._ended(json.loads(text)["end"])
                except (ValueError, KeyError):
                    return
