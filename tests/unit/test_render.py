# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""run.sh and its environment, run by a real bash: values arrive byte for byte, and no shell reads any of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import ATTEMPT, COMMIT, SECRET, configuration, node, pair, planned, smoke

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import render, settings

FOUR_RANKS = "total-batch-size=4096 eval-tokens=4096"
NETWORK = {"interface": "eth0", "address": "192.0.2.36"}

# {canary} becomes a file that only a shell that reads the value can make
HOSTILE = [
    "two words",
    " leading and trailing ",
    "it's",
    'say "hi"',
    "$(touch {canary})",
    "`touch {canary}`",
    "$HOME ${{PATH}} $$ $? !! ~ ~root",
    "; touch {canary} ;",
    "& touch {canary} & | > {canary}",
    "'; touch {canary}; '",
    '"; touch {canary}; "',
    "\n touch {canary}\n",
    "one\ntwo\n",
    "\r\n\t\v",
    "-n",
    "--help",
    "--",
    "-- touch {canary}",
    "#no comment",
    "\\",
    "a\\\nb",
    "%s %n {{}} {{folder}}",
    "* ? [a-z] {{a,b}}",
    "<(touch {canary})",
    "\x1b[31mred\x07",
    "ünïcode 漢字 🚀",
    "",
]


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


