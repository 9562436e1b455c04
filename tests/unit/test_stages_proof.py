# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages after the start: proof, stored proof, status and stop; and what never ends a live run."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from builders import (
    ATTEMPT,
    HOSTS,
    PARAM_BYTES,
    State,
    after_look,
    after_network,
    beat,
    codes,
    configuration,
    fresh,
    lost,
    pair,
    recorded,
    seen,
    smoke,
    sockets,
    view,
)

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.modules import verdict
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import stages

# ---- proof ----


def running(rank_beats: list[dict[str, Any]], state: str = "alive", **values: Any) -> dict[str, dict[str, Any]]:
    """What both hosts see while these ranks train."""
    found = {}
    for rank, host in enumerate(HOSTS):
        mine = [one for one in rank_beats if one["rank"] == rank]
        processes = [{"pid": 100 + rank, "role": "worker", "rank": rank, "attempt": ATTEMPT}]
        found[host] = recorded(
            state, configuration(smoke()), beats=mine, sockets=sockets(rank), processes=processes, **values
        )
    return found


def judged(
    runs: dict[str, dict[str, Any]], state: State | None = None, settings: Any = None, **results: dict[str, Any]
) -> State:
    settings = settings or smoke()
    state = {**(state or after_network(settings)), "attempt": ATTEMPT}
    given = {"preflight_node": seen(runs), "verify_node": seen(runs), **results}
    return stages.proof(view(settings, False, **given), state)


def test_proven() -> None:
    state = judged(running([beat(0), beat(1)]))
    assert (state["verdict"], state["causes"], state["run_state"], state["end"]) == ("proven", [], "alive", False)
    assert [one["rank"] for one in state["beats"]] == [0, 1]
    assert state["evidence"]["ranks"][1]["bytes_sent"] == PARAM_BYTES * 3
    assert state["evidence"]["equal_parameters"] == {"step": 2, "equal": True}


def test_ranks_that_exchange_nothing() -> None:
    runs = running([beat(0), beat(1)])
    for one in runs.values():
        one["sockets"] = []
    state = judged(runs)
    assert state["verdict"] == "unverified" and codes(state) == ["not_proven"]
    runs = running([beat(0, backend=None), beat(1, backend=None)])
    state = judged(runs)
    assert (state["verdict"], state["end"]) == ("failed", True) and set(codes(state)) == {"not_distributed"}


def test_parameters_that_differ() -> None:
    state = judged(running([beat(0), beat(1, checksums={"1": "aa", "2": "XX"})]))
    assert (state["verdict"], codes(state), state["end"]) == ("failed", ["parameters_differ"], True)


def test_beats_of_another_attempt_prove_nothing() -> None:
    state = judged(running([beat(0, attempt="old"), beat(1, attempt="old")]))
    assert (state["verdict"], state["beats"]) == ("unverified", [])


def test_the_newest_beat_of_a_rank_counts() -> None:
    cluster = {"attempt": ATTEMPT, "ranks": [beat(0, time=9e9, step=7), beat(1, time=1.0, step=1)], "causes": []}
    runs = running([beat(0), beat(1)])
    runs["workstation"]["cluster"] = cluster
    assert [one["step"] for one in judged(runs)["beats"]] == [7, 3]


def test_what_the_ranks_say_ends_the_run_and_is_said_once() -> None:
    said = cause("exception", "rank 1: ValueError", host="laptop", rank=1)
    runs = running([beat(0), beat(1)], state="failed")
    runs["workstation"]["cluster"] = {"attempt": ATTEMPT, "ranks": [], "causes": [said]}
    state = judged(runs, verify_rendezvous={"workstation": {"causes": [dict(said)], "cluster": None}})
    assert (state["verdict"], codes(state), state["end"]) == ("failed", ["exception"], True)


def test_a_failed_start_can_be_kept() -> None:
    settings = smoke(nanochat_keep_failed=True)
    state = judged(running([beat(0), beat(1, backend=None)]), settings=settings)
    assert (state["verdict"], state["end"]) == ("failed", False)


def test_a_host_that_is_lost_while_it_trains() -> None:
    runs = running([beat(0), beat(1)])
    state = judged(runs, verify_node={**seen(runs), "laptop": lost("laptop")})
    assert (state["verdict"], codes(state)) == ("failed", ["host_unreachable"])


