# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes on this host belong to which run, and how to signal exactly those.

A run's processes are known by C(TORCHLAN_RUN_DIR) in their environment: workers have their own session, orphans have
PPID 1, ports and command lines are shared by runs; the environment is inherited by all and by nobody else.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from typing import Any

RUN_DIR_VARIABLE = "TORCHLAN_RUN_DIR"
_RUN_DIR = re.compile(
    r"(?s)(?P<base>.*)/runs/(?P<run>[A-Za-z0-9_-]+)/attempts/(?P<attempt>[A-Za-z0-9_-]+)/node-(?P<node>\d+)/*"
)

# Programs that inherit RANK from a worker and may outlive it; an orphan of these is no trainer.
_HELPER_WORDS = (
    "torch/_inductor/compile_worker",
    "torch._inductor.compile_worker",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "multiprocessing.spawn",
)
_SUPERVISOR = "torchlan_runner.again"  # starts torchrun again after a failure
_GUARD = "from torchlan_runner.guard import"  # how runner/torchlan_runner/ward.py starts it


@dataclass(frozen=True)
class RunDir:
    """The value of C(TORCHLAN_RUN_DIR), taken apart."""

    path: str
    base_dir: str
    run: str
    attempt: str
    node_rank: int

    @classmethod
    def parse(cls, path: str) -> RunDir | None:
        match = _RUN_DIR.fullmatch(path)
        if not match:
            return None
        return cls(path, match["base"] or "/", match["run"], match["attempt"], int(match["node"]))


@dataclass(frozen=True)
class Process:
    """One live process of a run."""

    pid: int
    ppid: int
    started: float
    argv: tuple[str, ...]
    rank: int | None
    world_size: int | None
    where: RunDir
    role: str = "helper"

    def as_dict(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "ppid": self.ppid,
            "role": self.role,
            "rank": self.rank,
            "attempt": self.where.attempt,
            "command": " ".join(self.argv)[:300],
            "started": round(self.started, 2),
        }


def all_processes() -> list[Process]:
    """All live processes of this user that belong to any run of the collection, without this one and its ancestors."""
    found: dict[int, Process] = {}
    own = _own_line()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in own:
            process = _read(int(name))
            if process:
                found[process.pid] = process
    return [_with_role(process, found) for _pid, process in sorted(found.items())]


def processes(base_dir: str, run: str, node_rank: int) -> list[Process]:
    """The live processes of this node's part of a run, of all its attempts.

    :param base_dir: as a real path; a process that was started through a symbolic link is found all the same.
    """
    return [entry for entry in all_processes() if belongs(entry.where, base_dir, run, node_rank)]


def belongs(where: RunDir, base_dir: str, run: str, node_rank: int) -> bool:
    if (where.run, where.node_rank) != (run, node_rank):
        return False
    return where.base_dir == base_dir or os.path.realpath(where.base_dir) == os.path.realpath(base_dir)


def send_signal(process: Process, number: int) -> bool:
    """Signal a process if it still is the one that was seen; a process id may be somebody else's by now.

    :returns: False when it is gone.
    """
    try:
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return False
    except OSError:  # a kernel before 5.3, or a sandbox
        handle = None
    try:
        now = _read(process.pid)
        if now is None or now.where != process.where or abs(now.started - process.started) > 1:
            return False
        if handle is not None and hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _own_line() -> set[int]:
    line = set()
    pid = os.getpid()
    while pid > 1 and pid not in line:
        line.add(pid)
        stat = _stat(pid)
        pid = stat[1] if stat else 0
    return line


def _read(pid: int) -> Process | None:
    """The process, if it is this user's, alive and of a run. All of it may vanish while it is read."""
    folder = "/proc/%d" % pid
    try:
        if os.stat(folder).st_uid != os.geteuid():
            return None
        with open(folder + "/environ", "rb") as file:
            raw = file.read()
        if RUN_DIR_VARIABLE.encode() not in raw:
            return None
        with open(folder + "/cmdline", "rb") as file:
            argv = tuple(os.fsdecode(part) for part in file.read().split(b"\0")[:-1])
    except OSError:
        return None
    environ: dict[str, str] = {}
    for entry in raw.split(b"\0"):
        key, sign, value = entry.partition(b"=")
        if sign:
            environ.setdefault(os.fsdecode(key), os.fsdecode(value))
    where = RunDir.parse(environ.get(RUN_DIR_VARIABLE, ""))
    stat = _stat(pid)
    if where is None or stat is None or stat[0] in "ZX":
        return None
    return Process(
        pid, stat[1], stat[2], argv, _integer(environ.get("RANK")), _integer(environ.get("WORLD_SIZE")), where
    )


def _stat(pid: int) -> tuple[str, int, float] | None:
    """State, parent and start time (unix) of a process."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[1]), _boot_time() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _boot_time() -> float:
    with open("/proc/stat", encoding="utf-8") as file:
        for line in file:
            if line.startswith("btime "):
                return float(line.split()[1])
    return 0.0


def _with_role(process: Process, found: dict[int, Process]) -> Process:
    parent = found.get(process.ppid)
    values = dict(process.__dict__, role=_role(process, parent))
    return Process(**values)


def _role(process: Process, parent: Process | None) -> str:
    if process.rank is not None:
        # Helpers of a worker (inductor, data loaders, the guard) inherit RANK: the trainer's parent has none.
        command = " ".join(process.argv)
        if (parent and parent.rank is not None) or any(word in command for word in _HELPER_WORDS):
            return "helper"
        return "worker"
    if any(_GUARD in arg for arg in process.argv[:6]):
        return "guard"
    if process.argv[1:3] == ("-m", _SUPERVISOR):
        return "supervisor"
    if _is_agent(process.argv):
        return "helper" if parent and _is_agent(parent.argv) else "agent"
    program = os.path.basename(process.argv[0]) if process.argv else ""
    if program == "tee" or (program in ("bash", "sh", "dash") and any(arg.endswith("/run.sh") for arg in process.argv)):
        return "session"
    return "helper"


def _is_agent(argv: tuple[str, ...]) -> bool:
    """Whether this is torchrun: C(python … -m torch.distributed.run …), or its script."""
    for index, arg in enumerate(argv[:8]):
        if arg == "-m":
            return argv[index + 1 : index + 2] == ("torch.distributed.run",)
        if os.path.basename(arg) == "torchrun" or arg.endswith("torch/distributed/run.py"):
            return True
    return False


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
