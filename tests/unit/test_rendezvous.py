# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for proof or a cause: with files of a run, with real processes, and with their real sockets."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_run import Lab, eventually, lab_fixture  # noqa: F401

from ansible_collections.torchlan.nanochat.plugins.module_utils import await_proof
from ansible_collections.torchlan.nanochat.plugins.module_utils.await_proof import Question, log_step, wait
from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import RunPaths, boot_id

PLAN: dict[str, Any] = {
    "run": "demo",
    "device": "cpu",
    "host": "workstation",
    "nnodes": 2,
    "world_size": 2,
    "nodes": [
        {"node_rank": 0, "host": "workstation", "address": "192.0.2.36", "nproc": 1},
        {"node_rank": 1, "host": "laptop", "address": "192.0.2.37", "nproc": 1},
    ],
}
STEP = "step %05d/00010 (0.00%%) | loss: 8.316379 | lrm: 0.10 | dt: 1137.06ms | tok/sec: 1,801 |"


def beat(rank: int, **values: Any) -> dict[str, Any]:
    host = ("workstation", "laptop")[rank]
    ends = ["192.0.2.36:4001", "192.0.2.37:4002"]
    return {
        "rank": rank,
        "host": host,
        "node_rank": rank,
        "pid": 1,
        "state": "training",
        "step": 3,
        "step_of": 10,
        "world_size": 2,
        "backend": "gloo",
        "param_bytes": 1000,
        "collectives_begun": 5,
        "collectives_finished": 5,
        "collective_bytes": 6000,
        "checksums": {"3": "aa"},
        "loss": 8.3,
        "time": time.time(),
        "sockets": [
            {"local": ends[rank], "remote": ends[1 - rank], "bytes_sent": 3000, "bytes_received": 3000},
        ],
        **values,
    }


class Master:
    """The master's part of a run: its files, and an agent with a worker that does nothing."""

    def __init__(self, lab: Lab, plan: dict[str, Any] = PLAN) -> None:
        self.lab = lab
        self.folder = lab.make(env="export TORCHLAN_PLAN=%s\n" % shlex.quote(json.dumps(plan)))
        self.started(0)

    def started(self, seconds_ago: float) -> None:
        record = {"boot_id": boot_id(), "started_unix": time.time() - seconds_ago, "config": {"master_port": 29500}}
        (self.folder / "run.json").write_text(json.dumps(record))

    def alive(self, **fake: Any) -> None:
        self.lab.agent(self.folder, **{"ranks": [0], "world_size": 2, **fake})
        count = len(fake.get("ranks", [0]))
        eventually(lambda: self.lab.pids(role="agent") and len(self.lab.pids(role="worker")) == count)

    def cluster(self, *ranks: dict[str, Any], **more: Any) -> None:
        text = json.dumps({"schema": 1, "attempt": "a1", "world_size": 2, "ranks": list(ranks), "causes": [], **more})
        (self.folder / "cluster.json").write_text(text)

    def log(self, *lines: str) -> None:
        (self.folder / "train.log").write_text("".join(line + "\n" for line in lines))

    def ask(self, **more: Any) -> dict[str, Any]:
        paths = RunPaths.of(str(self.lab.base_dir), "demo", 0)
        return wait(Question(paths, "a1", **{"wait_s": 0, **more}))


@pytest.fixture(name="master")
def master_fixture(lab: Lab) -> Master:
    return Master(lab)


def codes(answer: dict[str, Any]) -> list[str]:
    return [one["code"] for one in answer["causes"]]


def outcome(answer: dict[str, Any]) -> tuple[str, bool, list[str]]:
    return answer["phase"], answer["done"], codes(answer)


# ---- with the runner ----


def test_proven_by_beats(master: Master) -> None:
    master.alive()
    master.cluster(beat(0), beat(1))
    answer = master.ask()
    assert outcome(answer) == ("proven", True, [])
    assert answer["progress"] == "step 3 of 10, loss 8.3, 3.0 kB sent per rank"
    assert answer["cluster"]["world_size"] == 2
    assert [row["bytes_sent"] for row in answer["evidence"]["ranks"]] == [3000, 3000]
    assert json.dumps(answer)


def test_waiting_for_a_rank(master: Master) -> None:
    master.alive()
    master.cluster(beat(0, state="agreeing", step=0), {"rank": 1, "node_rank": 1, "host": "laptop", "state": "missing"})
    answer = master.ask()
    assert outcome(answer) == ("waiting_for_ranks", False, [])
    assert answer["progress"] == "1 of 2 ranks are here; waiting for rank 1 (laptop)"
    master.cluster(beat(0, state="agreeing", step=0))
    assert master.ask()["progress"].endswith("waiting for rank 1 (laptop)")
    master.started(200)
    assert outcome(master.ask()) == ("failed", True, ["rank_missing"])


