# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults really done to training runs: the cause, the host and rank that are named, the time until all have ended.

One run is started after the other on the same two hosts under the same name and port, so that each start proves that
the fault before it left nothing behind. TORCHLAN_LONG=1 does all faults, otherwise a few of each kind are done.
TORCHLAN_WRITE_TABLE=1 writes docs/faults.md with the times that were measured.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import Cluster, Result, port_of
from engine import docker
from lan import ROOT, wait_for_port

HANG = 10  # nanochat_hang_timeout
SOON = 8  # seconds for what is known at once, on hosts that share two cores with other tests
LONG = os.environ.get("TORCHLAN_LONG") == "1"
RUN = "faults"
TABLE = ROOT / "docs" / "faults.md"
HOSTS = ("workstation", "laptop")
BASE = "/home/trainer/.cache/nanochat"


@dataclass
class Fault:
    """What is done, and what must be said about it."""

    name: str
    do: Callable[[Cluster], None]
    code: str  # as status shows it
    host: str
    rank: int
    within: float = HANG + SOON
    prepare: Callable[[Cluster], None] | None = None  # before the launch, where the fault then comes by itself
    undo: Callable[[Cluster], None] | None = None  # when all that can act has ended
    args: dict[str, Any] = field(default_factory=dict)
    long: bool = False


def pid(cluster: Cluster, host: str) -> int:
    return next(one["pid"] for one in cluster.processes(host, RUN) if one["rank"] is not None)


def kill_worker(host: str, name: str = "KILL") -> Callable[[Cluster], None]:
    return lambda cluster: cluster.kill(host, pid(cluster, host), signal=name)


def kill_agent(host: str) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.kill(host, cluster.agent(host, RUN))


def on(host: str, *argv: str) -> Callable[[Cluster], None]:
    return lambda cluster: _exec(cluster, host, *argv)


def container(word: str, host: str) -> Callable[[Cluster], None]:
    return lambda cluster: _docker(word, cluster.lan.container(host))


def kill_tmux(cluster: Cluster) -> None:
    user = cluster.lan.hosts["laptop"]["user"]
    cluster.lan.exec("laptop", "tmux", "-L", "torchlan", "kill-server", user=user)


def small_disk(cluster: Cluster) -> None:
    """The master saves its checkpoints to a small file system that is nearly full."""
    folder = f"{BASE}/base_checkpoints"
    script = f"fallocate -l 62M /dev/shm/full; mkdir -p {BASE}; rm -rf {folder}; ln -s /dev/shm {folder}"
    cluster.lan.exec("workstation", "sh", "-ec", script, user="trainer")


def usual_disk(cluster: Cluster) -> None:
    cluster.lan.exec("workstation", "sh", "-ec", f"rm -rf /dev/shm/* {BASE}/base_checkpoints")


def starve(cluster: Cluster) -> None:
    """The worker's host gets 20 MB more than its processes hold, and then something else takes 60 MB."""
    files = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")
    text = cluster.lan.exec("laptop", "sh", "-c", f"cat {' '.join(files)} 2>/dev/null || true")
    held = {name: int(value) for name, value in (line.split() for line in text.splitlines())}
    used = held.get("total_rss", held.get("anon", 0)) + held.get("total_shmem", held.get("shmem", 0))
    _memory(cluster, str(used + 20_000_000))
    cluster.lan.exec("laptop", "sh", "-c", "dd if=/dev/zero of=/dev/shm/full bs=1M count=60 2>/dev/null || true")


def feed(cluster: Cluster) -> None:
    cluster.lan.exec("laptop", "rm", "-f", "/dev/shm/full")
    _memory(cluster, "3g")


def _memory(cluster: Cluster, limit: str) -> None:
    _docker("update", "--memory", limit, "--memory-swap", limit, cluster.lan.container("laptop"))


def restart(cluster: Cluster) -> None:
    before = cluster.lan.addresses("laptop")
    docker("restart", "--time", "0", cluster.lan.container("laptop"))
    assert cluster.lan.addresses("laptop") == before
    wait_for_port(before["lan"], 22)


def drop(word: str) -> Callable[[Cluster], None]:
    """What the master sends no longer arrives at the worker; what the worker sends does."""

    def one_way(cluster: Cluster) -> None:
        source = cluster.lan.addresses("workstation")["lan"]
        cluster.lan.exec("laptop", "iptables", word, "INPUT", "-s", source, "-j", "DROP")

    return one_way


def nothing(_cluster: Cluster) -> None:
    return


