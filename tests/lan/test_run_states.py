# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every row of the table of run states: what launch does with a run that is there already."""

from __future__ import annotations

import json

import pytest
from conftest import CORES, Cluster


@pytest.mark.parametrize("core", CORES)
def test_absent_starts(cluster: Cluster, run: str, core: str) -> None:
    result = cluster.playbook("launch", run=run, core=core)
    assert result.status == 0, result
    assert result.report is not None
    assert (result.report["verdict"], result.report["world_size"]) == ("proven", 2)
    assert all(rank["bytes_sent"] > 0 for rank in result.report["ranks"])
    assert {rank["host"]: rank["pid"] for rank in result.report["ranks"]}.keys() == {"workstation", "laptop"}
    for rank in result.report["ranks"]:
        assert rank["pid"] in cluster.pids(run)[rank["host"]]
    assert cluster.trains_together(run)


@pytest.mark.parametrize("core", CORES)
def test_alive_is_left_alone(cluster: Cluster, live: str, core: str) -> None:
    before = cluster.pids(live)
    result = cluster.playbook("launch", run=live, core=core)
    assert result.status == 0, result
    assert result.changed == 0, result
    assert result.report is not None
    assert result.report["verdict"] == "proven"
    assert cluster.pids(live) == before
    assert all(before.values())


def test_alive_with_another_configuration_is_refused(cluster: Cluster, live: str) -> None:
    before = cluster.pids(live)
    result = cluster.playbook("launch", "nanochat_extra_args=matrix-lr=0.03", run=live)
    assert result.status != 0, result
    assert result.codes == {"run_differs"}
    assert "matrix-lr" in result.text
    assert cluster.pids(live) == before


def test_relaunch_ends_the_old_one(cluster: Cluster, run: str) -> None:
    assert cluster.playbook("launch", run=run).status == 0
    before = cluster.pids(run)
    result = cluster.playbook("launch", "nanochat_relaunch=true", "nanochat_extra_args=matrix-lr=0.03", run=run)
    assert result.status == 0, result
    after = cluster.pids(run)
    assert all(after.values())
    assert not any(set(before[host]) & set(after[host]) for host in after)
    assert len(cluster.attempts(run)) == 2


def test_half_alive_needs_relaunch(cluster: Cluster, run: str) -> None:
    assert cluster.playbook("launch", run=run).status == 0
    cluster.kill("laptop", cluster.agent("laptop", run))  # its worker trains on, an orphan
    before = cluster.pids(run)
    assert all(before.values())
    result = cluster.playbook("launch", run=run)
    assert result.status != 0, result
    assert result.codes == {"half_alive"}
    assert cluster.pids(run) == before
    result = cluster.playbook("launch", "nanochat_relaunch=true", run=run)
    assert result.status == 0, result
    assert not any(set(before[host]) & set(pids) for host, pids in cluster.pids(run).items())


def test_finished_shows_the_stored_proof(cluster: Cluster, run: str) -> None:
    short = "nanochat_extra_args=num-iterations=40"
    assert cluster.playbook("launch", short, run=run).status == 0
    cluster.wait_until_gone(run)
    attempts = cluster.attempts(run)
    result = cluster.playbook("launch", short, run=run)
    assert result.status == 0, result
    assert result.changed == 0, result
    assert result.report is not None
    assert (result.report["verdict"], result.report["state"]) == ("proven", "finished")
    assert "nanochat_relaunch" in result.text
    assert cluster.attempts(run) == attempts
    result = cluster.playbook("launch", short, "nanochat_relaunch=true", run=run)
    assert result.status == 0, result
    assert len(cluster.attempts(run)) == 2


@pytest.mark.parametrize("how", ["stopped", "failed", "rebooted"])
def test_ended_gets_a_new_attempt(cluster: Cluster, run: str, how: str) -> None:
    assert cluster.playbook("launch", run=run).status == 0
    if how == "stopped":
        assert cluster.playbook("stop", run=run).status == 0
    elif how == "failed":
        worker = next(process for process in cluster.processes("laptop", run) if process["rank"] == 1)
        cluster.kill("laptop", worker["pid"])
        cluster.wait_until_gone(run, 90)
    else:  # no host can be rebooted here: its processes are gone, and the record is from another boot
        folders = {host: cluster.node_dir(host, run) for host in cluster.pids(run)}
        cluster.end(run)
        for host, folder in folders.items():
            record = json.loads(cluster.lan.exec(host, "cat", f"{folder}/run.json"))
            record["boot_id"] = "00000000-0000-0000-0000-000000000000"
            cluster.lan.exec(host, "tee", f"{folder}/run.json", stdin=json.dumps(record))
            cluster.lan.exec(host, "rm", "-f", f"{folder}/exit_code")
    cluster.wait_until_gone(run)
    before = cluster.attempts(run)
    result = cluster.playbook("launch", run=run)
    assert result.status == 0, result
    assert len(cluster.attempts(run) - before) == 1
    assert cluster.trains_together(run)
