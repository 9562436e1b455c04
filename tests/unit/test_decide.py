# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a launch does about a run: every row of the table of run states, then what stands against a start."""

from __future__ import annotations

from typing import Any

import pytest
from builders import COMMIT, HOSTS, coerced, configuration, data, node, nodes, pair, planned, recorded, run, smoke

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import decide, plan

WANTED = configuration(smoke())
OTHER = configuration(smoke(nanochat_extra_args="depth=8"))


def both(one: dict[str, Any], other: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    return dict(zip(HOSTS, (one, other or one)))


def decided(runs: dict[str, dict[str, Any]], relaunch: bool = False) -> tuple[str, list[str]]:
    doing, causes = decide.action(runs, WANTED, relaunch)
    return doing, [cause["code"] for cause in causes]


# ---- the table ----


@pytest.mark.parametrize("relaunch", [False, True])
@pytest.mark.parametrize("state", ["absent", "failed", "stopped"])
def test_absent_failed_stopped(state: str, relaunch: bool) -> None:
    """Also from before a reboot, where the processes are gone: node_info calls that failed or stopped."""
    for config in (WANTED, OTHER):
        assert decided(both(recorded(state, config)), relaunch) == ("start", [])


def test_alive_and_the_same() -> None:
    assert decided(both(recorded("alive", WANTED))) == ("watch", [])
    assert decided(both(recorded("alive", WANTED)), relaunch=True) == ("restart", [])


def test_alive_and_another() -> None:
    doing, (cause,) = decide.action(both(recorded("alive", OTHER)), WANTED, False)
    assert doing == "refuse" and cause["code"] == "run_differs"
    assert cause["what"] == "run try is alive with another configuration: arguments.depth: 8 -> 4"
    assert "nanochat_relaunch=true" in cause["fix"]
    assert decided(both(recorded("alive", OTHER)), relaunch=True) == ("restart", [])


def test_alive_and_another_on_one_host_only() -> None:
    assert decided(both(recorded("alive", WANTED), recorded("alive", OTHER))) == ("refuse", ["run_differs"])


@pytest.mark.parametrize("record", [None, {}, {"fingerprint": "x"}])
def test_alive_and_nobody_knows_what(record: Any) -> None:
    _doing, (cause,) = decide.action(both(run("alive", record=record)), WANTED, False)
    assert cause["what"] == "run try is alive with another configuration: its record cannot be read"


@pytest.mark.parametrize("rest", ["absent", "failed", "finished", "stopped", "half_alive"])
@pytest.mark.parametrize("first", [0, 1])
def test_half_alive(rest: str, first: int) -> None:
    parts = [recorded("alive", WANTED), recorded(rest, WANTED)]
    runs = both(parts[first], parts[1 - first])
    doing, (cause,) = decide.action(runs, WANTED, False)
    assert doing == "refuse" and cause["code"] == "half_alive"
    states = [part["state"].replace("_", " ") for part in runs.values()]
    assert cause["what"] == f"run try is {states[0]} on workstation, {states[1]} on laptop"
    assert decided(runs, relaunch=True) == ("restart", [])


def test_alive_in_two_attempts_is_half_alive() -> None:
    assert decided(both(recorded("alive", WANTED), recorded("alive", WANTED, attempt="x"))) == (
        "refuse",
        ["half_alive"],
    )


def test_finished_and_the_same() -> None:
    assert decided(both(recorded("finished", WANTED))) == ("stored", [])
    assert decided(both(recorded("finished", WANTED)), relaunch=True) == ("start", [])


def test_finished_and_another() -> None:
    assert decided(both(recorded("finished", OTHER))) == ("start", [])
    assert decided(both(recorded("finished", WANTED), recorded("finished", OTHER))) == ("start", [])


@pytest.mark.parametrize("rest", ["absent", "failed", "stopped"])
def test_finished_on_one_host_only(rest: str) -> None:
    assert decided(both(recorded("finished", WANTED), recorded(rest, WANTED))) == ("start", [])


def test_finished_in_two_attempts() -> None:
    assert decided(both(recorded("finished", WANTED), recorded("finished", WANTED, attempt="x"))) == ("start", [])


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        (("absent", "absent"), "absent"),
        (("alive", "alive"), "alive"),
        (("alive", "finished"), "half_alive"),
        (("half_alive", "half_alive"), "half_alive"),
        (("finished", "finished"), "finished"),
        (("finished", "failed"), "failed"),
        (("finished", "absent"), "failed"),
        (("absent", "failed"), "failed"),
        (("stopped", "finished"), "stopped"),
        (("stopped", "absent"), "stopped"),
        (("stopped", "failed"), "failed"),
    ],
)
def test_state_of_the_whole(states: tuple[str, str], whole: str) -> None:
    assert decide.run_state(both(run(states[0]), run(states[1]))) == whole
    assert decide.run_state(both(run(states[1]), run(states[0]))) == whole


