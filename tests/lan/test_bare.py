# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From bare hosts to a proven run: by pip where there is a way out, by uv from a lock file where there is none.

NANOCHAT_REPO and NANOCHAT_SHARDS (a checkout of nanochat, a folder of parquet shards) make it the real one, by pip with
and without a way out.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, Cluster
from image import TORCH_INDEX, TORCH_PACKAGES
from lan import Lan
from minichat import commit, write_shards

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import tools

# two hosts install torch on two cores, beside other tests
INSTALL_S = 1500
REAL = os.environ.get("NANOCHAT_REPO")
# python3, sudo and sshd, and a package index; a person with sudo each
BARE = {"image": "bare", "torch": False, "networks": ["out"], "memory": "5g"}
# no way out, no sudo; system packages cannot come from anywhere, so they are there
SHUT = {"image": "usual", "torch": False, "networks": ["lan"], "memory": "5g"}
PYPROJECT = """[project]
name = "minichat"
version = "0.1.0"
requires-python = "=={python}.*"
dependencies = ["numpy>=1.26"]
[project.optional-dependencies]
cpu = ["{torch}"]
[tool.uv]
find-links = ["{links}"]
"""


class Wheels(http.server.ThreadingHTTPServer):
    """A package index of this controller alone: hosts ask their own loopback for it, in vain."""

    def __init__(self, folder: Path) -> None:
        self.served: list[str] = []
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: Wheels

    def log_message(self, *_arguments: Any) -> None:
        if self.command == "GET" and self.path.endswith(".whl"):
            self.server.served.append(self.path)


def hosts_of(kind: dict[str, Any], *users: str) -> dict[str, Any]:
    names = {"laptop": "beta-box", "workstation": "alpha-box"}
    return {name: {**kind, "hostname": box, "user": user} for (name, box), user in zip(names.items(), users)}


def make(home: Path, hosts: dict[str, Any]) -> Cluster:
    home.mkdir()
    lan = Lan(home / "hosts")
    try:
        return Cluster(lan, lan.create(hosts), home)
    except BaseException:
        lan.destroy()
        raise


@pytest.fixture()
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Two new hosts for each test: nothing that one installs is there for the next."""
    made = make(tmp_path / "a user", request.param)
    try:
        yield made
    finally:
        made.lan.destroy()


def variables(home: Path, **more: Any) -> dict[str, Any]:
    repo, shards = (Path(REAL), Path(os.environ["NANOCHAT_SHARDS"])) if REAL else (home / "source", home / "shards")
    if not REAL:
        commit(repo)
        another_commit(repo, "a second commit")
        write_shards(shards)
    return {
        "nanochat_source": "git",
        "nanochat_repo": str(repo),
        "nanochat_version": "HEAD",
        "nanochat_python": None,
        "nanochat_dataset_dir": str(shards),
        "nanochat_tokenizer_args": {"max-chars": 1_000_000, "vocab-size": 2048} if REAL else {},
        "nanochat_env": {"TORCHDYNAMO_DISABLE": "1"},
        "nanochat_train_args": {**SMALL, "eval-every": -1},
        **more,
    }


def another_commit(repo: Path, message: str) -> None:
    who = ["-c", "user.name=T", "-c", "user.email=t@example.com"]
    for words in (["add", "-A"], [*who, "commit", "-q", "--allow-empty", "-m", message]):
        subprocess.run(["git", "-C", str(repo), *words], check=True)


def prepare(cluster: Cluster, given: dict[str, Any]) -> None:
    cluster.inventory["nanochat"]["vars"] = {**cluster.inventory["nanochat"]["vars"], **given}
    cluster.write("lan", cluster.inventory)


def remote_tasks(text: str) -> list[str]:
    """Names of the tasks that a host other than the first one took part in: the others are the controller's."""
    parts = re.split(r"^TASK \[(.*)\] \*+$", text, flags=re.M)
    names = dict(zip(parts[1::2], parts[2::2]))
    local = ("Validating arguments", "Read the settings", "included:")
    found = [name for name, said in names.items() if re.search(r"^(ok|changed): \[workstation\]", said, re.M)]
    return [name for name in found if not any(word in name for word in local)]


