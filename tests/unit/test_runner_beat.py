# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
from test_runner_agree import plan

from torchlan_runner import __main__ as runner
from torchlan_runner import compat, hooks, pace, steps
from torchlan_runner.beat import Beat, Counters, append_bounded
from torchlan_runner.cluster import compose, equal_parameters
from torchlan_runner.stamps import Stamps

ROOT = Path(__file__).resolve().parents[2]


def beat_of(rank: int, **changes: Any) -> dict[str, Any]:
    whole = {"rank": rank, "host": f"h{rank}", "state": "training", "agreed": True, "causes": [], "error": None}
    return {**whole, "exit_code": None, "checksums": {}, **changes}


def test_beat_files(tmp_path: Path) -> None:
    one = plan(0)
    object.__setattr__(one, "run_dir", str(tmp_path))
    beat = Beat(one)
    beat.start()
    beat.set_state("training")
    beat.counters.compiling = 1
    assert beat.snapshot()["state"] == "compiling"
    beat.finish("failed", 3)
    seen = json.loads((tmp_path / "beats/rank-0.json").read_text())
    assert seen["state"] == "failed" and seen["exit_code"] == 3 and seen["schema"] == 1 and seen["pid"] == os.getpid()
    lines = (tmp_path / "beats/rank-0.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["state"] == "failed"
    assert [name for name in os.listdir(tmp_path / "beats") if "tmp" in name] == []


def test_a_signal_after_the_end_changes_nothing_of_it(tmp_path: Path) -> None:
    one = plan(0)
    object.__setattr__(one, "run_dir", str(tmp_path))
    beat = Beat(one)
    beat.start()
    runner._end(beat, "failed", 1, OSError(28, "No space left on device"))
    runner._stopped(beat, signal.SIGTERM)
    seen = json.loads((tmp_path / "beats/rank-0.json").read_text())
    assert (seen["state"], seen["exit_code"], seen["error"]["type"], seen["causes"]) == ("failed", 1, "OSError", [])


def test_when_the_log_grew(tmp_path: Path) -> None:
    stamps = Stamps(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        stamps.look({"time": 1.0})
    for when, text in ((2.0, "one\n"), (3.0, ""), (4.25, "two\n")):
        with open(tmp_path / "train.log", "a") as file:
            file.write(text)
        stamps.look({"time": when})
    assert (tmp_path / "train.times").read_text() == "2.0 4\n4.2 8\n"


def test_observing_never_raises(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = plan(0)
    object.__setattr__(one, "run_dir", "/proc/no-such-folder")
    beat = Beat(one)

    def broken(_beat: dict[str, Any]) -> None:
        raise ValueError("oh")

    beat.listeners.append(broken)
    beat.start()
    beat.finish("finished", 0)
    assert capfd.readouterr().err.count("oh") == 1


def test_history_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    for number in range(500):
        append_bounded(str(path), json.dumps({"n": number}) + "\n", limit=2000)
    lines = [json.loads(line)["n"] for line in path.read_text().splitlines()]
    assert lines[-1] == 499 and lines == list(range(lines[0], 500)) and path.stat().st_size <= 2020


def test_cluster_names_missing_ranks() -> None:
    picture = compose(plan(0, 2), {0: beat_of(0)})
    assert picture["ranks"][1] == {"rank": 1, "node_rank": 1, "host": "h1", "state": "missing"}
    assert picture["agreed"] is False and picture["equal_parameters"] is None and picture["causes"] == []


def test_the_first_real_error_comes_first_and_consequences_are_warnings() -> None:
    lost = {
        "type": "RuntimeError",
        "message": "[gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        "time": 1.0,
    }
    real = {"type": "ValueError", "message": "bad\nthing", "time": 5.0}
    beats = {
        0: beat_of(0, state="failed", error=lost, exit_code=1),
        1: beat_of(1, state="failed", error=real, exit_code=1),
    }
    causes = compose(plan(0, 2), beats)["causes"]
    assert [(c["code"], c["rank"], c["weight"]) for c in causes] == [
        ("exception", 1, "error"),
        ("peer_lost", 0, "warning"),
    ]
    assert causes[0]["what"] == "rank 1 on h1: ValueError: bad"


def told(code: str, rank: int, **changes: Any) -> dict[str, Any]:
    return {"code": code, "weight": "error", "host": f"h{rank}", "rank": rank, "what": "w", "fix": "f", **changes}


def test_the_guards_reason_comes_before_what_follows_from_it() -> None:
    reason = told("rank_died", 1)
    lost = {"type": "RuntimeError", "message": "Connection closed by peer", "time": 1.0}
    beats = {
        0: beat_of(0, state="failed", error=lost, exit_code=1),
        1: beat_of(1, state="failed", causes=[reason, told("ended_from_outside", 1)]),
    }
    causes = compose(plan(0, 2), beats, reason)["causes"]
    assert [(c["code"], c["weight"]) for c in causes] == [
        ("rank_died", "error"),
        ("peer_lost", "warning"),
        ("ended_from_outside", "note"),
    ]
    alone = compose(plan(0, 2), {0: beat_of(0), 1: beat_of(1, causes=[told("ended_from_outside", 1)])})["causes"]
    assert [(c["code"], c["weight"]) for c in alone] == [("ended_from_outside", "error")]


def test_a_plain_exit_status_is_a_cause() -> None:
    beats = {0: beat_of(0, state="failed", exit_code=3), 1: beat_of(1, state="finished", exit_code=0)}
    assert [c["code"] for c in compose(plan(0, 2), beats)["causes"]] == ["rank_died"]


def test_causes_of_the_ranks_are_said_once() -> None:
    one = {"code": "link_blocked", "weight": "error", "host": "h1", "rank": 1, "what": "w", "fix": "f"}
    beats = {rank: beat_of(rank, state="failed", exit_code=78, causes=[one]) for rank in (0, 1)}
    assert compose(plan(0, 2), beats)["causes"] == [one]


def test_checksums_are_compared_over_all_ranks() -> None:
    ranks = [beat_of(0, checksums={"1": "a", "2": "b", "3": "c"}), beat_of(1, checksums={"1": "a", "2": "b"})]
    equal = equal_parameters(ranks)
    assert equal is not None and (equal["step"], equal["equal"]) == (2, True)
    ranks[1]["checksums"]["2"] = "x"
    picture = compose(plan(0, 2), {0: ranks[0], 1: ranks[1]})
    assert picture["equal_parameters"] == {"step": 2, "equal": False}
    assert picture["causes"][0]["code"] == "parameters_differ"
    assert equal_parameters([beat_of(0, checksums={"1": "a"}), {"rank": 1, "state": "missing"}]) is None


def test_step_lines() -> None:
    counters = Counters()
    line = "step 00003/00010 (30.00%) | loss: 8.316379 | lrm: 0.10 | dt: 1137.06ms | tok/sec: 1,801 | bf16_mfu: 0.00"
    stream = io.StringIO()
    tee = steps.Tee(stream, lambda text: steps.parse_line(text, counters))
    print("Step 00005 | Validation bpb: 3.068655", file=tee)
    for part in (line[:20], line[20:], "\nnext"):
        tee.write(part)
    assert stream.getvalue().endswith(line + "\nnext")
    assert (counters.loss, counters.tokens_per_s, counters.step_of, counters.val_bpb) == (
        8.316379,
        1801.0,
        10,
        3.068655,
    )
    assert counters.last_line == line
    steps.parse_line("step 00004/00010 (40.00%) | loss: nan | dt: 1ms", counters)
    assert counters.loss != counters.loss


def test_checksums_are_due_early_and_then_rarely() -> None:
    assert [step for step in range(1, 302) if steps.checksum_due(step)] == [1, 2, 3, 100, 200, 300]


def test_after_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nanochat_like.py").write_text("DATA_DIR = 'own'\ndef where():\n    return DATA_DIR\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finder = hooks.AfterImport()
    seen: list[str] = []
    finder.add("nanochat_like", lambda module: (seen.append(module.DATA_DIR), setattr(module, "DATA_DIR", "ours"))[0])
    try:
        import nanochat_like  # type: ignore[import-not-found]
    finally:
        sys.meta_path.remove(finder)
    assert seen == ["own"] and nanochat_like.where() == "ours"
    finder.add("nanochat_like", lambda module: seen.append("at once"))
    assert seen[-1] == "at once"
    assert importlib.util.find_spec("nanochat_like") is not None


def test_data_dir_and_attention_are_set_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    data: Any = types.ModuleType("nanochat.dataset")
    data.DATA_DIR = "own"
    attention: Any = types.ModuleType("nanochat.flash_attention")
    attention.USE_FA3, attention._override_impl = True, None
    monkeypatch.setitem(sys.modules, "nanochat.dataset", data)
    monkeypatch.setitem(sys.modules, "nanochat.flash_attention", attention)
    compat.install({"NANOCHAT_DATA_DIR": "", "NANOCHAT_FORCE_SDPA": "0"})
    assert data.DATA_DIR == "own" and attention.USE_FA3 is True
    compat.install({"NANOCHAT_DATA_DIR": "/d", "NANOCHAT_FORCE_SDPA": "1"})
    assert data.DATA_DIR == "/d" and attention.USE_FA3 is False and attention._override_impl == "sdpa"


def test_a_forked_childs_sigterm_is_its_own(tmp_path: Path) -> None:
    code = (
        "import multiprocessing, time, signal, os\n"
        "from torchlan_runner.sigterm import ended_by_signal\n"
        "ended_by_signal(lambda number: print('last word', int(number), flush=True))\n"
        "for _ in range(5):\n"
        "    child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(30,))\n"
        "    child.start(); child.terminate(); child.join(5)\n"
        "    print('child', child.exitcode, flush=True)\n"
        "time.sleep(0.3); print('alive', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(5); print('never')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "runner")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [*["child -15"] * 5, "alive", "last word 15"], done.stderr
    assert done.returncode == -15


def test_zip_is_deterministic_and_complete(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("runner_zip", ROOT / "plugins" / "plugin_utils" / "runner_zip.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = module.build()
    assert data == module.build()
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert {"torchlan_runner/__main__.py", "torchlan_runner/sockets.py", "torchlan_smoke.py"} <= set(names)
    (tmp_path / "runner.zip").write_bytes(data)
    env = {"PYTHONPATH": str(tmp_path / "runner.zip")}
    done = subprocess.run(
        [sys.executable, "-m", "torchlan_runner", "x"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 78 and "TORCHLAN_PLAN is not set" in done.stderr


def test_figures_are_those_of_the_last_minute() -> None:
    one = pace.Pace()
    assert one.look(0.0, 0, 0.0) == {"step_s": None, "communication_share": None}
    assert one.look(10.0, 5, 4.0) == {"step_s": 2.0, "communication_share": 0.4}
    for second in range(11, 200):  # twice as fast, and never waiting
        last = one.look(float(second), 5 + second - 10, 4.0)
    assert last == {"step_s": 1.0, "communication_share": 0.0}
    assert len(one._seen) <= 62


def test_memory_is_that_of_this_process() -> None:
    found = pace.memory_bytes()
    assert found is not None and 1e6 < found < 1e11


def test_the_open_collective_counts() -> None:
    counters = Counters()
    counters.waited = 2.0
    assert pace.waited(counters) == 2.0
    counters.waiting_since = 0.0
    assert pace.waited(counters) > 2.0


def test_the_step_that_a_run_went_on_from() -> None:
    counters = Counters()
    counters.step = 1  # its own first
    steps.parse_line("step 00005/00020 (25.00%) | loss: 3.1 | tok/sec: 1,000 |", counters)
    assert (counters.began_at, counters.step_of) == (5, 20)
