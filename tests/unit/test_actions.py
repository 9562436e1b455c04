# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of the controller: from variables to settings, from results to a verdict, from a verdict to a report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from builders import ATTEMPT, HOSTS, SECRET, beat, coerced, fresh, looked, nodes, smoke

from ansible_collections.torchlan.nanochat.plugins.action import (
    rendezvous,
    report,
    settings,
    training_run,
    verdict,
    watch,
)
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import stages

GROUPS = {"all": HOSTS, "nanochat": HOSTS}


def template(value: Any) -> Any:
    """Stands for the templar: {{ broken }} is undefined, everything else is itself."""
    if "{{ broken }}" in str(value):
        raise AnsibleError(f"'broken' is undefined in {value}")
    return value


def action(kind: type[Any], args: dict[str, Any] | None = None, check_mode: bool = False) -> Any:
    task = MagicMock(action="x", args=args or {}, async_val=0, check_mode=check_mode, diff=False)
    return kind(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(template=template), MagicMock())


# ---- settings ----


def read(host: str = "laptop", **variables: Any) -> dict[str, Any]:
    task_vars = {"inventory_hostname": host, "groups": GROUPS, "node_rank": 1, **variables}
    return dict(action(settings.ActionModule).run(None, task_vars))


def test_settings() -> None:
    result = read(nproc_per_node="2", ansible_host="192.0.2.37", ansible_user="ann", ansible_port=2222, other="x")
    assert (result["changed"], result["causes"]) == (False, [])
    made = result["settings"]
    assert (made["host"], made["nproc_per_node"], made["nanochat_hosts"]) == ("laptop", 2, HOSTS)
    assert made["ssh"] == ["ssh", "-p", "2222", "-t", "ann@192.0.2.37"]
    assert "other" not in made


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, ["ssh", "-t", "laptop"]),
        ({"ansible_connection": "local"}, []),
        ({"ansible_connection": "ansible.builtin.local"}, []),
        ({"ansible_host": "{{ broken }}"}, ["ssh", "-t", "laptop"]),
    ],
)
def test_how_a_person_reaches_a_host(variables: dict[str, Any], words: list[str]) -> None:
    assert read(**variables)["settings"]["ssh"] == words


def test_hosts_by_the_users_own_list() -> None:
    assert read(nanochat_hosts="laptop")["settings"]["nanochat_hosts"] == ["laptop"]


def test_a_list_of_hosts_that_is_wrong_is_said_and_can_be_judged() -> None:
    result = read(nanochat_hosts="typo")
    assert [entry["code"] for entry in result["causes"]] == ["group_missing"] and "'typo'" in result["causes"][0][
        "what"
    ]
    judged = stages.inventory(verdict.view_of(registered({"laptop": result}), False), fresh())
    assert [entry["code"] for entry in judged["causes"]] == ["group_missing"]


def test_a_variable_that_cannot_be_templated() -> None:
    (one,) = read(nanochat_run="a{{ broken }}")["causes"]
    assert one["code"] == "setting_invalid" and "laptop: nanochat_run cannot be templated" in one["what"]


def test_a_secret_is_in_no_settings() -> None:
    for value in ({"A": SECRET}, f"A={SECRET}", SECRET, SECRET + "{{ broken }}"):
        assert SECRET not in json.dumps(read(nanochat_secret_env=value))


# ---- verdict ----


def registered(read_of: dict[str, dict[str, Any]], **results: dict[str, Any]) -> dict[str, Any]:
    """Variables of the host that a run_once task runs on."""
    hostvars = {host: {"preflight_settings": one} for host, one in read_of.items()}
    for name, answers in results.items():
        for host, answer in answers.items():
            hostvars[host][name] = answer
    first = next(iter(hostvars))
    return {"hostvars": hostvars, "groups": GROUPS, **hostvars[first]}


def good() -> dict[str, dict[str, Any]]:
    return {host: {"settings": one, "causes": []} for host, one in smoke().items()}


def judge(stage: str, task_vars: dict[str, Any], previous: Any = None) -> dict[str, Any]:
    return dict(action(verdict.ActionModule, {"stage": stage, "previous": previous}).run(None, task_vars))


