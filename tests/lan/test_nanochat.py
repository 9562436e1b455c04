# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A repository, shards and a tokenizer, brought to two hosts and trained there.

The repository is tests/fixtures/minichat; with NANOCHAT_REPO and NANOCHAT_SHARDS (a checkout of nanochat, and a folder
of parquet shards) it is the real one. With NANOCHAT_FORK too (a checkout of a fork that opens a Gloo group by itself)
both are compared.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import CORES, Cluster
from minichat import commit, write_shards

REAL = os.environ.get("NANOCHAT_REPO")
# The run of the mission, and without compiling.
TRAIN_ARGS = {
    "depth": 4,
    "aspect-ratio": 64,
    "head-dim": 64,
    "max-seq-len": 512 if REAL else 64,
    "device-batch-size": 2,
    "total-batch-size": 2048 if REAL else 256,
    "num-iterations": 10,
    "warmup-steps": 2,
    "eval-every": 5,
    "eval-tokens": 2048 if REAL else 1024,
    "core-metric-every": -1,
    "sample-every": 10,
}


@pytest.fixture(scope="module")
def nanochat(cluster: Cluster) -> dict[str, Any]:
    """The variables of a run of nanochat, with a source and data on the controller."""
    if REAL:
        repo, shards = Path(REAL), Path(os.environ["NANOCHAT_SHARDS"])
    else:
        repo, shards = cluster.home / "a source" / "nanochat", cluster.home / "the shards"
        commit(repo)
        write_shards(shards)
    return {
        "nanochat_source": "git",
        "nanochat_repo": str(repo),
        "nanochat_version": "HEAD",
        "nanochat_dataset_dir": str(shards),
        "nanochat_tokenizer_args": {"max-chars": 20_000_000} if REAL else {"vocab-size": 512},
        "nanochat_env": {"TORCHDYNAMO_DISABLE": "1"},
        "nanochat_train_args": TRAIN_ARGS,
        "nanochat_first_step_timeout": 300,
    }


def bpb(cluster: Cluster, run: str) -> list[float]:
    """Every validation loss that rank 0 printed."""
    log = cluster.lan.exec("workstation", "cat", f"{cluster.node_dir('workstation', run)}/train.log")
    return [float(text) for text in re.findall(r"Validation bpb: ([0-9.]+)", log)]


@pytest.mark.parametrize("core", CORES)
def test_from_a_source_to_a_proven_run(cluster: Cluster, run: str, nanochat: dict[str, Any], core: str) -> None:
    variables = json.dumps(nanochat)
    result = cluster.playbook("launch", variables, run=run, core=core)
    assert result.status == 0, result
    assert result.report is not None
    assert (result.report["verdict"], result.report["world_size"], result.report["backend"]) == ("proven", 2, "gloo")
    assert result.report["evidence"]["equal_parameters"]["equal"] is True
    for rank in result.report["evidence"]["ranks"]:
        assert min(rank["bytes_sent"], rank["bytes_received"]) >= rank["bytes_needed"] > 0
    cluster.wait_until_gone(run, 300)
    losses = bpb(cluster, run)
    assert len(losses) == 3  # at steps 0, 5 and 10
    assert REAL or losses[2] < losses[0]  # ten steps with such a short warm-up teach nanochat little
    print(f"validation bpb at steps 0, 5 and 10: {losses}")

    again = cluster.playbook("launch", variables, run=run, core=core)
    assert (again.status, again.changed) == (0, 0), again
    warm = cluster.playbook("launch", variables, "nanochat_relaunch=true", run=run, core=core)
    assert warm.status == 0, warm
    assert warm.report is not None
    assert warm.report["remote_tasks_before_agents"] == 3
    assert not {"checkout", "environment", "dataset"} & set(warm.report["timings_s"])


def test_without_the_runner_nothing_is_exchanged(cluster: Cluster, run: str, nanochat: dict[str, Any]) -> None:
    variables = {**nanochat, "nanochat_runner": False}
    variables["nanochat_train_args"] = {**TRAIN_ARGS, "num-iterations": 1_000_000, "eval-every": -1, "sample-every": -1}
    result = cluster.playbook("launch", json.dumps(variables), run=run)
    assert result.status != 0, result
    assert result.codes == {"not_distributed"}
    assert result.report is not None
    assert result.report["verdict"] == "failed"
    assert not any(cluster.pids(run).values()), "it was ended on both hosts"
    log = cluster.lan.exec("workstation", "cat", f"{cluster.node_dir('workstation', run)}/train.log")
    assert log.count("\nstep 0") >= 1, "it did train, alone"


def finished_bpb(cluster: Cluster, run: str, status: bool, **variables: Any) -> float:
    """The last validation loss of a run that goes on to its end."""
    result = cluster.playbook("launch", json.dumps(variables), run=run)
    assert (result.status == 0) is status, result
    cluster.wait_until_gone(run, 300)
    losses = bpb(cluster, run)
    assert len(losses) == 3
    return losses[-1]


@pytest.mark.skipif(
    not (REAL and os.environ.get("NANOCHAT_FORK")), reason="needs nanochat and a fork of it, which CI cannot fetch"
)
def test_upstream_learns_what_the_fork_learns(cluster: Cluster, run: str, nanochat: dict[str, Any]) -> None:
    # Nanochat's own warm-up of 40 steps. With two, ten steps end where the last bit of one step, from another number of
    # threads or from the fork's older optimizer, moves the second digit of the loss.
    calm = {name: value for name, value in TRAIN_ARGS.items() if name != "warmup-steps"}
    nanochat = {**nanochat, "nanochat_train_args": calm}
    fork = {**nanochat, "nanochat_repo": os.environ["NANOCHAT_FORK"], "nanochat_dir": "~/fork"}
    together = finished_bpb(cluster, f"{run}-a", True, **nanochat)
    by_fork = finished_bpb(cluster, f"{run}-b", True, **fork)
    alone = finished_bpb(cluster, f"{run}-c", False, **nanochat, nanochat_runner=False, nanochat_keep_failed=True)
    print(f"validation bpb: upstream {together}, fork {by_fork}, upstream without synchronisation {alone}")
    assert round(together, 4) == round(by_fork, 4)
    assert abs(alone - together) > 50 * abs(together - by_fork)
