# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which shards are right, who lacks what, who brings it: one flipped byte, files too many, another tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import data_plan

HOSTS = ("workstation", "laptop", "desk")
TOKENIZER = {"tokenizer.pkl": "a" * 64, "token_bytes.pt": "b" * 64}
NO_TOKENIZER = {"tokenizer.pkl": None, "token_bytes.pt": None}


def name(number: int) -> str:
    return f"shard_{number:05d}.parquet"


def shard(number: int, sha256: str = "", **values: Any) -> dict[str, Any]:
    one = {"name": name(number), "size": 1000 + number, "sha256": (sha256 or f"{number:x}")[:1] * 64, "row_groups": 8}
    return {**one, **values}


def look(*files: dict[str, Any] | int, **values: Any) -> dict[str, Any]:
    listed = [shard(one) if isinstance(one, int) else one for one in files]
    folder = {"folder": "/data", "folder_id": None, "free_bytes": 10**12, "busy": []}
    return {"files": listed, "tokenizer": dict(TOKENIZER), **folder, **values}


def make(*looks: dict[str, Any], **values: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"source": None, "world_size": len(looks), "repair": False, "linked": HOSTS}
    return data_plan.make(dict(zip(HOSTS, looks)), "workstation", **{**given, **values})


def codes(plan: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["code"], one["host"]) for one in plan["causes"]]


def names(*numbers: int) -> list[str]:
    return [name(number) for number in numbers]


def test_equal_hosts_have_nothing_to_do() -> None:
    plan = make(look(0, 1, 2), look(0, 1, 2))
    assert (plan["causes"], plan["exchange"], data_plan.changed_hosts(plan)) == ([], [], [])
    assert plan["hosts"]["laptop"]["have"] == names(0, 1, 2)
    assert plan["tokenizer"] == {"source": "workstation", "train": False, "needed": []}


def test_what_is_missing_comes_from_the_hosts_that_have_it() -> None:
    plan = make(look(0, 1, 2, 3, 4, 5), look())
    assert (plan["causes"], plan["exchange"]) == ([], ["workstation", "laptop"])
    assert plan["hosts"]["laptop"] == {"have": [], "missing": names(*range(6)), "replace": [], "aside": [], "send": []}
    # a third host that is whole takes part: it gives, too
    assert make(look(0, 1), look(0), look(0, 1))["exchange"] == list(HOSTS)


def test_the_list_of_a_worker_when_the_master_has_nothing() -> None:
    plan = make(look(), look(0), look(0, 1, 2))
    assert (plan["causes"], plan["hosts"]["workstation"]["missing"]) == ([], names(0, 1, 2))
    assert codes(make(look(), look(0))) == [("data_missing", "workstation")]


def test_one_flipped_byte_is_named_and_refused() -> None:
    plan = make(look(0, 1, 2), look(0, shard(1, "f"), 2), look(0, 1, 2))
    assert codes(plan) == [("data_differ", "laptop")]
    one = plan["causes"][0]
    assert one["what"] == (
        f"laptop: {name(1)} in /data is 1001 bytes, sha256 ffffffffffff, and 1001 bytes, sha256 111111111111"
        " on workstation, desk"
    )
    assert "nanochat_dataset_repair=true" in one["fix"] and f"{name(1)}.old" in one["fix"]
    assert plan["hosts"]["laptop"]["replace"] == [] and plan["exchange"] == [], "ignored, it still is not touched"
    repaired = make(look(0, 1, 2), look(0, shard(1, "f"), 2), look(0, 1, 2), repair=True)
    assert (repaired["causes"], repaired["hosts"]["laptop"]["replace"]) == ([], names(1))
    assert repaired["exchange"] == list(HOSTS)


def test_the_master_wins_ties_and_loses_votes() -> None:
    assert codes(make(look(0, shard(1, "f")), look(0, 1))) == [("data_differ", "laptop")]
    assert codes(make(look(0, shard(1, "f")), look(0, 1), look(0, 1))) == [("data_differ", "workstation")]


