# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchlan_runner import again, messages
from torchlan_runner.processes import of_ranks

# In place of torchrun: what the next line of the list says, one start after the other.
AGENT = """
import json, os, sys, time
folder = os.environ["TORCHLAN_RUN_DIR"]
count = os.path.join(folder, "count")
number = int(open(count).read()) if os.path.exists(count) else 0
open(count, "w").write(str(number + 1))
with open(os.path.join(folder, "seen.jsonl"), "a") as file:
    beats = os.listdir(os.path.join(folder, "beats"))
    file.write(json.dumps([json.loads(os.environ["TORCHLAN_PLAN"]), sys.argv[2:], beats]) + "\\n")
code, beat = json.loads(sys.argv[1])[number]
if beat is not None:
    beat = {"rank": 0, "host": "h0", "time": time.time(), "causes": [], "error": None, "step": 0, **beat}
    json.dump(beat, open(os.path.join(folder, "beats", "rank-0.json"), "w"))
if code is None:
    time.sleep(60)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
FROZEN = {"code": "rank_frozen", "weight": "error", "what": "rank 1 on h1 stands still", "host": "h1", "rank": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beats").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(again, "FIRST", 0.05)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def supervisor(folder: Path, starts: list[Any], times: int = 3) -> again.Supervisor:
    command = [sys.executable, "-c", AGENT, json.dumps(starts), "--rdzv-conf=timeout=20", "-m", "torchlan_runner"]
    environ = {**os.environ, "TORCHLAN_RUN_DIR": str(folder), "TORCHLAN_PLAN": json.dumps({"resume": None})}
    return again.Supervisor(times, command, environ)


def state(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "restarts.json").read_text())
    return found


def seen(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]


def test_goes_on_from_a_checkpoint_until_it_is_done(folder: Path) -> None:
    starts = [[1, {"step": 7, "causes": [FROZEN]}], [-9, None], [0, {"state": "finished"}]]
    assert supervisor(folder, starts).run() == 0
    first, second, third = seen(folder)
    assert first == [{"resume": None}, ["--rdzv-conf=timeout=20", "-m", "torchlan_runner"], []]
    # Anew: from a checkpoint, with time for the others to come back, and without the beats of the start that failed.
    assert second == third == [{"resume": "auto"}, ["--rdzv-conf=timeout=600", "-m", "torchlan_runner"], []]
    failures = state(folder)["failures"]
    assert [(one["code"], one["step"], one["exit_code"]) for one in failures] == [
        ("rank_frozen", 7, 1),
        ("rank_died", 0, 137),
    ]
    assert (state(folder)["next_unix"], state(folder)["gave_up"]) == (None, None)


def test_not_more_often_than_asked(folder: Path) -> None:
    assert supervisor(folder, [[1, {"causes": [FROZEN]}]] * 3, times=2).run() == 1
    assert len(seen(folder)) == 3
    assert "2 starts" in state(folder)["gave_up"]
    assert (folder / "beats/rank-0.json").exists(), "the last failure is there to be looked at"


@pytest.mark.parametrize(
    "beat",
    [
        {"error": {"type": "OSError", "message": "[Errno 28] No space left on device", "time": 1.0}},
        {"causes": [{**FROZEN, "code": "arguments_differ"}]},
        {"causes": [{**FROZEN, "code": "exception", "what": "rank 1 on h1: OSError: No space left on device"}]},
    ],
)
def test_not_after_what_does_not_heal(folder: Path, beat: dict[str, Any]) -> None:
    assert supervisor(folder, [[1, beat]]).run() == 1
    assert "does not heal by itself" in state(folder)["gave_up"]


def test_the_same_exception_at_the_same_step_once_more_is_enough(folder: Path) -> None:
    error = {"type": "ValueError", "message": "no such token", "time": 1.0}
    starts = [[1, {"step": step, "error": error}] for step in (3, 5, 5, 5)]
    assert supervisor(folder, starts, times=9).run() == 1
    assert len(seen(folder)) == 3
    assert "the same exception at the same step" in state(folder)["gave_up"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [([0], 5), ([0, 0], 10), ([7, 7, 5, 0, 0, 0, 0], 60), ([0, 0, 0, 9], 5), ([0, 9, 9], 10)],
)
def test_who_gets_further_need_not_wait_longer(
    steps: list[int], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "FIRST", 5.0)
    assert again.pause_before([{"step": step} for step in steps]) == expected


def test_a_signal_to_the_supervisor_is_the_end(folder: Path) -> None:
    def tell() -> None:
        deadline = time.monotonic() + 20
        while not (folder / "seen.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=tell)
    thread.start()
    assert supervisor(folder, [[None, None]]).run() == 128 + signal.SIGTERM
    thread.join()
    assert len(seen(folder)) == 1 and not (folder / "restarts.json").exists()


def test_a_run_that_was_stopped_stays_so(folder: Path) -> None:
    (folder / "stopped").write_text("by stop.yml\n")
    assert supervisor(folder, [[1, None], [0, None]]).run() == 1
    assert len(seen(folder)) == 1


def test_what_ranks_left_behind_is_gone_before_the_next_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "LEAVES", 0.3)
    left = (
        "import subprocess, os; subprocess.Popen(['sleep', '60'], env={**os.environ, 'RANK': '0'});"
        "raise SystemExit(0 if os.path.exists(os.environ['TORCHLAN_RUN_DIR'] + '/restarts.json') else 1)"
    )
    one = supervisor(folder, [])
    one.command = [sys.executable, "-c", left]
    assert one.run() == 0
    (last,) = of_ranks(str(folder))  # that of the first start is gone, the second one ended well
    os.kill(last, signal.SIGKILL)


def test_causes_that_heal_are_causes() -> None:
    from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import CODES

    assert set(CODES) >= messages.HEALS
