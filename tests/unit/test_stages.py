# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of a verdict up to the start of the agents, over hosts that are well, bare, dead or half alive."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import (
    ADDRESSES,
    ATTEMPT,
    COMMIT,
    HOSTS,
    SECRET,
    after_inventory,
    after_look,
    after_network,
    codes,
    configuration,
    data,
    fresh,
    links,
    lost,
    node,
    pair,
    recorded,
    run,
    seen,
    smoke,
    view,
)

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import source, stages


def both(state: str, settings: dict[str, dict[str, Any]] | None = None, **values: Any) -> dict[str, dict[str, Any]]:
    """Both parts of a run that was started with these settings."""
    return {host: recorded(state, configuration(settings or smoke()), **values) for host in HOSTS}


# ---- inventory ----


def test_inventory() -> None:
    state = after_inventory(smoke())
    assert (state["plan"]["run"], state["plan"]["master"], state["plan"]["world_size"]) == ("try", "workstation", 2)
    assert (state["commit"], state["requirements"], state["manifest"]) == (None, {}, None)


def test_settings_that_are_wrong_are_all_that_is_said() -> None:
    looks = view(smoke())
    looks.results["preflight_settings"]["laptop"]["causes"] = [cause("setting_invalid", "laptop: x", host="laptop")]
    state = stages.inventory(looks, fresh())
    assert (codes(state), state["go"]) == (["setting_invalid"], False)
    assert "plan" not in state


def test_a_partial_cluster() -> None:
    state = stages.inventory(view({"laptop": smoke()["laptop"]}), fresh())
    assert (codes(state), state["go"]) == (["host_excluded"], False)


def test_a_code_that_is_to_be_ignored_only_warns() -> None:
    given = smoke(nanochat_extra_args="eval-tokens=1", nanochat_preflight_ignore="eval_tokens_small")
    state = stages.inventory(view(given), fresh())
    assert (codes(state), state["go"]) == (["eval_tokens_small"], True)
    assert (state["causes"][0]["weight"], "ignored" in state["causes"][0]["what"]) == ("warning", True)
    assert stages.inventory(view(smoke(nanochat_extra_args="eval-tokens=1")), fresh())["go"] is False


def test_hyper_parameters_are_refused_before_the_source_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "resolve", lambda *_args: pytest.fail("nobody should ask"))
    state = stages.inventory(view(pair(nanochat_extra_args="total-batch-size=3000")), fresh())
    assert (codes(state), state["go"]) == (["batch_indivisible"], False)


def test_the_source_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    note = cause("repo_dirty", "uncommitted changes", weight="warning")
    found = source.Source("/src", "main", COMMIT, "/src/.git", False, [note])
    monkeypatch.setattr(source, "resolve", lambda repo, version: found)
    monkeypatch.setattr(source.Source, "requirements", lambda _self, torch, extra: [f"{torch} {extra}"])
    state = stages.inventory(view(pair(nanochat_install_method="pip", nanochat_torch="torch==2.13.0")), fresh())
    assert state["requirements"] == {host: ["torch==2.13.0 cpu"] for host in HOSTS}
    assert (state["commit"], state["go"]) == (COMMIT, True)
    assert codes(state) == ["repo_dirty"]


def test_a_source_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_args: str) -> None:
        raise source.SourceError("version_unknown", "no such branch")

    monkeypatch.setattr(source, "resolve", resolve)
    state = stages.inventory(view(pair()), fresh())
    assert (codes(state), state["go"]) == (["version_unknown"], False)


# ---- look ----


def test_look_at_bare_hosts() -> None:
    state = after_look(seen())
    assert (state["go"], state["start"], state["action"], state["causes"]) == (True, True, "start", [])
    assert state["todo"] == {"install": [], "dataset": []}
    laptop = {"host": "laptop", "addresses": [ADDRESSES["laptop"]], "port": 40001, "nonce": "laptop"}
    assert state["peers"]["workstation"] == [laptop]


@pytest.mark.parametrize("dead", HOSTS)
def test_a_dead_host_is_named_and_nothing_starts(dead: str) -> None:
    state = after_look({**seen(), dead: lost(dead)})
    assert (codes(state), state["causes"][0]["host"], state["go"]) == (["host_unreachable"], dead, False)
    assert state["todo"] == {"install": [], "dataset": []}


def test_all_dead_hosts_in_the_order_of_the_inventory() -> None:
    state = after_look({host: lost(host) for host in reversed(HOSTS)})
    assert [entry["host"] for entry in state["causes"]] == HOSTS