# ---- what stands against a start ----


def against(seen: dict[str, Any], doing: str = "start", **shared: Any) -> list[tuple[str, str | None, str]]:
    made, _causes = plan.make(smoke(**shared), {host: len(one["host"]["gpus"]) for host, one in seen.items()})
    return [
        (cause["code"], cause["host"], cause["what"])
        for cause in decide.check_nodes(made, seen, start=doing in (decide.START, decide.RESTART))
    ]


def test_nothing_stands_against_it() -> None:
    assert against(nodes()) == []


@pytest.mark.parametrize("what", ["no torch in /x", "laptop: no torch in /x"])
def test_causes_of_a_host_name_it_once(what: str) -> None:
    own = {"code": "path_invalid", "weight": "error", "host": None, "rank": None, "what": what, "fix": "f"}
    seen = {**nodes(), "laptop": node("laptop", causes=[own])}
    assert against(seen, "watch") == [("path_invalid", "laptop", "laptop: no torch in /x")]


HOLDER = {"pid": 42, "command": "nc -l 29500", "user": "ann", "run_dir": None}


@pytest.mark.parametrize(
    ("holder", "who", "fix"),
    [
        (HOLDER, "pid 42 (nc -l 29500) of user ann", "kill 42"),
        ({"pid": 42}, "pid 42", "kill 42"),
        (
            None,
            "a process that only root can see",
            "sudo ss -ltnp 'sport = :29500'   (its pid is for root and its user to see)",
        ),
    ],
)
def test_a_taken_port(holder: dict[str, Any] | None, who: str, fix: str) -> None:
    port = {"port": 29500, "free": False, "holder": holder}
    seen = {**nodes(), "workstation": node("workstation", port=port)}
    assert against(seen) == [("port_in_use", "workstation", f"workstation: port 29500 is held by {who}")]
    assert against(seen, "watch") == []
    made = planned(smoke())
    assert (
        decide.check_nodes(made, seen, start=True)[0]["fix"]
        == f"on workstation: {fix}; or nanochat_master_port: another"
    )


def test_only_the_masters_port_counts() -> None:
    seen = {**nodes(), "laptop": node("laptop", port={"port": 29500, "free": False, "holder": HOLDER})}
    assert against(seen) == []


def test_the_port_of_the_run_that_is_replaced() -> None:
    port = {"port": 29500, "free": False, "holder": HOLDER}
    mine = run("alive", processes=[{"pid": 42}])
    assert against({**nodes(), "workstation": node("workstation", mine, port=port)}, "restart") == []


def codes(causes: list[dict[str, Any]]) -> list[str]:
    return [entry["code"] for entry in causes]


def lacking(privilege: str, missing: list[str], manager: str | None = "apt-get", **settings: Any) -> Any:
    bare = node("laptop", lacking=missing, privilege=privilege, package_manager=manager)
    both = pair()
    both["laptop"].update(settings)
    return decide.lacking(both, {**nodes(), "laptop": bare})


@pytest.mark.parametrize(
    ("privilege", "settings", "become"),
    [("root", {}, False), ("sudo", {}, True), ("password", {"become_password": True}, True)],
)
def test_packages_are_installed_where_this_user_can(privilege: str, settings: dict[str, Any], become: bool) -> None:
    install, causes = lacking(privilege, ["tmux", "compiler"], **settings)
    assert install == {"laptop": {"needed": ["tmux", "compiler"], "manager": "apt-get", "become": become}}
    assert not causes
    tried = decide.lacking(pair(), {"laptop": node("laptop", lacking=["tmux"], privilege="root")}, {"laptop"})
    assert not tried[0] and codes(tried[1]) == ["packages_missing"], "it is not tried for ever"


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "sudo apt-get install -y tmux git g++ python3-dev"),
        ("dnf", "sudo dnf install -y tmux git gcc-c++ python3-devel"),
        ("zypper", "sudo zypper install -y tmux git gcc-c++ python3-devel"),
        ("pacman", "sudo pacman -S --noconfirm tmux git gcc python3"),
        ("apk", "sudo apk add tmux git g++ python3-dev"),
        (None, "install tmux, git, compiler, headers"),
    ],
)
@pytest.mark.parametrize("privilege", ["none", "password"])
def test_else_one_command_for_an_administrator(manager: str | None, command: str, privilege: str) -> None:
    install, causes = lacking(privilege, ["tmux", "git", "compiler", "headers"], manager)
    assert not install
    assert codes(causes) == ["packages_missing", "compiler_missing"]
    first, second = (cause["fix"] for cause in causes)
    assert first == f"on laptop, an administrator: {command}"
    assert second == f"{first}; or nanochat_env: {{TORCHDYNAMO_DISABLE: 1}}"
    assert "tmux and git" in causes[0]["what"] and "compiler" in causes[1]["what"]