def proven_and_then_left_alone(cluster: Cluster, run: str) -> None:
    launched = cluster.playbook("launch", run=run)
    assert launched.status == 0, launched
    assert launched.report is not None and launched.report["verdict"] == "proven"
    assert cluster.trains_together(run)
    before = _files(cluster)
    other = cluster.playbook("install", "nanochat_version=HEAD~1", run=f"not-{run}")
    assert other.status != 0 and "run_in_progress" in other.text, other
    assert _files(cluster) == before, "a live run's files are untouched"
    assert cluster.trains_together(run)
    cluster.end(run)
    for name in ("install", "dataset"):
        again = cluster.playbook(name, run=run)
        assert (again.status, again.changed) == (0, 0), again
        assert len(remote_tasks(again.text)) == 1, remote_tasks(again.text)


KINDS = [pytest.param(hosts_of(BARE, "grace", "trainer"), id="pip-with-a-way-out")]
if REAL:
    KINDS.append(pytest.param(hosts_of(SHUT, "ada", "trainer"), id="pip-without"))


@pytest.mark.parametrize("cluster", KINDS, indirect=True)
def test_pip(cluster: Cluster, run: str) -> None:
    given = variables(cluster.home, nanochat_install_method="pip", nanochat_torch=TORCH_PACKAGES[0])
    # asked for every package, an index that is out of reach costs minutes
    given["nanochat_pip_args"] = [] if _torch_lies_on_disk() else ["--extra-index-url", TORCH_INDEX]
    prepare(cluster, given)
    result = cluster.playbook("install", run=run, limit=INSTALL_S)
    assert result.status == 0, result
    assert result.text.count("pip wheel") <= 1
    # one host fetched, the other got the same files from it
    fetched = {host: _wheels(cluster, host) for host in ("workstation", "laptop")}
    assert fetched["workstation"] == fetched["laptop"] and len(fetched["laptop"]) > 5
    proven_and_then_left_alone(cluster, run)


def _torch_lies_on_disk() -> bool:
    return any(list(Path(folder).glob("torch-*.whl")) for folder in os.environ.get("PIP_FIND_LINKS", "").split())


def _files(cluster: Cluster) -> dict[str, str]:
    """Every file that the run works with, by size and time of change."""
    script = "cd && find nanochat -name __pycache__ -prune -o -type f -printf '%p %s %T@\\n' | sort"
    return {host: _shell(cluster, host, script) for host in cluster.lan.hosts}


def _shell(cluster: Cluster, host: str, script: str) -> str:
    user = cluster.lan.hosts[host]["user"]
    return cluster.lan.exec(host, "sudo", "-u", user, "-H", "bash", "-c", script)


def _wheels(cluster: Cluster, host: str) -> list[str]:
    return sorted(_shell(cluster, host, "cd ~/.cache/nanochat/wheels/*/ && sha256sum *.whl").splitlines())


@pytest.mark.parametrize(
    "cluster", [pytest.param(hosts_of(SHUT, "ada", "trainer"), id="uv-without-a-way-out")], indirect=True
)
def test_uv_from_a_lock_file_without_a_way_out(cluster: Cluster, run: str, tmp_path: Path) -> None:
    python = ".".join(cluster.lan.exec("laptop", "python3", "--version").split()[1].split(".")[:2])
    wheels = tmp_path / "wheels"
    platform = {"python": python, **{key: tools.here()[key] for key in ("machine", "libc")}, "libc_version": "2.36"}
    words = ["download", "--no-deps", "--dest", str(wheels), "--only-binary=:all:", f"--python-version={python}"]
    code, text = tools.run_pip(
        [*words, "--extra-index-url", TORCH_INDEX, *tools.platform_tags(platform), "torch==2.13.0"]
    )
    assert code == 0, text
    index = Wheels(wheels)
    try:
        given = variables(cluster.home, nanochat_install_method="uv")
        repo = cluster.home / "source of uv"
        commit(repo)
        exact = next(wheels.glob("torch-*.whl")).name.split("-")[1]
        project = PYPROJECT.format(python=python, torch=f"torch=={exact}", links=index.url)
        (repo / "pyproject.toml").write_text(project)
        subprocess.run([tools.uv(tools.here()), "lock", "--python", python], cwd=repo, check=True)
        another_commit(repo, "a lock file")
        index.served.clear()
        prepare(cluster, {**given, "nanochat_repo": str(repo)})
        result = cluster.playbook("install", run=run, limit=INSTALL_S)
        assert result.status == 0, result
        assert "this controller fetches for it" in result.text
        assert len(index.served) == 1, f"over the slow line once, not {index.served}"
        proven_and_then_left_alone(cluster, run)
    finally:
        index.shutdown()
