# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What guards end, and what they leave alone: real torchrun agents on this machine, each fault really done."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import ARGS, Cluster, until

PYTHON = os.environ.get("TORCHLAN_TORCH_PYTHON", "")
HANG = 5.0
SOON = 15.0  # for what is known at once: torchrun needs a second or two of it, a busy machine the rest

pytestmark = pytest.mark.skipif(not PYTHON, reason="TORCHLAN_TORCH_PYTHON is not set")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    one = Cluster(tmp_path / "c", PYTHON)
    yield one
    one.close()


def start(cluster: Cluster, *args: str, **plan: Any) -> None:
    words = [*ARGS, "--num-iterations=100000", "--step-seconds=0.05", *args]
    for key in range(len(cluster.nodes)):
        cluster.start(key, words, plan={"hang_timeout": HANG, **plan}, env={"TORCHDYNAMO_DISABLE": "1"})
    until(lambda: all(rank.get("step", 0) >= 3 for rank in cluster.cluster()["ranks"]))


def pid(cluster: Cluster, rank: int) -> int:
    return int(cluster.cluster()["ranks"][rank]["pid"])


def guards(cluster: Cluster, key: int) -> list[int]:
    return [
        one for one in cluster.workers(key) if b"torchlan_runner.guard" in Path(f"/proc/{one}/cmdline").read_bytes()
    ]


def all_end(cluster: Cluster, within: float) -> dict[str, Any]:
    """Every process of the run is gone in time, non-zero; returns the cause that counts."""
    began = time.monotonic()
    assert all(cluster.wait(within + SOON).values()), cluster.log(0) + cluster.log(1)
    until(lambda: not cluster.workers(0) and not cluster.workers(1), 5)
    assert time.monotonic() - began < within + SOON
    causes: list[dict[str, Any]] = cluster.cluster()["causes"]
    assert causes, cluster.log(0) + cluster.log(1)
    return causes[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank(cluster: Cluster, rank: int) -> None:
    start(cluster)
    os.kill(pid(cluster, rank), signal.SIGSTOP)
    cause = all_end(cluster, HANG)
    assert (cause["code"], cause["host"], cause["rank"]) == ("rank_frozen", f"host{rank}", rank)
    assert "state T" in cause["what"]
    for key in (0, 1):
        beat = cluster.beat(key, key)
        assert beat["state"] == "failed" and beat["causes"] == [cause]
        assert "rank_frozen" in cluster.log(key).rpartition("Root Cause")[2]  # torchrun's table


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_agent(cluster: Cluster, node: int) -> None:
    start(cluster)
    os.kill(cluster.started[node].pid, signal.SIGKILL)
    cause = all_end(cluster, 0)
    assert (cause["code"], cause["host"], cause["rank"]) == ("agent_lost", f"host{node}", node)


def test_a_killed_worker_and_its_children(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "breeds.py").write_text(
        "import subprocess, sys, torchlan_smoke\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "torchlan_smoke.main()\n"
    )
    path = f"{cluster.folder}/runner.zip:{tmp_path}"
    words = [*ARGS, "--num-iterations=100000", "--step-seconds=0.05"]
    for key in (0, 1):
        cluster.start(key, words, script="breeds", plan={"hang_timeout": HANG}, env={"PYTHONPATH": path})
    until(lambda: all(rank.get("step", 0) >= 3 for rank in cluster.cluster()["ranks"]))
    os.kill(pid(cluster, 1), signal.SIGKILL)
    cause = all_end(cluster, 0)
    assert (cause["code"], cause["host"], cause["rank"]) == ("rank_died", "host1", 1)


def test_nobody_stays_in_the_exit_barrier(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 0 has ended well, its agent waits for the other one, whose rank then fails."""
    (tmp_path / "differ.py").write_text(
        "import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(3)\n    os._exit(3)\n"
    )
    path = f"{cluster.folder}/runner.zip:{tmp_path}"
    for key in (0, 1):
        cluster.start(key, [], script="differ", plan={"hang_timeout": HANG}, env={"PYTHONPATH": path})
    until(lambda: cluster.beat(0, 0)["state"] == "finished")
    cause = all_end(cluster, 11)
    assert (cause["code"], cause["rank"]) == ("rank_died", 1)
    assert "ends the agent" in cluster.log(0)


def test_slow_is_not_hung_and_a_lost_guard_is_replaced(cluster: Cluster) -> None:
    """Rank 0 samples and saves alone for longer than the limit."""
    start(cluster, "--num-iterations=12", "--sample-every=10", f"--sample-seconds={HANG + 3}", f"--save-seconds={HANG}")
    for key in (0, 1):
        [guard] = guards(cluster, key)
        os.kill(guard, signal.SIGKILL)
        until(lambda guard=guard, key=key: guards(cluster, key) not in ([], [guard]), 5)
    assert cluster.wait() == {0: 0, 1: 0}, cluster.log(0) + cluster.log(1)
    until(lambda: not cluster.workers(0) and not cluster.workers(1), 5)
    assert cluster.cluster()["causes"] == []
    assert {rank["state"] for rank in cluster.cluster()["ranks"]} == {"finished"}


def test_ranks_that_wait_for_each_other(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "deadlock.py").write_text(
        "import torch, torch.distributed as dist\n"
        "for step in range(3): dist.all_reduce(torch.ones(1000))\n"
        "dist.broadcast(torch.ones(4), src=1 - dist.get_rank())\n"
    )
    path = f"{cluster.folder}/runner.zip:{tmp_path}"
    for key in (0, 1):
        cluster.start(key, [], script="deadlock", plan={"hang_timeout": HANG}, env={"PYTHONPATH": path})
    assert all(cluster.wait(60).values())
    cause = cluster.cluster()["causes"][0]
    assert cause["code"] == "collective_stuck", cluster.log(0)
    assert "broadcast 4" in cause["what"]
