# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run's files and processes: what state they show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_run import Lab, eventually, lab_fixture  # noqa: F401

from ansible_collections.torchlan.nanochat.plugins.module_utils import run_processes
from ansible_collections.torchlan.nanochat.plugins.module_utils.run_processes import RunDir, processes, send_signal
from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import (
    RunPaths,
    boot_id,
    inspect_run,
    log_tail,
    other_runs,
    read_plan,
    telling_line,
)


def look(lab: Lab, **more: Any) -> dict[str, Any]:
    return inspect_run(str(lab.base_dir), "demo", 0, **more)


def roles(lab: Lab) -> list[str]:
    return sorted(process["role"] for process in look(lab)["processes"])


# ---- paths ----


@pytest.mark.parametrize("name", ["", "a b", "../x", "a.b", "a:b", "a\n", "ä"])
def test_names_that_cannot_be(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only letters"):
        RunPaths.of(str(tmp_path), name, 0)
    with pytest.raises(ValueError, match="only letters"):
        RunPaths.of(str(tmp_path), "ok", 0).node_dir(name)


def test_home_and_links_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "real")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert RunPaths.of("~/x", "run", 1).node_dir("a1") == str(tmp_path / "real/x/runs/run/attempts/a1/node-1")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/b/runs/r-1/attempts/a_2/node-3", ("/b", "r-1", "a_2", 3)),
        ("/b/runs/r/attempts/a/node-3/", ("/b", "r", "a", 3)),
        ("/runs/r/attempts/a/node-3", ("/", "r", "a", 3)),
        ("/b\nx/runs/x/runs/r/attempts/a/node-3", ("/b\nx/runs/x", "r", "a", 3)),
        ("/b/runs/r/attempts/a", None),
        ("/b/runs/r/attempts/a/node-x", None),
        ("", None),
    ],
)
def test_a_run_dir_taken_apart(path: str, expected: tuple[str, str, str, int] | None) -> None:
    found = RunDir.parse(path)
    assert (found and (found.base_dir, found.run, found.attempt, found.node_rank)) == expected


# ---- files only ----


def test_absent(lab: Lab) -> None:
    assert look(lab)["state"] == "absent"
    (lab.base_dir / "runs" / "demo" / "attempts").mkdir(parents=True)
    result = look(lab)
    assert result["state"] == "absent"
    assert (result["attempt"], result["record"], result["processes"], result["beats"]) == (None, None, [], [])


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"exit_code": "0\n"}, "finished"),
        ({"exit_code": "0\n", "stopped": "late\n"}, "finished"),
        ({"exit_code": "1\n"}, "failed"),
        ({"exit_code": ""}, "failed"),
        ({"exit_code": "garbage"}, "failed"),
        ({}, "failed"),
        ({"stopped": "by hand\n"}, "stopped"),
        ({"stopped": "by hand\n", "exit_code": "137\n"}, "stopped"),
    ],
)
def test_states_of_what_is_over(lab: Lab, files: dict[str, str], state: str) -> None:
    lab.make(run_json=json.dumps({"boot_id": boot_id()}), **files)
    result = look(lab)
    assert result["state"] == state
    assert result["from_before_reboot"] is False
    assert result["stopped"] == (files["stopped"].strip() if "stopped" in files else None)


