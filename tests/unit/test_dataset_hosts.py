# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role over several hosts, each a folder here: actions, stages, steps, and a stand-in for share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import software
from builders import coerced
from parquet_files import write_parquet

from ansible_collections.torchlan.nanochat.plugins.action import dataset as action
from ansible_collections.torchlan.nanochat.plugins.module_utils import data
from ansible_collections.torchlan.nanochat.plugins.module_utils.data_host import TOKENIZER_FILES, DataHost, keep_old
from ansible_collections.torchlan.nanochat.plugins.modules import dataset
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import data_stages, stages

DEFAULTS = {"files": [], "names": [], "aside": [], "shards": 0, "tokenizer_args": [], "data_dir": None}


class Cluster:
    """Hosts with a base folder each; the first is the master."""

    def __init__(self, folder: Path, *hosts: str, **variables: Any) -> None:
        self.hosts = list(hosts)
        self.base = {host: folder / host / "base" for host in hosts}
        self.settings = {
            host: coerced(
                host, rank, nanochat_base_dir=str(self.base[host]), nanochat_dir=str(folder / "c"), **variables
            )
            | {"nanochat_hosts": self.hosts}
            for rank, host in enumerate(hosts)
        }
        self.results: dict[str, dict[str, dict[str, Any]]] = {}
        self.steps: list[tuple[str, str]] = []
        self.linked, self.check_mode = self.hosts, False

    def shards(self, host: str) -> Path:
        return self.base[host] / "base_data_climbmix"

    def names(self, host: str) -> list[str]:
        return sorted(os.listdir(self.shards(host))) if self.shards(host).exists() else []

    def facts(self, host: str) -> dict[str, Any]:
        return data.facts(str(self.base[host]), str(self.shards(host)))

    def task(self, name: str, host: str, **args: Any) -> dict[str, Any]:
        """One task of the action on one host, without a connection."""
        task = MagicMock(action="dataset", args={}, async_val=0, check_mode=self.check_mode, diff=False)
        made: Any = action.ActionModule(
            task, MagicMock(become=None), MagicMock(), MagicMock(), MagicMock(), MagicMock()
        )

        def remote(given: dict[str, Any], _task_vars: Any, **_more: Any) -> dict[str, Any]:
            self.steps.append((host, given["step"]))
            return dataset.do(DataHost({**DEFAULTS, **given}, self.check_mode))

        made.remote, made.put = remote, shutil.copyfile
        made.deliver = lambda source, what: shutil.copy(source, self.base[host].parent / what)
        hostvars = {one: {"preflight_node": {"node": {"data": self.facts(one)}}} for one in self.hosts}
        made._task.args = {"settings": self.settings[host], **args}
        result = made.run(None, {"inventory_hostname": host, "hostvars": hostvars})
        self.results.setdefault(name, {})[host] = result
        return dict(result)

    def view(self) -> stages.View:
        given = {host: {"settings": values, "causes": []} for host, values in self.settings.items()}
        return stages.View(self.hosts, {}, {**self.results, "preflight_settings": given}, self.check_mode)

    def bring(self, world_size: int | None = None) -> dict[str, Any]:
        """The role, from the first task to the last; the state of the verdict after it."""
        self.results = {}
        world = world_size or len(self.hosts)
        for host in self.hosts:
            self.task("dataset_shards", host, world_size=world)
        plan = {"hosts": self.hosts, "master": self.hosts[0], "world_size": world}
        network = {host: {"address": f"192.0.2.{number}"} for number, host in enumerate(self.linked)}
        state = data_stages.shards(self.view(), {"plan": plan, "network": network, "causes": []})
        if not state["go"] or "data" not in state:
            return state
        made = state["data"]
        for host in made["receive"]:
            self.task("dataset_received", host, stage="receive", plan=made["hosts"][host])
        if made["exchange"] and not self.check_mode:
            self.share(made)
        tokenizer = made["tokenizer"]
        if tokenizer["train"] or tokenizer["needed"]:
            master = self.task("dataset_trained", tokenizer["source"], stage="train")
            for host in tokenizer["needed"]:
                self.task("dataset_tokenizer", host, stage="tokenizer", master=master)
        state["causes"] += self.view().causes("dataset_received", "dataset_trained", "dataset_tokenizer")
        return state

    def share(self, made: dict[str, Any]) -> None:
        """What the module share does between its hosts."""
        has = {host: made["hosts"][host]["have"] + made["hosts"][host]["send"] for host in made["exchange"]}
        for host in made["exchange"]:
            brought = []
            for name in (one["name"] for one in made["files"] if one["name"] not in has[host]):
                giver = next(other for other, names in has.items() if name in names)
                place = self.shards(host) / name
                place.parent.mkdir(parents=True, exist_ok=True)
                assert not place.exists() or name in made["hosts"][host]["replace"]
                keep_old(str(place))
                place.unlink(missing_ok=True)
                shutil.copy(self.shards(giver) / name, place)
                brought.append(name)
            if brought:
                self.task("dataset_remembered", host, stage="remember", files=made["files"], brought=brought)

    @property
    def equal(self) -> bool:
        """Whether the next look at the hosts finds them equal, and nothing unread."""
        facts = [self.facts(host) for host in self.hosts]
        tokenizers = {(one["tokenizer"]["sha256"], one["tokenizer"]["token_bytes_sha256"]) for one in facts}
        same = len({one["manifest"] for one in facts}) == len(tokenizers) == 1
        return same and not any(one["unread"] for one in facts)

    @property
    def changed(self) -> bool:
        return any(answer["changed"] for answers in self.results.values() for answer in answers.values())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "home"


