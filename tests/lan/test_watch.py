# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real run is watched until it ends: in a terminal, in a pipe, and by a program that reads JSON."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import termios
import threading
import time
from typing import Any

import pytest
from conftest import CORES, OLDEST, Cluster

QUIET = {"ANSIBLE_STDOUT_CALLBACK": "torchlan.nanochat.quiet"}
WATCH = "nanochat_watch=true"


class Reader(threading.Thread):
    """Runs a playbook, in a terminal or in a pipe, and notes when each piece of its output came."""

    def __init__(
        self, cluster: Cluster, *args: str, run: str, core: str = "", columns: int = 0, playbook: str = "status"
    ) -> None:
        super().__init__(daemon=True)
        argv, env = cluster.command(playbook, *args, run=run, core=core)
        self.end, stdout = os.openpty() if columns else os.pipe()
        if columns:
            fcntl.ioctl(stdout, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        output = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": subprocess.PIPE if columns else stdout}
        self.child = subprocess.Popen(argv, cwd=cluster.user, env={**env, "TERM": "xterm"}, **output)  # type: ignore[call-overload]
        os.close(stdout)
        self.pieces: list[tuple[float, str]] = []
        self.start()

    def run(self) -> None:
        while True:
            try:
                piece = os.read(self.end, 65536)
            except OSError:  # how the other side of a terminal ends
                piece = b""
            if not piece:
                return
            self.pieces.append((time.monotonic(), piece.decode(errors="replace")))

    @property
    def text(self) -> str:
        return "".join(piece for _at, piece in self.pieces).replace("\r\n", "\n")

    def wait(self) -> float:
        """Until the playbook has ended; returns when."""
        assert self.child.wait(240) == 0, self.text
        self.join(10)
        print(self.text)
        return time.monotonic()


@pytest.mark.parametrize("core", sorted({OLDEST, next(iter(CORES))}))
def test_watch_until_the_end(cluster: Cluster, run: str, core: str) -> None:
    args = "nanochat_extra_args='{\"num-iterations\": 80}'"
    assert cluster.playbook("launch", args, run=run).status == 0
    screen = Reader(cluster, WATCH, run=run, core=core, columns=80)
    lines = Reader(cluster, WATCH, run=run, core=core)
    over = min(screen.wait(), lines.wait())

    for reader in (screen, lines):
        assert "the run has ended: exit code 0" in reader.text
        assert f"run {run}: finished" in reader.text.split("exit code 0")[1]
        assert next(at for at, piece in reader.pieces if "step " in piece) < over - 5, "while it went on"
    seen = [int(step) for step in re.findall(r"^[\d:]{8}  step (\d+) of 80", lines.text, re.MULTILINE)]
    assert seen == sorted(seen) and seen[-1] == 80 and len(seen) >= 2
    assert "\x1b" not in lines.text
    frames = screen.text.split("exit code 0")[0].split(f"run {run}, attempt ")[1:]
    assert len(frames) > len(seen) and all("\x1b[J" in frame and "[#" in frame for frame in frames)
    assert max(len(line.split("\x1b")[0]) for frame in frames for line in frame.split("\n")[1:]) <= 79
    assert screen.text.count("\x1b[8F") == len(frames) - 1, "each takes the place of the one before"


@pytest.mark.parametrize("core", sorted({OLDEST, next(iter(CORES))}))
def test_status_for_a_program(cluster: Cluster, run: str, core: str) -> None:
    assert cluster.playbook("launch", run=run).status == 0
    for name, status, state in ((run, 0, "running"), ("nosuch", 0, "absent")):
        argv, env = cluster.command("status", "nanochat_json=true", WATCH, run=name, core=core)
        done: Any = subprocess.run(
            argv, cwd=cluster.user, env={**env, **QUIET}, capture_output=True, text=True, timeout=120, check=False
        )
        made = json.loads(done.stdout)
        assert (done.returncode, made["run"], made["state"]) == (status, name, state), done
        assert len(made["ranks"]) == (2 if name == run else 0)
