# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run is killed and goes on from its checkpoint, on hosts without a shared disk: no printed digit tells.

With NANOCHAT_REPO and NANOCHAT_SHARDS (a checkout of nanochat, and a folder of parquet shards) nanochat itself
is killed too.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import SMALL, Cluster, port_of

TRAIN = {**SMALL, "num-iterations": 20, "save-every": 5}
KILLED_AT = 7
END_S = 400  # twenty steps of nanochat, on cores shared with other tests
WORKLOADS: dict[str, dict[str, Any]] = {"smoke": {"nanochat_train_args": TRAIN}}
if repo := os.environ.get("NANOCHAT_REPO"):
    # Steps of a second and more by themselves, of two micro-batches: slow enough to be killed at.
    bigger = {"depth": 4, "max-seq-len": 256, "total-batch-size": 2048}
    WORKLOADS["nanochat"] = {
        "nanochat_source": "git",
        "nanochat_repo": repo,
        "nanochat_version": "HEAD",
        "nanochat_dataset_dir": os.environ["NANOCHAT_SHARDS"],
        "nanochat_tokenizer_args": {"max-chars": 5_000_000, "vocab-size": 8192},
        "nanochat_env": {"TORCHDYNAMO_DISABLE": "1"},
        "nanochat_train_args": {**TRAIN, **bigger},
        "nanochat_first_step_timeout": 300,
    }


def launch(
    cluster: Cluster, run: str, workload: str, playbook: str = "launch", seconds: float = 0.0, **more: Any
) -> Any:
    variables = {**WORKLOADS[workload], **more.pop("variables", {})}
    if workload == "smoke":
        variables["nanochat_train_args"] = {**TRAIN, "step-seconds": seconds}
    return cluster.playbook(playbook, json.dumps(variables), run=run, **more)


def log(cluster: Cluster, run: str, host: str = "workstation") -> str:
    return cluster.lan.exec(host, "cat", f"{cluster.node_dir(host, run)}/train.log")


def losses(text: str) -> dict[int, str]:
    """What rank 0 printed, by step: every digit."""
    return {int(step): loss for step, loss in re.findall(r"^step (\d+)/\d+ .*?loss: ([\d.]+)", text, re.MULTILINE)}


