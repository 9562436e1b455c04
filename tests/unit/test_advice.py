# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said about single hosts and measured links, and that nothing is said where nothing is wrong."""

from __future__ import annotations

import time
from typing import Any

import pytest
from builders import COMMIT, HOSTS, after_inventory, codes, data, links, node, nodes, pair, planned, seen, smoke, view

from ansible_collections.torchlan.nanochat.plugins.module_utils import firewall as firewall_facts
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import advice, firewall, forecast, link_advice, stages

GB = 1_000_000_000
HEALTHY = {
    "memory_bytes": 16 * GB,
    "memory_available_bytes": 12 * GB,
    "swap_used_bytes": 0,
    "cores_usable": 8.0,
    "ulimits": {"nofile": 1024, "nproc": None, "memlock": 65536},
}


def healthy(**facts: Any) -> dict[str, dict[str, Any]]:
    found = nodes(disk_free_bytes=50 * GB, filesystem={"type": "ext4", "rotational": False}, leftovers=[])
    for one in found.values():
        one["host"].update(HEALTHY, **facts)
    return found


def said(found: dict[str, dict[str, Any]], restart: bool = False, **shared: Any) -> list[tuple[str, str, str]]:
    settings = pair(**shared)
    causes = advice.check(planned(settings), settings, found, restart)
    return [(one["code"], one["host"], one["weight"]) for one in causes]


def test_healthy_hosts() -> None:
    assert said(healthy()) == []
    assert said(healthy(), nanochat_source="smoke") == []


# ---- memory ----


def test_more_parameters_than_memory() -> None:
    found = healthy()
    found["laptop"]["host"]["memory_bytes"] = GB
    deep = {"nanochat_extra_args": "depth=12"}
    settings = pair(**deep)
    (one,) = advice.check(planned(settings), settings, found, False)
    assert (one["code"], one["host"], one["weight"]) == ("memory_small", "laptop", "error")
    assert "1.0 GB of memory" in one["what"]
    fits = int(one["fix"].partition("depth=")[2])
    assert said(found, nanochat_extra_args=f"depth={fits}") == []
    assert said(found, nanochat_extra_args=f"depth={fits + 2}") == [("memory_small", "laptop", "error")]


def test_memory_that_others_use() -> None:
    found = healthy(memory_available_bytes=300_000_000)
    assert said(found) == [("memory_small", host, "warning") for host in HOSTS]
    assert said(found, restart=True) == [], "the run that is replaced uses it"


# ---- disk ----


def test_full_disks() -> None:
    found = healthy()
    found["laptop"]["disk_free_bytes"] = 1_000_000
    assert said(found) == [("disk_full", "laptop", "error")]
    found["laptop"]["disk_free_bytes"] = 600_000_000
    many = "num-iterations=100 save-every=5"
    assert said(found, nanochat_extra_args=many) == [("disk_full", "laptop", "warning")]
    assert said(found, nanochat_extra_args=many, nanochat_keep_checkpoints=1) == []
    settings = pair(nanochat_extra_args=many, nanochat_keep_checkpoints=9)
    (one,) = advice.check(planned(settings), settings, found, False)
    assert one["what"].endswith("of 10 checkpoints"), "the nine that are kept and the one that is written"


@pytest.mark.parametrize(
    ("filesystem", "extra", "expected"),
    [
        ({"type": "nfs4", "rotational": None}, "", "disk_slow"),
        ({"type": "ext4", "rotational": True}, "", None),
        ({"type": "ext4", "rotational": True}, "depth=32", "disk_slow"),
    ],
)
def test_slow_disks(filesystem: dict[str, Any], extra: str, expected: str | None) -> None:
    found = healthy(memory_bytes=900 * GB, memory_available_bytes=900 * GB)
    found["workstation"]["filesystem"] = filesystem
    assert said(found, nanochat_extra_args=extra) == ([(expected, "workstation", "warning")] if expected else [])


@pytest.mark.parametrize(
    ("every", "expected"), [("save-every=5", []), ("save-every=-1", ["warning"]), ("", ["warning"])]
)
def test_a_run_that_starts_again_and_never_saves(every: str, expected: list[str]) -> None:
    found = said(healthy(), nanochat_auto_resume=2, nanochat_extra_args=every)
    assert [weight for code, _host, weight in found if code == "checkpoint_missing"] == expected


