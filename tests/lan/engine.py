# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Docker engine that the test LAN runs on: use a running one, else start one when that is possible.

python3 tests/lan/engine.py start | stop        stop ends only an engine that start (or a test) began
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

CACHE = Path(os.environ.get("TORCHLAN_CACHE") or Path.home() / ".cache" / "torchlan")
STARTED = CACHE / "dockerd.json"
LOG = CACHE / "dockerd.log"
CONTAINERD_PID = Path("/var/run/docker/containerd/containerd.pid")


class LanError(Exception):
    """Something that a person has to do before the test LAN can work; the text says what."""


def docker(*argv: str, check: bool = True, stdin: str | None = None, timeout: float = 600) -> str:
    """Run the docker client and return its output; an error shows the command and what it printed."""
    done = subprocess.run(["docker", *argv], input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode != 0:
        raise LanError(
            f"docker {' '.join(argv[:4])} … ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
        )
    return done.stdout


def apt_install(*packages: str) -> None:
    """Install Debian packages; only ever called as root."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]):
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LanError(f"{' '.join(argv)} failed: {(done.stdout + done.stderr).strip()[-2000:]}")


def running() -> bool:
    """Whether an engine answers this user."""
    if not shutil.which("docker"):
        return False
    done = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, timeout=60, check=False
    )
    return done.returncode == 0


def ensure_engine(say: Callable[[str], None] = print) -> None:
    """Return when an engine answers; start dockerd for that when root; raise LanError with the way out otherwise."""
    if running():
        return
    if os.geteuid() != 0:
        raise LanError(
            "No Docker engine answers you. Start it (sudo systemctl start docker) and join its group "
            "(sudo usermod -aG docker $USER, then log in again), or run this as root."
        )
    if not (shutil.which("dockerd") and shutil.which("docker")):
        if not shutil.which("apt-get"):
            raise LanError("dockerd or the docker client is missing, and there is no apt-get to install them with.")
        say("Installing a Docker engine: apt-get install docker.io")
        apt_install("docker.io", "iptables")
        if not shutil.which("docker"):  # newer releases package the client apart
            apt_install("docker-cli")
    _forget_dead_engine()
    CACHE.mkdir(parents=True, exist_ok=True)
    say(f"Starting dockerd, its log is {LOG}")
    with LOG.open("ab") as log:
        process = subprocess.Popen(
            ["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    STARTED.write_text(json.dumps({"pid": process.pid, "start": _start_time(process.pid)}))
    deadline = time.monotonic() + 60
    while not running():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(LOG.read_text(errors="replace").splitlines()[-8:])
            stop_engine()
            raise LanError(f"dockerd did not come up; the end of {LOG}:\n{tail}")
        time.sleep(0.3)


def _forget_dead_engine() -> None:
    """Remove the pid files of an engine that was killed: dockerd would refuse to start while a zombie has its pid."""
    for path, program in ((Path("/var/run/docker.pid"), "dockerd"), (CONTAINERD_PID, "containerd")):
        try:
            pid = int(path.read_text())
        except (OSError, ValueError):
            continue
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            name = ""
        if name != program or _start_time(pid) is None:
            path.unlink(missing_ok=True)


def stop_engine() -> bool:
    """End the dockerd that ensure_engine started; leave every other one alone. Says whether it ended one."""
    try:
        mine = json.loads(STARTED.read_text())
    except (OSError, ValueError):
        return False
    pid = int(mine["pid"])
    STARTED.unlink()
    if _start_time(pid) != mine["start"]:  # the pid belongs to somebody else by now
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while _start_time(pid) == mine["start"] and time.monotonic() < deadline:
        time.sleep(0.2)
    return True


def _start_time(pid: int) -> str | None:
    """The start time of a live process, which tells a pid from its reuse; None for a dead one or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["start"]:
            ensure_engine()
        elif sys.argv[1:] == ["stop"]:
            stop_engine()
        else:
            sys.exit(__doc__)
    except LanError as error:
        sys.exit(f"test LAN: {error}")