class Host:
    """A folder with a space, a quote and a dollar, where run.sh runs with a python that only says what it got."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "it's $(touch canary) node-0"
        self.work = home / "-work dir"
        self.folder.mkdir()
        self.work.mkdir()
        self.python = home / "my python"
        self.python.write_text(
            # The real interpreter: a first line cannot hold the space that a checkout's path may have.
            f"#!{os.path.realpath(sys.executable)}\n"
            "import json, os, sys\n"
            "with open(os.environ['SEEN'], 'w') as file:\n"
            "    json.dump([sys.argv[1:], dict(os.environ), os.getcwd()], file)\n"
            "print('to stdout')\n"
            "print('to stderr', file=sys.stderr)\n"
            "sys.exit(int(os.environ.get('EXIT', '0')))\n",
        )
        self.python.chmod(0o755)

    def run(
        self, command: list[str], variables: dict[str, str], code: int = 0, notify: list[str] | None = None
    ) -> tuple[list[str], dict[str, str], str]:
        """argv, environment and folder that the program saw."""
        shared = smoke(nanochat_notify=notify or [])
        text = render.script(planned(shared), shared["workstation"], str(self.folder), str(self.work), command, ATTEMPT)
        (self.folder / "run.sh").write_text(text, encoding="utf-8")
        seen = self.folder.parent / "seen.json"
        variables = {**variables, "SEEN": str(seen)}
        (self.folder / "env").write_text(render.env_file(variables), encoding="utf-8", newline="")
        given = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "TORCHLAN_RUN_DIR": str(self.folder)}
        done = subprocess.run(
            ["bash", str(self.folder / "run.sh")], env=given, capture_output=True, check=False, timeout=60, cwd="/"
        )
        assert done.returncode == code, done
        argv, environ, cwd = json.loads(seen.read_text(encoding="utf-8"))
        return argv, environ, cwd


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_values_through_a_real_shell(host: Host, canary: Path, hostile: str) -> None:
    value = hostile.format(canary=canary)
    shared = smoke(nanochat_env={"HOSTILE": value}, nanochat_extra_args={"model-tag": value, "list": [value, value]})
    mine = shared["workstation"]
    command = render.torchrun(planned(shared), mine, str(host.python), value, ATTEMPT)
    variables = render.environment(planned(shared), mine, node(), NETWORK, str(host.folder))
    variables.update(settings.secret_env({"HIDDEN": value}))
    before = files(host.folder.parent)
    argv, environ, cwd = host.run(command, variables)
    assert argv == command[1:]
    for word in (f"--model-tag={value}", f"--list={value}", f"--master_addr={value}"):
        assert word in argv
    assert environ["HOSTILE"] == environ["HIDDEN"] == value
    assert {name: environ[name] for name in variables} == variables
    assert cwd == str(host.work)
    made = {f"{host.folder.name}/{name}" for name in ("run.sh", "env", "train.log", "exit_code")}
    assert files(host.folder.parent) - before == {*made, "seen.json"}


@pytest.mark.parametrize(
    "name", ["folder", "code", "command", "IFS", "PATH", "HOME", "LC_ALL", "TMPDIR", "BASH_ENV", "PS4", "_x"]
)
def test_no_variable_changes_what_the_script_does(host: Host, name: str) -> None:
    _argv, environ, _cwd = host.run([str(host.python), "-m", "x", "y"], {name: "/nowhere", "EXIT": "7"}, code=7)
    assert environ[name] == "/nowhere"
    assert (host.folder / "exit_code").read_text() == "7\n"
    said = [line for line in (host.folder / "train.log").read_text().splitlines() if "setlocale" not in line]
    assert sorted(said) == ["to stderr", "to stdout"]


def test_the_log_grows_and_the_exit_code_is_new(host: Host) -> None:
    for code in (3, 0):
        host.run([str(host.python), "-m", "x"], {"EXIT": str(code)}, code=code)
        assert (host.folder / "exit_code").read_text() == f"{code}\n"
    assert len((host.folder / "train.log").read_text().splitlines()) == 4


def test_the_exit_code_is_the_programs_not_that_of_its_log(host: Host) -> None:
    (host.folder / "train.log").mkdir()
    host.run([str(host.python), "-m", "x"], {})
    assert (host.folder / "exit_code").read_text() == "0\n"


def test_the_line_that_lets_a_model_talk(host: Host) -> None:
    python = host.folder.parent / "my python"
    shared = pair(nanochat_run="first")
    line = render.sample(planned(shared), str(python), str(host.work), str(host.folder))
    seen = host.folder.parent / "seen.json"
    (host.folder / "env").write_text(render.env_file({"SEEN": str(seen), "NANOCHAT_BASE_DIR": "/a b"}))
    subprocess.run(["sh", "-c", str(line)], env={"PATH": os.environ["PATH"]}, check=True, capture_output=True)
    argv, environ, cwd = json.loads(seen.read_text(encoding="utf-8"))
    assert argv == ["-m", "scripts.base_eval", "--eval=sample", "--model-tag=first", "--device-type=cpu"]
    assert (environ["NANOCHAT_BASE_DIR"], cwd) == ("/a b", str(host.work))
    assert render.sample(planned(smoke()), str(python), "/d", "/f") is None


TOLD = (
    "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['SEEN'] + '.told', 'w')); "
    "print('sent'); sys.exit(5)"
)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_who_wants_to_know_is_told_of_the_end(host: Host, canary: Path, hostile: str) -> None:
    word = hostile.format(canary=canary)
    variables = {"EXIT": "3", "code": "0", "HIDDEN": word}
    host.run([str(host.python), "-m", "x"], variables, code=3, notify=[sys.executable, "-c", TOLD, word, "-n"])
    argv, environ = json.loads((host.folder.parent / "seen.json.told").read_text(encoding="utf-8"))
    assert argv == [word, "-n"] and environ["HIDDEN"] == word
    assert (environ["TORCHLAN_EXIT_CODE"], environ["TORCHLAN_FOLDER"]) == ("3", str(host.folder))
    assert environ["TORCHLAN_RUN"] == planned(smoke()).run and "TORCHLAN_RUN_DIR" not in environ
    assert (host.folder / "notify.log").read_text() == "sent\n"
    assert (host.folder / "exit_code").read_text() == "3\n" and not canary.exists()


def test_a_run_that_was_stopped_tells_nobody_and_neither_do_other_hosts(host: Host) -> None:
    (host.folder / "stopped").write_text("stop.yml\n")
    host.run([str(host.python), "-m", "x"], {}, notify=[sys.executable, "-c", TOLD])
    assert not (host.folder.parent / "seen.json.told").exists()
    shared = smoke(nanochat_notify=["echo"])
    assert "notify.log" not in render.script(planned(shared), shared["laptop"], "/f", "/d", ["python"], ATTEMPT)


def test_without_its_environment_nothing_starts(host: Host) -> None:
    host.run([str(host.python), "-m", "x"], {})
    (host.folder / "env").unlink()
    (host.folder.parent / "seen.json").unlink()
    given = {**os.environ, "SEEN": str(host.folder.parent / "seen.json")}
    done = subprocess.run(
        ["bash", str(host.folder / "run.sh")], env=given, capture_output=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert not (host.folder.parent / "seen.json").exists()
    assert "No such file" in (host.folder / "train.log").read_text()
    assert (host.folder / "exit_code").read_text() == f"{done.returncode}\n"


def test_a_comment_stays_one_line() -> None:
    shared = smoke()
    shared["workstation"]["host"] = "work\ntouch /canary"
    text = render.script(planned(smoke()), shared["workstation"], "/f", "/d", ["python"], ATTEMPT)
    assert "node 0 of 2, on work touch /canary." in text.splitlines()[1]


def test_a_nul_is_refused_without_its_value() -> None:
    with pytest.raises(ValueError, match=r"\AA holds a NUL character\Z"):
        render.env_file({"A": f"{SECRET}\0"})


# ---- the agent's command line ----


def test_torchrun() -> None:
    shared = smoke(
        nanochat_master_port=29555, nanochat_join_timeout=33, nproc_per_node=2, nanochat_extra_args=FOUR_RANKS
    )
    assert render.torchrun(planned(shared), shared["laptop"], "/py", "192.0.2.36", ATTEMPT)[:14] == [
        "/py",
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc_per_node=2",
        "--node_rank=1",
        "--master_addr=192.0.2.36",
        "--master_port=29555",
        f"--rdzv_id=try.{ATTEMPT}",
        "--rdzv-conf=timeout=33",
        "-m",
        "torchlan_runner",
        "torchlan_smoke",
        "--",
    ]


def test_without_the_runner() -> None:
    shared = pair(nanochat_runner=False, nanochat_script="scripts.chat_sft")
    words = render.torchrun(planned(shared), shared["workstation"], "/py", "a", ATTEMPT)
    assert words[words.index("--") - 2 : words.index("--")] == ["-m", "scripts.chat_sft"]
    assert "torchlan_runner" not in words


# ---- the environment ----


def environment(**shared: Any) -> dict[str, str]:
    settings_of = pair(**shared)
    return render.environment(planned(settings_of), settings_of["workstation"], node(), NETWORK, "/f")


def test_environment() -> None:
    assert environment() == {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": "/f/runner.zip",
        "OMP_NUM_THREADS": "8",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NANOCHAT_BASE_DIR": "/home/workstation/cache",
        "TORCHINDUCTOR_CACHE_DIR": "/home/workstation/cache/compiled",
        "NANOCHAT_DTYPE": "float32",
    }


def test_the_compilers_cache_is_where_the_compiler_can_read_it() -> None:
    shared = pair()
    here = node(paths={"base_dir": "/home/ada lovelace/cache"})
    assert "TORCHINDUCTOR_CACHE_DIR" not in render.environment(
        planned(shared), shared["workstation"], here, NETWORK, "/f"
    )


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({"nproc_per_node": 2, "nanochat_extra_args": FOUR_RANKS}, "4"),
        ({"nproc_per_node": 16, "nanochat_extra_args": "total-batch-size=32768 eval-tokens=32768"}, "1"),
        ({"nanochat_omp_num_threads": 3}, "3"),
        ({"nanochat_env": {"OMP_NUM_THREADS": 5}}, "5"),
    ],
)
def test_threads(variables: dict[str, Any], threads: str) -> None:
    assert environment(**variables)["OMP_NUM_THREADS"] == threads


def test_cuda_chooses_its_own_dtype() -> None:
    assert "NANOCHAT_DTYPE" not in environment(nanochat_device_type="cuda")


def test_the_users_word_is_last_but_the_runner_is_found() -> None:
    result = environment(
        nanochat_data_dir="~/shards", nanochat_env={"NANOCHAT_DTYPE": "bfloat16", "PYTHONPATH": "/mine"}
    )
    assert result["NANOCHAT_DATA_DIR"] == "/home/workstation/cache/data"
    assert result["NANOCHAT_DTYPE"] == "bfloat16"
    assert result["PYTHONPATH"] == "/f/runner.zip:/mine"


# ---- what a run is ----


def test_a_secret_is_in_no_configuration() -> None:
    shared = smoke(nanochat_secret_env={"WANDB_API_KEY": SECRET})
    config = configuration(shared)
    assert config["nodes"]["laptop"]["secret_names"] == ["WANDB_API_KEY"]
    variables = render.environment(planned(shared), shared["laptop"], node("laptop"), NETWORK, "/f")
    assert SECRET not in json.dumps(
        [config, variables, render.torchrun(planned(shared), shared["laptop"], "/py", "a", "b")]
    )


def test_inventory_and_command_line_are_one_configuration() -> None:
    words = configuration(smoke(nanochat_extra_args="depth=8 warmup-steps=2"))
    mapping = configuration(smoke(nanochat_extra_args={"depth": 8, "warmup_steps": 2}))
    assert render.fingerprint(words) == render.fingerprint(mapping)


@pytest.mark.parametrize(
    "change",
    [
        {"nanochat_extra_args": "depth=8"},
        {"nanochat_env": {"A": "b"}},
        {"nanochat_secret_env": {"A": "b"}},
        {"nanochat_omp_num_threads": 3},
        {"nanochat_runner": False},
        {"nanochat_master_port": 29501},
        {"nproc_per_node": 2, "nanochat_extra_args": FOUR_RANKS},
    ],
)
def test_what_makes_another_run(change: dict[str, Any]) -> None:
    assert render.fingerprint(configuration(smoke(**change))) != render.fingerprint(configuration(smoke()))


def test_a_commit_makes_another_run() -> None:
    assert configuration(pair(), COMMIT) != configuration(pair(), None)


@pytest.mark.parametrize(
    "change",
    [
        {"nanochat_hang_timeout": 5},
        {"nanochat_relaunch": True},
        {"nanochat_report_dir": "/x"},
        {"nanochat_keep_failed": True},
    ],
)
def test_what_does_not_make_another_run(change: dict[str, Any]) -> None:
    assert render.fingerprint(configuration(smoke(**change))) == render.fingerprint(configuration(smoke()))


def test_a_fingerprint_survives_json_and_order() -> None:
    config = configuration(smoke(nanochat_env={"B": "ü", "A": "1"}))
    again = json.loads(json.dumps(config))
    assert render.fingerprint(dict(reversed(list(again.items())))) == render.fingerprint(config)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ({"nanochat_extra_args": "depth=4"}, {"nanochat_extra_args": "depth=8"}, ["arguments.depth: 4 -> 8"]),
        ({}, {"nanochat_extra_args": "warmup-steps=2"}, ["arguments.warmup-steps: (unset) -> 2"]),
        ({"nanochat_extra_args": "fp8"}, {}, ["arguments.fp8: True -> (unset)"]),
        (
            {"nanochat_env": {"A": "1"}},
            {"nanochat_env": {"A": "2"}},
            ["nodes.laptop.env.A: 1 -> 2", "nodes.workstation.env.A: 1 -> 2"],
        ),
        (
            {},
            {"nanochat_master_port": 29501, "nanochat_runner": False},
            ["master_port: 29500 -> 29501", "runner: True -> False"],
        ),
        ({}, {}, []),
    ],
)
def test_differences_read_well(old: dict[str, Any], new: dict[str, Any], lines: list[str]) -> None:
    assert render.differences(configuration(smoke(**old)), configuration(smoke(**new))) == lines


def test_differences_of_hosts() -> None:
    other = configuration(smoke())
    other["nodes"]["third"] = other["nodes"].pop("laptop")
    lines = render.differences(configuration(smoke()), other)
    assert lines == ["nodes.laptop: (set) -> (unset)", "nodes.third: (unset) -> (set)"]
