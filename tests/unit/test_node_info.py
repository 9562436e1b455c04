# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The look at a host: real files, real git, real interpreters, and the module through Ansible."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchlan.nanochat.plugins.module_utils import (
    checkout_state,
    data,
    host,
    leftovers,
    limits,
    paths,
    session,
    software,
)
from ansible_collections.torchlan.nanochat.plugins.modules import node_info

ROOT = Path(__file__).resolve().parents[2]


def look(tmp_path: Path, **more: Any) -> dict[str, Any]:
    params: dict[str, Any] = {
        "run": "test-run",
        "node_rank": 0,
        "dir": str(tmp_path / "nanochat"),
        "base_dir": str(tmp_path / "base"),
        "data_dir": None,
        "source": "git",
        "install_method": "uv",
        "python": None,
        "master_port": free_port(),
        "device_type": "cpu",
        "needs": [],
        "listen_s": 0,
        "measured_by": 0,
        "model_tag": None,
    }
    return node_info.look({**params, **more})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *identity, "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(name="repo")
def repo_fixture(tmp_path: Path) -> Path:
    folder = tmp_path / "nanochat"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("pass\n")
    (folder / "old name.py").write_text("pass\npass\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def fake_python(folder: Path, packages: Path | None) -> Path:
    """An interpreter whose answer is known."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    answer = json.dumps({"version": "3.12.1", "path": [str(packages)] if packages else []})
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(0o755)
    return python


def fake_torch(folder: Path, version: str, source: str | None) -> Path:
    (folder / f"torch-{version}.dist-info").mkdir(parents=True)
    (folder / "torchvision-0.1.dist-info").mkdir()
    if source is not None:
        (folder / "torch").mkdir()
        (folder / "torch" / "version.py").write_text(source)
    return folder


def test_a_bare_host(tmp_path: Path) -> None:
    begun = time.monotonic()
    node = look(tmp_path)
    assert time.monotonic() - begun < 2  # 0.05 s on an idle machine
    assert node["causes"] == []
    assert node["checkout"] == {"state": "absent", "commit": None, "dirty": None, "dirty_files": []}
    assert node["environment"]["state"] == "absent"
    assert node["data"]["shards"] == 0
    assert node["data"]["manifest"] is None
    assert node["data"]["tokenizer"]["present"] is False
    assert node["run"]["state"] == "absent"
    assert node["run"]["sockets"] == []
    assert node["port"]["free"] is True
    assert node["listener"] is None
    assert node["paths"]["run_dir"] == str(tmp_path / "base/runs/test-run")
    assert node["disk_free_bytes"] > 0
    assert not (tmp_path / "base").exists()
    json.dumps(node)


def test_the_host_itself() -> None:
    facts = host.facts()
    assert facts["uid"] == os.geteuid()
    assert facts["user"] == pwd.getpwuid(os.geteuid()).pw_name
    assert facts["cores_logical"] == len(os.sched_getaffinity(0))
    assert 1 <= facts["cores_physical"] <= facts["cores_logical"]
    assert 0 < facts["cores_usable"] <= facts["cores_logical"]
    assert 0 < facts["memory_available_bytes"] <= facts["memory_bytes"]
    assert abs(facts["clock_unix"] - time.time()) < 5
    assert facts["identity"] == host.identity()
    assert isinstance(host.OwnName().addresses(5), list)


def test_affinity_counts() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert limits.cpus()["cores_logical"] == 1
        assert limits.cpus()["cores_physical"] == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/cpu.max": "150000 100000"}, 1.5),
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None),
        # in a container the path is the host's and the mount is the container's own group
        ({"/proc/self/cgroup": "0::/../../docker/0123", "/sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        (
            {
                "/proc/self/cgroup": "4:cpu,cpuacct:/job\n1:name=systemd:/x",
                "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "200000",
                "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2.0,
        ),
        ({}, None),
    ],
)
def test_quota_of_a_cgroup(monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: float | None) -> None:
    monkeypatch.setattr(limits, "read_text", lambda path, limit=0: files.get(path))
    monkeypatch.setattr(
        limits.os.path, "isdir", lambda path: path.rstrip("/") in ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu")
    )
    assert limits._cpu_quota() == cores


def test_memory_of_a_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 8000 kB\nMemAvailable: 6000 kB",
        "/proc/self/cgroup": "0::/",
        "/sys/fs/cgroup/memory.max": "2048000",
        "/sys/fs/cgroup/memory.current": "1024000",
        "/sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 24000",
    }
    monkeypatch.setattr(limits, "read_text", lambda path, limit=0: files.get(path))
    assert limits.memory() == {"memory_bytes": 2048000, "memory_available_bytes": 1048000}


def test_the_drivers_file_of_a_graphics_card() -> None:
    text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 77\nDevice Minor: \t 3\n"
    assert host._gpu(text) == ("NVIDIA H100 80GB HBM3", "3")


def test_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert paths.absolute("x", "~/a/../b") == ("/home/ann/b", None)
    assert paths.absolute("x", "~root/b")[0] == pwd.getpwnam("root").pw_dir + "/b"
    assert paths.absolute("x", "/a b/$(c)")[0] == "/a b/$(c)"
    for text, words in (
        ("~nobody-here/b", "no user 'nobody-here'"),
        ("a/b", "relative"),
        ("", "no usable"),
        ("/a\nb", "no usable"),
    ):
        path, problem = paths.absolute("nanochat_dir", text)
        assert path is None
        assert problem is not None
        assert (problem["code"], words in problem["what"]) == ("path_invalid", True), problem


def test_paths_that_cannot_be_used_keep_the_shape(tmp_path: Path) -> None:
    node = look(tmp_path, dir="~nobody-here/n", base_dir="~nobody-here/b", data_dir="relative")
    assert [cause["code"] for cause in node["causes"]] == ["path_invalid"] * 3
    assert node["paths"] == {"dir": None, "base_dir": None, "data_dir": None, "run_dir": None}
    bare = look(tmp_path)
    for part in ("checkout", "environment", "data"):
        assert set(node[part]) == set(bare[part]), part


def test_a_base_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "base").write_text("")
    (cause,) = look(tmp_path)["causes"]
    assert cause["code"] == "path_invalid"
    assert "is not a folder" in cause["what"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_base_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir(mode=0o500)
    (cause,) = look(tmp_path)["causes"]
    assert "may not write" in cause["what"]


def test_one_folder_by_two_names_is_one_run(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "base").symlink_to(tmp_path / "real")
    assert look(tmp_path)["paths"]["run_dir"] == str(tmp_path / "real/runs/test-run")


def test_checkout(tmp_path: Path, repo: Path) -> None:
    commit = git(repo, "rev-parse", "HEAD").strip()
    assert look(tmp_path)["checkout"] == {"state": "git", "commit": commit, "dirty": False, "dirty_files": []}
    (repo / "untracked.txt").write_text("")
    assert look(tmp_path)["checkout"]["dirty"] is False
    (repo / "train.py").write_text("changed\n")
    git(repo, "mv", "old name.py", "new name é.py")
    found = look(tmp_path)["checkout"]
    assert found["dirty"] is True
    assert sorted(found["dirty_files"]) == ["new name é.py", "train.py"]


def test_checkout_does_not_write_the_index(tmp_path: Path, repo: Path) -> None:
    (repo / "train.py").touch()
    before = (repo / ".git/index").stat().st_mtime_ns
    assert look(tmp_path)["checkout"]["dirty"] is False
    assert (repo / ".git/index").stat().st_mtime_ns == before


def test_checkout_ignores_the_environment_of_the_caller(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere")
    assert look(tmp_path)["checkout"]["dirty"] is False


def test_a_checkout_starts_no_program_of_its_owner(tmp_path: Path, repo: Path) -> None:
    git(repo, "config", "core.fsmonitor", f"touch {tmp_path}/was-run; false")
    assert look(tmp_path)["checkout"]["state"] == "git"
    assert not (tmp_path / "was-run").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_checkout_of_another_user(tmp_path: Path, repo: Path) -> None:
    commit = git(repo, "rev-parse", "HEAD").strip()
    for path in [repo, *repo.rglob("*")]:
        os.chown(path, 65534, 65534)
    found = look(tmp_path)["checkout"]
    assert (found["commit"], found["dirty"]) == (commit, False)


def test_checkout_without_git(tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(repo, "rev-parse", "HEAD").strip()
    git(repo, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "other")
    monkeypatch.setattr(checkout_state.shutil, "which", lambda *_words, **_more: None)
    assert look(tmp_path)["checkout"]["commit"] == commit
    assert look(tmp_path)["checkout"]["dirty"] is None
    assert look(tmp_path, dir=str(tmp_path / "tree"))["checkout"]["commit"] == commit
    monkeypatch.undo()
    git(repo, "pack-refs", "--all")
    monkeypatch.setattr(checkout_state.shutil, "which", lambda *_words, **_more: None)
    assert look(tmp_path)["checkout"]["commit"] == commit


def test_checkout_by_worktree(tmp_path: Path, repo: Path) -> None:
    git(repo, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "other")
    found = look(tmp_path, dir=str(tmp_path / "tree"))["checkout"]
    assert (found["state"], found["dirty"]) == ("git", False)


def test_folders_that_are_no_checkout(tmp_path: Path) -> None:
    folder = tmp_path / "nanochat"
    (folder / ".venv").mkdir(parents=True)
    assert look(tmp_path)["checkout"]["state"] == "absent"
    (folder / "thesis.tex").write_text("")
    assert look(tmp_path)["checkout"]["state"] == "other"
    (folder / checkout_state.MARKER).write_text("a" * 40 + "\n")
    assert look(tmp_path)["checkout"] == {"state": "git", "commit": "a" * 40, "dirty": None, "dirty_files": []}
    shutil.rmtree(folder)
    folder.write_text("a file")
    assert look(tmp_path)["checkout"]["state"] == "other"


@pytest.mark.parametrize(
    ("version", "source", "expected"),
    [
        ("2.13.0+cpu", "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", ("2.13.0", "cpu")),
        ("2.9.1", "__version__ = '2.9.1+cu128'\ncuda: Optional[str] = '12.8'\n", ("2.9.1", "cu128")),
        ("2.9.1", "__version__ = '2.9.1'\ncuda = '12.8'\nhip = None\n", ("2.9.1", "cu128")),
        ("2.9.1", "__version__ = '2.9.1'\ncuda = None\nhip: Optional[str] = '6.4'\n", ("2.9.1", "rocm6.4")),
        ("2.6.0a0", "__version__ = '2.6.0a0'\ncuda = None\n", ("2.6.0a0", "cpu")),
    ],
)
def test_torch_is_found_without_importing_it(
    tmp_path: Path, version: str, source: str, expected: tuple[str, str]
) -> None:
    packages = fake_torch(tmp_path / "packages", version, source)
    fake_python(tmp_path / "nanochat" / ".venv", packages)
    marker = {"torch": "x"}
    (tmp_path / "nanochat" / ".venv" / software.MARKER).write_text(json.dumps(marker))
    found = look(tmp_path)["environment"]
    assert found["state"] == "ready", found
    assert (found["torch"], found["torch_build"]) == expected
    assert (found["version"], found["marker"], found["problem"]) == ("3.12.1", marker, None)


def test_environments_that_do_not_work(tmp_path: Path) -> None:
    python = fake_python(tmp_path / "nanochat" / ".venv", None)
    found = look(tmp_path)["environment"]
    assert (found["state"], found["problem"]) == ("broken", "torch is not installed in it")
    assert look(tmp_path)["causes"] == []
    packages = fake_torch(tmp_path / "packages", "2.13.0", None)
    fake_python(tmp_path / "half", packages)
    existing = {"install_method": "existing", "python": str(tmp_path / "half/bin/python")}
    node = look(tmp_path, **existing)
    assert (node["environment"]["state"], node["environment"]["torch"]) == ("broken", "2.13.0")
    assert [cause["code"] for cause in node["causes"]] == ["environment_missing"]
    for script, words in (
        ("#!/bin/sh\nexit 3\n", "ended with 3"),
        ("#!/nowhere\n", "No such file"),
        ("#!/bin/sh\necho x\n", "else"),
    ):
        python.write_text(script)
        found = look(tmp_path)["environment"]
        assert found["state"] == "broken"
        assert words in found["problem"]
    python.unlink()
    python.symlink_to("/nowhere/python3.99")
    assert look(tmp_path)["environment"]["state"] == "broken"


def test_an_interpreter_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = fake_python(tmp_path / "venv", None)
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    asked = software.Environment(str(python), None)
    assert asked._asked is not None
    asked._asked._until = time.monotonic() + 0.3
    assert "no answer" in asked.facts()["problem"]


def test_this_interpreter(tmp_path: Path) -> None:
    node = look(tmp_path, install_method="existing", python=sys.executable)
    assert node["environment"]["version"] == ".".join(str(part) for part in sys.version_info[:3])
    assert node["environment"]["python"] == sys.executable


def test_existing_python_that_is_not_there(tmp_path: Path) -> None:
    (cause,) = look(tmp_path, install_method="existing", python=str(tmp_path / "no"))["causes"]
    assert cause["code"] == "environment_missing"
    assert str(tmp_path / "no") in cause["what"]


def test_data(tmp_path: Path) -> None:
    folder = tmp_path / "base" / "base_data_climbmix"
    folder.mkdir(parents=True)
    for number in (2, 0, 1):
        (folder / f"shard_{number:05d}.parquet").write_bytes(b"x" * (number + 1))
    (folder / "shard_00003.parquet.tmp").write_text("")
    tokenizer = tmp_path / "base" / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.pkl").write_bytes(b"abc")
    with zipfile.ZipFile(tokenizer / "token_bytes.pt", "w") as archive:
        archive.writestr("token_bytes/data.pkl", b"...torch IntStorage...")
        archive.writestr("token_bytes/data/0", bytes(4 * 4096))
    found = look(tmp_path)["data"]
    assert found["dir"] == str(folder)
    assert (found["shards"], found["bytes"]) == (3, 6)
    assert found["list"] == [[f"shard_{number:05d}.parquet", number + 1, None, None] for number in range(3)]
    assert found["unread"] == 3
    assert found["tokenizer"]["present"] is True
    assert found["tokenizer"]["vocab_size"] == 4096
    assert found["tokenizer"]["sha256"].startswith("ba7816bf")
    before = found["manifest"]
    (folder / "shard_00001.parquet").write_bytes(b"xxx")
    assert look(tmp_path)["data"]["manifest"] != before
    (tokenizer / "token_bytes.pt").write_bytes(b"no zip file")
    assert look(tmp_path)["data"]["tokenizer"]["vocab_size"] is None
    (tokenizer / "token_bytes.pt").unlink()
    assert look(tmp_path)["data"]["tokenizer"]["present"] is False


def test_where_the_data_are(tmp_path: Path) -> None:
    assert look(tmp_path)["data"]["dir"] == str(tmp_path / "base/base_data_climbmix")
    (tmp_path / "base/base_data").mkdir(parents=True)
    assert look(tmp_path)["data"]["dir"] == str(tmp_path / "base/base_data")
    assert look(tmp_path, data_dir=str(tmp_path / "d"))["data"]["dir"] == str(tmp_path / "d")


def test_long_lists_keep_the_validation_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_MOST_LISTED", 3)
    for number in range(6):
        (tmp_path / f"{number}.parquet").write_text("")
    found = data.facts(str(tmp_path), str(tmp_path))
    assert found["shards"] == 6
    assert [entry[0] for entry in found["list"]] == ["0.parquet", "1.parquet", "5.parquet"]


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        found = look(tmp_path, master_port=port)["port"]
    assert (found["port"], found["free"]) == (port, False)
    assert found["holder"]["pid"] == os.getpid()
    assert found["holder"]["user"] == pwd.getpwuid(os.geteuid()).pw_name
    assert found["holder"]["run_dir"] is None


def test_a_port_taken_by_a_run(tmp_path: Path) -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    run_dir = str(tmp_path / "base/runs/old/attempts/1/node-0")
    argv = [sys.executable, "-c", code]
    env = {**os.environ, "TORCHLAN_RUN_DIR": run_dir}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        node = look(tmp_path, master_port=port)
        process.kill()
    assert node["port"]["holder"]["run_dir"] == run_dir
    assert "old" in [entry["run"] for entry in node["other_runs"]]


def ansible(module: str, arguments: dict[str, Any], *more: str) -> dict[str, Any]:
    program = Path(sys.executable).parent / "ansible"
    if not program.exists():
        pytest.skip("no ansible beside this python")
    collections = Path(node_info.__file__).parents[5]
    env = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_NOCOLOR": "1",
    }
    argv = [str(program), "localhost", "-o", "-m", f"torchlan.nanochat.{module}", "-a", json.dumps(arguments), *more]
    argv += ["-e", json.dumps({"ansible_python_interpreter": sys.executable, "ansible_connection": "local"})]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60, check=False)
    head, _sign, text = done.stdout.partition(" => ")
    assert "SUCCESS" in head, done.stdout + done.stderr
    return dict(json.loads(text))


def test_through_ansible_in_check_mode_and_a_link_to_itself(tmp_path: Path) -> None:
    arguments = {"run": "r", "node_rank": 1, "base_dir": str(tmp_path / "a b"), "dir": str(tmp_path), "listen_s": 20}
    result = ansible("node_info", arguments, "--check")
    assert result["changed"] is False
    node = result["node"]
    assert node["paths"]["base_dir"] == str(tmp_path / "a b")
    assert not (tmp_path / "a b").exists()
    peers = [{"host": "itself", "addresses": ["127.0.0.1"], **node["listener"]}]
    result = ansible("link_probe", {"peers": peers}, "--check")
    assert result["links"]["itself"][0]["interface"] == "lo"
    assert result["unreached"] == {"itself": []}


def test_trainers_that_nobody_ends(tmp_path: Path) -> None:
    """One that torchrun's environment gives away, one of the collection, and a program like any other."""
    sleeps = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    launched = {"RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    ours = {**launched, "TORCHLAN_RUN_DIR": f"{tmp_path}/runs/x/attempts/1/node-0"}
    processes = [
        subprocess.Popen(sleeps, env={**os.environ, **more}, stdout=subprocess.PIPE) for more in (launched, ours, {})
    ]
    try:
        for process in processes:
            assert process.stdout and process.stdout.readline()
        mine = {process.pid for process in processes}
        found = [entry for entry in leftovers.trainers() if entry["pid"] in mine]
        (one,) = found
        assert one["pid"] == processes[0].pid and not one["orphan"], "its parent lives"
        assert one["user"] == pwd.getpwuid(os.geteuid()).pw_name
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("text", "kills"), [("", False), ("[Login]\nKillUserProcesses=yes\n", True), ("#KillUserProcesses=yes", False)]
)
def test_what_logind_does_at_logout(monkeypatch: pytest.MonkeyPatch, text: str, kills: bool) -> None:
    files = {"/etc/systemd/logind.conf": text}
    monkeypatch.setattr(session, "read_text", files.get)
    assert session.facts("nobody-here") == {"kills_at_logout": kills, "in_login_session": False, "linger": False}


def test_checkpoints_and_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "base/base_checkpoints/mine"
    folder.mkdir(parents=True)
    for name in ("model_000010.pt", "optim_000010_rank0.pt", "meta_000010.json", "optim_000020_rank1.pt", "notes.pt"):
        (folder / name).touch()
    node = look(tmp_path, model_tag="mine")
    assert node["checkpoints"] == [10, 20]
    assert node["filesystem"]["type"] and node["disk_free_bytes"] > 0
    assert look(tmp_path, model_tag="other")["checkpoints"] == []


def test_strain_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": "MemTotal: 100 kB\nSwapTotal: 1000 kB\nSwapFree: 400 kB\n"}
    monkeypatch.setattr(limits, "read_text", files.get)
    assert limits.strain()["swap_used_bytes"] == 600 * 1024
    assert set(limits.ulimits()) == {"nofile", "nproc", "memlock"}


def test_a_name_that_cannot_be_a_run() -> None:
    lost = ansible("node_info", {"run": "../x", "node_rank": 0})["nanochat_lost"]
    assert "run must consist of letters" in lost["what"]
