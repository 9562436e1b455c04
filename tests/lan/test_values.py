# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values on their way to the program: byte for byte, never through a shell, and secrets nowhere else."""

from __future__ import annotations

import json

import pytest
from conftest import CORES, Cluster

HOSTILE = """a 'b' "c" $(touch /tmp/owned) `touch /tmp/owned` ; & | \\ %s {{ 1 }} *
second line ü"""
# Jinja is the inventory author's own language: what shall not be read as Jinja is marked !unsafe
UNSAFE = f"!unsafe {json.dumps(HOSTILE)}"


def of_worker(cluster: Cluster, host: str, run: str, what: str) -> list[str]:
    """argv or environment of a host's worker, from /proc."""
    rank = 0 if host == "workstation" else 1
    worker = next(process for process in cluster.processes(host, run) if process["rank"] == rank)
    return cluster.lan.exec(host, "cat", f"/proc/{worker['pid']}/{what}").split("\0")


def test_hostile_values_arrive_unread_by_any_shell(cluster: Cluster, run: str) -> None:
    (cluster.user / "hostile").write_text(
        f"nanochat_extra_args:\n  model-tag: {UNSAFE}\nnanochat_env:\n  HOSTILE: {UNSAFE}\n"
    )
    result = cluster.playbook("launch", "@hostile", run=run)
    assert result.status == 0, result
    for host in ("workstation", "laptop"):
        assert f"--model-tag={HOSTILE}" in of_worker(cluster, host, run, "cmdline")
        assert f"HOSTILE={HOSTILE}" in of_worker(cluster, host, run, "environ")
        assert "owned" not in cluster.lan.exec(host, "ls", "/tmp")


def test_secret_is_found_nowhere(cluster: Cluster, run: str) -> None:
    secret = "tell-nobody-4711"  # whole, and no part of another value
    values = cluster.write("secrets", {"nanochat_secret_env": {"WANDB_API_KEY": secret, "SHORT": "1"}})
    for options in (["--check", "--diff"], ["--diff"], ["--diff"]):  # predicted, started, left alone
        result = cluster.playbook("launch", f"@{values.name}", "-vvv", *options, run=run)
        assert result.status == 0, result
        assert secret not in result.text
        assert secret not in json.dumps(result.report)
    assert result.report is not None
    assert result.report["world_size"] == 2  # the secret value 1 has censored nothing
    for host in ("workstation", "laptop"):
        assert f"WANDB_API_KEY={secret}" in of_worker(cluster, host, run, "environ")
        assert secret not in cluster.lan.exec(host, "ps", "-ewwo", "args")
        folder = cluster.node_dir(host, run)
        files = cluster.lan.exec(host, "bash", "-c", f"grep -rl {secret} /home /srv /tmp /var/log || true").splitlines()
        assert files == [f"{folder}/env"]
        assert cluster.lan.exec(host, "stat", "-c", "%a", f"{folder}/env").strip() == "600"
    for name in ("status", "stop"):
        result = cluster.playbook(name, f"@{values.name}", "-vvv", "--diff", run=run)
        assert secret not in result.text


STRINGS = [
    "nanochat_relaunch=true",
    "nanochat_extra_args='num-iterations=900000 matrix-lr=0.03'",  # ansible splits -e at spaces outside quotes
    "nanochat_runner=yes",
    "nanochat_keep_failed=no",
    "nanochat_master_port=29400",
    "nanochat_join_timeout=25",
    "nanochat_first_step_timeout=120",
    "nanochat_hang_timeout=30",
    "nanochat_omp_num_threads=1",
    "nproc_per_node=1",
    "nanochat_device_type=cpu",
    "nanochat_tracker=none",
    "nanochat_socket_ifname=eth0",
    "nanochat_dir=~/elsewhere",
    "nanochat_base_dir=~/.cache/nanochat",
    "nanochat_script=scripts.base_train",
    "nanochat_dataset_shards=8",
    "nanochat_report_dir=./nanochat-runs",
    "nanochat_preflight_ignore=versions_differ",
    """nanochat_env='{"FROM_STRING": "yes"}\'""",
    "nanochat_torch=torch==2.13.0",
    "nanochat_pip_args=--no-cache-dir",
]


@pytest.mark.parametrize("core", CORES)
def test_every_option_as_a_string(cluster: Cluster, run: str, core: str) -> None:
    result = cluster.playbook("launch", *STRINGS, run=run, core=core)
    assert result.status == 0, result
    argv = of_worker(cluster, "laptop", run, "cmdline")
    assert "--num-iterations=900000" in argv
    assert "--matrix-lr=0.03" in argv
    assert "FROM_STRING=yes" in of_worker(cluster, "laptop", run, "environ")
    again = [word for word in STRINGS if "relaunch" not in word]
    result = cluster.playbook("launch", *again, "nanochat_relaunch=false", run=run, core=core)
    assert (result.status, result.changed) == (0, 0), result