@pytest.mark.parametrize("broken", [{"backend": None}, {"checksums": {"2": "XX"}}])
def test_a_live_run_that_this_launch_did_not_start_is_never_ended(broken: dict[str, Any]) -> None:
    runs = running([beat(0), beat(1, **broken)])
    watched = after_look(seen(runs))
    assert watched["action"] == "watch"
    state = judged(runs, watched)
    assert (state["verdict"], state["end"]) == ("failed", False)
    state = judged(running([beat(0), beat(1)]), watched, verify_node={**seen(runs), "laptop": lost("laptop")})
    assert (state["verdict"], state["end"]) == ("failed", False)


def test_a_live_run_is_proven_again() -> None:
    runs = running([beat(0), beat(1)])
    assert judged(runs, after_look(seen(runs)))["verdict"] == "proven"


def stored_beats() -> list[dict[str, Any]]:
    """Of a run that finished: what is left of its connections is what the ranks saw themselves."""
    result = []
    for rank in (0, 1):
        (one,) = sockets(rank)
        ends = {"local": f"{one['local']}:{one['local_port']}", "remote": f"{one['remote']}:{one['remote_port']}"}
        count = {"bytes_sent": one["bytes_sent"], "bytes_received": one["bytes_received"]}
        result.append(beat(rank, state="finished", step=10, exit_code=0, sockets=[{**ends, **count}]))
        result[-1]["sockets"][0]["bytes_sent"] = result[-1]["sockets"][0]["bytes_received"] = 10 * PARAM_BYTES
    return result


def test_the_stored_proof_of_a_finished_run() -> None:
    runs = running(stored_beats(), state="finished")
    for one in runs.values():
        one.update(processes=[], sockets=[])
    state = after_look(seen(runs))
    assert (state["action"], state["start"], state["attempt"]) == ("stored", False, ATTEMPT)
    state = stages.proof(view(smoke(), preflight_node=seen(runs)), stages.network(view(smoke()), state))
    assert (state["verdict"], state["run_state"], state["causes"], state["end"]) == ("proven", "finished", [], False)


def test_without_the_runner_sockets_decide() -> None:
    settings = pair(nanochat_runner=False, nanochat_run="try")
    runs = running([])
    need = stages.plan.make(settings)[0].expected_bytes_per_step
    assert need
    for rank, host in enumerate(HOSTS):
        runs[host]["sockets"] = sockets(rank, need * 3)
    met = {
        "workstation": {"causes": [], "sockets": sockets(0, need * 3), "evidence": {"ranks": [{"rank": 0, "step": 3}]}}
    }
    state = {**after_network(), "attempt": ATTEMPT}
    state = stages.proof(
        view(settings, preflight_node=seen(runs), verify_node=seen(runs), verify_rendezvous=met), state
    )
    assert (state["verdict"], state["causes"]) == ("proven", [])
    for rank, host in enumerate(HOSTS):
        runs[host]["sockets"] = sockets(rank, 1000)
    met["workstation"]["sockets"] = []
    state = stages.proof(
        view(settings, preflight_node=seen(runs), verify_node=seen(runs), verify_rendezvous=met), state
    )
    assert (state["verdict"], codes(state)) == ("failed", ["too_few_bytes"] * 2)


# ---- status and stop ----


def test_some() -> None:
    state = stages.some(view({"laptop": smoke()["laptop"]}), fresh())
    assert (state["go"], state["plan"]["run"], state["plan"]["hosts"]) == (True, "try", ["laptop"])
    assert stages.some(view({"laptop": pair()["laptop"]}), fresh())["plan"]["run"] == "dist-cpu-2node"


def test_status_and_stop_work_with_settings_that_a_launch_refuses() -> None:
    looks = view(smoke())
    looks.results["preflight_settings"]["laptop"]["causes"] = [cause("setting_invalid", "laptop: x", host="laptop")]
    state = stages.some(looks, fresh())
    assert (state["go"], state["causes"]) == (True, [])


@pytest.mark.parametrize(
    "broken",
    [{"nanochat_run": "two words"}, {"nanochat_run": "../up"}, {"nanochat_run": None, "nanochat_device_type": None}],
)
def test_status_and_stop_need_a_name(broken: dict[str, Any]) -> None:
    settings = {host: {**values, **broken} for host, values in smoke().items()}
    looks = view(settings)
    looks.results["preflight_settings"]["laptop"]["causes"] = [cause("setting_invalid", "laptop: x", host="laptop")]
    state = stages.some(looks, fresh())
    assert (codes(state), state["go"]) == (["setting_invalid"], False)


