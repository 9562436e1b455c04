# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One launch with everything at once that is unusual and allowed, by the oldest core."""

from __future__ import annotations

from typing import Any

from conftest import OLDEST, Cluster


def everybody_with_sudo(inventory: dict[str, Any]) -> None:
    inventory["nanochat"]["children"]["workers"]["hosts"]["laptop"]["ansible_user"] = "grace"
    inventory["nanochat"]["vars"] = {**inventory["nanochat"]["vars"], "ansible_become": True}


def test_become_for_everything_and_two_forks(cluster: Cluster, run: str) -> None:
    inventory = cluster.changed_inventory("with-become", everybody_with_sudo)
    result = cluster.playbook("launch", "--forks", "2", run=run, inventory=inventory, core=OLDEST)
    assert result.status == 0, result
    assert result.report is not None
    assert result.report["verdict"] == "proven"
    # reports are the user's, on the controller
    assert (cluster.user / "nanochat-runs" / run / "report.json").owner() == cluster.user.owner()
    assert cluster.playbook("stop", run=run, inventory=inventory).status == 0
    assert not any(cluster.pids(run).values())
