# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A proven run that is alive: it was started once, and is then left alone."""

from __future__ import annotations

import pytest
from conftest import CORES, Cluster


def shows_the_proof(cluster: Cluster, run: str) -> None:
    report = cluster.report(run)
    assert report is not None
    assert (report["verdict"], report["world_size"]) == ("proven", 2)
    assert {rank["host"] for rank in report["ranks"]} == {"workstation", "laptop"}
    for rank in report["ranks"]:
        assert rank["bytes_sent"] > 0
        assert rank["pid"] in cluster.pids(run)[rank["host"]]
    assert cluster.trains_together(run)


def test_absent_starts(cluster: Cluster, live: str) -> None:
    shows_the_proof(cluster, live)


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
