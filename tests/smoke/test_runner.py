# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runner under real torchrun agents on this machine. TORCHLAN_TORCH_PYTHON names an interpreter that has torch."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import ARGS, Cluster, until

PYTHON = os.environ.get("TORCHLAN_TORCH_PYTHON", "")
OTHER = os.environ.get("TORCHLAN_OTHER_TORCH_PYTHON", "")  # another version of torch

pytestmark = pytest.mark.skipif(not PYTHON, reason="TORCHLAN_TORCH_PYTHON is not set")

Make = Callable[..., Cluster]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Cluster] = []

    def one(**options: Any) -> Cluster:
        made.append(Cluster(tmp_path / f"c{len(made)}", PYTHON, **options))
        return made[-1]

    yield one
    for cluster in made:
        cluster.close()


def codes(causes: list[dict[str, Any]]) -> list[str]:
    return [entry["code"] for entry in causes]


def check_shape(causes: list[dict[str, Any]]) -> None:
    for entry in causes:
        assert set(entry) == {"code", "weight", "host", "rank", "what", "fix"}
        assert entry["weight"] in ("error", "warning", "note")


def test_two_hosts_train_together(make: Make) -> None:
    cluster = make()
    cluster.start(0, [*ARGS, "--eval-every=3"])
    cluster.start(1, [*ARGS, "--eval-every=3"])
    assert cluster.wait() == {0: 0, 1: 0}, cluster.log(0) + cluster.log(1)
    seen = cluster.cluster()
    assert seen["agreed"] and seen["causes"] == [] and seen["world_size"] == 2
    assert seen["equal_parameters"] == {"step": 3, "equal": True}
    for rank in seen["ranks"]:
        assert rank["state"] == "finished" and rank["exit_code"] == 0 and rank["step"] == 6
        assert rank["backend"] == "gloo" and rank["collectives_begun"] == rank["collectives_finished"] > 100
        assert rank["collective_bytes"] > 1.9 * rank["param_bytes"] * 6
        peers = [entry for entry in rank["sockets"] if entry["use"] == "peer"]
        assert sum(entry["bytes_sent"] for entry in peers) > rank["param_bytes"] * 6
    assert seen["ranks"][0]["step_of"] == 6 and seen["ranks"][0]["loss"] < 5.5 and seen["ranks"][0]["val_bpb"] > 1
    assert (cluster.node_dir(0) / "base/base_checkpoints/d2/model_000006.pt").exists()
    assert (cluster.node_dir(1) / "base/base_checkpoints/d2/optim_000006_rank1.pt").exists()


def test_three_ranks_uneven_hosts(make: Make) -> None:
    cluster = make(nproc=(2, 1))
    cluster.start(0)
    cluster.start(1)
    assert cluster.wait() == {0: 0, 1: 0}, cluster.log(0) + cluster.log(1)
    seen = cluster.cluster()
    assert [(r["rank"], r["node_rank"], r["local_rank"]) for r in seen["ranks"]] == [(0, 0, 0), (1, 0, 1), (2, 1, 0)]
    assert seen["equal_parameters"]["equal"] and seen["causes"] == []


def test_one_rank_alone(make: Make) -> None:
    cluster = make(nproc=(1,))
    cluster.start(0)
    assert cluster.wait() == {0: 0}, cluster.log(0)
    assert cluster.cluster()["ranks"][0]["step"] == 6


def test_different_arguments_end_all_with_a_table(make: Make) -> None:
    cluster = make()
    cluster.start(0)
    cluster.start(1, [*ARGS, "--depth=3"])
    assert all(cluster.wait().values()), cluster.log(0)
    for key in (0, 1):
        log = cluster.log(key)
        assert "arguments_differ" in log and "differs" in log and "host1" in log, log
        assert "step 0000" not in log
        beat = cluster.beat(key, key)
        assert beat["state"] == "failed" and beat["exit_code"] == 78
        assert codes(beat["causes"]) == ["arguments_differ"]
        check_shape(beat["causes"])
        assert beat["causes"][0]["host"] == "host1"
    assert codes(cluster.cluster()["causes"]) == ["arguments_differ"]


