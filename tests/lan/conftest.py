# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests over real ssh: two hosts of two people, made once per session, and a user's folder to run playbooks from.

The hosts are named unlike their hostnames, the master is listed last, homes and paths differ, and nobody has set
ansible_python_interpreter. TORCHLAN_ANSIBLE_BIN lists the bin folders of the controllers to test with, newest first.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from engine import LanError
from lan import ROOT, Lan

HOSTS = {
    "laptop": {"hostname": "beta-box", "user": "ada"},  # no sudo, a space in the path of the home
    "workstation": {"hostname": "alpha-box", "user": "trainer"},
}
SMALL = {
    "depth": 2,
    "aspect-ratio": 64,
    "head-dim": 64,
    "max-seq-len": 64,
    "device-batch-size": 2,
    "total-batch-size": 256,
    "num-iterations": 1_000_000,
    "eval-every": -1,
    "eval-tokens": 256,
    "core-metric-every": -1,
    "sample-every": -1,
}
GROUP_VARS = {
    "nanochat_source": "smoke",
    "nanochat_install_method": "existing",
    "nanochat_python": "/opt/torchlan-torch/bin/python",
    # a live run leaves the cores to what is tested beside it
    "nanochat_train_args": {**SMALL, "step-seconds": 0.2},
    "nanochat_join_timeout": 90,  # the hosts share two cores with whatever else is going on
}


def controllers() -> dict[str, Path]:
    """The bin folder of every ansible-core there is to test with, by its series."""
    folders = os.environ.get("TORCHLAN_ANSIBLE_BIN") or str(Path(sys.executable).parent)
    found = {}
    for folder in filter(None, folders.split(os.pathsep)):
        argv = [f"{folder}/ansible", "--version"]
        env = {**os.environ, "LC_ALL": "C.UTF-8"}
        text = subprocess.run(argv, capture_output=True, text=True, env=env, check=True).stdout
        found[re.search(r"core (\d+\.\d+)", text)[1]] = Path(folder)  # type: ignore[index]
    return found


CORES = controllers()
OLDEST = min(CORES, key=lambda series: [int(part) for part in series.split(".")])


def port_of(run: str) -> int:
    """Runs of different tests don't meet, whatever one leaves behind."""
    return 29500 + zlib.crc32(run.encode()) % 1000


class Result:
    """What a playbook did: its exit status, everything it printed, and the report that it left."""

    def __init__(self, status: int, text: str, report: dict[str, Any] | None, seconds: float) -> None:
        self.status, self.text, self.report, self.seconds = status, text, report, seconds

    @property
    def changed(self) -> int:
        return sum(map(int, re.findall(r"\bchanged=(\d+)", self.text)))

    @property
    def codes(self) -> set[str]:
        """Codes of the causes that are errors."""
        return {cause["code"] for cause in (self.report or {}).get("causes", []) if cause["weight"] == "error"}

    def __repr__(self) -> str:  # what pytest shows of a failed assertion
        return f"<exit {self.status} after {self.seconds:.1f} s>\n{self.text}"


