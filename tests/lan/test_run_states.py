# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of run states; molecule/default has the usual ones by the newest core."""

from __future__ import annotations

import json

from conftest import OLDEST, Cluster


def test_alive_is_left_alone(cluster: Cluster, run: str) -> None:
    assert cluster.playbook("launch", run=run, core=OLDEST).status == 0
    before = cluster.pids(run)
    result = cluster.playbook("launch", run=run, core=OLDEST)
    assert (result.status, result.changed) == (0, 0), result
    result = cluster.playbook("launch", "nanochat_extra_args=matrix-lr=0.03", run=run, core=OLDEST)
    assert result.status != 0, result
    assert result.codes == {"run_differs"}
    assert "matrix-lr" in result.text
    assert cluster.pids(run) == before
    assert all(before.values())


def test_half_alive_and_relaunch(cluster: Cluster, run: str) -> None:
    assert cluster.playbook("launch", run=run).status == 0
    guard = next(one["pid"] for one in cluster.processes("laptop", run) if "torchlan_runner.guard" in str(one["argv"]))
    cluster.kill("laptop", guard, signal="STOP")  # or it would end the whole run
    cluster.kill("laptop", cluster.agent("laptop", run))  # its worker trains on, an orphan
    before = cluster.pids(run)
    assert all(before.values())
    result = cluster.playbook("launch", run=run)
    assert result.status != 0, result
    assert result.codes == {"half_alive"}
    assert cluster.pids(run) == before

    for attempts, options in ((2, []), (3, ["nanochat_extra_args=matrix-lr=0.03"])):  # half alive, then alive
        result = cluster.playbook("launch", "nanochat_relaunch=true", *options, run=run)
        assert result.status == 0, result
        after = cluster.pids(run)
        assert all(after.values())
        assert not any(set(before[host]) & set(after[host]) for host in after)
        assert len(cluster.attempts(run)) == attempts
        before = after


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
    assert cluster.playbook("launch", short, "nanochat_relaunch=true", run=run).status == 0
    assert len(cluster.attempts(run)) == 2


def test_ended_gets_a_new_attempt(cluster: Cluster, run: str) -> None:
    assert cluster.playbook("launch", run=run).status == 0
    for way in (stop, let_fail, reboot):
        way(cluster, run)
        cluster.wait_until_gone(run, 90)
        before = cluster.attempts(run)
        result = cluster.playbook("launch", run=run)
        assert result.status == 0, result
        assert len(cluster.attempts(run) - before) == 1, way.__name__
        assert cluster.trains_together(run)


def stop(cluster: Cluster, run: str) -> None:
    result = cluster.playbook("stop", run=run)
    assert result.status == 0, result


def let_fail(cluster: Cluster, run: str) -> None:
    worker = next(process for process in cluster.processes("laptop", run) if process["rank"] == 1)
    cluster.kill("laptop", worker["pid"])


def reboot(cluster: Cluster, run: str) -> None:
    """No container has a kernel to boot: the processes are gone at once, and the record is from another boot."""
    folders = {host: cluster.node_dir(host, run) for host in cluster.pids(run)}
    cluster.end(run)
    for host, folder in folders.items():
        record = json.loads(cluster.lan.exec(host, "cat", f"{folder}/run.json"))
        record["boot_id"] = "00000000-0000-0000-0000-000000000000"
        cluster.lan.exec(host, "tee", f"{folder}/run.json", stdin=json.dumps(record))
        cluster.lan.exec(host, "rm", "-f", f"{folder}/exit_code")