def test_files_too_many() -> None:
    plan = make(look(0, 1, 2, 3), look(0, 1, 2, 3, 4, 5))
    assert codes(plan) == [("dataset_extra", "laptop")]
    assert "2 file(s) that the list of 4 lacks: shard_00004.parquet, shard_00005.parquet" in plan["causes"][0]["what"]
    assert plan["hosts"]["laptop"]["aside"] == []
    repaired = make(look(0, 1, 2, 3), look(0, 1, 2, 3, 4, 5), repair=True)
    assert (repaired["causes"], repaired["hosts"]["laptop"]["aside"]) == ([], names(4, 5))
    assert data_plan.changed_hosts(repaired) == ["laptop"]


def test_many_differences_are_one_cause_a_host() -> None:
    wrong = [shard(number, "f") for number in range(9)]
    plan = make(look(*range(9)), look(*wrong))
    assert codes(plan) == [("data_differ", "laptop")]
    assert (
        "so are 8 more: shard_00001.parquet" in plan["causes"][0]["what"] and "and 3 more" in plan["causes"][0]["what"]
    )


def test_another_tokenizer() -> None:
    other = {**TOKENIZER, "token_bytes.pt": "c" * 64}
    plan = make(look(0, 1), look(0, 1, tokenizer=other))
    assert (codes(plan), plan["tokenizer"]["needed"]) == ([("tokenizer_differs", "laptop")], [])
    assert "token_bytes.pt is sha256 cccccccccccc, and bbbbbbbbbbbb on workstation" in plan["causes"][0]["what"]
    repaired = make(look(0, 1), look(0, 1, tokenizer=other), repair=True)
    assert (repaired["causes"], repaired["tokenizer"]["needed"]) == ([], ["laptop"])


def test_a_tokenizer_is_trained_once_or_copied() -> None:
    bare = look(0, 1, tokenizer=NO_TOKENIZER)
    assert make(bare, bare)["tokenizer"] == {"source": "workstation", "train": True, "needed": ["laptop"]}
    assert make(look(0, 1), bare)["tokenizer"] == {"source": "workstation", "train": False, "needed": ["laptop"]}
    assert make(bare, look(0, 1))["tokenizer"] == {"source": "laptop", "train": False, "needed": ["workstation"]}
    half = look(0, 1, tokenizer={**TOKENIZER, "token_bytes.pt": None})
    assert make(look(0, 1), half)["tokenizer"]["needed"] == ["laptop"]
    only_worker = data_plan.make({"laptop": bare}, "workstation", None, 2, False, HOSTS)
    assert codes(only_worker) == [("tokenizer_missing", "laptop")]


def source(*numbers: int) -> list[dict[str, Any]]:
    return [shard(number) for number in numbers]


def test_the_controller_sends_each_file_once_in_turn_to_every_host() -> None:
    plan = make(look(), look(), look(), source=source(*range(7)))
    sent = {host: mine["send"] for host, mine in plan["hosts"].items()}
    assert sorted(one for mine in sent.values() for one in mine) == names(*range(7))
    assert max(map(len, sent.values())) - min(map(len, sent.values())) <= 1
    assert plan["exchange"] == list(HOSTS)
    # what a host has is not sent
    plan = make(look(), look(0, 1, 2, 3, 4, 5), source=source(*range(7)))
    assert [mine["send"] for mine in plan["hosts"].values()] == [names(6), []]


def test_one_host_or_no_address_gets_all_from_the_controller() -> None:
    plan = make(look(0), source=source(0, 1, 2))
    assert (plan["hosts"]["workstation"]["send"], plan["exchange"]) == (names(1, 2), [])
    plan = make(look(0), look(), source=source(0, 1), linked=[])
    assert [mine["send"] for mine in plan["hosts"].values()] == [names(1), names(0, 1)]
    assert codes(make(look(0, 1), look(), linked=[])) == [("data_missing", "laptop")]