def test_verdict_hands_on_what_the_next_stage_needs() -> None:
    task_vars = registered(good(), preflight_node=looked(nodes()))
    first = judge("inventory", task_vars)
    assert (first["go"], first["changed"], [name for name, _time in first["times"]]) == (True, False, ["inventory"])
    second = judge("look", task_vars, {**first, "failed": False, "skipped": "x"})
    assert (second["go"], second["action"], second["commit"]) == (True, "start", None)
    assert [name for name, _time in second["times"]] == ["inventory", "look"]
    assert "skipped" not in second


def test_after_a_refusal_nothing_is_judged() -> None:
    refused = {"go": False, "causes": [cause("half_alive", "x")], "times": []}
    result = judge("network", registered(good()), refused)
    assert result["causes"] == refused["causes"] and "network" not in result


def test_skipped_answers_and_hosts_out_of_the_play_do_not_count() -> None:
    task_vars = registered(good(), preflight_node={"laptop": {"skipped": True, "node": {}}})
    del task_vars["hostvars"]["workstation"]
    view = verdict.view_of(task_vars | {"preflight_settings": good()["laptop"]}, False)
    assert view.cluster == HOSTS
    assert set(view.settings) == {"laptop"} and view.nodes() == {}


def test_what_look_finds_out_is_kept() -> None:
    task_vars = registered(good(), preflight_node=looked(nodes()))
    made = stages.STAGES["look"](
        verdict.view_of(task_vars, False), stages.inventory(verdict.view_of(task_vars, False), fresh())
    )
    assert set(made) <= verdict.KEPT


# ---- report ----


def reported(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    state: dict[str, Any],
    of: str = "launch",
    check_mode: bool = False,
    **more: Any,
) -> tuple[dict[str, Any], str]:
    """The task's result, and what was on the screen."""
    shown: list[str] = []
    monkeypatch.setattr(report.Display, "display", lambda _self, text, *_args, **_more: shown.append(text))
    given = {
        host: {"settings": {**one, "nanochat_report_dir": str(folder), **more}, "causes": []}
        for host, one in smoke().items()
    }
    one = action(report.ActionModule, {"verdict": state, "of": of}, check_mode)
    return dict(one.run(None, registered(given))), "\n".join(shown)


def state_of(**values: Any) -> dict[str, Any]:
    plan = {"run": "try", "hosts": HOSTS, "ranks": [], "numbers": {}, "world_size": 2}
    return {**fresh(), "plan": plan, "go": True, **values}


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, text = reported(monkeypatch, tmp_path / "a b", state_of(verdict="proven"))
    file = tmp_path / "a b" / "try" / "report.json"
    assert (result["failed"], result["report_file"]) == (False, str(file))
    assert json.loads(file.read_text()) == result["report"] and result["report"]["verdict"] == "proven"
    assert "PROVEN" in text and str(file) in text
    assert [path.name for path in file.parent.iterdir()] == ["report.json"]


@pytest.mark.parametrize("state", [state_of(verdict="failed"), state_of(verdict="unverified"), state_of(go=False)])
def test_the_one_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: dict[str, Any]) -> None:
    state["causes"] = [cause("half_alive", "x"), cause("note", "y", weight="warning")]
    result, text = reported(monkeypatch, tmp_path, state)
    assert result["failed"] and result["msg"].endswith(". 1 errors, listed above.")
    assert "report" not in result and "error: x  [half_alive]" in text
    assert (tmp_path / "try" / "report.json").exists()


def test_check_mode_and_preflight_are_plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for of, check_mode in (("launch", True), ("preflight", False)):
        result, _text = reported(monkeypatch, tmp_path, state_of(), of, check_mode)
        assert (result["failed"], result["report"]["verdict"]) == (False, "planned")