def kill_at_step(cluster: Cluster, run: str, step: int, host: str = "laptop") -> None:
    """The worker on a host, as soon as rank 0 has printed the step."""
    deadline = time.monotonic() + 300
    while step not in losses(log(cluster, run)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    cluster.kill(host, *(p["pid"] for p in cluster.processes(host, run) if p["rank"] is not None))


def checkpoints(cluster: Cluster, host: str, run: str) -> str:
    return cluster.node_dir(host, run).split("/runs/")[0] + f"/base_checkpoints/{run}"


def weights(cluster: Cluster, host: str, run: str) -> str:
    """Every bit of the model at the end."""
    return cluster.lan.exec(host, "sha256sum", f"{checkpoints(cluster, host, run)}/model_000020.pt").split()[0]


def unbroken_losses(cluster: Cluster, run: str, workload: str) -> dict[int, str]:
    result = launch(cluster, run, workload)
    assert result.status == 0, result
    cluster.wait_until_gone(run, END_S)
    unbroken = losses(log(cluster, run))
    assert sorted(unbroken) == list(range(20))
    return unbroken


@pytest.mark.parametrize("workload", WORKLOADS)
def test_goes_on_as_if_nothing_had_happened(cluster: Cluster, run: str, workload: str) -> None:
    unbroken = unbroken_losses(cluster, run, workload)
    trained = weights(cluster, "workstation", run)

    # From step 0: what is there is set aside, not overwritten.
    result = launch(cluster, run, workload, seconds=1.0, variables={"nanochat_relaunch": True})
    assert result.status == 0, result
    kill_at_step(cluster, run, KILLED_AT)
    cluster.wait_until_gone(run, 120)
    folder = checkpoints(cluster, "workstation", run)
    assert "model_000020.pt" in cluster.lan.exec("workstation", "ls", "-R", folder.replace(f"/{run}", "_kept"))
    assert "model_000005.pt" not in cluster.lan.exec("laptop", "ls", checkpoints(cluster, "laptop", run))

    result = launch(cluster, run, workload, "resume")
    assert result.status == 0, result
    assert "the run goes on from step 5" in result.text
    cluster.wait_until_gone(run, END_S)
    assert losses(log(cluster, run)) == {step: loss for step, loss in unbroken.items() if step >= 5}
    assert weights(cluster, "workstation", run) == trained

    # The newest is cut off, and the hosts have changed their ranks.
    path = f"{checkpoints(cluster, 'laptop', run)}/optim_000020_rank1.pt"
    cluster.lan.exec("laptop", "truncate", "-s", "-200", path)

    def swapped(inventory: dict[str, Any]) -> None:
        children = inventory["nanochat"]["children"]
        laptop = {**children["workers"]["hosts"]["laptop"], "node_rank": 0}
        workstation = {**children["master"]["hosts"]["workstation"], "node_rank": 1}
        inventory["nanochat"]["children"] = {
            "master": {"hosts": {"laptop": laptop}},
            "workers": {"hosts": {"workstation": workstation}},
        }

    inventory = cluster.changed_inventory("swapped", swapped)
    result = launch(cluster, run, workload, "resume", inventory=inventory)
    assert result.status == 0, result
    assert "the run goes on from step 15; newer ones are not whole: step 20: optim_000020_rank1.pt" in result.text
    cluster.wait_until_gone(run, END_S)
    home = checkpoints(cluster, "laptop", run).split("/base_checkpoints/")[0]
    text = cluster.lan.exec("laptop", "cat", f"{home}/runs/{run}/current-0/train.log")
    assert losses(text) == {step: loss for step, loss in unbroken.items() if step >= 15}
    assert weights(cluster, "laptop", run) == trained


@pytest.mark.parametrize("workload", WORKLOADS)
def test_goes_on_by_itself_without_a_controller(cluster: Cluster, run: str, workload: str) -> None:
    unbroken = unbroken_losses(cluster, run, workload)
    trained = weights(cluster, "workstation", run)

    variables = {"nanochat_auto_resume": 3, "nanochat_relaunch": True}
    result = launch(cluster, run, workload, seconds=1.0, variables=variables)
    assert result.status == 0, result
    kill_at_step(cluster, run, KILLED_AT)
    kill_at_step(cluster, run, 13, "workstation")
    cluster.wait_until_gone(run, END_S)
    assert losses(log(cluster, run)) == unbroken
    assert weights(cluster, "workstation", run) == trained
    result = cluster.playbook("status", run=run)
    assert result.status == 0, result
    told = re.sub(r"\s+", " ", result.text)
    assert re.search("started again by itself 2 of at most 3 times; it broke at step 1[345],", told), result
    assert "finished" in result.text
    talks = re.search(r"let it talk:\n +(ssh .*)", result.text)
    assert bool(talks) is (workload == "nanochat"), result
    if talks:
        said = cluster.lan.exec("workstation", "sh", "-c", shlex.split(talks[1])[-1], user="trainer")
        assert "The capital of France is" in said and "Unconditioned samples" in said


def cut(cluster: Cluster, host: str, seconds: float) -> None:
    """The cable is out for so long."""
    cluster.lan.exec(host, "ip", "link", "set", "eth0", "down")
    time.sleep(seconds)
    cluster.lan.exec(host, "ip", "link", "set", "eth0", "up")


def worker(cluster: Cluster, run: str, host: str, signal: str) -> None:
    cluster.kill(host, *(p["pid"] for p in cluster.processes(host, run) if p["rank"] is not None), signal=signal)


MISHAPS: list[Callable[[Cluster, str], None]] = [
    lambda cluster, run: worker(cluster, run, "laptop", "KILL"),
    lambda cluster, _run: cut(cluster, "laptop", 20),
    lambda cluster, run: worker(cluster, run, "workstation", "KILL"),
    lambda cluster, run: cluster.kill("laptop", cluster.agent("laptop", run)),
    lambda cluster, run: worker(cluster, run, "laptop", "STOP"),
    lambda cluster, _run: cut(cluster, "workstation", 20),
    lambda cluster, run: cluster.kill("workstation", cluster.agent("workstation", run)),
]


def test_a_mishap_every_two_minutes(cluster: Cluster, run: str) -> None:
    """TORCHLAN_CHAOS minutes (30 is what is asked of it) of steps of a second; no digit of a loss is another one."""
    minutes = float(os.environ.get("TORCHLAN_CHAOS", "0"))
    if not minutes:
        pytest.skip("TORCHLAN_CHAOS is not set")
    train = {"num-iterations": int(40 * minutes), "save-every": 10}
    result = launch(cluster, run, "smoke", variables={"nanochat_extra_args": train})
    assert result.status == 0, result
    cluster.wait_until_gone(run, 600)
    unbroken = losses(log(cluster, run))

    variables = {"nanochat_extra_args": train, "nanochat_auto_resume": 99, "nanochat_hang_timeout": 15}
    result = launch(cluster, run, "smoke", seconds=1.0, variables=variables)
    assert result.status == 0, result
    began = time.monotonic()
    for mishap in itertools.cycle(MISHAPS):
        if time.monotonic() > began + 60 * minutes:
            break
        before = len(re.findall("starts again", log(cluster, run)))
        mishap(cluster, run)
        next_at = time.monotonic() + 120
        while len(re.findall("starts again", log(cluster, run))) == before:
            assert time.monotonic() < next_at, log(cluster, run)[-5000:]
            time.sleep(1)
        print(f"{time.monotonic() - began:.0f} s: started again, step {max(losses(log(cluster, run)))}", flush=True)
        while time.monotonic() < next_at and any(cluster.pids(run).values()):
            time.sleep(1)
        if not any(cluster.pids(run).values()):
            break
    cluster.wait_until_gone(run, 900)
    assert losses(log(cluster, run)) == unbroken
    for host in ("workstation", "laptop"):
        assert cluster.lan.exec(host, "cat", f"{cluster.node_dir(host, run)}/exit_code").strip() == "0"
        names = cluster.lan.exec(host, "ls", checkpoints(cluster, host, run)).split()
        assert f"optim_{int(40 * minutes):06d}_rank{int(host == 'laptop')}.pt" in names
    assert f":{port_of(run)} " not in cluster.lan.exec("workstation", "ss", "-Hltn")