def test_the_controller_s_files_are_the_right_ones() -> None:
    plan = make(look(0, shard(1, "f"), 2), look(0, shard(1, "f")), source=source(0, 1))
    assert codes(plan) == [("data_differ", "workstation"), ("dataset_extra", "workstation"), ("data_differ", "laptop")]
    assert "on nanochat_dataset_dir" in plan["causes"][0]["what"]
    repaired = make(look(0, shard(1, "f"), 2), look(0, shard(1, "f")), source=source(0, 1), repair=True)
    assert [one for mine in repaired["hosts"].values() for one in mine["send"]] == names(1)
    assert [mine["replace"] for mine in repaired["hosts"].values()] == [names(1)] * 2


def test_hosts_that_share_a_folder_get_it_once() -> None:
    plan = make(look(0, 1, 2), look(folder_id="nas"), look(folder_id="nas"))
    assert (plan["exchange"], data_plan.changed_hosts(plan)) == (["workstation", "laptop"], ["laptop"])
    assert plan["hosts"]["desk"]["missing"] == []


def test_space_is_looked_at_first() -> None:
    plan = make(look(0, 1, 2), look(0, shard(1, "f"), free_bytes=2000), repair=True)
    assert codes(plan) == [("disk_full", "laptop")] and "GB free" in plan["causes"][0]["what"]
    assert codes(make(look(0, 1, 2), look(0, 1, free_bytes=2000))) == []


def test_a_run_that_uses_the_data_stops_changes_only() -> None:
    busy = [cause("run_in_progress", "run x is alive")]
    assert codes(make(look(0, 1, busy=busy), look(0, 1))) == []
    assert codes(make(look(0, 1, busy=busy), look(0))) == [], "giving disturbs nobody"
    assert codes(make(look(0, 1), look(0, busy=busy))) == [("run_in_progress", "laptop")]


@pytest.mark.parametrize(
    ("groups", "ranks", "expected"),
    [
        ((8, 8), 8, []),
        ((8, 1), 2, [("row_groups_few", "error")]),
        ((1, 8), 2, [("row_groups_few", "error")]),
        ((1, 8, 8), 2, [("row_groups_few", "warning")]),
        ((8, None), 2, []),
        ((8, 0), 1, [("data_missing", "error")]),
        ((8, 0, 8), 1, [("data_missing", "error")]),
        ((8, 8), None, []),
    ],
)
def test_row_groups(groups: tuple[int | None, ...], ranks: int | None, expected: list[tuple[str, str]]) -> None:
    files = [shard(number, row_groups=count) for number, count in enumerate(groups)]
    plan = make(look(*files), look(*files), world_size=ranks)
    assert [(one["code"], one["weight"]) for one in plan["causes"]] == expected


def test_a_file_that_was_rewritten_or_is_whole_wins_over_votes() -> None:
    old = look(0, shard(1, row_groups=1))
    new = look(0, shard(1, "f", row_groups=4))
    assert codes(make(new, old, old)) == [("data_differ", "laptop"), ("data_differ", "desk")]
    assert codes(make(old, old, new)) == [("data_differ", "workstation"), ("data_differ", "laptop")]
    short = look(0, shard(1, "f", row_groups=0))
    assert codes(make(short, short, old, world_size=1)) == [("data_differ", "workstation"), ("data_differ", "laptop")]


def test_in_check_mode_nobody_read_the_files() -> None:
    unread = [shard(number) | {"sha256": None} for number in range(3)]
    assert make(look(*unread), look(*unread))["causes"] == []
    plan = make(look(*unread), look(*unread[:1]), look(shard(0), shard(1) | {"size": 7}, shard(2)))
    assert codes(plan) == [("data_differ", "desk")]
    assert "is 7 bytes" in plan["causes"][0]["what"] or "7 bytes" in plan["causes"][0]["what"]