@pytest.mark.parametrize(
    ("state", "phase"),
    [("starting", "waiting_for_ranks"), ("connecting", "waiting_for_ranks"), ("compiling", "compiling")],
)
def test_phases_before_training(master: Master, state: str, phase: str) -> None:
    master.alive()
    fresh: dict[str, Any] = {"step": 0, "backend": None, "checksums": {}, "sockets": []}
    master.cluster(beat(0, **fresh), beat(1, state=state, **fresh))
    answer = master.ask()
    assert outcome(answer) == (phase, False, [])
    assert answer["progress"] == "%s: rank 1 (laptop)" % state
    master.started(900)
    assert outcome(master.ask()) == (phase, False, [])  # compiling is no hang
    master.started(1000)
    assert outcome(master.ask()) == ("failed", True, ["start_timeout"])
    assert outcome(master.ask(first_step_timeout=2000)) == (phase, False, [])


def test_training_not_yet_proven(master: Master) -> None:
    master.alive()
    waiting = {"op": "reduce_scatter", "n": 42, "since": time.time() - 30}
    master.cluster(beat(0, step=1), beat(1, step=1, waiting_in=waiting))
    answer = master.ask()
    assert outcome(answer) == ("training", False, [])
    assert answer["progress"].startswith("step 1 of 10, loss 8.3, 3.0 kB sent per rank, rank 1 waits in reduce_scatter")
    master.started(2000)
    assert outcome(master.ask()) == ("unverified", True, ["not_proven"])


def test_causes_of_the_ranks_come_first(master: Master) -> None:
    cause = {"code": "arguments_differ", "weight": "error", "host": None, "rank": 1, "what": "depth", "fix": "x"}
    master.cluster(beat(0, state="failed"), beat(1, state="failed"), causes=[dict(cause, weight="note"), cause])
    master.alive()
    assert outcome(master.ask()) == ("failed", True, ["arguments_differ"])
    for pid in master.lab.pids():
        os.kill(pid, 9)
    (master.folder / "exit_code").write_text("1")
    assert eventually(lambda: outcome(master.ask())) == ("failed", True, ["arguments_differ"])


@pytest.mark.parametrize(
    ("code", "expected"),
    [("rank_frozen", ("restarting", False, [])), ("disk_full", ("failed", True, ["disk_full"]))],
)
def test_a_run_that_starts_again_by_itself(lab: Lab, code: str, expected: Any) -> None:
    master = Master(lab, {**PLAN, "auto_resume": 2})
    master.alive()
    cause = {"code": code, "weight": "error", "host": "laptop", "rank": 1, "what": "rank 1 broke", "fix": "x"}
    master.cluster(beat(0, state="failed"), beat(1, state="failed"), causes=[cause])
    answer = master.ask()
    assert outcome(answer) == expected
    assert answer["progress"].startswith("rank 1 broke")


def test_time_counts_from_the_last_start(master: Master) -> None:
    master.lab.agent(master.folder, exit_at_once=True, barrier=True)
    eventually(lambda: master.lab.pids(role="agent") and not master.lab.pids(role="worker"))
    master.started(5000)
    assert outcome(master.ask())[0] == "failed"
    (master.folder / "restarts.json").write_text(json.dumps({"next_unix": time.time() + 5, "failures": []}))
    assert outcome(master.ask()) == ("waiting_for_ranks", False, [])


def test_an_exception_in_a_rank(master: Master) -> None:
    master.alive()
    error = {"type": "FileNotFoundError", "message": "tokenizer.pkl", "time": 5}
    master.cluster(beat(0), beat(1, state="failed", error=error))
    answer = master.ask()
    assert outcome(answer) == ("failed", True, ["exception"])
    assert "rank 1 (laptop): FileNotFoundError: tokenizer.pkl" in answer["progress"]


def test_this_nodes_newer_beats_count(master: Master) -> None:
    master.alive()
    master.cluster(beat(0, step=1, time=time.time() - 5), beat(1))
    (master.folder / "beats" / "rank-0.json").write_text(json.dumps(beat(0)))
    assert outcome(master.ask()) == ("proven", True, [])


@pytest.mark.parametrize(
    "text", ["", "{", '{"ranks": 5, "causes": null}', '{"ranks": [1, {"rank": "x"}, {"rank": 0}]}']
)
def test_a_broken_cluster_file(master: Master, text: str) -> None:
    master.alive()
    (master.folder / "cluster.json").write_text(text)
    assert master.ask()["done"] is False


# ---- the end ----


def test_never_started(lab: Lab) -> None:
    paths = RunPaths.of(str(lab.base_dir), "demo", 0)
    assert outcome(wait(Question(paths, "a1"))) == ("failed", True, ["run_absent"])