def test_a_lost_host_is_named_even_when_the_cause_is_not() -> None:
    broken = lost("laptop")
    broken["nanochat_lost"]["host"] = None
    assert after_look({**seen(), "laptop": broken})["causes"][0]["host"] == "laptop"


def test_half_alive() -> None:
    runs = {**both("alive"), "laptop": run()}
    state = after_look(seen(runs))
    assert (codes(state), state["go"], state["start"]) == (["half_alive"], False, False)
    state = after_look(seen(runs), smoke(nanochat_relaunch=True))
    assert (state["go"], state["start"], state["action"]) == (True, True, "restart")


def test_alive_is_left_alone() -> None:
    state = after_look(seen(both("alive")))
    assert (state["go"], state["start"], state["action"], state["attempt"]) == (True, False, "watch", ATTEMPT)
    assert state["folders"] == dict.fromkeys(HOSTS, f"/runs/{ATTEMPT}")


def test_alive_is_left_alone_although_a_host_would_not_do_for_a_start() -> None:
    bare = seen(both("alive"), tools={"tmux": None}, port={"port": 29500, "free": False, "holder": None})
    assert after_look(bare)["causes"] == []


def test_alive_and_another() -> None:
    state = after_look(seen(both("alive")), smoke(nanochat_extra_args="depth=8"))
    assert (codes(state), state["go"], state["start"]) == (["run_differs"], False, False)


def test_software_is_judged_only_when_nothing_is_left_to_install() -> None:
    without = seen(environment={**node()["environment"], "state": "absent", "torch": None})
    state = after_look(without)
    assert (state["todo"]["install"], state["causes"], state["go"]) == (HOSTS, [], True)
    state = after_look(without, smoke(nanochat_install_method="existing", nanochat_python="/py"))
    assert (codes(state), state["go"]) == (["environment_missing"] * 2, False)


def test_no_gpu_anywhere() -> None:
    state = after_look(seen(), smoke(nanochat_device_type="cuda"))
    assert [entry["what"] for entry in state["causes"]] == [
        f"{host}: 1 processes on cuda, and 0 GPUs are seen" for host in HOSTS
    ]


def test_the_real_vocabulary_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = source.Source("/src", "main", COMMIT, "/src/.git", False)
    monkeypatch.setattr(source, "resolve", lambda repo, version: found)
    tokenizer = {**data()["tokenizer"], "vocab_size": 512}
    checkout = {"state": "git", "commit": COMMIT, "dirty": False, "dirty_files": []}
    state = after_look(seen(data=data(tokenizer=tokenizer), checkout=checkout), pair())
    assert state["causes"] == [] and state["plan"]["numbers"]["vocabulary"] == 512


# ---- after an installation ----


def test_prepared() -> None:
    settings = smoke()
    before = after_look(seen(environment={**node()["environment"], "torch": None}), settings)
    state = stages.prepared(view(settings, preflight_node=seen()), before)
    assert (state["go"], state["todo"]) == (True, {"install": [], "dataset": []})


def test_an_installation_that_changed_nothing() -> None:
    settings = smoke()
    without = seen(environment={**node()["environment"], "torch": None})
    looks = view(settings, preflight_node=without, install_environment={key: {"causes": []} for key in HOSTS})
    state = stages.prepared(looks, after_look(without, settings))
    assert (codes(state), state["go"]) == (["environment_missing"] * 2, False)
    looks.check_mode = True  # nothing was installed, and that is fine
    assert stages.prepared(looks, after_look(without, settings))["go"]


def test_what_was_not_prepared_is_not_judged() -> None:
    settings = smoke()
    without = seen(environment={**node()["environment"], "torch": None})
    state = stages.prepared(view(settings, preflight_node=without), after_look(without, settings))
    assert (codes(state), state["todo"]["install"]) == ([], HOSTS)


@pytest.mark.parametrize("answer", [lost("laptop"), {"causes": [cause("install_failed", "no space")]}])
def test_an_installation_that_broke(answer: dict[str, Any]) -> None:
    settings = smoke()
    looks = view(settings, preflight_node=seen(), install_environment={"laptop": answer})
    state = stages.prepared(looks, after_look(seen(), settings))
    assert not state["go"] and state["causes"][0]["host"] == "laptop"


def test_nobody_installs_below_a_live_run() -> None:
    looks = view(smoke(), preflight_node=seen({**both("alive"), "workstation": run()}))
    state = stages.idle(looks, {**fresh(), "plan": {"run": "try"}})
    assert (codes(state), state["causes"][0]["what"], state["go"]) == (
        ["run_in_progress"],
        "laptop: run try is alive",
        False,
    )
    assert stages.idle(view(smoke(), preflight_node=seen()), {**fresh(), "plan": {"run": "try"}})["go"]


