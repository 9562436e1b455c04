# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One root cause of a failed run, from logs that torchrun 2.13 wrote on two hosts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from builders import HOSTS, beat, node, run

from ansible_collections.torchlan.nanochat.plugins.module_utils import messages, run_evidence
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import root_cause

CLOSED = "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [192.0.2.37]:7821. This is typically caused by"
FULL = "[enforce fail at inline_container.cc:672] . unexpected pos 173056 vs 172944"
TIMED_OUT = (
    "DistNetworkError: The client socket has timed out after 5000ms while trying to connect to (192.0.2.36, 29500)"
)
AT = "2026-12-01_03:44:13"
NOW = time.mktime(time.strptime(AT, "%Y-%m-%d_%H:%M:%S"))


def table(rank: int, exit_code: int, pid: int = 4242, at: str = AT, traceback: str = "") -> list[str]:
    """torchrun's own words about the end of a worker."""
    signal = {-9: "  (SIGKILL)", -15: "  (SIGTERM)", -6: "  (SIGABRT)"}.get(exit_code, " ")
    names = {-9: "SIGKILL", -15: "SIGTERM", -6: "SIGABRT"}
    says = traceback or (
        f"Signal {-exit_code} ({names[exit_code]}) received by PID {pid}"
        if exit_code < 0
        else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    return [
        "============================================================",
        "scripts.base_train FAILED",
        "------------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : {at}",
        "  host      : alpha-box",
        f"  rank      : {rank} (local_rank: 0)",
        f"  exitcode  : {exit_code} (pid: {pid}){signal}",
        "  error_file: <N/A>",
        f"  traceback : {says}",
        "============================================================",
    ]


def broken(lines: list[str], exit_code: int | None = 1, **values: Any) -> dict[str, Any]:
    """What a host says of its part of a run that broke."""
    seen = {
        "log": [line for line in lines if not run_evidence.is_noise(line)],
        "failures": run_evidence.failures(lines),
        "ended_unix": NOW,
        "oom_kills": 0,
        "oom_pids": [],
    }
    processes = values.pop("processes", [])
    return run("failed", exit_code=exit_code, evidence={**seen, **values}, processes=processes)


def explained(
    runs: dict[str, dict[str, Any]],
    beats: list[dict[str, Any]] | None = None,
    told: list[dict[str, Any]] | None = None,
    clocks: dict[str, float] | None = None,
) -> list[dict[str, Any]]:
    nodes = {host: node(host, one) for host, one in runs.items()}
    for host, one in nodes.items():
        one["host"]["clock_unix"] = (clocks or {}).get(host, NOW + 5)
    return root_cause.explain(nodes, {one["rank"]: one for one in beats or []}, told or [])


def summary(causes: list[dict[str, Any]]) -> list[tuple[str, str, str | None, int | None]]:
    return [(entry["weight"], entry["code"], entry["host"], entry["rank"]) for entry in causes]


def failed(rank: int, kind: str, message: str, at: float, **values: Any) -> dict[str, Any]:
    return beat(rank, state="failed", error={"type": kind, "message": message, "time": at}, exit_code=1, **values)


def test_the_exception_and_not_its_echo_although_that_is_on_the_master_and_earlier() -> None:
    runs = {"workstation": broken([]), "laptop": broken([])}
    beats = [failed(0, "RuntimeError", CLOSED, NOW), failed(1, "ValueError", "bad shapes\nsecond line", NOW + 1)]
    found = explained(runs, beats)
    assert summary(found) == [("error", "exception", "laptop", 1), ("note", "note", None, None)]
    assert found[0]["what"] == "rank 1 on laptop: ValueError: bad shapes"
    assert "peer_lost: rank 0 on workstation" in found[1]["what"]


def test_the_earliest_of_two_real_errors() -> None:
    beats = [failed(0, "ValueError", "later", NOW + 3), failed(1, "KeyError", "first", NOW)]
    found = explained({host: broken([]) for host in HOSTS}, beats)
    assert summary(found)[0] == ("error", "exception", "laptop", 1)


def test_clocks_that_differ_are_not_compared_as_they_are() -> None:
    """The laptop's is ten minutes ahead: what it calls later was first."""
    beats = [failed(0, "ValueError", "later", NOW + 3), failed(1, "KeyError", "first", NOW + 600)]
    found = explained({host: broken([]) for host in HOSTS}, beats, clocks={"workstation": NOW + 5, "laptop": NOW + 605})
    assert summary(found)[0] == ("error", "exception", "laptop", 1)


def test_a_known_message_becomes_its_cause_with_the_port_as_it_is() -> None:
    message = "[Errno 28] No space left on device: '/b/base_checkpoints/x/model_000010.pt'"
    found = explained({host: broken([]) for host in HOSTS}, [failed(0, "OSError", message, NOW)])
    assert summary(found) == [("error", "disk_full", "workstation", 0)]
    assert "the disk is full" in found[0]["what"] and "model_000010.pt" in found[0]["what"]
    found = explained({"workstation": broken([])}, [failed(0, "RuntimeError", CLOSED, NOW)])
    assert summary(found) == [("error", "peer_lost", "workstation", 0)]
    assert "[192.0.2.37]:36126" in found[0]["what"]


@pytest.mark.parametrize(
    ("exit_code", "evidence", "code", "words"),
    [
        (-9, {}, "rank_died", "it was killed (SIGKILL)"),
        (-9, {"oom_pids": [4242]}, "out_of_memory", "its log names pid 4242"),
        (-9, {"oom_kills": 1}, "out_of_memory", "it killed 1 since this run began there"),
        (-6, {}, "rank_died", "it aborted"),
        (3, {}, "rank_died", "exit code 3"),
    ],
)
def test_a_rank_that_could_not_speak(exit_code: int, evidence: dict[str, Any], code: str, words: str) -> None:
    runs = {"workstation": broken(["x"]), "laptop": broken(table(1, exit_code), **evidence)}
    beats = [failed(0, "RuntimeError", CLOSED, NOW - 1), beat(1, state="training")]
    found = explained(runs, beats)
    assert summary(found)[0] == ("error", code, "laptop", 1)
    assert words in found[0]["what"]


def test_workers_that_torchrun_ended_are_no_cause() -> None:
    lines = table(0, -15, pid=1) + table(1, -9, pid=2)
    found = explained({"workstation": broken(lines)})
    assert summary(found)[0] == ("error", "rank_died", "workstation", 1)
    assert "not_proven: rank 0 on workstation" in found[1]["what"]


def test_without_the_runner_the_log_of_the_rank_is_all_there_is() -> None:
    lines = ["[rank0]: Traceback (most recent call last):", "[rank0]:   File x", "[rank0]: MemoryError", *table(0, 1)]
    found = explained({"workstation": broken(lines)})
    assert summary(found) == [("error", "out_of_memory", "workstation", 0)]


def test_what_the_guard_said_is_the_cause_and_not_what_it_did() -> None:
    told = [cause("start_timeout", "rank 1 on laptop is frozen since 12 s", host="laptop", rank=1)]
    runs = {"workstation": broken(table(0, -9)), "laptop": broken(table(1, -15))}
    beats = [failed(0, "RuntimeError", CLOSED, NOW)]
    found = explained(runs, beats, told)
    assert summary(found) == [("error", "start_timeout", "laptop", 1), ("note", "note", None, None)]


def test_a_rank_that_its_guard_ended_repeats_only_the_reason() -> None:
    reason = cause("rank_frozen", "rank 1 on laptop stands still", host="laptop", rank=1)
    runs = {
        "workstation": broken(table(0, 79, traceback="ended with the run: rank_frozen: rank 1 on laptop stands still")),
        "laptop": broken(table(1, -9, traceback="rank_frozen: rank 1 on laptop stands still")),
    }
    beats = [beat(rank, state="failed", exit_code=79, causes=[reason]) for rank in (0, 1)]
    assert summary(explained(runs, beats, [reason])) == [("error", "rank_frozen", "laptop", 1)]


def test_a_told_cause_that_only_repeats_is_said_once_and_better() -> None:
    told = [
        cause("exception", "rank 1: OSError", host="laptop", rank=1),
        cause("peer_lost", "…", host="workstation", rank=0),
    ]
    beats = [failed(0, "RuntimeError", CLOSED, NOW), failed(1, "OSError", "[Errno 28] No space left on device", NOW)]
    found = explained({host: broken([]) for host in HOSTS}, beats, told)
    assert summary(found) == [("error", "disk_full", "laptop", 1), ("note", "note", None, None)]


def test_a_signal_after_the_exception_is_not_what_broke_it() -> None:
    told = cause("ended_from_outside", "rank 1 on laptop was told to end (SIGTERM)", host="laptop", rank=1)
    beats = [failed(1, "RuntimeError", FULL, NOW, causes=[told])]
    assert summary(explained({host: broken([]) for host in HOSTS}, beats))[0] == ("error", "disk_full", "laptop", 1)


def test_an_exception_that_only_another_rank_tells_of_has_its_name_too() -> None:
    told = [cause("exception", f"rank 0 on workstation: RuntimeError: {FULL}", host="workstation", rank=0)]
    beats = [beat(1, state="failed", exit_code=79, causes=told)]
    found = explained({"laptop": broken([])}, beats, told)
    assert summary(found) == [("error", "disk_full", "workstation", 0)]
    assert found[0]["what"].startswith("rank 0 on workstation: the disk is full") and FULL in found[0]["what"]


def test_an_agent_that_never_had_a_worker_says_why() -> None:
    inuse = "torch.distributed.DistNetworkError: The server socket has failed to listen, name: EADDRINUSE"
    runs = {
        "workstation": broken([inuse]),
        "laptop": broken([TIMED_OUT]),
    }
    found = explained(runs)
    assert summary(found)[0] == ("error", "port_in_use", "workstation", None)


@pytest.mark.parametrize("exit_code", [None, 137])
def test_an_agent_that_was_killed(exit_code: int | None) -> None:
    runs = {"workstation": broken([], exit_code=1), "laptop": broken([], exit_code=exit_code)}
    found = explained(runs, [failed(0, "RuntimeError", CLOSED, NOW)])
    assert summary(found)[0] == ("error", "rank_died", "laptop", None)
    assert "the agent" in found[0]["what"] and "SIGKILL" in found[0]["what"]


def test_an_agent_in_its_exit_barrier_is_no_cause() -> None:
    waiting = broken([], exit_code=None, processes=[{"role": "agent", "pid": 7}])
    waiting["state"] = "half_alive"
    runs = {"workstation": waiting, "laptop": broken(table(1, 3))}
    assert summary(explained(runs)) == [("error", "rank_died", "laptop", 1)]


def test_nothing_is_known() -> None:
    assert explained({"workstation": run("stopped", exit_code=143)}) == []
    known = [cause("rank_missing", "rank 1 (laptop) did not join within 30 s")]
    assert explained({"workstation": run("stopped", exit_code=143)}, told=known) == known


@pytest.mark.parametrize(
    ("next_unix", "gave_up", "words", "fix"),
    [
        (None, None, "started again by itself 2 of at most 3 times", "nothing to do: it goes on"),
        (NOW + 20, None, "started again by itself 2 of at most 3 times", "nothing to do: it starts again at"),
        (None, "disk_full does not heal", "started again by itself 1 of", "not started again: disk_full does not heal"),
    ],
)
def test_what_a_run_did_about_its_failures(next_unix: float | None, gave_up: str | None, words: str, fix: str) -> None:
    failure = {"time": NOW, "code": "rank_died", "what": "rank 1 on laptop ended", "step": 812, "exit_code": 1}
    state = {"limit": 3, "failures": [failure], "next_unix": None, "gave_up": None}
    newer = {**state, "failures": [failure, failure], "next_unix": next_unix, "gave_up": gave_up}
    runs = {"workstation": run("alive", restarts=state), "laptop": run("alive", restarts=newer)}
    (told,) = root_cause.restarts(runs)
    assert (told["code"], told["weight"]) == ("restarted", "note")
    assert told["what"].startswith(words) and "step 812" in told["what"] and "rank 1 on laptop ended" in told["what"]
    assert told["fix"].startswith(fix)
    assert root_cause.restarts({"workstation": run("alive")}) == []


# ---- what a host finds ----


def test_evidence_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "exit_code").write_text("1\n")
    os.utime(tmp_path / "exit_code", (NOW, NOW))
    noise = "W1201 03:43:58.601000 1 api.py:1028] Sending process 28345 closing signal SIGTERM"
    lines = ["step 1", noise, *table(1, 1, traceback="rank_frozen: rank 0 on workstation stands still")]
    before = run_evidence.oom_kills()
    found = run_evidence.evidence(str(tmp_path), {"oom_kills": before}, lines)
    assert found["failures"] == [
        {"rank": 1, "pid": 4242, "exit_code": 1, "time": NOW, "says": "rank_frozen: rank 0 on workstation stands still"}
    ]
    assert found["ended_unix"] == NOW and noise not in found["log"] and "step 1" in found["log"]
    assert found["oom_kills"] == (None if before is None else run_evidence.oom_kills() - before)
    assert run_evidence.evidence(str(tmp_path), None, [])["oom_kills"] is None