@pytest.mark.parametrize(("wanted", "todo"), [(1, []), (2, ["workstation"])])
def test_more_shards_are_downloaded_when_dataset_is_asked_for(wanted: int, todo: list[str]) -> None:
    listed = [["shard_00000.parquet", 10, "0" * 64, 8], ["shard_06542.parquet", 20, "1" * 64, 8]]
    settings = pair(nanochat_install_method="existing", nanochat_python="/py", nanochat_dataset_shards=wanted)
    seen = {
        host: node(host, data=data(list=listed), checkout={"state": "git", "commit": COMMIT, "dirty": False})
        for host in HOSTS
    }
    given = (planned(settings), settings, seen, COMMIT, {}, None)
    assert decide.todo(*given)["dataset"] == [], "a launch trains with what is there"
    assert decide.todo(*given, download=True)["dataset"] == todo


def test_what_a_host_needs() -> None:
    assert decide.needs(coerced(nanochat_source="smoke")) == ["tmux"]
    assert decide.needs(coerced()) == ["tmux", "git", "compiler", "headers"]
    assert decide.needs(coerced(nanochat_env={"TORCHDYNAMO_DISABLE": 1})) == ["tmux", "git"]


def test_too_few_gpus() -> None:
    seen = nodes()
    seen["workstation"]["host"]["gpus"] = ["H200"]
    assert against(seen, nanochat_device_type="cuda") == [
        ("setting_invalid", "laptop", "laptop: 1 processes on cuda, and 0 GPUs are seen")
    ]
    assert against(nodes(), nanochat_device_type="cpu") == []


# ---- what is left to do ----


def left(seen: dict[str, Any], manifest: str | None = None, requirements: Any = (), **shared: Any) -> dict[str, Any]:
    settings = pair(**shared)
    by_host = {host: list(requirements) for host in settings}
    return decide.todo(planned(settings), settings, seen, COMMIT, by_host, manifest)


def ready(**values: Any) -> dict[str, dict[str, Any]]:
    """Hosts with the checkout at the right commit."""
    checkout = {"state": "git", "commit": COMMIT, "dirty": False, "dirty_files": []}
    return nodes(checkout=checkout, **values)


def test_nothing_to_do() -> None:
    assert left(ready()) == {"install": [], "dataset": []}
    assert left(ready(), nanochat_install_method="pip") == {"install": [], "dataset": []}


def environment(**values: Any) -> dict[str, Any]:
    return {**node()["environment"], **values}


@pytest.mark.parametrize(
    "values",
    [
        {"checkout": {"state": "absent", "commit": None}},
        {"checkout": {"state": "git", "commit": "f" * 40}},
        {"environment": environment(state="absent")},
        {"environment": environment(torch=None)},
        {"environment": environment(marker=None)},
    ],
)
def test_software_to_install(values: dict[str, Any]) -> None:
    seen = {**ready(), "laptop": {**ready()["laptop"], **values}}
    assert left(seen)["install"] == ["laptop"]


def test_other_requirements_are_installed() -> None:
    assert left(ready(), nanochat_install_method="pip", requirements=["torch==2.13.0"])["install"] == HOSTS
    assert left(ready(), nanochat_install_method="uv", requirements=["torch==2.13.0"])["install"] == []


def test_an_existing_environment_is_left_alone() -> None:
    seen = ready(environment=environment(state="broken", torch=None, marker=None))
    assert left(seen, nanochat_install_method="existing", nanochat_python="/py")["install"] == []


@pytest.mark.parametrize(
    ("wanted", "hosts"), [(None, []), ("torch==2.13.0", []), ("torch", []), ("torch==2.12.0", HOSTS)]
)
def test_smoke_needs_torch_only(wanted: str | None, hosts: list[str]) -> None:
    seen = nodes(environment=environment(torch="2.13.0+cpu", marker=None))
    assert left(seen, nanochat_source="smoke", nanochat_torch=wanted) == {"install": hosts, "dataset": []}


def tokenizer(**values: Any) -> dict[str, Any]:
    return data(tokenizer={**data()["tokenizer"], **values})