# ---- network ----


def test_network() -> None:
    state = after_network()
    assert (state["go"], state["causes"]) == (True, [])
    assert {host: choice["interface"] for host, choice in state["network"].items()} == dict.fromkeys(HOSTS, "eth0")
    start = state["starts"]["laptop"]
    assert (
        start["folder"]
        == f"/home/laptop/cache/runs/try/attempts/{state['attempt']}/node-1"
        == state["folders"]["laptop"]
    )
    for word in ("--master_addr=192.0.2.36", "--node_rank=1", f"--rdzv_id=try.{state['attempt']}", "torchlan_smoke"):
        assert word in start["record"]["argv"] and word in start["script"]
    assert (start["predicted"], start["record"]["fingerprint"]) == ([], state["fingerprint"])


def test_what_the_ranks_are_told() -> None:
    state = after_network(smoke(nanochat_join_timeout=33, nanochat_env={"NANOCHAT_X": "1", "NANOCHAT_Y_DIR": "/y"}))
    told = json.loads(state["starts"]["laptop"]["environment"]["TORCHLAN_PLAN"])
    assert told["nodes"] == [
        {"node_rank": rank, "host": host, "address": ADDRESSES[host], "nproc": 1} for rank, host in enumerate(HOSTS)
    ]
    wanted = {"run": "try", "attempt": state["attempt"], "device": "cpu", "host": "laptop", "node_rank": 1, "nnodes": 2}
    wanted.update(world_size=2, ifname="eth0", join_timeout=33, first_step_timeout=900, hang_timeout=60)
    assert {name: told[name] for name in wanted} == wanted
    assert told["compare_env"] == ["NANOCHAT_DTYPE", "NANOCHAT_X"]
    assert told["fingerprint"] == {"commit": None, "arguments": state["plan"]["arguments"]}


def test_a_secret_is_in_no_state() -> None:
    assert SECRET not in json.dumps(after_network(smoke(nanochat_secret_env={"WANDB_API_KEY": SECRET})))


def test_the_users_master_address() -> None:
    state = after_network(smoke(nanochat_master_addr="workstation.lan"))
    assert "--master_addr=workstation.lan" in state["starts"]["laptop"]["record"]["argv"]


def test_check_mode_predicts() -> None:
    bare = seen()
    for answer in bare.values():
        answer["node"]["environment"]["torch"] = None
    looks = view(smoke(), True, preflight_node=bare, launch_links=links())
    state = stages.network(looks, stages.look(looks, after_inventory(smoke())))
    assert state["starts"]["laptop"]["predicted"] == ["/home/laptop/nanochat/.venv/bin/python is not there yet"]
    for stage in (stages.started, stages.proof):
        state = stage(looks, state)
    assert state["go"] and "verdict" not in state


def test_a_link_that_is_blocked() -> None:
    blocked = links()
    error = {"address": ADDRESSES["laptop"], "error": "timeout"}
    blocked["workstation"] = {"links": {}, "unreached": {"laptop": [error]}}
    looks = view(smoke(), preflight_node=seen(), launch_links=blocked)
    state = stages.network(looks, stages.look(looks, after_inventory(smoke())))
    assert (codes(state), state["go"]) == (["link_blocked"], False)
    assert "starts" not in state


def test_a_host_that_is_lost_at_the_links() -> None:
    looks = view(smoke(), preflight_node=seen(), launch_links={**links(), "laptop": lost("laptop")})
    state = stages.network(looks, stages.look(looks, after_inventory(smoke())))
    assert (codes(state), state["go"]) == (["host_unreachable"], False)


# ---- start ----


def test_started() -> None:
    state = after_network()
    state = stages.started(view(smoke(), launch_started={host: {"causes": []} for host in HOSTS}), state)
    assert (state["go"], state["causes"]) == (True, []) and "verdict" not in state


@pytest.mark.parametrize("answer", [lost("laptop"), {"causes": [cause("start_failed", "ended at once")]}])
@pytest.mark.parametrize("keep", [False, True])
def test_a_part_of_a_start_is_ended(answer: dict[str, Any], keep: bool) -> None:
    settings = smoke(nanochat_keep_failed=keep)
    state = stages.started(view(settings, launch_started={"laptop": answer}), after_network(settings))
    assert (state["go"], state["verdict"], state["end"]) == (False, "failed", not keep)
    assert state["causes"][0]["host"] == "laptop"
