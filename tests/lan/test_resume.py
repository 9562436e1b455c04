# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run is killed and goes on from its checkpoint, on hosts without a shared disk: no printed digit tells."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from conftest import SMALL, Cluster

TRAIN = {**SMALL, "num-iterations": 20, "save-every": 5}
KILLED_AT = 7


def launch(cluster: Cluster, run: str, playbook: str = "launch", seconds: float = 0.0, **more: Any) -> Any:
    variables = {"nanochat_train_args": {**TRAIN, "step-seconds": seconds}, **more.pop("variables", {})}
    return cluster.playbook(playbook, json.dumps(variables), run=run, **more)


def log(cluster: Cluster, run: str, host: str = "workstation") -> str:
    return cluster.lan.exec(host, "cat", f"{cluster.node_dir(host, run)}/train.log")


def losses(text: str) -> dict[int, str]:
    """What rank 0 printed, by step: every digit."""
    return {int(step): loss for step, loss in re.findall(r"^step (\d+)/\d+ .*?loss: ([\d.]+)", text, re.MULTILINE)}


def kill_at_step(cluster: Cluster, run: str, step: int) -> None:
    """The worker on laptop, as soon as rank 0 has printed the step."""
    deadline = time.monotonic() + 120
    while step not in losses(log(cluster, run)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    cluster.kill("laptop", *(p["pid"] for p in cluster.processes("laptop", run) if p["rank"] == 1))
    cluster.wait_until_gone(run, 120)


def checkpoints(cluster: Cluster, host: str, run: str) -> str:
    return cluster.node_dir(host, run).split("/runs/")[0] + f"/base_checkpoints/{run}"


def test_goes_on_as_if_nothing_had_happened(cluster: Cluster, run: str) -> None:
    result = launch(cluster, run)
    assert result.status == 0, result
    cluster.wait_until_gone(run)
    unbroken = losses(log(cluster, run))
    assert sorted(unbroken) == list(range(20))

    result = launch(cluster, run, seconds=1.0)  # from step 0: what is there is set aside, not overwritten
    assert result.status == 0, result
    kill_at_step(cluster, run, KILLED_AT)
    folder = checkpoints(cluster, "workstation", run)
    assert "model_000020.pt" in cluster.lan.exec("workstation", "ls", "-R", folder.replace(f"/{run}", "_kept"))
    assert "model_000005.pt" not in cluster.lan.exec("laptop", "ls", checkpoints(cluster, "laptop", run))

    result = launch(cluster, run, "resume")
    assert result.status == 0, result
    assert "the run goes on from step 5" in result.text
    cluster.wait_until_gone(run)
    assert losses(log(cluster, run)) == {step: loss for step, loss in unbroken.items() if step >= 5}

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
    result = launch(cluster, run, "resume", inventory=inventory)
    assert result.status == 0, result
    assert "the run goes on from step 15; newer ones are not whole: step 20: optim_000020_rank1.pt" in result.text
    cluster.wait_until_gone(run)
    home = checkpoints(cluster, "laptop", run).split("/base_checkpoints/")[0]
    text = cluster.lan.exec("laptop", "cat", f"{home}/runs/{run}/current-0/train.log")
    assert losses(text) == {step: loss for step, loss in unbroken.items() if step >= 15}
