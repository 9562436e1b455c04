# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two hosts without a shared folder go on from a checkpoint, under real torchrun agents on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import ARGS, Cluster, until

PYTHON = os.environ.get("TORCHLAN_TORCH_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="TORCHLAN_TORCH_PYTHON is not set")
TRAIN = [*ARGS[:3], "--num-iterations=12", "--eval-every=-1", "--save-every=4", "--model-tag=t"]


class Trials:
    """Starts of one run, one after the other; what each printed is kept apart."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder, PYTHON)
        self.number = 0

    def start(self, args: list[str], resume: str | None = None) -> tuple[dict[int, int | None], str]:
        self.number += 1
        self.cluster.attempt = "a%d" % self.number
        for key in (0, 1):
            log = self.cluster.node_dir(key) / "train.log"
            log.unlink(missing_ok=True)
            self.cluster.start(key, args, plan={"resume": resume})
        codes = self.cluster.wait()
        return codes, self.cluster.log(0) + self.cluster.log(1)

    def checkpoints(self, key: int) -> Path:
        return self.cluster.node_dir(key) / "base" / "base_checkpoints" / "t"


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Trials]:
    made = Trials(tmp_path / "c")
    yield made
    made.cluster.close()


def losses(log: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"^step (\d+)/\d+ .*?loss: ([\d.]+)", log, re.MULTILINE)}


def kill_at_step(trials: Trials, key: int, step: int) -> None:
    """The worker of a host, once it has done so many steps."""
    until(
        lambda: trials.cluster.beat(key, key)["step"] >= step and trials.cluster.beat(key, key)["state"] == "training"
    )
    os.kill(trials.cluster.beat(key, key)["pid"], signal.SIGKILL)


def test_goes_on_by_itself_when_workers_are_killed(trials: Trials) -> None:
    ended, log = trials.start(TRAIN)
    assert ended == {0: 0, 1: 0}, log
    unbroken = losses(log)

    cluster = trials.cluster
    cluster.attempt = "again"
    for key in (0, 1):
        (cluster.node_dir(key) / "train.log").unlink()
        cluster.start(key, [*TRAIN, "--step-seconds=1"], again=3)
    kill_at_step(trials, 1, 6)  # after the checkpoint of step 4
    until(lambda: not (cluster.node_dir(1) / "beats/rank-1.json").exists())
    kill_at_step(trials, 0, 5)  # of those after step 4: after the checkpoint of step 8
    assert cluster.wait() == {0: 0, 1: 0}, cluster.log(0) + cluster.log(1)
    for key in (0, 1):
        state = json.loads((cluster.node_dir(key) / "restarts.json").read_text())
        assert [one["code"] for one in state["failures"]] == ["rank_died", "rank_died"]
        assert (state["next_unix"], state["gave_up"]) == (None, None)
        until(lambda key=key: not cluster.workers(key), 20)
    log = cluster.log(0)
    assert ["the run goes on from step %d" % step in log for step in (4, 8)] == [True, True]
    assert losses(log) == unbroken


def codes(found: dict[str, Any]) -> list[str]:
    return [entry["code"] for entry in found["causes"]]


def test_goes_on_as_if_nothing_had_happened(trials: Trials) -> None:
    ended, log = trials.start(TRAIN)
    assert ended == {0: 0, 1: 0}, log
    unbroken = losses(log)
    assert sorted(unbroken) == list(range(12))

    ended, log = trials.start([*TRAIN, "--fail-at-step=9", "--fail-rank=1"])  # from step 0 again: all is set aside
    assert set(ended.values()) == {1} or 0 not in ended.values()
    kept = trials.checkpoints(0).parents[1] / "base_checkpoints_kept" / "t"
    assert len(list((kept / "a2").glob("model_*.pt"))) == 3
    assert "base_checkpoints_kept" in log
    # Not the smallest trace of step 8's model and meta on the other host, and the newest part is cut off.
    assert not (trials.checkpoints(1) / "model_000004.pt").exists()
    newest = trials.checkpoints(1) / "optim_000008_rank1.pt"
    newest.write_bytes(newest.read_bytes()[:-100])

    ended, log = trials.start(TRAIN, "latest")
    assert ended == {0: 0, 1: 0}, log
    assert "step 8: optim_000008_rank1.pt is on host1 cut off or damaged" in log
    assert codes(trials.cluster.cluster()) == ["checkpoint_unusable"]
    assert losses(log) == {step: loss for step, loss in unbroken.items() if step >= 4}
    assert len(list((kept / "a3").glob("model_*.pt"))) == 1

    first, second = (trials.cluster.node_dir(key) / "base" for key in (0, 1))  # the hosts change their ranks
    first.rename(first.with_name("moved"))
    second.rename(first)
    first.with_name("moved").rename(second)
    ended, log = trials.start(TRAIN, "8")
    assert ended == {0: 0, 1: 0}, log
    assert "optim_000008_rank1.pt came from" in log and "optim_000008_rank0.pt came from" in log
    assert losses(log) == {step: loss for step, loss in unbroken.items() if step >= 8}


def test_refuses_what_cannot_go_on(trials: Trials) -> None:
    short = [*ARGS[:3], "--num-iterations=2", "--eval-every=-1", "--model-tag=t"]
    ended, log = trials.start(short, "latest")
    assert ended == {0: 78, 1: 78} or 0 not in ended.values()
    assert codes(trials.cluster.cluster()) == ["checkpoint_missing"]
    assert "there are none on any host" in log

    ended, log = trials.start(short)
    assert ended == {0: 0, 1: 0}, log
    before = sorted(trials.checkpoints(0).iterdir())
    ended, log = trials.start([word.replace("depth=2", "depth=3") for word in short], "latest")
    assert codes(trials.cluster.cluster()) == ["checkpoint_unusable"]
    assert "--depth=3, the checkpoint has 2" in log

    (trials.checkpoints(0) / "torchlan.json").write_text('{"run": "another"}')
    ended, log = trials.start(short)
    assert codes(trials.cluster.cluster()) == ["checkpoints_exist"]
    assert "holds checkpoints of run another" in log
    assert sorted(trials.checkpoints(0).iterdir()) == before

    shutil.rmtree(trials.checkpoints(1))
    (trials.checkpoints(0) / "torchlan.json").write_text('{"run": "t"}')
    ended, log = trials.start(short, "latest")
    assert codes(trials.cluster.cluster()) == ["checkpoint_unusable"]
    assert "optim_000002_rank1.pt is on no host; it has the optimizer's parts of 1 ranks, there are 2 now" in log