def test_different_environment(make: Make) -> None:
    cluster = make()
    cluster.start(0)
    cluster.start(1, env={"OMP_NUM_THREADS": "3", "SECRET": "hush"})
    assert all(cluster.wait().values())
    assert codes(cluster.cluster()["causes"]) == ["environment_differs"]
    assert "OMP_NUM_THREADS" in cluster.log(0) and "hush" not in cluster.log(0) + str(cluster.cluster())


@pytest.mark.skipif(not OTHER, reason="TORCHLAN_OTHER_TORCH_PYTHON is not set")
def test_different_torch(make: Make) -> None:
    cluster = make()
    cluster.start(0)
    cluster.start(1, python=OTHER)
    assert all(cluster.wait().values())
    assert "versions_differ" in codes(cluster.cluster()["causes"])
    assert "version torch" in cluster.log(0) and "version torch" in cluster.log(1)


def test_worker_that_counts_more_nodes(make: Make) -> None:
    cluster = make()
    cluster.start(0)
    cluster.start(1, nnodes=3)
    assert all(cluster.wait().values())
    assert "world_differs" in codes(cluster.cluster()["causes"]), cluster.log(0) + cluster.log(1)


def test_rank_that_never_joins_is_named(make: Make) -> None:
    cluster = make(join_timeout=4)
    cluster.serve_store()
    cluster.start_bare(0)
    assert cluster.wait() == {0: 78}, cluster.log(0)
    history = [json.loads(line) for line in (cluster.node_dir(0) / "beats/rank-0.jsonl").read_text().splitlines()]
    agreeing = next(beat["time"] for beat in history if beat["state"] == "agreeing")
    assert 4 <= history[-1]["time"] - agreeing < 20
    causes = cluster.cluster()["causes"]
    assert codes(causes) == ["rank_missing"] and causes[0]["host"] == "host1" and causes[0]["rank"] == 1
    assert cluster.cluster()["ranks"][1] == {"rank": 1, "node_rank": 1, "host": "host1", "state": "missing"}


def test_rank_claimed_twice(make: Make) -> None:
    cluster = make()
    cluster.serve_store()
    cluster.start_bare(1, plan={"host": "one"})
    cluster.start_bare(1, plan={"host": "two", "node_rank": 1}, key=2)
    assert cluster.wait() == {1: 78, 2: 78}
    for key in (1, 2):
        assert "rank_duplicate" in cluster.log(key)
        assert "host one" in cluster.log(key) and "host two" in cluster.log(key)


def test_blocked_link_names_both_ends(make: Make) -> None:
    cluster = make()
    cluster.nodes[0]["address"] = "127.0.0.2"
    blocking = {"PYTHONPATH": str(_blocking_zip(cluster))}
    cluster.start(0)
    cluster.start(1, env=blocking)
    assert all(cluster.wait().values())
    causes = cluster.cluster()["causes"]
    assert codes(causes) == ["link_blocked"], cluster.log(0) + cluster.log(1)
    assert "host1 -> host0" in causes[0]["what"] and "127.0.0.2 port" in causes[0]["what"]
    assert "link_blocked" in cluster.log(1)


def _blocking_zip(cluster: Cluster) -> Path:
    """A sitecustomize in which this node's connections to 127.0.0.2 are refused, as a firewall would."""
    folder = cluster.folder / "blocking"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import socket\n"
        "real = socket.create_connection\n"
        "def blocked(address, *args, **kwargs):\n"
        "    if address[0] == '127.0.0.2':\n"
        "        raise ConnectionRefusedError(111, 'Connection refused')\n"
        "    return real(address, *args, **kwargs)\n"
        "socket.create_connection = blocked\n"
    )
    return Path(f"{folder}:{cluster.folder / 'runner.zip'}")


