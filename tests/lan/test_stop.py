# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""stop.yml: everything of this run goes, from whatever state; nothing of another run does."""

from __future__ import annotations

import subprocess
import time

import pytest
from conftest import Cluster, port_of

# Rank 0 ends well, rank 1 badly and later: agent 0 then waits in torchrun's exit barrier, for 300 s, deaf to SIGTERM.
ENDS_DIFFERENTLY = """
import os, sys, time
if os.environ["RANK"] == "0":
    sys.exit(0)
time.sleep(1)
os._exit(3)
"""


def test_killed_agent_leaves_nothing_and_another_run_goes_on(cluster: Cluster, run: str) -> None:
    other = f"{run}-2"  # a name that has the first one's as its beginning
    assert cluster.playbook("launch", run=run).status == 0
    assert cluster.playbook("launch", run=other).status == 0
    try:
        before = cluster.pids(other)
        cluster.kill("laptop", cluster.agent("laptop", run))
        result = cluster.playbook("stop", run=run)
        assert result.status == 0, result
        assert not any(cluster.pids(run).values()), result
        assert cluster.pids(other) == before
        assert cluster.trains_together(other)
    finally:
        cluster.end(other)


def test_agent_in_its_exit_barrier(cluster: Cluster, run: str) -> None:
    repo = cluster.home / "ends-differently"
    (repo / "scripts").mkdir(parents=True)
    (repo / "scripts" / "__init__.py").touch()
    (repo / "scripts" / "base_train.py").write_text(ENDS_DIFFERENTLY)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for argv in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *argv], cwd=repo, check=True)
    # not one byte of these is read: the script that is launched ends before
    files = "base_data_climbmix/shard_00000.parquet base_data_climbmix/shard_00001.parquet tokenizer/tokenizer.pkl"
    make = f"cd && for f in {files} tokenizer/token_bytes.pt; do mkdir -p ends/${{f%/*}} && echo x >ends/$f; done"
    for host, of in cluster.lan.hosts.items():
        cluster.lan.exec(host, "su", "--login", "--command", make, of["user"])
    base = "nanochat_base_dir=~/ends"
    result = cluster.playbook(
        *("launch", "nanochat_source=git", f"nanochat_repo='{repo}'", "nanochat_version=HEAD", "nanochat_runner=false"),
        *("nanochat_dir=~/ends-differently", base, "nanochat_dataset_shards=1"),
        *("nanochat_keep_failed=true", "nanochat_torch=torch", "nanochat_join_timeout=30"),
        """nanochat_env='{"TORCHDYNAMO_DISABLE": "1"}\'""",  # nothing that needs a compiler
        run=run,
    )
    assert result.report is not None
    assert (result.status != 0, result.report["verdict"]) == (True, "failed"), result
    assert cluster.agent("workstation", run)  # it waits
    began = time.monotonic()
    result = cluster.playbook("stop", base, run=run)
    assert result.status == 0, result
    assert time.monotonic() - began < 30  # the barrier takes 300
    assert not any(cluster.pids(run).values())
    assert f":{port_of(run)} " not in cluster.lan.exec("workstation", "ss", "-Hltn")


def test_stop_and_status_where_nothing_is(cluster: Cluster, run: str) -> None:
    result = cluster.playbook("stop", run=run)
    assert result.status == 0, result
    assert result.changed == 0, result
    result = cluster.playbook("status", run=run)
    assert run in result.text, result


@pytest.mark.parametrize("playbook", ["status", "logs", "collect", "stop"])
def test_a_name_that_cannot_be_is_refused_with_words(cluster: Cluster, run: str, playbook: str) -> None:
    result = cluster.playbook(playbook, '{"nanochat_run": "two words"}', run=run)
    assert result.status != 0, result
    assert "nanochat_run='two words' is not a run name  [setting_invalid]" in result.text, result