@pytest.mark.parametrize(
    "values",
    [
        data(shards=1),
        data(manifest="m2"),
        data(unread=1),
        tokenizer(present=False),
        tokenizer(sha256="c" * 64),
    ],
)
def test_data_to_bring(values: dict[str, Any]) -> None:
    seen = ready()
    seen["laptop"]["data"] = values
    assert left(seen)["dataset"] == ["laptop"]
    assert left(seen, nanochat_script="scripts.chat_sft")["dataset"] == []


def test_the_controllers_shards_are_the_measure() -> None:
    assert left(ready(), manifest="m1")["dataset"] == []
    assert left(ready(), manifest="m9")["dataset"] == HOSTS


# ---- software and data that do not fit ----


def software(seen: dict[str, Any]) -> list[tuple[str, str | None, str]]:
    return [(one["code"], one["host"], one["what"]) for one in decide.check_software(planned(smoke()), seen)]


def test_software() -> None:
    assert software(nodes()) == []
    seen = nodes()
    seen["laptop"]["environment"].update(torch=None)
    assert software(seen) == [
        ("environment_missing", "laptop", "laptop: no torch in /home/laptop/nanochat/.venv/bin/python")
    ]
    seen["laptop"]["environment"].update(python=None)
    assert software(seen) == [("environment_missing", "laptop", "laptop: there is no Python environment")]


def test_versions_that_differ() -> None:
    seen = nodes()
    seen["laptop"]["environment"].update(torch="2.12.0", version="3.12.1")
    assert [what for _code, _host, what in software(seen)] == [
        "python is 3.11 on workstation, 3.12 on laptop",
        "torch is 2.13.0 on workstation, 2.12.0 on laptop",
    ]
    seen["laptop"]["environment"].update(torch="2.13.0", version="3.11.99")
    assert software(seen) == []


def data_causes(master: dict[str, Any], other: dict[str, Any], **shared: Any) -> list[tuple[str, str | None, str]]:
    seen = {"workstation": node("workstation", data=master), "laptop": node("laptop", data=other)}
    return [(one["code"], one["host"], one["what"]) for one in decide.check_data(planned(pair(**shared)), seen)]


def test_data() -> None:
    assert data_causes(data(), data()) == []
    assert data_causes(data(shards=0), data(manifest="x"), nanochat_source="smoke") == []


def test_data_that_is_missing() -> None:
    assert data_causes(data(shards=1), tokenizer(present=False)) == [
        ("data_missing", "workstation", "workstation: 1 shards in /data; training needs two or more"),
        ("tokenizer_missing", "laptop", "laptop: no tokenizer in /home/laptop/cache/tokenizer"),
    ]


@pytest.mark.parametrize(
    ("listed", "difference"),
    [
        (
            [data()["list"][0], ["x", 1, None, None]],
            "shard_00001.parquet is 20 bytes on workstation, missing on laptop",
        ),
        (
            [data()["list"][0], ["shard_00001.parquet", 21, "1" * 64, 8]],
            "shard_00001.parquet is 20 bytes on workstation, 21 bytes on laptop",
        ),
        (
            [data()["list"][0], ["shard_00001.parquet", 20, "2" * 64, 8]],
            "shard_00001.parquet is sha256 111111111111 on workstation, sha256 222222222222 on laptop",
        ),
        (
            [data()["list"][0], ["shard_00001.parquet", 20, None, None]],
            "shard_00001.parquet is sha256 111111111111 on workstation, not read yet on laptop",
        ),
        (data()["list"], "the lists are equal as far as they are shown, their digests are not"),
    ],
)
def test_shards_that_differ(listed: list[Any], difference: str) -> None:
    what = f"laptop: 2 shards, workstation has 2: {difference}"
    assert data_causes(data(), data(manifest="m2", list=listed)) == [("data_differ", "laptop", what)]


@pytest.mark.parametrize(
    ("groups", "code"),
    [
        ({"validation": 1}, "row_groups_few"),
        ({"fewest": 1, "most": 1}, "row_groups_few"),
        ({"validation": 0}, "data_missing"),
    ],
)
def test_row_groups_of_the_master_s_files(groups: dict[str, int], code: str) -> None:
    few = data(row_groups={**data()["row_groups"], **groups})
    assert [one[:2] for one in data_causes(few, few)] == [(code, "workstation")]
    seen = {host: node(host, data=few) for host in HOSTS}
    for host, one in ready().items():
        seen[host]["checkout"] = one["checkout"]
    assert left(seen)["dataset"] == []
    assert left(seen, nanochat_dataset_repair=True)["dataset"] == ["workstation"]


def test_tokenizers_that_differ() -> None:
    what = "laptop: the tokenizer is cccccccccccc, workstation's aaaaaaaaaaaa"
    assert data_causes(data(), tokenizer(sha256="c" * 64)) == [("tokenizer_differs", "laptop", what)]