def test_a_preflight_for_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    state = state_of(measured=[{"from": "workstation", "to": "laptop", "rtt_ms": 0.2, "mbps": 940.0, "mtu": 1500}])
    for causes in ([], [cause("port_in_use", "workstation: port 29500 is held", "kill 42", host="workstation")]):
        state["causes"] = list(causes)
        result, text = reported(monkeypatch, tmp_path, state, "preflight", nanochat_preflight_json="a/found.json")
        found = json.loads((tmp_path / "a/found.json").read_text())
        assert (found["ready"], found["causes"], found["links"]) == (not causes, causes, state["measured"])
        assert result["failed"] == bool(causes) and ("NOT READY" in text) == bool(causes)
    row = next(line for line in text.splitlines() if line.startswith("  error"))
    assert row.split()[:2] == ["error", "workstation"] and row.endswith("[port_in_use]  kill 42")


def test_a_refusal_before_there_is_a_name_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, text = reported(monkeypatch, tmp_path, {**fresh(), "go": False})
    assert result["failed"] and "REFUSED" in text and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("of", ["status", "stop"])
def test_the_others_leave_the_report_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, of: str) -> None:
    result, _text = reported(monkeypatch, tmp_path, state_of(run_state="alive"), of)
    assert not result["failed"] and list(tmp_path.iterdir()) == []


def test_status_for_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state = state_of(run_state="alive", beats=[beat(0), beat(1)])
    for causes in ([], [cause("half_alive", "x\ny", host="laptop")]):
        state["causes"] = causes
        result, text = reported(monkeypatch, tmp_path, state, "status", nanochat_json=True)
        made = json.loads(text)
        assert (made["state"], made["verdict"], made["causes"]) == ("running", None, causes)
        assert made["ranks"][1]["step"] == 3 and text.count("\n") == 0 and result["failed"] == bool(causes)


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result, text = reported(monkeypatch, tmp_path / "file", state_of(verdict="proven"))
    assert (result["failed"], result["report_file"]) == (False, None)
    assert "PROVEN" in text and "report.json cannot be written below" in text


# ---- start ----


def test_secrets_go_straight_into_the_env_file(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"state": "started", "environment": {"A": "it's"}, "script": "s", "record": {}}
    one = action(training_run.ActionModule, given)
    asked: list[dict[str, Any]] = []

    def remote(args: dict[str, Any], _vars: dict[str, Any]) -> dict[str, Any]:
        asked.append(args)
        return {"changed": True}

    monkeypatch.setattr(one, "remote", remote)
    for value in ({"WANDB_API_KEY": SECRET, "N": 5}, f"WANDB_API_KEY={SECRET} N=5"):
        result = one.work(dict(given), {"inventory_hostname": "laptop", "nanochat_secret_env": value})
        args = asked.pop()
        assert args["env"].splitlines()[1:] == [
            "export A='it'\"'\"'s'",
            f"export WANDB_API_KEY={SECRET}",
            "export N=5",
        ]
        assert set(args) == {"state", "script", "record", "env", "runner"}
        assert SECRET not in json.dumps([result, {**args, "env": ""}])


def test_a_stop_needs_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    one = action(training_run.ActionModule)
    monkeypatch.setattr(one, "remote", lambda args, _vars: dict(args))
    assert one.work({"state": "stopped"}, {"nanochat_secret_env": {"A": SECRET}}) == {"state": "stopped"}


# ---- waiting ----


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def time(self) -> float:
        return 1e9 + self.now


def waited(
    monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], check_mode: bool = False
) -> tuple[dict[str, Any], list[str], list[dict[str, Any]]]:
    """The result, the lines on the screen, and what the module was asked; each answer takes five seconds."""
    clock = Clock()
    shown: list[str] = []
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(rendezvous, "time", clock)
    monkeypatch.setattr(rendezvous.Display, "display", lambda _self, text, *_args, **_more: shown.append(text))
    one = action(rendezvous.ActionModule, check_mode=check_mode)

    def remote(args: dict[str, Any], _vars: dict[str, Any]) -> dict[str, Any]:
        asked.append(args)
        clock.now += 5
        return dict(answers[min(len(asked), len(answers)) - 1])

    monkeypatch.setattr(one, "remote", remote)
    return one.work({"run": "try", "join_timeout": "20", "first_step_timeout": 30}, {}), shown, asked


def line(progress: str, done: bool = False) -> dict[str, Any]:
    return {"progress": progress, "done": done, "causes": []}


