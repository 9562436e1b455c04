# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster that is not all there, and patterns that leave hosts out: named, refused, nothing started."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import CORES, OLDEST, Cluster


def laptop_is_off(inventory: dict[str, Any]) -> None:
    """The host that is listed first has an address of its network that nobody answers for."""
    laptop = inventory["nanochat"]["children"]["workers"]["hosts"]["laptop"]
    address = ".".join([*laptop["ansible_host"].split(".")[:2], "255", "250"])
    laptop.update({"ansible_host": address, "ansible_ssh_timeout": 4})


@pytest.mark.parametrize("core", CORES)
def test_dead_host_is_named_and_nothing_starts(cluster: Cluster, run: str, core: str) -> None:
    inventory = cluster.changed_inventory("laptop-off", laptop_is_off)
    result = cluster.playbook("launch", run=run, core=core, inventory=inventory)
    assert result.status not in (0, 4), result  # 4: ansible gave up by itself
    assert result.report is not None
    assert ("host_unreachable", "laptop") in {(c["code"], c["host"]) for c in result.report["causes"]}
    assert result.report["verdict"] == "refused"
    assert not any(cluster.pids(run).values())


def test_status_and_stop_work_for_the_rest(cluster: Cluster, run: str) -> None:
    assert cluster.playbook("launch", run=run, core=OLDEST).status == 0
    inventory = cluster.changed_inventory("laptop-off", laptop_is_off)
    result = cluster.playbook("status", run=run, core=OLDEST, inventory=inventory)
    assert "training" in result.text, result
    assert "host_unreachable" in result.text, result
    result = cluster.playbook("stop", run=run, core=OLDEST, inventory=inventory)
    assert "host_unreachable" in result.text, result
    assert not cluster.pids(run)["workstation"], result


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("limit", ["workers", "master", "wrokers", "laptop,nobody"])
def test_limit_is_refused(cluster: Cluster, run: str, core: str, limit: str) -> None:
    result = cluster.playbook("launch", "--limit", limit, run=run, core=core)
    assert result.status != 0, result
    assert any(word in result.text for word in ("host_excluded", "--limit")), result
    assert not any(cluster.pids(run).values())


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", ["launch", "status", "stop"])
def test_missing_group_is_an_error(cluster: Cluster, run: str, core: str, name: str) -> None:
    inventory = cluster.write("other-group", {"lab": {"hosts": {"laptop": {"node_rank": 0}}}}).name
    result = cluster.playbook(name, run=run, core=core, inventory=inventory)
    assert result.status != 0, result
    assert "nanochat_hosts" in result.text, result


def test_stop_and_status_where_nothing_is(cluster: Cluster, run: str) -> None:
    result = cluster.playbook("stop", run=run)
    assert result.status == 0, result
    assert result.changed == 0, result
    result = cluster.playbook("status", run=run)
    assert run in result.text, result