# ---- processor, limits, swap, others ----


def test_one_thread_on_many_cores() -> None:
    assert said(healthy(), nanochat_omp_num_threads=1) == [("threads_few", host, "warning") for host in HOSTS]
    assert said(healthy(), nanochat_env={"OMP_NUM_THREADS": "1"})[0][0] == "threads_few"
    wide = {"nproc_per_node": 8, "nanochat_extra_args": "total-batch-size=16384 eval-tokens=16384"}
    assert said(healthy(), nanochat_omp_num_threads=1, **wide) == []
    assert said(healthy(cores_usable=1.0), nanochat_omp_num_threads=1) == [], "a quota of one core has no more"


def test_swap_and_limits() -> None:
    assert said(healthy(swap_used_bytes=3 * GB)) == [("swap_in_use", host, "warning") for host in HOSTS]
    assert said(healthy(swap_used_bytes=GB)) == []
    assert said(healthy(ulimits={"nofile": 256})) == [("limits_small", host, "warning") for host in HOSTS]


def test_others_on_the_host() -> None:
    found = healthy()
    old = {"pid": 77, "ppid": 1, "user": "ann", "command": "python -m scripts.base_train", "orphan": True}
    found["laptop"]["leftovers"] = [old, {**old, "pid": 78, "orphan": False}]
    assert said(found) == [("leftovers", "laptop", "warning"), ("host_busy", "laptop", "warning")]
    # who holds the port is named for that
    found["laptop"]["port"] = {"port": 29500, "free": False, "holder": {"pid": 77}}
    assert said(found) == [("host_busy", "laptop", "warning")]
    found = healthy()
    found["laptop"]["other_runs"] = [{"run": "big", "attempt": "x", "pids": [1, 2]}]
    assert said(found) == [("host_busy", "laptop", "note")]


@pytest.mark.parametrize(
    ("steps", "extra", "overwritten"),
    [
        ([10], "num-iterations=10", True),
        ([5], "num-iterations=10", False),
        ([5], "num-iterations=10 save-every=5", True),
        ([10], "num-iterations=10 resume-from-step=10", False),
        ([], "num-iterations=10", False),
    ],
)
def test_checkpoints_that_would_be_written_again(steps: list[int], extra: str, overwritten: bool) -> None:
    found = healthy()
    found["workstation"]["checkpoints"] = steps
    expected = [("checkpoint_overwritten", "workstation", "warning")] if overwritten else []
    assert said(found, nanochat_extra_args=extra, nanochat_runner=False) == expected
    assert said(found, nanochat_extra_args=extra) == [], "the runner sets them aside"


# ---- clocks: containers share their machine's, so that these are answers of hosts, skewed ----


def asked_at(found: dict[str, dict[str, Any]], **off: float) -> list[tuple[str, str]]:
    now = time.time()
    for host, one in found.items():
        one["host"]["clock_unix"] = now + 0.5 + off.get(host, 0)
    causes = advice.clocks(found, {host: [now, now + 1.0] for host in found})
    return [(one["host"], one["what"].partition(": ")[2]) for one in causes]


def test_clocks() -> None:
    two = healthy()
    assert asked_at(two) == []
    assert asked_at(two, laptop=3) == [], "as long as asking took, and a little"
    assert asked_at(two, laptop=600) == [("laptop", "its clock is 600 s ahead of the controller's")]
    assert asked_at(two, laptop=-600) == [("laptop", "its clock is 600 s behind the controller's")]
    four = {name: node("laptop") for name in "abcd"}
    assert asked_at(four, a=600, b=600, c=600, d=600) == [], "it is the controller that is wrong"
    assert [host for host, _what in asked_at(four, b=-600)] == ["b"]


# ---- measured links ----

CHOICE = {host: {"interface": "eth0", "address": f"192.0.2.{36 + n}"} for n, host in enumerate(HOSTS)}


def measured(mbps: Any = 900.0, mtu: Any = 1500, error: str | None = None) -> dict[str, dict[str, Any]]:
    found = links()
    for result in found.values():
        for listed in result["links"].values():
            for link in listed:
                link.update(mbps=mbps, mtu=mtu, also={"port": 29500, "error": error})
    return found


