# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module of the small exchange, with a process that answers, breaks, or never ends; tests/lan has it with torch."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ansible_collections.torchlan.nanochat.plugins.module_utils.background import Progress
from ansible_collections.torchlan.nanochat.plugins.modules.collective import exchange

TOLD = {"rank": 0, "world": 2, "meet": "127.0.0.1:9", "device": "cpu"}


def made(script: str, limit_s: int = 5) -> dict[str, Any]:
    params = {"python": sys.executable, "script": script, "environment": {"OMP_NUM_THREADS": 2}, "told": TOLD}
    return exchange({**params, "limit_s": limit_s}, Progress())


def test_an_answer() -> None:
    script = (
        "import json, os; told = json.loads(os.environ['TORCHLAN_COLLECTIVE']); print('a warning');"
        "print(json.dumps({'right': told['world'] == 2 and os.environ['OMP_NUM_THREADS'] == '2', 'mbps': 1.0}))"
    )
    assert made(script) == {"exchange": {"right": True, "mbps": 1.0}, "problem": ""}


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("raise RuntimeError('Unable to find address for: eth9')", "RuntimeError: Unable to find address for: eth9"),
        ("import signal; signal.alarm(1); signal.pause()", ""),
        ("raise SystemExit(3)", "it ended with 3"),
        ("print('[]')", "[]"),
    ],
)
def test_no_answer(script: str, problem: str) -> None:
    assert made(script) == {"exchange": None, "problem": problem}


def test_a_python_that_is_not_there() -> None:
    params = {"python": "/nowhere/python", "script": "", "environment": {}, "told": TOLD, "limit_s": 5}
    found = exchange(params, Progress())
    assert found["exchange"] is None and "/nowhere/python" in found["problem"]
