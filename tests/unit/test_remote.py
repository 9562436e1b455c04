# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions that work on a host: whatever goes wrong there is data, with the right code."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import Lost, RemoteAction, keep_alive

VARS = {"inventory_hostname": "laptop", "ansible_host": "{{ net }}.37", "ansible_user": "ann"}


class Action(RemoteAction):
    """A module's answer, or what breaks instead."""

    def __init__(self, answer: Any, args: dict[str, Any] | None = None) -> None:
        task = MagicMock(
            action="torchlan.nanochat.node_info", args=args or {}, async_val=0, check_mode=False, diff=False
        )
        templar = MagicMock(template=lambda value: value.replace("{{ net }}", "192.0.2"))
        super().__init__(task, MagicMock(), MagicMock(), MagicMock(), templar, MagicMock())
        self._connection._shell.tmpdir = "/remote/tmp"
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.removed: list[str] = []

    def _execute_module(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        if isinstance(self.answer, Exception):
            raise self.answer
        return dict(self.answer)

    def _remove_tmp_path(self, tmp_path: str, force: bool = False) -> None:
        self.removed.append(tmp_path)


def result_of(answer: Any, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
    action = Action(answer)
    result = action.run(None, task_vars or VARS)
    assert action.removed == ["/remote/tmp"]
    assert result["seconds"] >= 0
    return result


def lost(answer: Any, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
    """The cause; the task itself went well."""
    result = result_of(answer, task_vars)
    assert not result.get("failed") and not result.get("unreachable") and result["changed"] is False
    assert result["ok"] is False
    assert result["nanochat_lost"]["host"] == "laptop" and result["nanochat_lost"]["weight"] == "error"
    return dict(result["nanochat_lost"])


def test_an_answer() -> None:
    result = result_of({"changed": True, "node": {"x": 1}})
    assert (result["changed"], result["node"], result["ok"]) == (True, {"x": 1}, True)
    assert "nanochat_lost" not in result


@pytest.mark.parametrize(("weight", "ok"), [("error", False), ("warning", True)])
def test_ok_is_without_errors(weight: str, ok: bool) -> None:
    assert result_of({"causes": [cause("note", "x", weight=weight)]})["ok"] is ok


def test_the_module_gets_the_tasks_arguments() -> None:
    action = Action({}, {"run": "a; b"})
    action.run(None, VARS)
    assert action.asked == [
        {"module_name": "torchlan.nanochat.node_info", "module_args": {"run": "a; b"}, "task_vars": VARS}
    ]


SSH = [
    ("ssh: connect to host 192.0.2.37 port 22: No route to host", "host_unreachable", "ssh ann@192.0.2.37"),
    ("ssh: connect to host 192.0.2.37 port 22: Connection refused", "host_unreachable", "ssh ann@192.0.2.37"),
    ("ssh: Could not resolve hostname laptop: Name or service not known", "host_unreachable", "ssh ann@192.0.2.37"),
    ("Connection timed out", "host_unreachable", "ssh ann@192.0.2.37"),
    ("Host key verification failed.", "host_key_unknown", "ssh ann@192.0.2.37"),
    (
        "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nPermission denied",
        "host_key_unknown",
        "ssh ann@192.0.2.37",
    ),
    ("ann@192.0.2.37: Permission denied (publickey,password).", "ssh_refused", "ssh-copy-id ann@192.0.2.37"),
    ("Received disconnect: Too many authentication failures", "ssh_refused", "ssh-copy-id ann@192.0.2.37"),
    ("Missing sudo password", "sudo_password", "ansible_become"),
]


@pytest.mark.parametrize(("text", "code", "fix"), SSH)
@pytest.mark.parametrize("raised", [True, False])
def test_a_host_that_cannot_be_reached(text: str, code: str, fix: str, raised: bool) -> None:
    answer: Any = AnsibleConnectionFailure(text) if raised else {"unreachable": True, "msg": text}
    found = lost(answer)
    assert found["code"] == code
    assert found["what"].startswith("laptop (192.0.2.37): ") and " ".join(text.split()) in found["what"]
    assert fix in found["fix"]


def test_a_host_without_an_address_of_its_own() -> None:
    found = lost({"unreachable": True, "msg": "x"}, {"inventory_hostname": "laptop"})
    assert found["what"] == "laptop (laptop): x"
    assert found["fix"].endswith("ssh laptop")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"msg": "MODULE FAILURE", "module_stderr": "/bin/sh: 1: /usr/bin/python3: not found"}, "python_missing"),
        ({"msg": "x", "module_stdout": "/bin/sh: /usr/bin/python3.11: No such file or directory"}, "python_missing"),
        ({"msg": "The module interpreter '/usr/bin/python3' was not found."}, "python_missing"),
        ({"msg": "ansible-core requires a minimum of Python version 3.8. Current version: 3.6.8"}, "python_missing"),
        ({"msg": "Ansible requires Python 3.9 or newer on the target. Current version: 3.6.8"}, "python_missing"),
        ({"msg": "Missing sudo password"}, "sudo_password"),
        ({"msg": "x", "module_stderr": "sudo: a password is required"}, "sudo_password"),
        (
            {"msg": "MODULE FAILURE", "module_stderr": 'File "software.py": interpreter = None\nKeyError'},
            "module_failed",
        ),
        ({"msg": "Permission denied: '/srv/x'"}, "module_failed"),
        ({"msg": ""}, "module_failed"),
    ],
)
def test_a_module_that_broke(answer: dict[str, Any], code: str) -> None:
    found = lost({"failed": True, **answer})
    assert found["code"] == code and found["what"].startswith("laptop: ")