def test_finished(master: Master) -> None:
    (master.folder / "exit_code").write_text("0\n")
    answer = master.ask()
    assert outcome(answer) == ("finished", True, [])
    assert "rank 0, 1 not seen" in answer["progress"]
    master.cluster(beat(0, state="finished"), beat(1, state="finished"))
    assert outcome(master.ask()) == ("proven", True, [])
    master.cluster(beat(0, state="finished"), beat(1, state="finished", checksums={"3": "XX"}))
    assert outcome(master.ask()) == ("finished", True, ["parameters_differ"])


def test_all_ranks_finished_while_the_agent_lingers(master: Master) -> None:
    master.lab.agent(master.folder, exit_at_once=True, barrier=True)
    eventually(lambda: master.lab.pids(role="agent"))
    master.cluster(beat(0, state="finished", step=1), beat(1, state="finished", step=1))
    assert outcome(master.ask()) == ("finished", True, [])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"exit_code": "1\n"}, "ended with exit code 1; its log: the end"),
        ({"stopped": "stop.yml\n"}, "the run was stopped: stop.yml"),
        ({}, "torchrun on the master was killed; its log: the end"),
    ],
)
def test_ended_otherwise(master: Master, files: dict[str, str], words: str) -> None:
    master.log("something", "the end")
    for name, text in files.items():
        (master.folder / name).write_text(text)
    answer = master.ask()
    assert answer["phase"] == "failed"
    assert words in answer["progress"]
    assert answer["log_tail"] == ["something", "the end"]


def test_the_agent_is_gone_and_its_worker_is_not(master: Master) -> None:
    master.alive()
    os.kill(master.lab.pids(role="agent")[0], 9)
    answer = eventually(lambda: (lambda one: one if one["done"] else None)(master.ask()))
    assert outcome(answer) == ("failed", True, ["rank_died"])
    assert "agent on the master is gone" in answer["progress"]


# ---- nobody joins ----


@pytest.mark.parametrize("runner", [True, False])
def test_nobody_joins(master: Master, runner: bool) -> None:
    master.lab.agent(master.folder, exit_at_once=True, barrier=True)
    eventually(lambda: master.lab.pids(role="agent") and not master.lab.pids(role="worker"))
    answer = master.ask(runner=runner)
    assert outcome(answer) == ("waiting_for_ranks", False, [])
    assert answer["progress"] == "the agents of 2 hosts are looking for each other"
    master.started(50)
    answer = master.ask(runner=runner)
    assert outcome(answer) == ("failed", True, ["rank_missing"])
    assert "laptop (node_rank 1)" in answer["causes"][0]["what"]
    assert outcome(master.ask(runner=runner, join_timeout=100)) == ("waiting_for_ranks", False, [])


def test_the_agents_own_limit_came_first(master: Master) -> None:
    master.log("DistStoreError: Timed out after 21 seconds waiting for clients. 1/2 clients joined.", "frame #1: x")
    (master.folder / "exit_code").write_text("1")
    answer = master.ask()
    assert outcome(answer) == ("failed", True, ["rank_missing"])
    assert answer["causes"][0]["what"] == "1 of 2 hosts joined; expected: laptop (node_rank 1)"


# ---- without the runner ----


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], (0, None, None)),
        (["nothing", "Step 00005 | Validation bpb: 3.068655"], (0, None, None)),
        ([STEP % 0, "more"], (1, 10, "8.316379")),
        ([STEP % 0, STEP % 1, "W0101 noise"], (2, 10, "8.316379")),
        (["  step 7/9"], (8, 9, None)),
        (["a step 00003/00010"], (0, None, None)),
    ],
)
def test_steps_of_a_log(lines: list[str], expected: Any) -> None:
    assert log_step(lines) == expected


def test_upstream_on_cpu_is_not_distributed_at_once(master: Master) -> None:
    """Both ranks print a world size of 2 and train alone."""
    master.alive()
    assert outcome(master.ask(runner=False)) == ("compiling", False, [])
    master.log("Distributed world size: 2", STEP % 0)
    answer = master.ask(runner=False)
    assert outcome(answer) == ("failed", True, ["not_distributed"])
    assert "no TCP connection at all" in answer["causes"][0]["what"]
    assert answer["causes"][0]["rank"] == 0
    assert answer["causes"][0]["host"] == "workstation"