def test_address_that_is_not_here(make: Make) -> None:
    cluster = make()
    cluster.nodes[1]["address"] = "192.0.2.77"
    cluster.start(0)
    cluster.start(1)
    assert all(cluster.wait().values())
    causes = cluster.cluster()["causes"]
    assert codes(causes) == ["address_unusable"] and causes[0]["host"] == "host1", cluster.log(1)


def test_exception_in_one_rank_is_the_cause(make: Make) -> None:
    cluster = make()
    args = [*ARGS, "--fail-at-step=3", "--fail-rank=1"]
    cluster.start(0, args)
    cluster.start(1, args)
    assert all(cluster.wait().values())
    causes = cluster.cluster()["causes"]
    check_shape(causes)
    assert causes[0]["code"] == "exception" and causes[0]["rank"] == 1 and causes[0]["host"] == "host1", causes
    assert "told to fail at step 3" in causes[0]["what"]
    assert [c["weight"] for c in causes if c["code"] == "peer_lost"] in ([], ["warning"])
    assert "RuntimeError: told to fail" in cluster.log(1)


def test_killed_worker_is_named(make: Make) -> None:
    cluster = make()
    args = [*ARGS, "--num-iterations=2000", "--step-seconds=0.1"]
    cluster.start(0, args)
    cluster.start(1, args)
    until(lambda: cluster.cluster()["ranks"][1].get("step", 0) >= 3)
    os.kill(cluster.cluster()["ranks"][1]["pid"], signal.SIGKILL)
    assert all(cluster.wait().values())
    causes = cluster.cluster()["causes"]
    assert causes[0]["code"] == "rank_died" and causes[0]["host"] == "host1", causes


def test_sigterm_leaves_a_stopped_beat(make: Make) -> None:
    cluster = make()
    args = [*ARGS, "--num-iterations=2000", "--step-seconds=0.1"]
    cluster.start(0, args)
    cluster.start(1, args)
    until(lambda: cluster.cluster()["ranks"][1].get("step", 0) >= 3)
    began = time.monotonic()
    for key in (0, 1):
        os.kill(cluster.started[key].pid, signal.SIGTERM)
    assert all(cluster.wait(30).values())
    assert time.monotonic() - began < 15
    states = {cluster.beat(key, key)["state"] for key in (0, 1)}
    assert "stopped" in states and states <= {"stopped", "failed"}


def test_exit_status_of_the_script_is_kept(make: Make) -> None:
    cluster = make(nproc=(1,))
    cluster.start(0, ["--no-such-option"])
    assert cluster.wait() != {0: 0}
    beat = cluster.beat(0, 0)
    assert beat["exit_code"] == 2 and beat["state"] == "failed"
    assert "unrecognized arguments: --no-such-option" in cluster.log(0)


def test_arguments_arrive_byte_for_byte(make: Make) -> None:
    cluster = make(nproc=(1,))
    odd = "a b 'c' \"d\" $(touch x) `e` \\ \n ü"
    (cluster.folder / "printer.py").write_text("import sys, json\nprint(json.dumps(sys.argv))\n")
    cluster.start(
        0,
        [f"--x={odd}", "--", "-y"],
        script="printer",
        env={"PYTHONPATH": f"{cluster.folder}/runner.zip:{cluster.folder}"},
    )
    assert cluster.wait() == {0: 0}, cluster.log(0)
    line = next(line for line in cluster.log(0).splitlines() if line.startswith("["))
    argv = json.loads(line)
    assert argv[0].endswith("printer.py") and argv[1:] == [f"--x={odd}", "--", "-y"]


def test_without_the_runner_the_ranks_do_not_exchange(make: Make) -> None:
    """The false success of upstream nanochat, reproduced: world size 2, exit status 0, and two unrelated models."""
    cluster = make()
    cluster.start(0, runner=False)
    cluster.start(1, runner=False)
    assert cluster.wait() == {0: 0, 1: 0}, cluster.log(0)
    assert "Distributed world size: 2" in cluster.log(0)