def about_links(found: dict[str, dict[str, Any]], answers: dict[str, Any]) -> list[tuple[str, str, str]]:
    pairs = link_advice.measured(CHOICE, answers)
    assert [(one["from"], one["to"]) for one in pairs] == [tuple(HOSTS), tuple(reversed(HOSTS))]
    return [(one["code"], one["host"], one["weight"]) for one in link_advice.check(found, CHOICE, pairs)]


def with_card(**values: Any) -> dict[str, dict[str, Any]]:
    found = healthy()
    found["laptop"]["interfaces"][0].update(values)
    return found


@pytest.mark.parametrize(
    ("card", "numbers", "expected"),
    [
        ({}, {}, []),
        ({}, {"mbps": None, "mtu": None}, []),
        ({"kind": "wireless"}, {}, [("link_wireless", "laptop", "warning")]),
        ({"speed_mbps": 100}, {}, [("link_slow", "laptop", "warning")]),
        ({}, {"mbps": 94.0}, [("link_slow", None, "warning")]),
        ({"kind": "wireless"}, {"mbps": 54.0}, [("link_wireless", "laptop", "warning")]),
        ({"mtu": 9000}, {}, [("mtu_differs", "laptop", "warning")]),
        ({"mtu": 9000}, {"mbps": 0.0}, [("mtu_differs", "laptop", "error")]),
    ],
)
def test_links(card: dict[str, Any], numbers: dict[str, Any], expected: list[Any]) -> None:
    assert about_links(with_card(**card), measured(**numbers)) == expected


def test_the_port_of_the_rendezvous() -> None:
    assert link_advice.rendezvous(healthy(), CHOICE, measured()) == []
    (one,) = link_advice.rendezvous(healthy(), CHOICE, {"laptop": measured(error="timeout")["laptop"]})
    assert (one["code"], one["host"], one["weight"]) == ("link_blocked", "workstation", "error")
    assert one["what"].startswith("laptop cannot connect to workstation on port 29500")


# ---- firewalls ----

RICH = "'rule family=ipv4 source address=192.0.2.36 port port=1024-65535 protocol=tcp accept'"


@pytest.mark.parametrize(
    ("facts", "opening", "closing"),
    [
        (
            {"kind": "ufw", "active": True},
            "ufw allow proto tcp from 192.0.2.36 to any port 1024:65535",
            "ufw delete allow proto tcp from 192.0.2.36 to any port 1024:65535",
        ),
        (
            {"kind": "firewalld", "active": True},
            f"firewall-cmd --add-rich-rule={RICH}",
            f"firewall-cmd --remove-rich-rule={RICH}",
        ),
        (
            {"kind": "nftables", "chain": "inet mine in"},
            "nft insert rule inet mine in ip saddr 192.0.2.36 tcp dport 1024-65535 accept",
            "nft -f /etc/nftables.conf",
        ),
        (
            {"kind": None},
            "iptables -I INPUT -p tcp -s 192.0.2.36 --dport 1024:65535 -j ACCEPT",
            "iptables -D INPUT -p tcp -s 192.0.2.36 --dport 1024:65535 -j ACCEPT",
        ),
    ],
)  # fmt: skip
def test_commands_for_a_firewall(facts: dict[str, Any], opening: str, closing: str) -> None:
    assert firewall.commands(facts, ["192.0.2.36"]) == ([opening], [closing])
    text = firewall.fix("laptop", facts, ["192.0.2.36"])
    assert text.startswith(f"on laptop: sudo {opening}") and text.endswith(f"; to take it back: sudo {closing}")
    assert ("only root sees its rules" in text) == (not facts.get("active"))


def test_one_command_for_several_peers() -> None:
    peers = ["192.0.2.1", "192.0.2.2", "fd00::1"]
    opening, closing = firewall.commands({"kind": "iptables"}, peers)
    assert opening[0] == "iptables -I INPUT -p tcp -s 192.0.2.1,192.0.2.2 --dport 1024:65535 -j ACCEPT"
    assert opening[1].startswith("ip6tables -I INPUT -p tcp -s fd00::1 ") and len(closing) == 2
    opening, _closing = firewall.commands({"kind": "nftables"}, peers[:2])
    assert opening == [
        "nft insert rule inet filter input ip saddr '{ 192.0.2.1, 192.0.2.2 }' tcp dport 1024-65535 accept"
    ]


