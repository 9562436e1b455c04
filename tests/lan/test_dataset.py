# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shards from host to host: what is missing comes, what differs is named and stays, and is replaced on request."""

from __future__ import annotations

import hmac
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Cluster, Result

BASE = "equal hosts"  # below the homes
USERS = {"workstation": "trainer", "laptop": "ada"}
WRITE = """
import os, pathlib, random, sys
base = pathlib.Path(os.path.expanduser("~"), sys.argv[1])
(base / "base_data_climbmix").mkdir(parents=True)
noise = random.Random(7)
for number in range(6):
    (base / "base_data_climbmix" / f"shard_{number:05d}.parquet").write_bytes(noise.randbytes(3_000_000 + number))
(base / "tokenizer").mkdir()
for name in ("tokenizer.pkl", "token_bytes.pt"):
    (base / "tokenizer" / name).write_text("the right " + name)
"""
FLIP = """
import os, sys
before = os.stat(sys.argv[1])
with open(sys.argv[1], "r+b") as file:
    file.seek(1000)
    byte = file.read(1)
    file.seek(1000)
    file.write(bytes([byte[0] ^ 1]))
os.utime(sys.argv[1], ns=(before.st_atime_ns, before.st_mtime_ns))
"""
# a process as one of another run, which reads the same data
BUSY = (
    'TORCHLAN_RUN_DIR="HERE/runs/other/attempts/20260101-000000/node-0" NANOCHAT_BASE_DIR="HERE" '
    "setsid sleep 4711 >/dev/null 2>&1 </dev/null &"
)


class Data:
    """The data of both hosts, seen past Ansible."""

    def __init__(self, cluster: Cluster, run: str, variables: dict[str, Any]) -> None:
        self.cluster, self.run, self.variables = cluster, run, json.dumps(variables)

    def bring(self, *words: str) -> Result:
        return self.cluster.playbook("dataset", self.variables, *words, run=self.run)

    def shell(self, host: str, *argv: str, stdin: str = "") -> str:
        return self.cluster.lan.exec(host, *argv, user=USERS[host], stdin=stdin)

    def path(self, host: str, name: str) -> str:
        home = self.shell(host, "python3", "-c", "import os; print(os.path.expanduser('~'))").strip()
        return f"{home}/{BASE}/{name}"

    def digests(self, host: str) -> dict[str, str]:
        """sha256 by name of everything that training reads."""
        base = self.path(host, "")
        lines = self.shell(host, "bash", "-c", f"cd '{base}' && sha256sum base_data_climbmix/*.parquet tokenizer/*[lt]")
        return {name: digest for digest, name in (line.split(None, 1) for line in lines.splitlines())}

    @property
    def equal(self) -> bool:
        return self.digests("workstation") == self.digests("laptop")


@pytest.fixture
def data(cluster: Cluster, run: str) -> Data:
    repo = cluster.home / "small source"
    if not repo.exists():
        _commit(repo)
    variables = {
        "nanochat_source": "git",
        "nanochat_repo": str(repo),
        "nanochat_version": "HEAD",
        "nanochat_base_dir": f"~/{BASE}",
        "nanochat_env": {"TORCHDYNAMO_DISABLE": "1"},
    }
    return Data(cluster, run, variables)


def _commit(repo: Path) -> None:
    shutil.copytree(ROOT / "tests/fixtures/minichat", repo, ignore=shutil.ignore_patterns("__pycache__"))
    who = ["-c", "user.name=T", "-c", "user.email=t@example.com"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "minichat"]):
        subprocess.run(["git", "-C", str(repo), *words], check=True)


def test_from_a_bare_worker_to_equal_hosts_and_back_after_every_damage(data: Data) -> None:
    data.shell("workstation", "python3", "-", BASE, stdin=WRITE)
    first = data.bring("-vvv")
    assert first.status == 0, first
    assert data.equal and len(data.digests("laptop")) == 8
    # the secret of the exchange is nowhere in what -vvv prints
    (name,) = set(re.findall(r'"exchange_name": "([0-9a-f]{32})"', first.text))
    assert _token(name) not in first.text

    again = data.bring()
    assert (again.status, again.changed) == (0, 0), again
    assert "torchlan.nanochat.dataset : " not in again.text and "Read the shards" not in again.text, again
    assert data.shell("laptop", "bash", "-c", "ps -ewwo args | grep -c '[t]orchlan-share' || true").strip() == "0"

    # one byte, under the old size and time
    shard = data.path("laptop", "base_data_climbmix/shard_00003.parquet")
    data.shell("laptop", "python3", "-", shard, stdin=FLIP)
    wrong = data.digests("laptop")
    found = data.bring()
    assert (found.status, _codes(found)) == (2, {"data_differ"}), found
    for words in (
        "shard_00003.parquet",
        wrong["base_data_climbmix/shard_00003.parquet"][:12],
        "nanochat_dataset_repair",
    ):
        assert words in found.text
    assert data.digests("laptop") == wrong, "nothing is replaced unasked"
    # another run reads this data: nothing is changed under it
    base = data.path("laptop", "")
    data.shell("laptop", "bash", "-c", BUSY.replace("HERE", base.rstrip("/")))
    refused = data.bring("nanochat_dataset_repair=true")
    assert (refused.status, _codes(refused)) == (2, {"run_in_progress"}), refused
    assert "other" in refused.text and data.digests("laptop") == wrong
    data.shell("laptop", "pkill", "-f", "sleep 4711")

    repaired = data.bring("nanochat_dataset_repair=true")
    assert repaired.status == 0 and data.equal, repaired
    kept = data.shell("laptop", "sha256sum", f"{shard}.old").split()[0]
    assert kept == wrong["base_data_climbmix/shard_00003.parquet"]

    # a file too many, and another tokenizer
    extra = data.path("laptop", "base_data_climbmix/shard_00009.parquet")
    data.shell("laptop", "cp", shard, extra)
    data.shell(
        "laptop", "python3", "-", data.path("laptop", "tokenizer/tokenizer.pkl"), stdin=FLIP.replace("1000", "3")
    )
    found = data.bring()
    assert (found.status, _codes(found)) == (2, {"dataset_extra", "tokenizer_differs"}), found
    assert "shard_00009.parquet" in found.text
    repaired = data.bring("nanochat_dataset_repair=true")
    assert repaired.status == 0 and data.equal, repaired
    assert data.shell("laptop", "ls", data.path("laptop", "base_data_climbmix/.torchlan-aside")).split() == [
        "shard_00009.parquet"
    ]
    last = data.bring()
    assert (last.status, last.changed) == (0, 0), last


def _codes(result: Result) -> set[str]:
    """Codes of the causes on the screen: this playbook writes no report.json."""
    return set(re.findall(r"\[([a-z_]+)\]$", result.text, re.MULTILINE)) - set(USERS)


def _token(name: str) -> str:
    """The secret of an exchange, made as the controller makes it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = (cache / "torchlan" / "exchange.key").read_bytes()
    return hmac.new(key, name.encode(), "sha256").hexdigest()