def status(**results: dict[str, dict[str, Any]]) -> State:
    settings = smoke()
    return stages.status(view(settings, False, **results), stages.some(view(settings), fresh()))


def test_status() -> None:
    state = status(preflight_node=seen(running([beat(0), beat(1)])))
    assert (state["go"], state["run_state"], state["attempt"], state["causes"]) == (True, "alive", ATTEMPT, [])
    assert [one["step"] for one in state["beats"]] == [3, 3]


def test_a_warning_of_a_rank_is_shown_and_changes_no_verdict() -> None:
    said = cause("disk_will_fill", "laptop: 1 GB free", host="laptop", rank=1, weight="warning")
    runs = running([beat(0), beat(1, causes=[said])])
    ranks = [beat(0, time=9e9), beat(1, time=9e9, causes=[said])]
    runs["workstation"]["cluster"] = {"attempt": ATTEMPT, "ranks": ranks, "causes": [said]}
    state = judged(runs)
    assert (state["verdict"], state["causes"], state["end"]) == ("proven", [said], False)
    state = status(preflight_node=seen(runs))
    assert (state["go"], state["run_state"], state["causes"]) == (True, "alive", [said])


@pytest.mark.parametrize(("ended", "line"), [("finished", "(cd /d && talk)"), ("failed", None), ("alive", None)])
def test_a_finished_model_can_talk(ended: str, line: str | None) -> None:
    runs = running([beat(0, state=ended), beat(1, state=ended)])
    for one in runs.values():
        one.update(state=ended, exit_code=int(ended == "failed"), record={"sample": "(cd /d && talk)"})
    assert status(preflight_node=seen(runs))["sample"] == line


def test_status_with_a_dead_host() -> None:
    state = status(preflight_node={**seen(running([beat(0), beat(1)])), "workstation": lost("workstation")})
    assert (state["go"], codes(state), state["causes"][0]["weight"]) == (True, ["host_unreachable"], "warning")
    assert [one["rank"] for one in state["beats"]] == [1]


def test_status_without_any_host() -> None:
    state = status(preflight_node={host: lost(host) for host in HOSTS})
    assert (state["go"], state["run_state"], len(state["causes"])) == (False, "unknown", 2)


def test_status_of_no_run() -> None:
    state = status(preflight_node=seen())
    assert (codes(state), state["causes"][0]["weight"], state["attempt"]) == (["run_absent"], "note", None)


def test_status_lists_other_runs_only() -> None:
    mine, other = {"run": "try", "attempt": ATTEMPT, "pids": [1]}, {"run": "other", "attempt": "x", "pids": [2]}
    state = status(preflight_node=seen(running([beat(0)]), other_runs=[mine, other]))
    assert state["other_runs"] == {key: [other] for key in HOSTS}


@pytest.mark.parametrize(
    ("answers", "go", "said"),
    [
        ({host: {"ended": [], "causes": []} for host in HOSTS}, True, []),
        ({"laptop": {"ended": [], "causes": []}, "workstation": lost("workstation")}, True, ["warning"]),
        ({"laptop": {"ended": [], "causes": [cause("stop_incomplete", "pid 1")]}}, False, ["error"]),
        ({host: lost(host) for host in HOSTS}, False, ["warning", "warning"]),
    ],
)
def test_ended(answers: dict[str, dict[str, Any]], go: bool, said: list[str]) -> None:
    state = stages.ended(view(smoke(), stop_ended=answers), fresh())
    assert (state["go"], [entry["weight"] for entry in state["causes"]]) == (go, said)


def test_every_stage_is_documented() -> None:
    choices = yaml.safe_load(verdict.DOCUMENTATION)["options"]["stage"]["choices"]
    assert set(choices) == set(stages.STAGES)
    assert len({id(stage) for stage in stages.STAGES.values()}) == len(stages.STAGES)


def test_the_age_of_a_beat_is_told_by_its_own_hosts_clock() -> None:
    node = {"host": {"clock_unix": 1000.0}, "run": {"beats": [{"rank": 0, "time": 990.0}, {"rank": 1}]}}
    assert [beat.get("age_s") for beat in stages._own_beats(node)] == [10.0, None]
    assert stages._own_beats({"host": {}, "run": {}}) == []
