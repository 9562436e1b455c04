# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""report.json has the shape that is promised, whatever happened."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import ATTEMPT, HOSTS, SECRET, after_network, beat, fresh, smoke

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import report

# From design.md; other keys may join them, none may go.
PROMISED = "schema run attempt verdict state world_size backend ranks evidence causes timings_s".split()
PROMISED_OF_A_RANK = (
    "rank host node_rank local_rank pid state address interface collectives bytes_sent step last_beat_age_s".split()
)
PROMISED_OF_A_CAUSE = "code weight host rank what fix".split()
NETWORK = {host: {"interface": "eth9", "address": f"192.0.2.{index}", "why": "x"} for index, host in enumerate(HOSTS)}


def state(**values: Any) -> dict[str, Any]:
    """After a proof."""
    made = after_network()
    beats = [beat(0), beat(1, time=998.5, state="compiling", loss=None)]
    evidence = {"backend": "gloo", "ranks": [{"rank": 0, "bytes_sent": 111, "bytes_received": 222}]}
    return {
        **made,
        "attempt": ATTEMPT,
        "verdict": "proven",
        "run_state": "alive",
        "beats": beats,
        "evidence": evidence,
        **values,
    }


def built(given: dict[str, Any] | None = None, check_mode: bool = False, **results: Any) -> dict[str, Any]:
    made = report.build(state() if given is None else given, results, check_mode)
    assert made == json.loads(json.dumps(made))
    return made


@pytest.mark.parametrize(
    "given",
    [None, fresh(), {**fresh(), "go": False}, state(beats=[]), state(network={}, evidence=None, verdict="failed")],
)
def test_the_promised_shape(given: dict[str, Any] | None) -> None:
    made = built(given)
    assert set(made) >= set(PROMISED)
    assert all(set(entry) >= set(PROMISED_OF_A_RANK) for entry in made["ranks"])
    assert made["schema"] == 1


def test_the_whole() -> None:
    made = built()
    wanted = {
        "run": "try",
        "attempt": ATTEMPT,
        "verdict": "proven",
        "state": "running",
        "world_size": 2,
        "backend": "gloo",
    }
    assert {name: made[name] for name in wanted} == wanted
    assert set(made["plan"]) == {"script", "device", "hosts", "numbers", "arguments"}


def test_a_rank() -> None:
    first, second = built()["ranks"]
    assert first == {
        "rank": 0,
        "host": "workstation",
        "node_rank": 0,
        "local_rank": 0,
        "pid": 100,
        "state": "training",
        "doing": "training",
        "address": "192.0.2.36",
        "interface": "eth0",
        "collectives": 42,
        "bytes_sent": 111,
        "bytes_received": 222,
        "step": 3,
        "steps": 10,
        "loss": 5.25,
        "tokens_per_s": 1234.0,
        "communication_share": None,
        "memory_bytes": None,
        "exit_code": None,
        "last_beat_age_s": 0.0,
    }
    assert (second["state"], second["last_beat_age_s"], second["bytes_sent"]) == ("compiling", 1.5, None)


def test_a_rank_that_never_spoke() -> None:
    made = built(state(beats=[beat(0)], network=NETWORK, evidence={}))
    missing = made["ranks"][1]
    assert (missing["state"], missing["pid"], missing["last_beat_age_s"]) == ("missing", None, None)
    assert (missing["address"], missing["interface"]) == ("192.0.2.1", "eth9")


def test_bytes_by_a_ranks_own_word_where_nobody_judged() -> None:
    counts = [{"bytes_sent": 1, "bytes_received": 2}, {"bytes_sent": 10, "bytes_received": None}]
    made = built(state(beats=[beat(0, sockets=counts), beat(1, sockets=None)], evidence={}))
    assert [(entry["bytes_sent"], entry["bytes_received"]) for entry in made["ranks"]] == [(11, 2), (None, None)]


def test_ranks_of_status_come_from_beats_alone() -> None:
    given = {**fresh(), "plan": {"run": "try", "hosts": HOSTS, "ranks": []}, "beats": [beat(1)]}
    (one,) = built(given)["ranks"]
    assert (one["rank"], one["host"], one["local_rank"]) == (1, "laptop", 0)


@pytest.mark.parametrize(
    ("given", "check_mode", "verdict"),
    [
        ({}, False, "refused"),
        ({"go": False}, True, "refused"),
        ({"go": True}, True, "planned"),
        ({"go": True, "verdict": "unverified"}, False, "unverified"),
        ({"go": False, "verdict": "failed"}, False, "failed"),
    ],
)
def test_verdict(given: dict[str, Any], check_mode: bool, verdict: str) -> None:
    made = built({**fresh(), **given}, check_mode)
    assert (made["verdict"], made["state"]) == (verdict, "not started")


def test_the_backend_without_a_beat() -> None:
    assert built(state(beats=[]))["backend"] == "gloo"
    assert built(fresh())["backend"] is None


def test_causes() -> None:
    one = cause("port_in_use", "taken", host="workstation")
    assert built({**fresh(), "causes": [one]})["causes"] == [one] and set(one) == set(PROMISED_OF_A_CAUSE)


def test_a_secret_is_in_no_report() -> None:
    settings = smoke(nanochat_secret_env={"WANDB_API_KEY": SECRET})
    assert SECRET not in json.dumps(built({**state(), **after_network(settings)}))


def answers(*seconds: float) -> dict[str, dict[str, Any]]:
    return {host: {"seconds": value} for host, value in zip(HOSTS, seconds)}


def test_timings_are_those_of_the_slowest_host() -> None:
    made = built(
        state(times=[["inventory", 100.0], ["look", 102.0], ["started", 104.25], ["proof", 120.5]]),
        preflight_node=answers(1.25, 0.5),
        install_environment=answers(3.0),
        launch_links=answers(1.0, 1.5),
        launch_started=answers(0.75, 0.5),
        verify_rendezvous=answers(9.0),
        verify_node=answers(0.25, 0.5),
    )
    assert made["timings_s"] == {
        "node_info": 1.25,
        "environment": 3.0,
        "link_probe": 1.5,
        "training_run": 0.75,
        "rendezvous": 9.0,
        "node_info_again": 0.5,
        "until_agents_run": 4.25,
        "total": 20.5,
    }
    assert made["remote_tasks_before_agents"] == 3


def test_no_agents_no_time_until_they_run() -> None:
    made = built({**fresh(), "times": [["inventory", 1.0], ["look", 2.5]]}, preflight_node=answers(1.0))
    assert made["timings_s"] == {"node_info": 1.0, "total": 1.5}
    assert made["remote_tasks_before_agents"] == 1
    assert built(fresh())["timings_s"] == {}