def tokenizer(cluster: Cluster, host: str, text: str = "right") -> None:
    folder = cluster.base[host] / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        (folder / name).write_text(f"{text} {name}", encoding="utf-8")


@pytest.fixture()
def two(tmp_path: Path) -> Cluster:
    """The master has six shards and a tokenizer."""
    cluster = Cluster(tmp_path, "workstation", "laptop")
    software.write_shards(cluster.shards("workstation"), count=6)
    tokenizer(cluster, "workstation")
    return cluster


def repairing(cluster: Cluster) -> None:
    for settings in cluster.settings.values():
        settings["nanochat_dataset_repair"] = True


def codes(state: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["code"], one["host"]) for one in state["causes"]]


def test_a_worker_without_shards_gets_them_from_the_master(two: Cluster) -> None:
    assert not two.equal
    state = two.bring()
    assert (codes(state), two.equal, two.changed) == ([], True, True)
    assert ("workstation", "download") not in two.steps, "enough is there"
    again = two.bring()
    assert (codes(again), again["data"]["exchange"], two.changed) == ([], [], False)


def test_equal_hosts_are_only_read_once(two: Cluster) -> None:
    shutil.copytree(two.base["workstation"], two.base["laptop"])
    assert not two.equal, "nobody has read them"
    assert codes(two.bring()) == [] and two.equal and not two.changed
    assert two.steps == [("workstation", "look"), ("laptop", "look")]


def test_one_flipped_byte_is_found_refused_and_repaired_on_request(two: Cluster) -> None:
    two.bring()
    path = two.shards("laptop") / "shard_00003.parquet"
    stat = path.stat()
    wrong = path.read_bytes().replace(b"cats", b"bats", 1)
    with open(path, "r+b") as file:
        file.write(wrong)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not two.equal
    state = two.bring()
    assert (codes(state), state["go"], path.read_bytes()) == ([("data_differ", "laptop")], False, wrong)
    assert "shard_00003.parquet" in state["causes"][0]["what"]
    repairing(two)
    assert codes(two.bring()) == [] and two.equal
    assert (two.shards("laptop") / "shard_00003.parquet.old").read_bytes() == wrong


def test_a_file_too_many_is_set_aside_on_request(two: Cluster) -> None:
    two.bring()
    software.write_shards(two.shards("laptop"), count=7)
    state = two.bring()
    assert (codes(state), "shard_00006.parquet" in state["causes"][0]["what"]) == ([("dataset_extra", "laptop")], True)
    repairing(two)
    assert codes(two.bring()) == [] and two.equal
    assert two.names("laptop") == [".torchlan-aside", *two.names("workstation")]


def test_four_shards_against_six(two: Cluster) -> None:
    shutil.copytree(two.base["workstation"], two.base["laptop"])
    for number in (4, 5):
        (two.shards("workstation") / f"shard_{number:05d}.parquet").unlink()
    state = two.bring()
    assert codes(state) == [("dataset_extra", "laptop")] and "2 file(s)" in state["causes"][0]["what"]
    for number in (2, 3, 4, 5):
        (two.shards("laptop") / f"shard_{number:05d}.parquet").unlink()
    assert codes(two.bring()) == [] and two.equal and len(two.names("laptop")) == 4


def test_another_tokenizer_is_replaced_on_request(two: Cluster) -> None:
    two.bring()
    tokenizer(two, "laptop", "wrong")
    state = two.bring()
    assert (codes(state), state["go"]) == ([("tokenizer_differs", "laptop")], False)
    repairing(two)
    assert codes(two.bring()) == [] and two.equal
    assert (two.base["laptop"] / "tokenizer" / "tokenizer.pkl.old").read_text() == "wrong tokenizer.pkl"


def test_a_tokenizer_of_a_worker_is_the_one(two: Cluster) -> None:
    tokenizer(two, "laptop")
    shutil.rmtree(two.base["workstation"] / "tokenizer")
    assert codes(two.bring()) == [] and two.equal
    assert ("laptop", "read") in two.steps and ("workstation", "train") not in two.steps


def test_the_master_takes_a_worker_s_shards_before_the_slow_line(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "workstation", "laptop")
    software.write_shards(cluster.shards("laptop"), count=3)
    tokenizer(cluster, "laptop")
    assert codes(cluster.bring()) == [] and cluster.equal
    assert ("workstation", "download") not in cluster.steps