def test_sixth_version() -> None:
    assert firewall.commands({"kind": "iptables"}, ["fd00::1"])[0][0].startswith("ip6tables -I INPUT")
    assert " ip6 saddr fd00::1 " in firewall.commands({"kind": "nftables"}, ["fd00::1"])[0][0]


def test_the_chain_of_a_configuration() -> None:
    text = """
    flush ruleset
    table ip nat { chain pre { type nat hook prerouting priority -100; } }
    table inet box {
        chain arriving {
            type filter hook input priority filter; policy drop;
        }
    }"""
    assert firewall_facts.input_chain(text) == "inet box arriving"
    assert firewall_facts.input_chain("table ip nat { }") is None


# ---- what a launch would bring or refuse ----

AT = {"state": "git", "commit": COMMIT, "dirty": False, "dirty_files": []}


def checked(found: dict[str, dict[str, Any]], **shared: Any) -> list[tuple[str, str | None, str]]:
    settings = pair(nanochat_install_method="existing", nanochat_python="/py", **shared)
    run = planned(settings)
    todo: dict[str, list[str]] = {"install": [host for host in HOSTS if found[host]["checkout"]["commit"] != COMMIT]}
    causes = forecast.software(run, settings, found, todo, {}, COMMIT) + forecast.data(run, settings, found, None)
    return [(one["code"], one["host"], one["weight"]) for one in causes]


def git(**values: Any) -> dict[str, dict[str, Any]]:
    found = nodes(checkout=AT)
    found["laptop"]["checkout"] = {**AT, **values}
    return found


@pytest.mark.parametrize(
    ("checkout", "expected"),
    [
        ({}, None),
        ({"dirty": True, "dirty_files": ["x"]}, ("checkout_dirty", "warning")),
        ({"commit": "f" * 40}, ("launch_brings", "note")),
        ({"commit": "f" * 40, "dirty": True, "dirty_files": ["x"]}, ("checkout_dirty", "error")),
        ({"state": "other", "commit": None}, ("checkout_foreign", "error")),
        ({"state": "absent", "commit": None}, ("launch_brings", "note")),
    ],
)
def test_checkouts(checkout: dict[str, Any], expected: tuple[str, str] | None) -> None:
    assert checked(git(**checkout)) == ([(expected[0], "laptop", expected[1])] if expected else [])


def test_versions_of_existing_environments_also_when_a_checkout_is_to_be_brought() -> None:
    found = git(commit="f" * 40)
    found["laptop"]["environment"] = {**found["laptop"]["environment"], "torch": "2.9.1"}
    assert checked(found) == [("launch_brings", "laptop", "note"), ("versions_differ", "laptop", "error")]


SIX = [[f"shard_{n:05d}.parquet", 10 + n, str(n) * 64, 8] for n in range(6)]


FEW = [*SIX[:5], [*SIX[5][:3], 1]]


def of(listed: list[list[Any]], **values: Any) -> dict[str, Any]:
    return data(list=listed, shards=len(listed), manifest=str(listed), **values)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (of(SIX), of(SIX), []),
        (of(SIX), of(SIX[:4]), [("launch_brings", "laptop", "note")]),
        (of(SIX[:4]), of(SIX), [("dataset_extra", "laptop", "error")]),
        (of([]), of([]), [("launch_brings", "workstation", "note")]),
        (of(SIX), of([*SIX[:5], ["shard_00005.parquet", 99, "9" * 64, 8]]), [("data_differ", "laptop", "error")]),
        (of(SIX), of(SIX, unread=6), [("launch_brings", "laptop", "note")]),
        (of(FEW), of(FEW), [("row_groups_few", "workstation", "error")]),
    ],
)  # fmt: skip
def test_data(mine: dict[str, Any], theirs: dict[str, Any], expected: list[Any]) -> None:
    found = git()
    found["workstation"]["data"], found["laptop"]["data"] = mine, theirs
    assert checked(found) == expected


def test_a_repair_rewrites_few_row_groups() -> None:
    found = git()
    for one in found.values():
        one["data"] = of(FEW)
    assert checked(found, nanochat_dataset_repair=True) == [("launch_brings", "workstation", "note")]