def _exec(cluster: Cluster, host: str, *argv: str) -> None:
    cluster.lan.exec(host, *argv)


def _docker(*words: str) -> None:
    docker(*words)


FAULTS = [
    Fault("worker process killed", kill_worker("laptop"), "rank_died", "laptop", 1, SOON),
    Fault("the worker's agent killed", kill_agent("laptop"), "agent_lost", "laptop", 1, SOON, long=True),
    Fault("the master's agent killed", kill_agent("workstation"), "agent_lost", "workstation", 0, SOON),
    Fault("SIGSTOP of one rank", kill_worker("laptop", "STOP"), "rank_frozen", "laptop", 1),
    Fault("SIGSTOP of rank 0", kill_worker("workstation", "STOP"), "rank_frozen", "workstation", 0, long=True),
    Fault(
        "container paused for good",
        container("pause", "laptop"),
        "rank_silent",
        "laptop",
        1,
        undo=container("unpause", "laptop"),
    ),
    Fault(
        "link down on the worker",
        on("laptop", "ip", "link", "set", "eth0", "down"),
        "link_lost",
        "laptop",
        1,
        undo=on("laptop", "ip", "link", "set", "eth0", "up"),
    ),
    Fault(
        "link down on the master",
        on("workstation", "ip", "link", "set", "eth0", "down"),
        "link_lost",
        "workstation",
        0,
        undo=on("workstation", "ip", "link", "set", "eth0", "up"),
        long=True,
    ),
    Fault("packets dropped one way", drop("-I"), "link_lost", "laptop", 1, undo=drop("-D")),
    Fault("tmux server killed", kill_tmux, "ended_from_outside", "laptop", 1, SOON),
    Fault("host rebooted (container restarted)", restart, "rank_died", "laptop", 1),
    Fault(
        "disk full at a save",
        nothing,
        "disk_full",
        "workstation",
        0,
        SOON,
        prepare=small_disk,
        undo=usual_disk,
        args={"save-every": 5},
    ),
    Fault(
        "exception in one rank at step 3",
        nothing,
        "exception",
        "laptop",
        1,
        SOON,
        args={"fail-at-step": 3, "fail-rank": 1},
        long=True,
    ),
    Fault(
        "out of memory in one rank",
        starve,
        "out_of_memory",
        "laptop",
        1,
        undo=feed,
        long=True,
    ),
]


@dataclass
class Row:
    """A line of the table."""

    what: str
    code: str
    where: str
    ended: str


@pytest.fixture(scope="module")
def table() -> Iterator[list[Row]]:
    rows: list[Row] = []
    yield rows
    if os.environ.get("TORCHLAN_WRITE_TABLE") == "1":
        TABLE.write_text(text_of(rows))