def test_from_before_a_reboot(lab: Lab) -> None:
    lab.make(run_json=json.dumps({"boot_id": "another"}))
    assert (look(lab)["state"], look(lab)["from_before_reboot"]) == ("failed", True)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"x"', "\x00\xff", '{"rank": ', "[" * 100000])
def test_broken_files_are_as_good_as_none(lab: Lab, text: str) -> None:
    folder = lab.make(run_json=text, cluster_json=text, env="export TORCHLAN_PLAN=%s\n" % text)
    (folder / "beats" / "rank-0.json").write_text(text)
    (folder / "beats" / "rank-1.json").write_text('{"rank": 1}')
    (folder / "beats" / "rank-2.json").write_text('{"rank": "two"}')
    (folder / "beats" / "rank-2.jsonl").write_text("x")
    (folder / "beats" / "rank-3.json").mkdir()
    result = look(lab)
    assert (result["state"], result["record"], result["cluster"]) == ("failed", None, None)
    assert result["beats"] == [{"rank": 1}]
    assert read_plan(str(folder)) == {}


def test_the_link_names_the_attempt_else_the_newest(lab: Lab) -> None:
    lab.make(attempt="20261130-180102", exit_code="0")
    lab.make(attempt="20261129-180102", exit_code="1")
    assert look(lab)["attempt"] == "20261129-180102"
    assert look(lab, attempt="20261130-180102")["state"] == "finished"
    assert look(lab, attempt="none")["state"] == "absent"
    link = lab.base_dir / "runs" / "demo" / "current-0"
    for target in ("attempts/gone/node-0", "../../etc", "x"):
        link.unlink()
        link.symlink_to(target)
        assert look(lab)["attempt"] == "20261130-180102"
    link.unlink()
    link.mkdir()
    assert look(lab)["attempt"] == "20261130-180102"


def test_another_nodes_folder_is_not_ours(lab: Lab) -> None:
    lab.make(node_rank=1, exit_code="0")
    assert look(lab)["state"] == "absent"


def test_the_log_tail_is_bounded(lab: Lab) -> None:
    folder = lab.make(train_log="")
    log = folder / "train.log"
    log.write_bytes(
        b"x" * 200000 + b"\n" + b"".join(b"line %d\r\n" % n for n in range(50)) + b"10%\r50%\r100%\n\xff\n\n"
    )
    lines = look(lab)["log_tail"]
    assert len(lines) == 30
    assert lines[-3:] == ["line 49", "100%", "�"]
    log.write_bytes(b"y" * 200000)
    assert [len(line) for line in log_tail(str(log))] == [2000]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], None),
        (["a", "b"], "b"),
        (
            ["Traceback (most recent call last):", '  File "x", line 1', "ValueError: bad", "frame #1: y", "====="],
            "ValueError: bad",
        ),
        (["frame #1: y"], "frame #1: y"),
        (["bash: torchrun: command not found", "after"], "bash: torchrun: command not found"),
    ],
)
def test_the_line_that_says_most(lines: list[str], expected: str | None) -> None:
    assert telling_line(lines) == expected


def test_the_plan_is_read_from_the_env_file(lab: Lab) -> None:
    folder = lab.make(env="export A='x\ny'\nexport TORCHLAN_PLAN='{\"host\": \"o'\\''neil\"}'\nexport B=1\n")
    assert read_plan(str(folder)) == {"host": "o'neil"}


# ---- processes ----


def test_roles_of_a_whole_run(lab: Lab) -> None:
    lab.start(fake={"ranks": [0, 1], "world_size": 2, "helper": True})
    eventually(lambda: len(lab.pids(role="worker")) == 2 and len(lab.pids(role="helper")) == 2)
    result = look(lab)
    assert result["state"] == "alive"
    assert roles(lab) == ["agent", "helper", "helper", "session", "session", "worker", "worker"]
    workers = [process for process in result["processes"] if process["role"] == "worker"]
    agent = next(process for process in result["processes"] if process["role"] == "agent")
    assert [worker["rank"] for worker in workers] == [0, 1]
    assert {worker["ppid"] for worker in workers} == {agent["pid"]}
    assert abs(agent["started"] - time.time()) < 30
    assert "torch.distributed.run" in agent["command"]
    assert json.dumps(result)


def test_orphans_are_half_alive(lab: Lab) -> None:
    folder = lab.make(run_json="{}")
    agent = lab.agent(folder, helper=True)
    eventually(lambda: lab.pids(role="helper") and look(lab)["state"] == "alive")
    agent.kill()
    agent.wait()
    assert eventually(lambda: look(lab)["state"] == "half_alive")
    assert roles(lab) == ["helper", "worker"]
    os.kill(lab.pids(role="worker")[0], signal.SIGKILL)
    # Without its parent a helper that says nothing of itself cannot be told from a worker; it is left over anyway.
    assert eventually(lambda: len(lab.pids()) == 1) and look(lab)["state"] == "half_alive"


def test_known_helpers_are_no_trainers_without_a_parent_too(lab: Lab) -> None:
    folder = lab.make()
    env = {**os.environ, "TORCHLAN_RUN_DIR": str(folder), "RANK": "0"}
    lab.child([sys.executable, "-c", "import time; time.sleep(300) # torch._inductor.compile_worker"], env)
    eventually(lambda: roles(lab) == ["helper"])
    assert look(lab)["state"] == "half_alive"


def test_a_guard_that_is_still_leaving_is_no_leftover(lab: Lab) -> None:
    folder = lab.make(exit_code="0")
    env = {**os.environ, "TORCHLAN_RUN_DIR": str(folder)}
    lab.child([sys.executable, "-c", "import time; time.sleep(300) # from torchlan_runner.guard import main"], env)
    eventually(lambda: roles(lab) == ["guard"])
    assert look(lab)["state"] == "finished"