def test_tokenizers() -> None:
    found = git()
    other = {**data()["tokenizer"], "sha256": "c" * 64}
    found["laptop"]["data"] = data(tokenizer=other)
    assert checked(found) == [("tokenizer_differs", "laptop", "error")]
    assert checked(found, nanochat_dataset_repair=True) == [("launch_brings", "laptop", "note")]
    none = {"present": False, "sha256": None, "token_bytes_sha256": None, "vocab_size": None}
    found["laptop"]["data"] = data(tokenizer=none)
    assert checked(found) == [("launch_brings", "laptop", "note")]
    found["workstation"]["data"] = data(tokenizer=none)
    assert checked(found) == [("launch_brings", "workstation", "note")]


# ---- the stages of preflight ----


def preflight(found: dict[str, dict[str, Any]], answers: dict[str, Any], **shared: Any) -> dict[str, Any]:
    settings = smoke(**shared)
    look = view(settings, preflight_node=found, preflight_links=answers)
    state = {**after_inventory(settings), "check": True}
    state = stages.look(look, state)
    return stages.STAGES["checked"](look, state)


def test_links_are_looked_at_whatever_else_is_wrong() -> None:
    found = seen(disk_free_bytes=1)
    state = preflight(found, measured(error="timeout"))
    assert set(codes(state)) == {"disk_full", "link_blocked"} and not state["go"]
    state = preflight(found, measured(error="timeout"), nanochat_preflight_ignore="disk_full,link_blocked")
    assert state["go"] and {one["weight"] for one in state["causes"]} == {"warning"}
    assert all("ignored by nanochat_preflight_ignore" in one["what"] for one in state["causes"])


# ---- the exchange of all hosts ----


def exchanged(answers: dict[str, Any]) -> dict[str, Any]:
    settings = smoke()
    look = view(settings, preflight_node=seen(), preflight_links=measured(), preflight_exchanged=answers)
    state = stages.look(look, {**after_inventory(settings), "check": True})
    state = stages.STAGES["checked"](look, state)
    told = {host: one["told"] for host, one in state["exchange"].items()}
    assert {host: one["rank"] for host, one in told.items()} == {"workstation": 0, "laptop": 1}
    assert {one["meet"] for one in told.values()} == {"192.0.2.36:29500"}
    assert {one["environment"]["GLOO_SOCKET_IFNAME"] for one in state["exchange"].values()} == {"eth0"}
    return stages.STAGES["exchanged"](look, state)


def test_an_exchange() -> None:
    good = {"right": True, "seconds": 0.2, "mbps": 640.4}
    answers = {host: {"exchange": good, "problem": ""} for host in HOSTS}
    state = exchanged(answers)
    assert state["go"] and state["collective"]["mbps"] == 640
    answers["laptop"] = {"exchange": {**good, "right": False}, "problem": ""}
    assert codes(exchanged(answers)) == ["backend_failed"]


def test_an_exchange_that_breaks() -> None:
    waits, breaks = "RuntimeError: Timed out after 58 s", "RuntimeError: Unable to find address for: eth0"
    lost = "RuntimeError: Connection closed by peer [192.0.2.37]:40000"
    for first, second, host in ((waits, breaks, "laptop"), (breaks, "", "workstation"), (lost, breaks, "laptop")):
        problems = dict(zip(HOSTS, (first, second)))
        state = exchanged({name: {"exchange": None, "problem": text} for name, text in problems.items()})
        (one,) = state["causes"]
        assert (one["code"], one["host"], state["go"]) == ("backend_failed", host, False)
        assert breaks in one["what"]


@pytest.mark.parametrize("problem", ["", "RuntimeError: Timed out after 58 s"])
def test_an_exchange_without_an_end_is_no_refusal(problem: str) -> None:
    state = exchanged({name: {"exchange": None, "problem": problem} for name in HOSTS})
    assert [(one["code"], one["weight"]) for one in state["causes"]] == [("start_timeout", "warning")]
    assert state["go"] and "collective" not in state


def test_no_exchange_without_torch_or_where_it_is_not_wanted() -> None:
    bare = {**node()["environment"], "state": "absent", "torch": None}
    for environment, wanted, notes in ((bare, True, 3), (node()["environment"], False, 0)):
        settings = smoke(nanochat_preflight_collective=wanted)
        look = view(settings, preflight_node=seen(environment=environment), preflight_links=measured())
        state = stages.look(look, {**after_inventory(settings), "check": True})
        state = stages.STAGES["checked"](look, state)
        assert state["go"] and state["exchange"] == {} and codes(state) == ["launch_brings"] * notes