def test_progress_is_shown_once_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [line("1 of 2 joined"), line("1 of 2 joined"), line("compiling"), line("step 2", done=True)]
    result, shown, asked = waited(monkeypatch, answers)
    assert result["done"] and result["causes"] == []
    assert shown == ["      5 s  1 of 2 joined", "     15 s  compiling", "     20 s  step 2"]
    assert len(asked) == 4 and asked[0] == asked[3]
    assert asked[0]["since_unix"] == 1e9 + 100


def test_waiting_has_an_end_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _shown, asked = waited(monkeypatch, [line("compiling")])
    assert [entry["code"] for entry in result["causes"]] == ["start_timeout"]
    assert "nothing was decided within 110 s; last seen: compiling" in result["causes"][0]["what"]
    assert len(asked) == 23


def test_check_mode_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(waited(monkeypatch, [line("x")], check_mode=True)[2]) == 1


# ---- watching ----


def watched(
    monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any] | Exception], terminal: Any = None
) -> tuple[str, list[str]]:
    """Why the watch ended, and what was given to the screen; the last answer is given again and again."""
    clock = Clock()
    shown: list[str] = []
    monkeypatch.setattr(watch, "time", clock)
    monkeypatch.setattr(watch.terminal, "size", lambda: terminal)

    def display(_self: Any, text: str, log_only: bool = False, **_more: Any) -> None:
        shown.extend([] if log_only else [text])

    def execute(command: str, sudoable: bool) -> dict[str, Any]:
        assert not sudoable and command.startswith("cd ~/'my cache'/runs/try/current-0 && ")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(watch.Display, "display", display)
    one = action(watch.ActionModule, {"run": "try", "base_dir": "~/my cache"})
    one._task.delegate_to = "workstation"
    monkeypatch.setattr(one, "_low_level_execute_command", execute)
    result = one.run(None, {"inventory_hostname": "laptop"})
    assert (result["changed"], result["ok"]) == (False, True)
    return str(result["ended"]), shown


def answer(step: int, code: int | str = "", **values: Any) -> dict[str, Any]:
    ranks = [beat(rank, step=step, time=1000 + step, **values) for rank in (0, 1)]
    lines = [f"/base/runs/try/attempts/{ATTEMPT}/node-0", 1000 + step, code, json.dumps({"ranks": ranks}), "", "a line"]
    return {"rc": 0, "stdout": "".join(f"{line}\n" for line in lines), "stderr": ""}


GONE = AnsibleConnectionFailure("ssh: connect to host 192.0.2.36:\nNo route to host")


def test_a_watch_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    last = answer(9, 0, state="finished")
    ended, shown = watched(monkeypatch, [*(answer(step) for step in range(1, 9)), last])
    assert ended == "the run has ended: exit code 0"
    steps = [line.partition("  ")[2].partition(",")[0] for line in shown[:-1]]
    assert steps == ["step 1 of 10", "step 6 of 10", "step 9 of 10"], "every ten seconds, and the end"
    assert shown[-1] == f"  {ended}" and "\x1b" not in "".join(shown)


def test_a_watch_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    size = os.terminal_size((80, 24))
    ended, shown = watched(monkeypatch, [answer(1), GONE, answer(2), answer(3, 0, state="finished")], size)
    assert shown[0].startswith("run try") and shown[2].startswith("run try"), "below what was said"
    assert (
        shown[1] == "  workstation does not answer, trying for 60 s: ssh: connect to host 192.0.2.36: No route to host"
    )
    assert shown[3].startswith("\x1b[8Frun try") and shown[4] == f"  {ended}"


def test_a_master_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, shown = watched(monkeypatch, [answer(1), GONE])
    assert ended == "workstation has not answered for 60 s" and len(shown) == 3
    ended, shown = watched(monkeypatch, [GONE])
    assert ended.startswith("workstation does not answer: ssh") and len(shown) == 1


def test_nothing_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"rc": 1, "stdout": "", "stderr": "cd: no such file"}
    assert watched(monkeypatch, [nothing])[0] == "no run try is found on workstation: cd: no such file"
    assert watched(monkeypatch, [answer(1)])[0].startswith("nothing new since ")


def test_builders_are_like_the_action() -> None:
    assert set(read()["settings"]) == set(coerced("laptop", 1))
