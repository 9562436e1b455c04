# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a play: the cluster, or an error that says why not."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.torchlan.nanochat.plugins.filter.cluster import FilterModule, cluster

GROUPS = {
    "all": ["b", "a", "c", "other"],
    "nanochat": ["b", "a", "c"],
    "master": ["a"],
    "workers": ["b", "c"],
    "empty": [],
}


@pytest.mark.parametrize("hosts", [None, "", []])
def test_the_group_in_the_order_of_the_inventory(hosts: Any) -> None:
    assert cluster(GROUPS, hosts) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        (["c", "a"], ["c", "a"]),
        ("c,a", ["c", "a"]),
        ("c, a", ["c", "a"]),
        ("c a", ["c", "a"]),
        ("other", ["other"]),
        ("master,workers", ["a", "b", "c"]),
        (["b", "workers", "b"], ["b", "c"]),
    ],
)
def test_names_of_hosts_and_groups(hosts: Any, names: list[str]) -> None:
    assert cluster(GROUPS, hosts) == names


def test_the_list_is_a_new_one() -> None:
    cluster(GROUPS).append("x")
    assert GROUPS["nanochat"] == ["b", "a", "c"]


@pytest.mark.parametrize("groups", [{}, {"all": ["a"]}, {"all": ["a"], "nanochat": []}])
def test_no_group(groups: dict[str, list[str]]) -> None:
    with pytest.raises(
        AnsibleFilterError, match=r"group_missing: .*'nanochat'.*its groups: (none|all|all, nanochat)\).*-i"
    ):
        cluster(groups)


@pytest.mark.parametrize("hosts", ["a,typo", ["typo"], "typo"])
def test_unknown_name(hosts: Any) -> None:
    with pytest.raises(AnsibleFilterError, match=r"group_missing: .*'typo'.*Fix: one of a, all, b"):
        cluster(GROUPS, hosts)


def test_limit_that_leaves_nobody() -> None:
    with pytest.raises(AnsibleFilterError, match=r"host_excluded: --limit .*\(b, a, c\)"):
        cluster(GROUPS, None, ["other"])
    with pytest.raises(AnsibleFilterError, match="host_excluded"):
        cluster(GROUPS, "a", [])


def test_limit_that_leaves_some_is_for_the_verdict_to_judge() -> None:
    assert cluster(GROUPS, None, ["c"]) == ["b", "a", "c"]


def test_its_name() -> None:
    assert FilterModule().filters()["cluster"] is cluster