def test_leftovers_beside_an_exit_code(lab: Lab) -> None:
    folder = lab.make(exit_code="0")
    lab.agent(folder)
    eventually(lambda: lab.pids(role="worker"))
    assert look(lab)["state"] == "half_alive"


def test_a_script_without_an_agent(lab: Lab) -> None:
    """For a moment at its start that is a run, and at its end it is over; in between it is a leftover."""
    folder = lab.make(run_json=json.dumps({"started_unix": time.time()}))
    env = {**os.environ, "TORCHLAN_RUN_DIR": str(folder)}
    child = subprocess.Popen(["tee"], env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: roles(lab) == ["session"])
        assert look(lab)["state"] == "alive"
        (folder / "run.json").write_text(json.dumps({"started_unix": time.time() - 60}))
        assert look(lab)["state"] == "half_alive"
        (folder / "exit_code").write_text("0\n")
        assert look(lab)["state"] == "finished"
    finally:
        child.kill()
        child.communicate()


def test_an_agent_in_its_exit_barrier_is_half_alive(lab: Lab) -> None:
    folder = lab.make(run_json="{}")
    lab.agent(folder, exit_at_once=True, barrier=True)
    eventually(lambda: roles(lab) == ["agent"])
    assert look(lab)["state"] == "alive"  # it may as well be starting
    beat = {"rank": 0, "state": "finished", "time": time.time()}
    (folder / "beats" / "rank-0.json").write_text(json.dumps(beat))
    assert look(lab)["state"] == "alive"  # all agents need a moment to end
    (folder / "beats" / "rank-0.json").write_text(json.dumps(dict(beat, time=time.time() - 30)))
    eventually(lambda: look(lab)["state"] == "half_alive")  # the worker may not even have come and gone


def supervised(lab: Lab, folder: Path, **fake: Any) -> None:
    """The real supervisor above a fake agent."""
    env = {**os.environ, "TORCHLAN_RUN_DIR": str(folder), "TORCHLAN_PLAN": "{}", "FAKE": json.dumps(fake)}
    env["PYTHONPATH"] = f"{lab.fakes}:{Path(__file__).resolve().parents[2] / 'runner'}"
    argv = [sys.executable, "-m", "torchlan_runner.again", "--times=3", "--", sys.executable, "-m"]
    lab.child([*argv, "torch.distributed.run", "-m", "fake_worker"], env)


def test_between_two_starts_a_run_is_alive(lab: Lab) -> None:
    folder = lab.make(run_json="{}")
    supervised(lab, folder, die=1)
    eventually(lambda: (folder / "restarts.json").exists())
    assert roles(lab) == ["supervisor"]
    seen = look(lab)
    assert seen["state"] == "alive"
    assert [one["exit_code"] for one in seen["restarts"]["failures"]] == [1]
    assert seen["restarts"]["next_unix"] > time.time()
    assert [one["signal"] for one in lab.stop()["ended"]] == ["SIGTERM"]


def test_a_supervisor_ends_its_agent_itself_and_does_not_start_another(lab: Lab) -> None:
    folder = lab.make(run_json="{}")
    supervised(lab, folder)
    eventually(lambda: roles(lab) == ["agent", "supervisor", "worker"])
    assert look(lab)["state"] == "alive"
    ended = {one["role"]: one["signal"] for one in lab.stop()["ended"]}
    assert ended == {"supervisor": "SIGTERM", "agent": None, "worker": None}
    assert roles(lab) == [] and not (folder / "restarts.json").exists()


def test_leftovers_of_an_older_attempt(lab: Lab) -> None:
    old = lab.make(attempt="a1")
    lab.make(attempt="a2", exit_code="0")
    child = lab.child(["sleep", "300"], {**os.environ, "TORCHLAN_RUN_DIR": str(old)})
    result = eventually(lambda: look(lab) if lab.pids() else None)
    assert (result["state"], result["attempt"]) == ("half_alive", "a2")
    assert [process["attempt"] for process in result["processes"]] == ["a1"]
    assert look(lab, attempt="a2")["state"] == "finished"
    child.kill()
    child.wait()