def test_the_controller_s_link_carries_each_file_once(tmp_path: Path) -> None:
    own = software.write_shards(tmp_path / "own", count=7)
    cluster = Cluster(tmp_path, "a", "b", "c", nanochat_dataset_dir=str(own))
    tokenizer(cluster, "a")
    assert stages.shards.known_digest(str(own)) == "not read yet"
    state = cluster.bring()
    assert codes(state) == [] and cluster.equal
    sent = [mine["send"] for mine in state["data"]["hosts"].values()]
    assert sorted(map(len, sent)) == [2, 2, 3]
    assert state["manifest"] == stages.shards.known_digest(str(own)) == cluster.facts("c")["manifest"]
    steps = len(cluster.steps)
    assert codes(cluster.bring()) == [] and len(cluster.steps) == steps + 3 and not cluster.changed


def test_without_addresses_the_controller_sends_all(tmp_path: Path) -> None:
    own = software.write_shards(tmp_path / "own", count=3)
    cluster = Cluster(tmp_path, "a", "b", nanochat_dataset_dir=str(own))
    cluster.linked = []
    tokenizer(cluster, "a")
    assert codes(cluster.bring()) == [] and cluster.equal


def test_a_folder_of_the_controller_that_is_not_there(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "a", "b", nanochat_dataset_dir=str(tmp_path / "nothing"))
    state = cluster.bring()
    assert {code for code, _host in codes(state)} == {"data_missing"} and cluster.steps == []


def test_a_shard_that_ends_short_is_not_the_right_one(two: Cluster) -> None:
    for number in range(6):
        write_parquet(two.shards("workstation") / f"shard_{number:05d}.parquet", 8, bytes([number]) * 1000)
    two.bring()
    path = two.shards("workstation") / "shard_00002.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    assert codes(two.bring()) == [("data_differ", "workstation")], "the master has no vote with such a file"
    repairing(two)
    assert codes(two.bring()) == [] and two.equal


def test_row_groups_too_few(two: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        write_parquet(two.shards("workstation") / f"shard_{number:05d}.parquet", 8, bytes([number]) * 1000)
    write_parquet(two.shards("workstation") / "shard_00005.parquet", 3)
    assert codes(two.bring(world_size=3)) == [] and two.equal
    state = two.bring(world_size=4)
    assert (
        codes(state) == [("row_groups_few", "workstation")]
        and "3 row group(s) for 4 ranks" in state["causes"][0]["what"]
    )

    def rewrite(host: DataHost) -> dict[str, Any]:
        for name in host.given["names"]:
            write_parquet(Path(host.folder, name), host.given["row_groups"])
            host.actions.append("rewrote it")
        return host.result()

    monkeypatch.setitem(dataset.STEPS, "rewrite", rewrite)
    repairing(two)
    assert codes(two.bring(world_size=4)) == [] and two.equal
    assert two.facts("laptop")["row_groups"]["validation"] == 4
    assert (two.shards("laptop") / "shard_00005.parquet.old").exists()


def test_check_mode_reads_nothing_and_says_what_would_be(two: Cluster) -> None:
    two.check_mode = True
    two.settings["laptop"]["nanochat_source"] = two.settings["workstation"]["nanochat_source"]
    state = two.bring()
    assert (codes(state), state["go"]) == ([("note", "laptop")], True)
    assert state["causes"][0]["what"] == "laptop: would get 6 shard(s), 0 MB"
    assert two.results["dataset_tokenizer"]["laptop"]["actions"] == ["copied the tokenizer"]
    assert not two.base["laptop"].exists() and not (two.base["workstation"] / ".torchlan-digests").exists()


def test_smoke_has_no_data(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "a", "b", nanochat_source="smoke")
    state = cluster.bring()
    assert (codes(state), state["go"], cluster.steps) == ([], True, [])


def test_a_host_that_is_lost_ends_it(two: Cluster) -> None:
    lost = {
        "nanochat_lost": {
            "code": "host_unreachable",
            "weight": "error",
            "host": None,
            "rank": None,
            "what": "",
            "fix": "",
        }
    }
    view = stages.View(two.hosts, {}, {"dataset_shards": {"laptop": lost}, "preflight_settings": {}}, False)
    state = data_stages.shards(view, {"plan": {"hosts": two.hosts}, "causes": []})
    assert (codes(state), state["go"]) == ([("host_unreachable", "laptop")], False)


def test_offers() -> None:
    results = {"dataset_offered": {"a": {"port": 4000, "have": ["x"], "causes": []}, "b": {"port": 0, "causes": []}}}
    view = stages.View(["a", "b"], {}, results, False)
    state = data_stages.offered(view, {"network": {"a": {"address": "192.0.2.1"}}, "causes": []})
    assert (state["offers"], state["go"]) == ({"a": {"address": "192.0.2.1", "port": 4000, "have": ["x"]}}, True)