def test_what_just_ends_is_looked_at_twice(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last step a run closes its connections before it is gone."""
    master.alive()
    master.log(STEP % 8, STEP % 9)
    looks = []
    real = await_proof._look

    def look(question: Question) -> Any:
        looks.append(1)
        if len(looks) == 2:
            for pid in master.lab.pids():
                os.kill(pid, 9)
            (master.folder / "exit_code").write_text("0\n")
            eventually(lambda: not master.lab.pids())
        return real(question)

    monkeypatch.setattr(await_proof, "_look", look)
    assert outcome(master.ask(runner=False)) == ("finished", True, [])
    assert len(looks) == 2


def test_only_the_agent_is_left(master: Master) -> None:
    master.lab.agent(master.folder, exit_at_once=True, barrier=True)
    eventually(lambda: master.lab.pids(role="agent") and not master.lab.pids(role="worker"))
    master.log(STEP % 9)
    assert outcome(master.ask(runner=False)) == ("training", False, [])
    os.utime(master.folder / "train.log", (0, time.time() - 20))
    assert outcome(master.ask(runner=False)) == ("finished", True, [])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def training(lab: Lab, **more: Any) -> Master:
    """Two workers on this host that really exchange bytes, as a synchronous program would."""
    nodes = [{"node_rank": 0, "host": "workstation", "address": "127.0.0.1", "nproc": 2}]
    master = Master(lab, {**PLAN, "nnodes": 1, "nodes": nodes})
    fake = {"bytes_per_step": 100_000, "steps": 4, "steps_in_all": 10, "peer_port": free_port(), **more}
    log = master.folder / "train.log"
    env = {
        **os.environ,
        "TORCHLAN_RUN_DIR": str(master.folder),
        "FAKE": json.dumps({"ranks": [0, 1], "world_size": 2, **fake}),
        "PYTHONPATH": str(lab.fakes),
        "LOG": str(log),
    }
    lab.child(["sh", "-c", 'exec "$0" -m torch.distributed.run > "$LOG" 2>&1', sys.executable], env)
    eventually(lambda: len(lab.pids(role="worker")) == 2)
    return master


def test_real_sockets_prove_without_the_runner(lab: Lab) -> None:
    master = training(lab)
    eventually(lambda: "step 00003" in (master.folder / "train.log").read_text())
    answer = master.ask(runner=False, expected_bytes_per_step=100_000)
    assert outcome(answer) == ("proven", True, [])
    rows = answer["evidence"]["ranks"]
    assert [row["peers"] for row in rows] == [[1], [0]]
    assert [row["seen_by"] for row in rows] == ["host", "host"]
    # What was received is what a program has got for certain.
    assert all(400_000 <= row["bytes_received"] < 410_000 for row in rows)
    assert {one["rank"] for one in answer["sockets"]} == {0, 1}


def test_real_sockets_with_too_few_bytes(lab: Lab) -> None:
    master = training(lab)
    eventually(lambda: "step 00003" in (master.folder / "train.log").read_text())
    answer = master.ask(runner=False, expected_bytes_per_step=10_000_000)
    assert outcome(answer) == ("failed", True, ["too_few_bytes", "too_few_bytes"])


def test_the_module_comes_back_when_the_phase_changes(lab: Lab) -> None:
    master = training(lab, steps=50)
    assert master.folder.exists()
    seen = []
    end = time.monotonic() + 60
    while time.monotonic() < end:
        answer = lab.module(
            "rendezvous", attempt="a1", wait_s=20, runner=False, expected_bytes_per_step=100_000, min_steps=5
        )
        assert answer["changed"] is False
        seen.append(answer["phase"])
        if answer["done"]:
            break
    assert answer["phase"] == "proven"
    assert seen[:-1] in (["training"], ["compiling", "training"], ["compiling"], [])


def test_one_host_of_two_has_shown_its_part(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other host's worker is not here to be looked at; this host's traffic goes to its address."""
    master = Master(lab)
    master.alive()
    master.log(STEP % 2)
    entry = {"local": "192.0.2.36", "local_port": 4001, "remote": "192.0.2.37", "remote_port": 4002}
    pid = lab.pids(role="worker")[0]
    counters = {"bytes_sent": 3000, "bytes_received": 3000}
    monkeypatch.setattr(await_proof, "tcp_sockets", lambda pids: [{"pid": pid, **entry, **counters}])
    answer = master.ask(runner=False, expected_bytes_per_step=1000)
    assert outcome(answer) == ("training", True, [])
    assert "now every host is looked at" in answer["progress"]
    assert outcome(master.ask(runner=False, expected_bytes_per_step=100_000))[2] == ["too_few_bytes"]


def test_cuda_without_the_runner_cannot_be_seen(lab: Lab) -> None:
    master = Master(lab, {**PLAN, "device": "cuda"})
    master.alive()
    master.log(STEP % 2)
    answer = master.ask(runner=False, expected_bytes_per_step=1000)
    assert outcome(answer) == ("unverified", True, ["not_proven"])


def test_a_module_with_impossible_names(lab: Lab, tmp_path: Path) -> None:
    assert lab.module("rendezvous", attempt="../x")["failed"]
    assert lab.module("rendezvous", attempt="a1", run="a b")["failed"]