def test_an_error_of_ansible_itself() -> None:
    found = lost(AnsibleError("the module was not found in configured module paths"))
    assert (found["code"], "configured module paths" in found["what"]) == ("module_failed", True)


def test_a_long_text_is_cut_and_is_one_line() -> None:
    what = lost({"failed": True, "msg": "line\n" * 500})["what"]
    assert len(what) < 320 and "\n" not in what and what.endswith("…")


def test_our_own_mistakes_are_not_hidden() -> None:
    action = Action(ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        action.run(None, VARS)
    assert action.removed == ["/remote/tmp"]


# ---- copies ----


def test_put(tmp_path: Path) -> None:
    action = Action({})
    sent: list[tuple[bytes, str]] = []
    action._connection.put_file = lambda local, remote: sent.append((Path(local).read_bytes(), remote))
    (tmp_path / "a b").write_bytes(b"file")
    action.put(str(tmp_path / "a b"), "/r/1")
    action.put(b"bytes", "/r/2")
    assert sent == [(b"file", "/r/1"), (b"bytes", "/r/2")]


@pytest.mark.parametrize("problem", [AnsibleConnectionFailure("broken pipe"), AnsibleError("no space left")])
def test_a_copy_that_breaks(problem: Exception) -> None:
    action = Action({})
    action._connection.put_file = MagicMock(side_effect=problem)
    with pytest.raises(Lost) as raised:
        action.put(b"x", "/r/1")
    assert raised.value.cause["code"] == "host_unreachable"
    assert f"the copy to /r/1 broke: {problem}" in raised.value.cause["what"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "-o ServerAliveInterval=5 -o ServerAliveCountMax=4"),
        ({"ssh_extra_args": "-v"}, "-v -o ServerAliveInterval=5 -o ServerAliveCountMax=4"),
        ({"ssh_common_args": "-o ServerAliveInterval=60"}, None),
    ],
)
def test_ssh_notices_a_host_that_is_gone(given: dict[str, str], words: str | None) -> None:
    connection = MagicMock(transport="ssh", get_option=given.get)
    keep_alive(connection)
    assert [call.args for call in connection.set_option.call_args_list] == (
        [("ssh_extra_args", words)] if words else []
    ), "what the user has set about it stays"


def test_other_connections_have_nothing_to_keep_alive() -> None:
    connection = MagicMock(transport="local")
    keep_alive(connection)
    assert not connection.set_option.called
