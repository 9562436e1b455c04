# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starting and ending, with real tmux and real processes; a check first, then for real, then both again."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_run import Lab, eventually, lab_fixture  # noqa: F401

from ansible_collections.torchlan.nanochat.plugins.module_utils import run_start, tmux
from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import RunPaths, inspect_run
from ansible_collections.torchlan.nanochat.plugins.module_utils.tmux import Tmux


def codes(result: dict[str, Any]) -> list[str]:
    return [one["code"] for one in result["causes"]]


def state(lab: Lab, run: str = "demo", node_rank: int = 0) -> str:
    return str(inspect_run(str(lab.base_dir), run, node_rank)["state"])


def ended(result: dict[str, Any]) -> dict[int, Any]:
    return {entry["pid"]: entry["signal"] for entry in result["ended"]}


@pytest.fixture(name="port")
def port_fixture() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- started ----


def test_check_then_start_then_both_again(lab: Lab) -> None:
    predicted = lab.start(check=True, diff=True)
    assert (predicted["changed"], predicted["causes"]) == (True, [])
    assert predicted["diff"]["before"] == ""
    assert "torch.distributed.run" in predicted["diff"]["after"]
    assert not (lab.base_dir / "runs").exists()
    assert lab.pids() == []

    runner = base64.b64encode(b"PK zip").decode()
    result = lab.start(fake={"helper": True}, runner=runner)
    assert (result["changed"], result["causes"]) == (True, [])
    assert result["attempt_dir"] == str(lab.node_dir())
    assert result["session"] == "demo-0"
    assert state(lab) == "alive"
    folder = lab.node_dir()
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in ("env", "run.sh", "runner.zip", "run.json")}
    assert modes == {"env": 0o600, "run.sh": 0o755, "runner.zip": 0o644, "run.json": 0o644}
    assert (folder / "runner.zip").read_bytes() == b"PK zip"
    record = json.loads((folder / "run.json").read_text())
    assert record["session"] == "demo-0"
    assert record["boot_id"].startswith(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    assert abs(record["started_unix"] - time.time()) < 30
    assert os.readlink(lab.base_dir / "runs" / "demo" / "current-0") == "attempts/a1/node-0"
    assert sorted(os.listdir(lab.base_dir / "runs" / "demo")) == [".start-0", "attempts", "current-0"]

    eventually(lambda: lab.pids(role="helper"))
    before = lab.pids()
    for check in (True, False):
        again = lab.start(check=check)
        assert (again["changed"], again["causes"]) == (False, [])
    assert lab.pids() == before


def test_the_secret_environment_is_nowhere_but_in_its_file(lab: Lab) -> None:
    secret = "s3cret-value"
    text = lab.env_text() + "export KEY='%s'\n" % secret
    results = [lab.start(check=True, diff=True, env=text), lab.start(diff=True, env=text), lab.start(env=text)]
    results.append(lab.stop())
    assert secret not in json.dumps(results)
    assert secret in (lab.node_dir() / "env").read_text()
    others = [path for path in lab.base_dir.rglob("*") if path.is_file() and path.name != "env"]
    assert not [path for path in others if secret in path.read_text(errors="replace")]


def test_the_secret_is_not_in_a_process_list_of_tmux(lab: Lab) -> None:
    lab.start(env=lab.env_text() + "export KEY=s3cret-value\n")
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "s3cret-value" not in shown
    assert "s3cret-value" not in lab.tmux("show-environment", "-g")


def test_the_commands_for_a_person_work(lab: Lab) -> None:
    result = lab.start(fake={"say": "hello"})
    log = eventually(lambda: (lab.node_dir() / "train.log").read_text())
    assert log == "hello\n"
    tail = result["tail"].replace("tail -F", "tail -n 5")
    assert subprocess.run(tail, shell=True, capture_output=True, text=True, check=True).stdout == "hello\n"
    attach = result["attach"].replace("attach", "list-panes")
    done = subprocess.run(attach, shell=True, capture_output=True, text=True, check=True)
    assert "dead" not in done.stdout
    assert attach.startswith("TMUX_TMPDIR=")


def test_the_diff_is_against_the_attempt_before(lab: Lab) -> None:
    lab.make(exit_code="1", **{"run.sh": "old\n"})
    result = lab.start(attempt="a2", check=True, diff=True)
    assert result["changed"]
    assert result["diff"]["before"] == "old\n"
    assert result["diff"]["before_header"].endswith("a1/node-0/run.sh")
    assert result["diff"]["after_header"].endswith("a2/node-0/run.sh")


@pytest.mark.parametrize("check", [True, False])
def test_a_live_run_is_not_started_again(lab: Lab, check: bool) -> None:
    lab.start()
    before = lab.pids()
    result = lab.start(attempt="a2", check=check)
    assert (result["changed"], codes(result)) == (False, ["run_in_progress"])
    assert str(before[0]) in result["causes"][0]["what"]
    assert lab.pids() == before
    assert not lab.node_dir(attempt="a2").exists()


def test_half_alive_is_refused(lab: Lab) -> None:
    lab.child(["sleep", "300"], {**os.environ, "TORCHLAN_RUN_DIR": str(lab.make())})
    eventually(lab.pids)
    result = lab.start(attempt="a2")
    assert (result["changed"], codes(result)) == (False, ["half_alive"])


def test_an_attempt_is_used_once(lab: Lab) -> None:
    lab.make(exit_code="0", run_json="{}")
    result = lab.start()
    assert (result["changed"], codes(result)) == (False, ["start_failed"])
    assert (lab.node_dir() / "exit_code").read_text() == "0"


def test_a_dead_session_of_the_same_name_makes_room_and_only_it(lab: Lab) -> None:
    """C(-t demo-0) would match demo-0-0 too."""
    lab.start(run="demo-0")
    lab.start(fake={"die": 0})
    eventually(lambda: state(lab) == "finished")
    assert "demo-0:" in lab.tmux("list-sessions")
    result = lab.start(attempt="a2")
    assert (result["changed"], result["causes"]) == (True, [])
    assert state(lab) == "alive"
    assert state(lab, run="demo-0") == "alive"


def test_a_tmux_server_that_exits_while_it_is_asked(lab: Lab) -> None:
    """Its last session has just ended, another one is to begin."""
    ours = Tmux(lab.tmux_tmpdir)
    ours.start("first", "a", ["sleep", "300"], "/")
    server = int(lab.tmux("display-message", "-p", "#{pid}"))
    os.kill(server, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(ours.start, "second", "b", ["sleep", "300"], "/")
        eventually(lambda: any(child_sleeps(pid) for pid in children_named("tmux")))
        os.kill(server, signal.SIGKILL)
        started.result(60)
    assert (ours.mark_of("first"), ours.mark_of("second")) == (None, "b")


def children_named(name: str) -> list[int]:
    lists = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for path in lists for pid in path.read_text().split()]
    return [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().startswith(name)]


def child_sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_a_session_that_somebody_uses_is_left_alone(lab: Lab) -> None:
    lab.tmux("-f", "/dev/null", "new-session", "-d", "-s", "demo-0", "sleep", "300")
    result = lab.start()
    assert (result["changed"], codes(result)) == (False, ["run_in_progress"])
    assert "demo-0" in lab.tmux("list-sessions")
    assert lab.stop()["changed"] is False
    assert "demo-0" in lab.tmux("list-sessions")


@pytest.mark.parametrize(
    ("fake", "expected"), [({"die": 3, "say": "No module named torch"}, "exit code 3"), ({"die": 77}, "exit code 77")]
)
def test_an_agent_that_ends_at_once(lab: Lab, fake: dict[str, Any], expected: str) -> None:
    result = lab.start(fake=fake)
    assert (result["changed"], codes(result)) == (True, ["start_failed"])
    assert expected in result["causes"][0]["what"]
    if "say" in fake:
        assert result["log_tail"] == ["No module named torch"]
        assert "No module named torch" in result["causes"][0]["what"]
    assert state(lab) == "failed"
    assert lab.tmux("list-sessions") == ""
    assert lab.pids() == []


def test_a_script_that_ends_without_a_word(lab: Lab) -> None:
    result = lab.start(script="echo the screen says it; exit 5")
    assert codes(result) == ["start_failed"]
    assert "run.sh ended at once" in result["causes"][0]["what"]
    assert result["log_tail"] == ["the screen says it"]
    assert lab.tmux("list-sessions") == ""


def test_an_agent_that_imports_something_else(lab: Lab) -> None:
    """It is watched for a moment, and lives."""
    assert lab.start(fake={"no_torch": True})["causes"] == []
    assert state(lab) == "alive"


def test_a_run_that_is_over_quickly_is_no_failure(lab: Lab) -> None:
    result = lab.start(fake={"die": 0})
    assert (result["changed"], result["causes"]) == (True, [])


def test_the_port(lab: Lab, port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        result = lab.start(port=port)
        assert (result["changed"], codes(result)) == (False, ["port_in_use"])
        assert str(os.getpid()) in result["causes"][0]["what"]
        assert lab.start(port=port, node_rank=1)["causes"] == []  # only the master listens
        stopped = lab.stop(port=port, node_rank=1)
        assert (stopped["port_free"], codes(stopped)) == (False, ["port_in_use"])
        assert stopped["causes"][0]["weight"] == "warning"
    assert lab.start(port=port)["causes"] == []


def test_two_starts_at_once(lab: Lab) -> None:
    folder = lab.base_dir / "runs" / "demo"
    folder.mkdir(parents=True)
    with open(folder / ".start-0", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert codes(lab.start()) == ["run_in_progress"]
    assert codes(lab.start()) == []


def test_a_folder_that_cannot_be_written(lab: Lab) -> None:
    (lab.base_dir / "runs").write_text("a file")
    result = lab.start()
    assert codes(result) == ["path_invalid"]
    assert "runs" in result["causes"][0]["what"]


def test_no_tmux(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tmux, "_PLACES", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    paths = RunPaths.of(str(lab.base_dir), "demo", 0)
    for check in (True, False):
        result = run_start.start(run_start.Order(paths, "a1", "true", "", {}), check)
        assert (result["changed"], codes(result)) == (False, ["tmux_missing"])
        assert "tmux" in result["causes"][0]["fix"]


def test_a_tmux_folder_that_is_too_long(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tmux would fail on it; the session is on the server in /tmp then, and the attach line says so."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    for value in (str(long), str(tmp_path / "missing")):
        monkeypatch.setenv("TMUX_TMPDIR", value)
        made = Tmux()
        assert made.tmpdir is None
        assert "TMUX_TMPDIR" not in made.environ
        assert made.attach_command("demo-0") == "env -u TMUX_TMPDIR tmux -L torchlan attach -t '=demo-0:'"
    monkeypatch.setenv("TMUX_TMPDIR", lab.tmux_tmpdir)
    assert Tmux().tmpdir == lab.tmux_tmpdir
    assert Tmux("").tmpdir is None
    monkeypatch.delenv("TMUX_TMPDIR")
    assert Tmux().attach_command("demo-0") == "tmux -L torchlan attach -t '=demo-0:'"


def test_started_from_inside_another_run_and_another_tmux(lab: Lab) -> None:
    lab.environ.update(TORCHLAN_RUN_DIR=str(lab.node_dir(run="other")), RANK="3", TMUX="/tmp/x,1,0")
    assert lab.start()["causes"] == []
    environment = lab.tmux("show-environment", "-g")
    assert "TORCHLAN" not in environment
    assert "RANK" not in environment
    assert lab.pids(run="other") == []


def test_without_a_terminal_and_with_little_environment(lab: Lab) -> None:
    lab.environ = {"PATH": "/usr/bin:/bin", "TMUX_TMPDIR": lab.tmux_tmpdir, "HOME": "/root"}
    assert lab.start()["causes"] == []
    assert lab.stop()["left"] == []


@pytest.mark.parametrize(
    "args",
    [{"run": "a b"}, {"run": "a", "attempt": "../x"}, {"runner": "no base64!"}, {"state": "stopped", "grace_s": -1}],
)
def test_impossible_parameters(lab: Lab, args: dict[str, Any]) -> None:
    base = {"state": "started", "attempt": "a1", "script": "", "env": "", "record": {}}
    result = lab.module("training_run", **{**base, **args})
    assert result["failed"]
    assert result["msg"]


# ---- stopped ----


def test_nothing_to_stop(lab: Lab, port: int) -> None:
    result = lab.stop(port=port)
    assert (result["changed"], result["ended"], result["left"], result["causes"]) == (False, [], [], [])
    assert result["port_free"] is True
    assert not (lab.base_dir / "runs").exists()


def test_check_then_stop_then_both_again(lab: Lab) -> None:
    lab.start(fake={"ranks": [0, 1], "helper": True})
    eventually(lambda: len(lab.pids(role="helper")) == 2)
    before, agent = lab.pids(), lab.pids(role="agent")[0]
    predicted = lab.stop(check=True)
    assert predicted["changed"]
    assert sorted(ended(predicted)) == sorted(before)
    assert {pid: one for pid, one in ended(predicted).items() if one} == {agent: "SIGTERM"}
    assert lab.pids() == before

    started = time.monotonic()
    result = lab.stop()
    assert time.monotonic() - started < 10
    assert result["changed"]
    assert result["left"] == []
    assert sorted(ended(result)) == sorted(before)
    assert ended(result)[agent] == "SIGTERM"
    assert lab.pids() == []
    assert lab.tmux("list-sessions") == ""
    assert (lab.node_dir() / "stopped").read_text() == "a test\n"
    assert state(lab) == "stopped"
    for check in (True, False):
        assert lab.stop(check=check)["changed"] is False


def test_a_clean_end_needs_no_kill(lab: Lab) -> None:
    lab.start()
    eventually(lambda: lab.pids(role="worker"))
    result = lab.stop()
    assert set(ended(result).values()) == {"SIGTERM", None}
    assert (lab.node_dir() / "exit_code").read_text() == "1\n"
    assert state(lab) == "stopped"


def test_an_agent_in_its_exit_barrier(lab: Lab, port: int) -> None:
    lab.start(fake={"exit_at_once": True, "barrier": True})
    eventually(lambda: lab.pids(role="agent") and not lab.pids(role="worker"))
    time.sleep(0.3)  # until it ignores SIGTERM
    agent = lab.pids(role="agent")[0]
    started = time.monotonic()
    result = lab.stop(port=port)
    assert time.monotonic() - started < 10
    assert ended(result)[agent] == "SIGKILL"
    assert (lab.pids(), result["left"], result["port_free"]) == ([], [], True)
    assert state(lab) == "stopped"


def test_orphans_of_a_killed_agent(lab: Lab) -> None:
    lab.start(fake={"ranks": [0, 1], "helper": True})
    eventually(lambda: len(lab.pids(role="helper")) == 2)
    os.kill(lab.pids(role="agent")[0], signal.SIGKILL)
    assert eventually(lambda: state(lab) == "half_alive")
    workers = lab.pids(role="worker")
    result = lab.stop()
    assert [ended(result)[pid] for pid in workers] == ["SIGTERM", "SIGTERM"]
    assert (lab.pids(), result["left"]) == ([], [])
    assert lab.tmux("list-sessions") == ""


def test_stopped_workers(lab: Lab) -> None:
    lab.start(fake={"ignore_term": True})
    worker = eventually(lambda: lab.pids(role="worker"))[0]
    os.kill(worker, signal.SIGSTOP)
    os.kill(lab.pids(role="agent")[0], signal.SIGSTOP)
    started = time.monotonic()
    result = lab.stop()
    assert time.monotonic() - started < 10
    assert ended(result)[worker] == "SIGKILL"
    assert (lab.pids(), result["left"]) == ([], [])


def test_a_script_that_hangs_alone(lab: Lab) -> None:
    lab.start()
    folder = lab.node_dir(attempt="a0")
    folder.mkdir(parents=True)
    (folder / "run.sh").write_text("trap '' TERM HUP; while :; do read -t 1 <> <(:); done")
    lab.child(["bash", str(folder / "run.sh")], {**os.environ, "TORCHLAN_RUN_DIR": str(folder)})
    eventually(lambda: len(lab.pids(role="session")) >= 3)
    assert lab.stop(grace_s=0)["left"] == []
    assert lab.pids() == []


def test_all_attempts_and_no_other_run(lab: Lab, tmp_path: Path) -> None:
    for folder in (lab.make(attempt="a1"), lab.make(attempt="a2")):
        lab.child(["sleep", "300"], {**os.environ, "TORCHLAN_RUN_DIR": str(folder)})
    lab.start(run="demo-2")
    lab.start(node_rank=1)
    elsewhere = str(tmp_path / "elsewhere" / "runs" / "demo" / "attempts" / "a1" / "node-0")
    same_name = lab.child(["sleep", "300"], {**os.environ, "TORCHLAN_RUN_DIR": elsewhere})
    bystander = lab.child(["sleep", "300"], {**os.environ, "NOTE": str(lab.node_dir())})
    result = lab.stop()
    assert len(result["ended"]) == 2
    assert state(lab, run="demo-2") == "alive"
    assert state(lab, node_rank=1) == "alive"
    assert same_name.poll() is None
    assert bystander.poll() is None
    assert sorted(lab.tmux("list-sessions", "-F", "#{session_name}").split()) == ["demo-1", "demo-2-0"]


def test_a_session_of_the_same_name_in_another_base_directory(lab: Lab, tmp_path: Path) -> None:
    lab.start()
    other = Lab(tmp_path / "other", lab.fakes, lab.tmux_tmpdir)
    assert other.stop()["changed"] is False
    assert codes(other.start()) == ["run_in_progress"]
    assert state(lab) == "alive"


def test_the_dead_session_of_a_finished_run_is_removed(lab: Lab) -> None:
    lab.start(fake={"die": 0})
    eventually(lambda: state(lab) == "finished")
    assert "demo-0" in lab.tmux("list-sessions")
    assert lab.stop(check=True)["changed"]
    result = lab.stop()
    assert (result["changed"], result["ended"]) == (True, [])
    assert lab.tmux("list-sessions") == ""
    assert state(lab) == "finished"
    assert not (lab.node_dir() / "stopped").exists()


def test_stopped_from_an_environment_with_another_tmux_folder(lab: Lab) -> None:
    lab.start()
    other = tempfile.mkdtemp(prefix="tl-")
    try:
        lab.environ["TMUX_TMPDIR"] = other
        assert lab.stop()["changed"]
        lab.environ["TMUX_TMPDIR"] = lab.tmux_tmpdir
        assert lab.tmux("list-sessions") == ""
    finally:
        shutil.rmtree(other)


def test_a_run_that_was_started_by_hand(lab: Lab) -> None:
    """Without tmux, as run.sh's own comment says."""
    folder = lab.make(env=lab.env_text(), run_json="{}")
    (folder / "run.sh").write_text(lab.script(folder))
    lab.child(["bash", str(folder / "run.sh")], {**os.environ, "TORCHLAN_RUN_DIR": str(folder)})
    eventually(lambda: lab.pids(role="worker"))
    assert state(lab) == "alive"
    assert lab.stop()["left"] == []
    assert lab.pids() == []


def test_the_run_survives_the_end_of_the_session_that_started_it(lab: Lab) -> None:
    """As after ssh: the starter's whole process group gets SIGHUP."""
    code = (
        "import sys, json, os, signal; sys.path[:0] = json.loads(sys.argv[1]);"
        "from ansible_collections.torchlan.nanochat.plugins.module_utils.run_start import Order, start;"
        "from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import RunPaths;"
        "a = json.loads(sys.argv[2]);"
        "r = start(Order(RunPaths.of(a['base'], 'demo', 0), 'a1', a['script'], a['env'], {}), False);"
        "assert r['changed'] and not r['causes'], r;"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL);"  # nohup, where the tests were started with it, is inherited
        "os.killpg(0, signal.SIGHUP)"
    )
    args = {"base": str(lab.base_dir), "script": lab.script(lab.node_dir()), "env": lab.env_text()}
    argv = [sys.executable, "-c", code, json.dumps(sys.path), json.dumps(args)]
    done = subprocess.run(argv, env=lab.environ, start_new_session=True, capture_output=True, timeout=30, check=False)
    assert done.returncode == -signal.SIGHUP, done.stderr
    assert state(lab) == "alive"
