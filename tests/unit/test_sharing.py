# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who fetches what environments are made from, and who gets it from whom."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import sharing

HOSTS = ["one", "two", "three"]
FILES = [{"name": "torch.whl", "size": 3, "sha256": "aa"}]


def look(key: str = "k", needed: bool = True, files: Any = None) -> dict[str, Any]:
    return {"key": key, "needed": needed, "files": files, "folder": f"/wheels/{key}"}


def plan(looks: dict[str, Any], method: str = "pip", linked: list[str] | None = None) -> dict[str, Any]:
    return sharing.make(looks, HOSTS, dict.fromkeys(HOSTS, method), HOSTS if linked is None else linked)


def test_one_fetches_for_all_that_are_alike() -> None:
    made = plan({"one": look(), "two": look(), "three": look()})
    assert made == {"hosts": HOSTS, "fetch": {"one": True}, "from": {"two": "one", "three": "one"}}


def test_other_pythons_are_another_group() -> None:
    made = plan({"one": look("a"), "two": look("b"), "three": look("b")})
    assert made["fetch"] == {"one": False, "two": True}
    assert made["from"] == {"three": "two"}


def test_who_has_the_files_already_gives_them() -> None:
    looks = {"one": look(), "two": look(needed=False, files=FILES), "three": look()}
    made = plan(looks)
    assert made == {"hosts": ["one", "three"], "fetch": {}, "from": {"one": "two", "three": "two"}}
    shares = sharing.exchanges(made, looks, {})
    assert {host: share["have"] for host, share in shares.items()} == {"two": ["torch.whl"], "one": [], "three": []}
    assert all(share["files"] == FILES and share["group"] == "k" for share in shares.values())


@pytest.mark.parametrize(("method", "fetch"), [("uv", {"one": True}), ("pip", {"three": False})])
def test_uv_needs_no_index_where_it_has_installed(method: str, fetch: dict[str, bool]) -> None:
    made = plan({"one": look(needed=False), "two": look(needed=False), "three": look()}, method)
    assert made["fetch"] == fetch


@pytest.mark.parametrize("linked", [[], ["one"]])
def test_hosts_that_cannot_reach_each_other_fetch_for_themselves(linked: list[str]) -> None:
    made = plan({"one": look(), "two": look()}, linked=linked)
    assert made["fetch"] == {"one": False, "two": False} and not made["from"]


def test_nothing_to_do() -> None:
    looks = {"one": look(needed=False), "two": {"needed": False}}
    made = plan(looks)
    assert made == {"hosts": [], "fetch": {}, "from": {}}
    assert sharing.exchanges(made, looks, {}) == {}


def test_what_was_fetched_is_what_is_shared() -> None:
    looks = {"one": look(), "two": look()}
    shares = sharing.exchanges(plan(looks), looks, {"one": look(files=FILES)})
    assert shares["two"] == {"folder": "/wheels/k", "files": FILES, "have": [], "group": "k"}
