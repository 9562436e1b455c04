# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a real run leaves comes to the controller, with a restart in it, and its secret does not."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import CORES, OLDEST, SMALL, Cluster

SECRET = "hunter2-very-secret"
LINES = 'first line of it\nit\'s a "second" one'
# What a careless script does.
SAYS_IT = f"printf 'token %s of %s\\n' '{SECRET}' \"$(hostname)\""


TRAIN = {**SMALL, "num-iterations": 20, "save-every": 5, "eval-every": 5}


def launch(cluster: Cluster, run: str, train: dict[str, Any], variables: dict[str, Any]) -> None:
    result = cluster.playbook("launch", json.dumps({"nanochat_train_args": train, **variables}), run=run)
    assert result.status == 0, result


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def digest(cluster: Cluster, host: str, path: str) -> str:
    return cluster.lan.exec(host, "sha256sum", path).split()[0]


@pytest.mark.parametrize("core", sorted({OLDEST, next(iter(CORES))}))
def test_collected_while_it_goes_on_and_after(cluster: Cluster, run: str, core: str) -> None:
    variables = {"nanochat_auto_resume": 2, "nanochat_secret_env": {"API_TOKEN": SECRET, "TWO": LINES}}
    launch(cluster, run, {**TRAIN, "step-seconds": 1.0}, variables)
    deadline = time.monotonic() + 120
    while "\nstep 00007/" not in cluster.lan.exec(
        "workstation", "cat", f"{cluster.node_dir('workstation', run)}/train.log"
    ):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    cluster.kill("laptop", *(p["pid"] for p in cluster.processes("laptop", run) if p["rank"] is not None))
    log = f"{cluster.node_dir('laptop', run)}/train.log"
    cluster.lan.exec("laptop", "sh", "-c", f"({SAYS_IT}) >> '{log}'")
    folder = cluster.user / "nanochat-runs" / run
    first = cluster.playbook("collect", run=run, core=core)
    assert first.status == 0, first
    (attempt,) = cluster.attempts(run)
    begun = (folder / "collected/workstation" / attempt / "train.log").read_bytes()

    cluster.wait_until_gone(run, 180)
    second = cluster.playbook("collect", "checkpoints=latest", run=run, core=core)
    assert second.status == 0, second
    assert "from 2 of 2 hosts" in second.text and "checkpoints: step 20" in second.text
    files = everything(folder)
    whole = files[f"collected/workstation/{attempt}/train.log"]
    assert whole.startswith(begun) and 0 < len(begun) < len(whole)
    node_dir = cluster.node_dir("workstation", run)
    assert hashlib.sha256(whole).hexdigest() == digest(cluster, "workstation", f"{node_dir}/train.log")
    here = f"{node_dir.split('/runs/')[0]}/base_checkpoints/{run}"
    model = hashlib.sha256(files["checkpoints/model_000020.pt"]).hexdigest()
    assert model == digest(cluster, "workstation", f"{here}/model_000020.pt")
    assert {"checkpoints/optim_000020_rank0.pt", "checkpoints/optim_000020_rank1.pt"} <= set(files)
    names = {"env", "run.json", "run.sh", "train.log", "train.times", "exit_code", "restarts.json"}
    for host, beats in (("workstation", "rank-0"), ("laptop", "rank-1")):
        mine = {name.split("/", 3)[3] for name in files if name.startswith(f"collected/{host}/{attempt}/")}
        assert names | {f"beats/{beats}.json", f"beats/{beats}.jsonl"} <= mine, mine
    assert f"collected/workstation/{attempt}/cluster.json" in files

    for name, content in {**files, "the screen": (first.text + second.text).encode()}.items():
        for value in (SECRET, *LINES.splitlines()):
            assert value.encode() not in content, name
    assert b"token ******************* of beta-box" in files[f"collected/laptop/{attempt}/train.log"]
    assert b"export API_TOKEN='(masked)'" in files[f"collected/laptop/{attempt}/env"]

    rows = list(csv.DictReader(files["metrics.csv"].decode().splitlines()))
    assert {(row["host"], row["rank"]) for row in rows if row["source"] == "beat"} == {
        ("workstation", "0"),
        ("laptop", "1"),
    }
    steps = [int(row["step"]) for row in rows if row["source"] == "log" and row["loss"]]
    assert set(steps) == set(range(1, 21)) and len(steps) > 20, "some were done again"
    assert {row["step"] for row in rows if row["val_bpb"]} >= {"0", "5", "10", "15", "20"}
    if b"report.html" in second.text.encode() and "pip install plotly" not in second.text:
        text = files["report.html"].decode()
        assert "[restarted]" in second.text and ">restarted</td>" in text, "what status says stands here, too"
        for kind in ("failure", "restart", "resume", "evaluation", "save", "end"):
            assert f"</span>{kind}</td>" in text, kind

    third = cluster.playbook("collect", "checkpoints=latest", run=run, core=core)
    assert third.status == 0 and third.changed == 0, third


def test_a_copy_that_was_killed_goes_on_and_a_dead_host_is_a_warning(cluster: Cluster, run: str) -> None:
    launch(cluster, run, TRAIN, {})
    cluster.wait_until_gone(run)
    log = f"{cluster.node_dir('workstation', run)}/train.log"
    cluster.lan.exec("workstation", "sh", "-c", f"yes 'a line of a log that is long' | head -c 150000000 >> '{log}'")
    folder = cluster.user / "nanochat-runs" / run / "collected/workstation"
    playbook = cluster.start_playbook("collect", run=run)
    deadline = time.monotonic() + 120
    while not (parts := [one for one in folder.glob("*/train.log.part") if one.stat().st_size > 30_000_000]):
        assert time.monotonic() < deadline and playbook.poll() is None
        time.sleep(0.1)
    for process in Path("/proc").glob("[0-9]*"):  # workers have sessions of their own
        with contextlib.suppress(OSError):
            if f"nanochat_run={run}\0".encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
    playbook.wait()
    (part,) = parts
    inode, size = part.stat().st_ino, part.stat().st_size
    assert size < 150_000_000

    dead = cluster.changed_inventory(
        "dead", lambda inventory: inventory["nanochat"]["children"]["workers"]["hosts"]["laptop"].update(ansible_port=9)
    )
    result = cluster.playbook("collect", run=run, inventory=dead)
    assert result.status == 0, result
    assert "from 1 of 2 hosts" in result.text and re.search(r"\[WARNING\]: laptop \(", result.text), result
    done = part.with_name("train.log")
    assert done.stat().st_ino == inode, "the same file, and not one that began anew"
    assert hashlib.sha256(done.read_bytes()).hexdigest() == digest(cluster, "workstation", log)
    assert cluster.playbook("collect", run="nosuch").status != 0
