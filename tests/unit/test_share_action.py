# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action that waits for a host's files and says how far it is."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from ansible_collections.torchlan.nanochat.plugins.action import share
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause

OFFERS = {host: {"address": "192.0.2.1", "port": 1, "have": []} for host in ("laptop", "workstation")}
ARGS = {"step": "fetch", "name": "shards", "folder": "~/x", "token": "0" * 32, "offers": OFFERS}


class Action(share.ActionModule):
    """The module's answers, one after the other, and a clock that each question moves by two seconds."""

    def __init__(self, answers: list[dict[str, Any]], args: dict[str, Any]) -> None:
        task = MagicMock(action="torchlan.nanochat.share", args=args, async_val=0, check_mode=False, diff=False)
        super().__init__(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(), MagicMock())
        self.answers, self.asked, self.lines, self.now = answers, [], [], 100.0
        self._display = MagicMock(display=self.lines.append)

    def _execute_module(self, module_args: dict[str, Any], **_more: Any) -> dict[str, Any]:
        self.now += 2
        self.asked.append(module_args)
        return self.answers.pop(0)


def run(monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], **args: Any) -> tuple[Action, dict[str, Any]]:
    action = Action(answers, {**ARGS, **args})
    monkeypatch.setattr(share.time, "monotonic", lambda: action.now)
    return action, action.run(None, {"inventory_hostname": "laptop"})


def answer(state: str, done: int = 0, speed: float = 0, causes: Any = ()) -> dict[str, Any]:
    progress = {"files": 6, "files_done": done // 90, "bytes": 540_000_000, "bytes_done": done * 1_000_000}
    progress["bytes_per_second"] = speed
    brought = ["x"] if state == "complete" else []
    return {"changed": bool(brought), "causes": list(causes), "state": state, "brought": brought, "progress": progress}


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [answer("working"), *(answer("working", done, 112e6) for done in (90, 180, 270, 360)), answer("complete")]
    action, result = run(monkeypatch, answers)
    assert action.lines == [
        "laptop: shards 0 of 6, 0 MB of 540 MB",
        "laptop: shards 3 of 6, 270 MB of 540 MB, 112 MB/s, 2 s left",
    ]
    assert (result["ok"], result["changed"], result["state"]) == (True, True, "complete")
    assert [asked["self"] for asked in action.asked] == ["laptop"] * 6
    assert [asked.get("wait_s") for asked in action.asked] == [0, None, None, None, None, None]


def test_many_hosts_do_not_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"h{number}": {"address": "192.0.2.1", "port": 1, "have": []} for number in range(60)}
    action, _result = run(monkeypatch, [answer("working")] * 30 + [answer("complete")], offers=many)
    assert len(action.lines) == 1


def test_nothing_to_bring_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    action, result = run(monkeypatch, [answer("complete")])
    assert (action.lines, result["ok"]) == ([], True)


def test_a_failure_is_data_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    _action, result = run(monkeypatch, [answer("failed", causes=[cause("transfer_failed", "x")])])
    assert (result["ok"], result["causes"][0]["host"]) == (False, "laptop")
    assert not result.get("failed")


def test_an_offer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = {"changed": False, "causes": [cause("disk_full", "x")], "port": 0}
    action, result = run(monkeypatch, [offered], step="offer")
    assert (len(action.asked), action.lines) == (1, [])
    assert (result["ok"], result["causes"][0]["host"]) == (False, "laptop")
