# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts real torchrun agents with the runner on this machine, and ends every process of theirs afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "plugins" / "plugin_utils"))

import runner_zip  # noqa: E402

ARGS = ["--depth=2", "--max-seq-len=64", "--device-batch-size=2", "--num-iterations=6", "--eval-every=-1"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(check: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if check():
                return
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


class Cluster:
    """Nodes of one run; what differs per node goes into `start`."""

    def __init__(self, folder: Path, python: str, nproc: tuple[int, ...] = (1, 1), join_timeout: float = 20.0) -> None:
        self.folder, self.python, self.join_timeout = folder, python, join_timeout
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "runner.zip").write_bytes(runner_zip.build())
        self.port = free_port()
        self.attempt = time.strftime("%Y%m%d-%H%M%S")
        self.nodes: list[dict[str, Any]] = [
            {"node_rank": rank, "host": f"host{rank}", "address": "127.0.0.1", "nproc": count}
            for rank, count in enumerate(nproc)
        ]
        self.started: dict[int, subprocess.Popen[bytes]] = {}

    def node_dir(self, key: int) -> Path:
        return self.folder / f"node-{key}"

    def environment(
        self, key: int, plan: dict[str, Any] | None = None, env: dict[str, str] | None = None
    ) -> dict[str, str]:
        directory = self.node_dir(key)
        directory.mkdir(parents=True, exist_ok=True)
        whole = {
            "run": "t",
            "attempt": self.attempt,
            "device": "cpu",
            "host": f"host{key}",
            "node_rank": key,
            "nnodes": len(self.nodes),
            "world_size": sum(node["nproc"] for node in self.nodes),
            "nodes": self.nodes,
            "ifname": "lo",
            "join_timeout": self.join_timeout,
            "compare_env": ["OMP_NUM_THREADS"],
            "fingerprint": {"commit": "smoke", "args": {"depth": 2}},
            **(plan or {}),
        }
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("NANOCHAT_", "TORCH"))},
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "NANOCHAT_DTYPE": "float32",
            "NANOCHAT_BASE_DIR": str(directory / "base"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(self.folder / "runner.zip"),
            "TORCHLAN_RUN_DIR": str(directory),
            "TORCHLAN_PLAN": json.dumps(whole),
            **(env or {}),
        }

    def start(
        self,
        key: int,
        args: list[str] | None = None,
        script: str = "torchlan_smoke",
        plan: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        node_rank: int | None = None,
        nnodes: int | None = None,
        python: str | None = None,
        cwd: str | None = None,
        runner: bool = True,
        again: int = 0,
    ) -> None:
        nproc = self.nodes[key]["nproc"] if key < len(self.nodes) else 1
        supervisor = [self.python, "-m", "torchlan_runner.again", f"--times={again}", "--"] if again else []
        command = [
            *supervisor,
            python or self.python,
            "-m",
            "torch.distributed.run",
            f"--nnodes={nnodes or len(self.nodes)}",
            f"--nproc_per_node={nproc}",
            f"--node_rank={key if node_rank is None else node_rank}",
            "--master_addr=127.0.0.1",
            f"--master_port={self.port}",
            f"--rdzv_id=t.{self.attempt}",
            "--rdzv-conf=timeout=20",
            "-m",
            *(["torchlan_runner"] if runner else []),
            script,
            "--",
            *(ARGS if args is None else args),
        ]
        self._popen(key, command, self.environment(key, plan, env), cwd)

    def start_bare(
        self, rank: int, args: list[str] | None = None, plan: dict[str, Any] | None = None, key: int | None = None
    ) -> None:
        """A worker as torchrun would start it, without an agent: `serve_store` stands in for the agent's store."""
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(len(self.nodes)),
            "GROUP_WORLD_SIZE": str(len(self.nodes)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RUN_ID": f"t.{self.attempt}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        key = rank if key is None else key
        command = [self.python, "-m", "torchlan_runner", "torchlan_smoke", "--", *(ARGS if args is None else args)]
        self._popen(key, command, self.environment(key, plan, env), None)

    def serve_store(self, seconds: int = 60) -> None:
        code = (
            "import sys, time, datetime\n"
            "from torch.distributed import TCPStore\n"
            "wait = datetime.timedelta(seconds=5)\n"
            "s = TCPStore('127.0.0.1', int(sys.argv[1]), None, True, wait, wait_for_workers=False)\n"
            "time.sleep(float(sys.argv[2]))\n"
        )
        self._popen(99, [self.python, "-c", code, str(self.port), str(seconds)], dict(os.environ), None)

    def _popen(self, key: int, command: list[str], env: dict[str, str], cwd: str | None) -> None:
        directory = self.node_dir(key)
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / "train.log", "ab") as log:
            self.started[key] = subprocess.Popen(
                command,
                env=env,
                cwd=cwd or str(directory),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, seconds: float = 150) -> dict[int, int | None]:
        """Exit codes of the nodes; None for one that had to be given up on."""
        deadline = time.monotonic() + seconds
        codes: dict[int, int | None] = {}
        for key, process in self.started.items():
            if key == 99:
                continue
            try:
                codes[key] = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                codes[key] = None
        return codes

    def log(self, key: int) -> str:
        return (self.node_dir(key) / "train.log").read_text(errors="replace")

    def beat(self, key: int, rank: int) -> dict[str, Any]:
        beat: dict[str, Any] = json.loads((self.node_dir(key) / "beats" / f"rank-{rank}.json").read_text())
        return beat

    def cluster(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads((self.node_dir(0) / "cluster.json").read_text())
        return seen

    def workers(self, key: int) -> list[int]:
        """Pids whose environment says that they belong to this node's part of this run."""
        mark = f"TORCHLAN_RUN_DIR={self.node_dir(key)}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    environ = Path("/proc", name, "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if mark in environ:
                    found.append(int(name))
        return found

    def close(self) -> None:
        for process in self.started.values():
            if process.poll() is None:
                process.kill()
                process.wait(10)
        for key in list(self.started):
            for pid in self.workers(key):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