def text_of(rows: list[Row]) -> str:
    lines = [
        "# Faults",
        "",
        "What `tests/lan/test_faults.py` did to training runs on two hosts (smoke workload, Docker LAN, real ssh), the",
        f"cause that was named, and the seconds until every rank had ended, with `nanochat_hang_timeout: {HANG}`.",
        "After each, nothing was left (processes, port, session) and the next launch trained. Written by the test with",
        "`TORCHLAN_LONG=1 TORCHLAN_WRITE_TABLE=1`.",
        "",
        "| fault | cause | where | all ended |",
        "|---|---|---|---|",
        *(f"| {row.what} | {row.code} | {row.where} | {row.ended} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.end(RUN)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault(cluster: Cluster, fault: Fault, table: list[Row], clean: None) -> None:
    if fault.long and not LONG:
        pytest.skip("TORCHLAN_LONG is not set")
    if fault.prepare:
        fault.prepare(cluster)
    result = launch(cluster, **fault.args)
    try:
        assert fault.do is nothing or result.status == 0, result
        paths = {host: cluster.node_dir(host, RUN) for host in HOSTS}
        began = time.time()
        fault.do(cluster)
        ended = all_ended(cluster, began + fault.within + SOON, but=fault.host if "paused" in fault.name else None)
    finally:
        if fault.undo:
            fault.undo(cluster)
    cluster.wait_until_gone(RUN, HANG + 2 * SOON)
    assert f":{port_of(RUN)} " not in cluster.lan.exec("workstation", "ss", "-Hltn")
    seen = picture(cluster, paths)
    if fault.do is nothing:  # it came by itself
        began = min(rank["error"]["time"] for rank in seen["ranks"] if rank.get("error"))
        ended = max(rank["time"] for rank in seen["ranks"])
    result = cluster.playbook("status", run=RUN)
    shown = re.search(r"\n +error: .*?\[(\w+)\]\n", result.text, re.DOTALL)
    cause = next(one for one in seen["causes"] if one["weight"] == "error")
    assert (cause["host"], cause["rank"]) == (fault.host, fault.rank), (seen["causes"], result)
    assert shown and shown[1] == fault.code, (seen["causes"], result)
    assert ended - began < fault.within
    where = f"rank {fault.rank} on the {'master' if fault.rank == 0 else 'worker'}"
    table.append(Row(fault.name, f"`{fault.code}`", where, f"{ended - began:.1f} s"))


def test_a_controller_that_is_killed_during_a_launch(cluster: Cluster, table: list[Row], clean: None) -> None:
    """What was started by then goes on or ends by itself; the next launch says what there is, or starts anew."""
    if not LONG:
        pytest.skip("TORCHLAN_LONG is not set")
    controller = cluster.start_playbook("launch", *words(), run=RUN)
    until(lambda: any(cluster.pids(RUN).values()), 60)
    os.killpg(controller.pid, signal.SIGKILL)
    controller.wait()
    result = cluster.playbook("launch", *words(), "nanochat_relaunch=true", run=RUN)
    assert result.status == 0, result
    assert cluster.trains_together(RUN)
    table.append(
        Row("the controller and its ssh connections killed during a launch", "-", "-", "the next launch trains")
    )


def test_slow_is_not_hung(cluster: Cluster, table: list[Row], clean: None) -> None:
    """A link of 1 Mbit/s, and rank 0 samples and saves alone for longer than the limit; then it trains on."""
    if not LONG:
        pytest.skip("TORCHLAN_LONG is not set; tests/smoke/test_guard.py has a short one")
    seconds = 600
    alone = {"sample-every": 25, "sample-seconds": 180, "save-every": 50, "save-seconds": 120}
    result = launch(cluster, **alone)
    assert result.status == 0, result
    cluster.lan.exec("laptop", *"tc qdisc add dev eth0 root tbf rate 1mbit burst 32kb latency 400ms".split())
    try:
        paths = {host: cluster.node_dir(host, RUN) for host in HOSTS}
        first = picture(cluster, paths)["ranks"][0]["step"]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            seen = picture(cluster, paths)
            assert seen["causes"] == [], seen["causes"]
            assert {rank["state"] for rank in seen["ranks"]} == {"training"}
            time.sleep(1)
    finally:
        cluster.lan.exec("laptop", "tc", "qdisc", "del", "dev", "eth0", "root")
    until(lambda: picture(cluster, paths)["ranks"][0]["step"] > first + 3, 400)
    assert picture(cluster, paths)["causes"] == []
    assert cluster.playbook("stop", run=RUN).status == 0
    what = "link of 1 Mbit/s, rank 0 samples for three minutes and saves for two"
    table.append(Row(what, "none", "-", f"it trains on; no alarm in {seconds} s"))


def words(**args: Any) -> list[str]:
    extra = json.dumps({"num-iterations": 1_000_000, **args})
    env = json.dumps({"TORCHDYNAMO_DISABLE": "1"})
    return [f"nanochat_extra_args='{extra}'", f"nanochat_env='{env}'", f"nanochat_hang_timeout={HANG}"]


def launch(cluster: Cluster, **args: Any) -> Result:
    """Without nanochat_relaunch: what is left of the run before would be half a run, and refused."""
    return cluster.playbook("launch", *words(**args), run=RUN)


def until(check: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s"
        time.sleep(0.2)


def all_ended(cluster: Cluster, deadline: float, but: str | None) -> float:
    """When no worker was there any more on all hosts that can act."""
    while seen := {host: left for host in HOSTS if host != but and (left := workers(cluster, host))}:
        assert time.time() < deadline, f"workers are still there: {seen}"
        time.sleep(0.2)
    return time.time()


def picture(cluster: Cluster, paths: dict[str, str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(cluster.lan.exec("workstation", "cat", f"{paths['workstation']}/cluster.json"))
    return answer


def workers(cluster: Cluster, host: str) -> list[int]:
    """Workers of the run that are there, past the collection."""
    script = (
        f"grep -lz '^TORCHLAN_RUN_DIR=.*/runs/{RUN}/' /proc/[0-9]*/environ 2>/dev/null | xargs -r grep -lz '^RANK='"
    )
    text = cluster.lan.exec(host, "sh", "-c", script + " 2>/dev/null || true")
    return [int(line.split("/")[2]) for line in text.split() if line.startswith("/proc/")]