def test_an_agent_whose_start_broke_before_the_link_moved(lab: Lab) -> None:
    new = lab.make(attempt="a2", run_json="{}")
    lab.make(attempt="a1", exit_code="0")
    lab.agent(new)
    result = eventually(lambda: look(lab) if lab.pids(role="agent") else None)
    assert (result["state"], result["attempt"]) == ("alive", "a2")


def test_the_folder_was_removed_under_a_live_run(lab: Lab) -> None:
    lab.child(["sleep", "300"], {**os.environ, "TORCHLAN_RUN_DIR": str(lab.node_dir())})
    assert eventually(lambda: look(lab)["state"] == "half_alive")


def test_zombies_are_not_alive(lab: Lab) -> None:
    folder = lab.make(exit_code="0")
    child = lab.child(["sleep", "300"], {**os.environ, "TORCHLAN_RUN_DIR": str(folder)})
    eventually(lab.pids)
    os.kill(child.pid, signal.SIGKILL)
    assert eventually(lambda: look(lab)["state"] == "finished")
    assert os.path.exists("/proc/%d" % child.pid)  # nobody has waited for it yet


def test_found_through_a_symbolic_link(lab: Lab, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(lab.base_dir)
    folder = link / "runs" / "demo" / "attempts" / "a1" / "node-0"
    lab.make()
    lab.child(["sleep", "300"], {**os.environ, "TORCHLAN_RUN_DIR": str(folder)})
    eventually(lambda: processes(str(lab.base_dir), "demo", 0))
    os.kill(processes(str(lab.base_dir), "demo", 0)[0].pid, signal.SIGKILL)


def test_this_process_and_its_ancestors_are_not_of_the_run(lab: Lab) -> None:
    lab.make(exit_code="0")
    code = (
        "import sys, json; from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import inspect_run;"
        "print(inspect_run(sys.argv[1], 'demo', 0)['state'])"
    )
    env = {
        **os.environ,
        "TORCHLAN_RUN_DIR": str(lab.node_dir()),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    argv = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", code, str(lab.base_dir)]
    assert subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip() == "finished"


def test_another_users_processes_are_not_ours(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.child(["sleep", "300"], {**os.environ, "TORCHLAN_RUN_DIR": str(lab.make())})
    eventually(lab.pids)
    with monkeypatch.context() as patch:
        patch.setattr(run_processes.os, "geteuid", lambda: 4711)
        assert lab.pids() == []


def test_a_signal_is_for_the_one_that_was_seen(lab: Lab) -> None:
    first, second = lab.make(attempt="a1"), lab.make(attempt="a2")
    child = lab.child(["sleep", "300"], {**os.environ, "TORCHLAN_RUN_DIR": str(first)})
    seen = eventually(lambda: processes(str(lab.base_dir), "demo", 0))[0]
    where = RunDir.parse(str(second))
    assert where is not None
    other = run_processes.Process(**dict(seen.__dict__, where=where))
    reused = run_processes.Process(**dict(seen.__dict__, started=seen.started - 60))
    assert not send_signal(other, signal.SIGKILL)
    assert not send_signal(reused, signal.SIGKILL)
    assert child.poll() is None
    assert send_signal(seen, signal.SIGKILL)
    child.wait()
    assert not send_signal(seen, signal.SIGKILL)


def test_other_runs_on_the_host(lab: Lab, tmp_path: Path) -> None:
    for folder in (lab.make(), lab.make(run="demo-2"), lab.make(run="demo", node_rank=1)):
        lab.child(["sleep", "300"], {**os.environ, "TORCHLAN_RUN_DIR": str(folder)})
    elsewhere = tmp_path / "elsewhere" / "runs" / "demo" / "attempts" / "a1" / "node-0"
    child = lab.child(["sleep", "300"], {**os.environ, "TORCHLAN_RUN_DIR": str(elsewhere)})
    eventually(lambda: len(lab.pids()) == 3)

    def others(**more: Any) -> list[tuple[str, str]]:
        found = [one for one in other_runs(str(lab.base_dir), "demo", **more) if str(tmp_path) in one["base_dir"]]
        return sorted((one["run"], os.path.basename(one["base_dir"])) for one in found)

    assert others() == [("demo", "elsewhere"), ("demo-2", lab.base_dir.name)]
    assert others(attempt="a1") == [("demo-2", lab.base_dir.name)]
    entry = next(one for one in other_runs(str(lab.base_dir), "demo") if one["run"] == "demo-2")
    assert (entry["attempt"], entry["node_rank"], len(entry["pids"])) == ("a1", 0, 1)
    child.kill()
    child.wait()
