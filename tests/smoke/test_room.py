# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two hosts without a shared folder keep a few checkpoints, under real torchrun agents on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import ARGS, Cluster, until

PYTHON = os.environ.get("TORCHLAN_TORCH_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="TORCHLAN_TORCH_PYTHON is not set")
TRAIN = [*ARGS[:3], "--eval-every=-1", "--save-every=2", "--model-tag=t"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "c", PYTHON, nproc=(2, 1))
    yield made
    made.close()


def start(cluster: Cluster, attempt: str, args: list[str], keep: int, resume: str | None = None) -> None:
    cluster.attempt = attempt
    for key in (0, 1):
        cluster.start(key, args, plan={"keep_checkpoints": keep, "resume": resume})


def ended(cluster: Cluster) -> None:
    assert cluster.wait() == {0: 0, 1: 0}, cluster.log(0) + cluster.log(1)
    until(lambda: not cluster.workers(0) and not cluster.workers(1), 20)  # the guards too


def folder(cluster: Cluster, key: int) -> Path:
    return cluster.node_dir(key) / "base" / "base_checkpoints" / "t"


def files(cluster: Cluster, key: int) -> list[str]:
    return sorted(path.name for path in folder(cluster, key).glob("*_0*"))


def of_steps(*steps: int) -> tuple[list[str], list[str]]:
    whole = ("meta_%06d.json", "model_%06d.pt", "optim_%06d_rank0.pt", "optim_%06d_rank1.pt")
    return sorted(name % step for name in whole for step in steps), ["optim_%06d_rank2.pt" % step for step in steps]


def test_two_are_kept_and_the_run_goes_on_from_them(cluster: Cluster) -> None:
    start(cluster, "a1", [*TRAIN, "--num-iterations=8"], keep=2)
    ended(cluster)
    assert (files(cluster, 0), files(cluster, 1)) == of_steps(6, 8)
    assert "deleted checkpoints of step" in cluster.log(1)

    start(cluster, "a2", [*TRAIN, "--num-iterations=12"], keep=2, resume="latest")
    ended(cluster)
    assert "the run goes on from step 8" in cluster.log(0)
    assert (files(cluster, 0), files(cluster, 1)) == of_steps(10, 12)


def test_a_newest_one_that_is_cut_off_takes_no_place(cluster: Cluster) -> None:
    start(cluster, "a1", [*TRAIN, "--num-iterations=6", "--save-seconds=3"], keep=1)
    part = folder(cluster, 1) / "optim_000006_rank2.pt"
    until(lambda: part.exists() and part.stat().st_size == part.with_name("optim_000004_rank2.pt").stat().st_size)
    os.truncate(part, part.stat().st_size - 100)  # before rank 0 has saved its own
    ended(cluster)
    assert (files(cluster, 0), files(cluster, 1)) == of_steps(4, 6)

    start(cluster, "a2", [*TRAIN, "--num-iterations=6"], keep=1, resume="latest")
    ended(cluster)
    assert "the run goes on from step 4" in cluster.log(0)
    assert (files(cluster, 0), files(cluster, 1)) == of_steps(6)