class Cluster:
    """The two hosts, the folder of a user who has an inventory `lan` there, and nothing else."""

    def __init__(self, lan: Lan, variables: dict[str, dict[str, Any]], home: Path) -> None:
        self.lan, self.home = lan, home
        self.user = home / "my lan"
        self.user.mkdir()
        self.collections = home / "collections"
        link = self.collections / "ansible_collections" / "torchlan" / "nanochat"
        link.parent.mkdir(parents=True)
        link.symlink_to(ROOT)
        (home / "ansible.cfg").write_text("[defaults]\n")  # so that no one's own is read
        self.inventory: dict[str, Any] = {
            "nanochat": {
                "children": {
                    "workers": {"hosts": {"laptop": {"node_rank": 1, **variables["laptop"]}}},
                    "master": {"hosts": {"workstation": {"node_rank": 0, **variables["workstation"]}}},
                },
                "vars": GROUP_VARS,
            }
        }
        self.write("lan", self.inventory)

    def write(self, name: str, content: Any) -> Path:
        """A file in the user's folder; JSON, which YAML readers read."""
        (self.user / name).write_text(json.dumps(content, indent=1))
        return self.user / name

    def changed_inventory(self, name: str, change: Callable[[dict[str, Any]], None]) -> str:
        """A copy of the inventory with a difference; returns its name."""
        inventory = copy.deepcopy(self.inventory)
        change(inventory)
        self.write(name, inventory)
        return name

    def playbook(
        self, name: str, *args: str, run: str = "", core: str = "", inventory: str = "lan", limit: float = 300
    ) -> Result:
        """Run a playbook of the collection from the user's folder; `name=value` words become -e strings."""
        argv, env = self.command(name, *args, run=run, core=core, inventory=inventory)
        before = time.monotonic()
        done = subprocess.run(
            *(argv,),
            cwd=self.user,
            env=env,
            stdin=subprocess.DEVNULL,
            timeout=limit,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        print(f"$ {shlex.join(argv)}\n{done.stdout}")
        return Result(done.returncode, done.stdout, self.report(run), time.monotonic() - before)

    def start_playbook(self, name: str, *args: str, run: str = "") -> subprocess.Popen[bytes]:
        """The same, in a process group of its own that can be killed."""
        argv, env = self.command(name, *args, run=run)
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(argv, cwd=self.user, env=env, start_new_session=True, **quiet)

    def command(
        self, name: str, *args: str, run: str = "", core: str = "", inventory: str = "lan"
    ) -> tuple[list[str], dict[str, str]]:
        folder = CORES[core] if core else next(iter(CORES.values()))
        words = [f"nanochat_run={run}", f"nanochat_master_port={port_of(run)}"] if run else []
        argv = [str(folder / "ansible-playbook"), f"torchlan.nanochat.{name}", "-i", inventory]
        for word in (*words, *args):
            argv += ["-e", word] if re.match(r"(@|\{|[a-z_]+=)", word) else [word]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("ANSIBLE_", "TORCHLAN_", "PYTHON"))}
        env |= {"ANSIBLE_CONFIG": str(self.home / "ansible.cfg"), "ANSIBLE_COLLECTIONS_PATH": str(self.collections)}
        env |= {"LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1", "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        return argv, env

    def report(self, run: str) -> dict[str, Any] | None:
        path = self.user / "nanochat-runs" / run / "report.json"
        return json.loads(path.read_text()) if run and path.exists() else None

    def pids(self, run: str) -> dict[str, list[int]]:
        return {host: seen["pids"] for host, seen in self.lan.look(run).items()}

    def processes(self, host: str, run: str) -> list[dict[str, Any]]:
        return self.lan.look(run)[host]["processes"]

    def agent(self, host: str, run: str) -> int:
        """The pid of torchrun itself on a host."""
        return next(
            process["pid"]
            for process in self.processes(host, run)
            if process["rank"] is None and process["argv"][1:3] == ["-m", "torch.distributed.run"]
        )

    def trains_together(self, run: str, seconds: float = 2) -> bool:
        """Whether workers on both hosts send each other a lot, by the kernel's counters."""
        first = self.lan.look(run)
        time.sleep(seconds)
        second = self.lan.look(run)
        return all(second[host]["sent"] - first[host]["sent"] > 50_000 for host in second)

    def wait_until_gone(self, run: str, limit: float = 60) -> None:
        deadline = time.monotonic() + limit
        while any(pids := self.pids(run).values()):
            assert time.monotonic() < deadline, f"still there after {limit} s: {list(pids)}"
            time.sleep(0.5)

    def node_dir(self, host: str, run: str) -> str:
        """The folder of a host's part of the newest attempt, as an absolute path there."""
        user = self.lan.hosts[host]["user"]
        rank = 0 if host == "workstation" else 1
        script = f'readlink -f "$HOME/.cache/nanochat/runs/{run}/current-{rank}"'
        return self.lan.exec(host, "bash", "-lc", f"sudo -u {user} -H bash -c {shlex.quote(script)}").strip()

    def attempts(self, run: str) -> set[str]:
        """The attempts of a run that the master has."""
        script = f"ls /home/trainer/.cache/nanochat/runs/{run}/attempts 2>/dev/null || true"
        return set(self.lan.exec("workstation", "bash", "-c", script).split())

    def kill(self, host: str, *pids: int, signal: str = "KILL") -> None:
        self.lan.exec(host, "kill", f"-{signal}", *map(str, pids))

    def end(self, run: str) -> None:
        """Kill what a test left of its run, without the collection's help."""
        for _ in range(2):
            for host, pids in self.pids(run).items():
                if pids:
                    self.lan.exec(host, "bash", "-c", f"kill -KILL {' '.join(map(str, pids))} || true")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("a user")
    lan = Lan(home / "hosts")
    try:
        yield Cluster(lan, lan.create(HOSTS), home)
    except LanError as error:
        pytest.fail(f"test LAN: {error}", pytrace=False)
    finally:
        lan.destroy()


@pytest.fixture
def run(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name for this test's run; whatever is left of it afterwards is killed."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name.removeprefix("test_")).strip("-")[:40]
    yield name
    cluster.end(name)