def test_only_the_last_of_several_starts_is_evidence(tmp_path: Path) -> None:
    again = f"[torchlan] {messages.STARTS_AGAIN}, 1 of at most 3 times, after rank_died: rank 0"
    found = run_evidence.evidence(str(tmp_path), None, [*table(0, -9), again, *table(1, 1)])
    assert [failure["rank"] for failure in found["failures"]] == [1]


def test_a_table_that_cannot_be_read_is_none() -> None:
    lines = table(1, -9)
    assert run_evidence.failures(lines[:8]) == []
    assert run_evidence.failures(table(1, -9, at="never"))[0]["time"] is None


def test_last_words_are_those_of_the_rank_and_not_torchrun_s() -> None:
    reported = "E1201 03:44:13.139000 1 api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 2) of binary: python"
    lines = ["step 1", "", "ValueError: bad", reported, "Traceback (most recent call last):", *table(1, 1)]
    assert run_evidence.last_words(lines)[-1] == "ValueError: bad"
    assert run_evidence.last_words(["step 1"]) == ["step 1"]


def test_last_words_of_the_host_where_it_broke() -> None:
    runs = {"workstation": broken([], last_words=["w", CLOSED]), "laptop": broken([], last_words=["l"])}
    nodes = {host: node(host, one) for host, one in runs.items()}
    assert root_cause.last_words(nodes, [cause("exception", "x", host="laptop")]) == {"laptop": ["l"]}
    found = root_cause.last_words(nodes, [cause("rank_missing", "x"), cause("note", "y", host="laptop", weight="note")])
    assert list(found) == ["workstation", "laptop"] and "]:36126." in found["workstation"][1]
    assert root_cause.last_words({"laptop": node("laptop", run("alive"))}, []) == {}
