# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person reads: causes that fit and name their host, tables, and commands that can be pasted."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest
from builders import (
    ATTEMPT,
    HOSTS,
    PARAM_BYTES,
    SECRET,
    after_network,
    beat,
    coerced,
    fresh,
    lost,
    node,
    recorded,
    run,
    smoke,
)

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import CODES, cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import report, screen

LONG = (
    "workstation cannot connect to laptop on its ephemeral TCP ports (192.0.2.37:40001: no answer), although ssh works"
)


def proven(**values: Any) -> dict[str, Any]:
    rows = [
        {"rank": rank, "peers": [1 - rank], "connections": 2, "bytes_needed": 60_000_000}
        | {"bytes_sent": 3 * PARAM_BYTES, "bytes_received": 3 * PARAM_BYTES}
        for rank in (0, 1)
    ]
    evidence = {"backend": "gloo", "ranks": rows, "equal_parameters": {"step": 2, "equal": True}, "waiting_for": []}
    made = after_network(smoke(nanochat_secret_env={"A_KEY": SECRET}))
    made.update(verdict="proven", run_state="alive", attempt=ATTEMPT, beats=[beat(0), beat(1)], evidence=evidence)
    return {**made, **values}


def launch(state: dict[str, Any], check_mode: bool = False) -> str:
    return screen.launch(report.build(state, {}, check_mode), state, smoke(), "runs/try/report.json")


# ---- causes ----


@pytest.mark.parametrize("code", sorted(CODES))
def test_causes_fit_a_screen(code: str) -> None:
    lines = screen.causes([cause(code, f"{LONG}; {CODES[code][0]}", host="workstation", rank=3)])
    assert max(len(line) for line in lines) <= 100
    text = " ".join(" ".join(lines).split())
    assert f"error: {LONG}; {CODES[code][0]} (rank 3) [{code}] fix: {CODES[code][1]}" == text


def test_a_word_that_is_too_long_stays_whole() -> None:
    path = "/srv/" + "x" * 150
    assert any(path in line for line in screen.causes([cause("path_invalid", f"a {path} b", f"mv {path} /y")]))


def test_a_command_is_not_broken_at_its_hyphens() -> None:
    fix = "on workstation: sudo apt-get install tmux " * 3
    words = {word for line in screen.causes([cause("tmux_missing", "x", fix)]) for word in line.split()}
    assert {"apt-get", "workstation:"} <= words


def test_a_cause_names_its_host_once() -> None:
    assert screen.causes([cause("start_failed", "the agent ended at once", "f", host="laptop")]) == [
        "  error: laptop: the agent ended at once  [start_failed]",
        "    fix: f",
    ]
    assert screen.causes([cause("start_failed", "laptop: it ended", "f", host="laptop")])[0].count("laptop") == 1


def test_the_worst_comes_first_and_order_is_kept() -> None:
    given = [
        cause("note", str(index), weight=weight) for index, weight in enumerate(("note", "error", "warning", "error"))
    ]
    lines = [line.split()[:2] for line in screen.causes(given)[::2]]
    assert lines == [["error:", "1"], ["error:", "3"], ["warning:", "2"], ["note:", "0"]]


def test_text_of_a_host_stays_in_its_place() -> None:
    lines = screen.causes([cause("module_failed", "Traceback\n  File x\n\nerror: y", "f")])
    assert len(lines) == 2 and all(line.startswith("  ") for line in lines)


# ---- small parts ----


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (146_800_640, "146.8 MB"),
        (2_500_000_000, "2.5 GB"),
        (10**13, "10000.0 GB"),
    ],
)
def test_size(count: int | None, text: str) -> None:
    assert screen.size(count) == text


def test_table() -> None:
    assert screen.table(["host", "steps", "loss"], [("a", 12345, 5.25), ("long name", None, None)]) == [
        "  host        steps    loss",
        "  a          12,345  5.2500",
        "  long name       -       -",
    ]
    assert screen.table(["host", "steps"], []) == ["  host  steps"]


def test_the_figures_stand_in_one_column() -> None:
    lines = screen.numbers(
        {"numbers": {"depth": 4, "bytes per step and rank, each way": 146_800_640, "parameters": 36_700_160}}
    )
    assert lines == [
        "  depth                              4",
        "  bytes per step and rank, each way  146.8 MB",
        "  parameters                         36,700,160",
    ]


def test_layout() -> None:
    ranks = [{"rank": rank, "host": host} for rank, host in ((0, "a"), (1, "b"), (2, "b"))]
    network = {"a": {"interface": "eth0", "address": "192.0.2.1", "why": "wired"}}
    assert screen.layout({"hosts": ["a", "b"], "ranks": ranks}, network) == [
        "  rank 0      a  eth0 192.0.2.1: wired",
        "  ranks 1-2   b",
    ]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "PROVEN: 2 ranks on 2 hosts train one model (gloo)"),
        ({"world_size": 1}, "PROVEN: 1 rank trains; there is nobody to exchange with"),
        ({"verdict": "failed"}, "FAILED: the run was started and did not work"),
        ({"verdict": "refused"}, "REFUSED: nothing was started"),
        ({"verdict": "unverified"}, "NOT PROVEN: the run ended before enough was seen"),
        ({"verdict": "planned"}, "PLANNED: this is what a launch would start; nothing was changed"),
    ],
)
def test_headline(changed: dict[str, Any], text: str) -> None:
    assert screen.headline({**report.build(proven(), {}, False), **changed}) == text


# ---- launch ----


def test_a_proven_run() -> None:
    text = launch(proven())
    lines = text.splitlines()
    assert lines[1:3] == [f"run try, attempt {ATTEMPT}", "PROVEN: 2 ranks on 2 hosts train one model (gloo)"]
    for part in (
        "  rank 1      laptop  eth0 192.0.2.37: reached by its peer",
        "  after step 2 all ranks hold equal parameters",
        "  rank 0: 2 TCP connections with rank 1, at least 60.0 MB each way needed, 120.0 MB out and 120.0 MB in seen",
        "  report: runs/try/report.json",
    ):
        assert part in text
    assert SECRET not in text


def test_parameters_that_differ_are_not_whispered() -> None:
    evidence = {**proven()["evidence"], "equal_parameters": {"step": 2, "equal": False}, "waiting_for": ["rank 1"]}
    text = launch(proven(evidence=evidence, verdict="failed", end=True, folders={"laptop": "/base/node-1"}))
    assert "after step 2 all ranks hold DIFFERENT parameters" in text and "waiting for" not in text
    assert "    laptop  /base/node-1/train.log" in text and "attach" not in text
    assert "  waiting for: rank 1" in launch(proven(evidence=evidence, verdict="unverified"))


def test_a_refusal_is_short() -> None:
    state = {**fresh(), "causes": [lost("laptop")["nanochat_lost"]], "go": False}
    assert launch(state).splitlines() == [
        "",
        "run",
        "REFUSED: nothing was started",
        "",
        "  error: laptop (192.0.2.99): No route to host  [host_unreachable]",
        "    fix: switch it on",
        "",
        "  report: runs/try/report.json",
    ]


def test_a_plan_shows_each_script() -> None:
    state = after_network()
    state["starts"]["laptop"]["predicted"] = ["/py is not there yet"]
    state["todo"] = {"install": ["laptop"], "dataset": []}
    text = launch(state, check_mode=True)
    assert "PLANNED" in text and "  would install the software on laptop" in text and "would bring" not in text
    assert "--- workstation: run.sh\n#!/usr/bin/env bash" in text
    assert "--- laptop: run.sh   (predicted: /py is not there yet)" in text
    for start in state["starts"].values():
        assert start["script"].strip() in text


def test_a_plan_for_a_run_that_is_left_alone() -> None:
    state = {**after_network(), "starts": {}, "run_state": "alive"}
    assert "  the run is alive: nothing would be started" in launch(state, check_mode=True)


# ---- commands that can be pasted ----


# ssh runs its words in a shell of the other host; tmux and tail say what they got
PROGRAMS = """
tmux() { printf '%s\\n' "$@"; }
tail() { printf '%s\\n' "$@"; }
ssh() { while [ "$1" != host ]; do shift; done; shift; bash -c "$*"; }
export -f tmux tail
"""


def words(line: str) -> list[str]:
    """What the program gets when a person pastes this line."""
    done = subprocess.run(["bash", "-c", PROGRAMS + line], capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.splitlines()


@pytest.mark.parametrize("over", [[], ["ssh", "-p", "2222", "-t", "host"]])
@pytest.mark.parametrize("folder", ["/home/a/runs", "/home/it's $(touch /canary)/my runs"])
def test_attach_and_log(over: list[str], folder: str) -> None:
    settings = {"workstation": {**coerced(), "ssh": over}}
    lines = screen.reach({"hosts": ["workstation"], "run": "try"}, {"folders": {"workstation": folder}}, settings)
    attach, log = (line.strip().split(None, 1)[1] for line in lines[1:3])
    assert words(attach) == ["-L", "torchlan", "attach", "-t", "=try-0:"]
    assert words(log) == ["-f", f"{folder}/train.log"]
    assert shlex.split(attach)[0] == (over or ["tmux"])[0]


def test_hosts_that_did_not_answer_have_no_commands() -> None:
    assert screen.reach({"hosts": ["laptop"], "run": "try"}, {}, {}) == [""]


# ---- status and stop ----


def status(**values: Any) -> str:
    plan = {"run": "try", "hosts": HOSTS, "ranks": [], "numbers": {}}
    state = {**fresh(), "plan": plan, "attempt": ATTEMPT, "run_state": "alive", "go": True, **values}
    return screen.status(report.build(state, {}, False), state, smoke(), None)


def test_how_a_model_talks() -> None:
    assert "let it talk" not in status()
    line = "(cd '/a b' && . /env && python -m scripts.base_eval)"
    shown = status(run_state="finished", sample=line).rpartition("let it talk:\n")[2]
    assert shlex.split(shown) == ["ssh", "-t", "192.0.2.36", line]


def test_status() -> None:
    text = status(
        beats=[
            beat(0, last_line="step 00003/00010 | loss: 5.25", step_s=2.5, communication_share=0.25, memory_bytes=5e8),
            beat(1),
        ],
        host_runs={"laptop": run("alive")},
    )
    assert f"run try: running, attempt {ATTEMPT}" in text
    row = next(line.split() for line in text.splitlines() if "training" in line)
    assert row[:7] == ["0", "workstation", "training", "3", "25%", "500.0", "MB"]
    assert (
        "  [#########---------------------] step 3 of 10, done in 18 s\n  loss 5.2500, 1,234 tokens/s, 2.5 s a step\n"
        in text
    )
    assert "  step 00003/00010 | loss: 5.25" in text
    assert "tmux -L torchlan attach" in text


def test_the_run_as_it_goes_fits_80_columns() -> None:
    most = {"step": 12_345, "step_of": 100_000, "step_s": 123.4, "val_bpb": 1.5, "tokens_per_s": 1234567.0}
    most.update(communication_share=1.0, memory_bytes=99_900_000_000, age_s=99, exit_code=-9)
    late = {"waiting_in": {"op": "reduce_scatter_tensor", "n": 7, "since": 0}}
    lines = screen.progress_table(report.build({"beats": [beat(0, **most), beat(1, **most, **late)]}, {}, False))
    assert max(map(len, lines)) <= 80, lines
    assert "exit" in lines[0] and lines[2].endswith(" -9")
    assert "exit" not in screen.progress_table(report.build({"beats": [beat(0), beat(1)]}, {}, False))[0]


def test_status_shows_the_last_lines_of_what_failed() -> None:
    runs = {"laptop": recorded("failed", {}, exit_code=1), "workstation": run("finished", log_tail=["fine"])}
    text = status(run_state="failed", host_runs=runs, last_words={"laptop": ["line 12"]})
    assert "  last lines on laptop:\n    line 12\n" in text and "fine" not in text
    assert "attach" not in text


def test_status_of_other_runs_and_dead_hosts() -> None:
    other = {"run": "mine", "attempt": "x", "pids": [1, 2]}
    text = status(other_runs={"laptop": [other]}, causes=[lost("workstation")["nanochat_lost"]], run_state="half_alive")
    assert "  laptop: run mine, attempt x, 2 processes" in text and "No route to host" in text
    assert "run try: half alive" in text


def test_stop() -> None:
    ended = {"laptop": [{"role": "agent", "pid": 7, "signal": "SIGTERM"}], "workstation": []}
    state = {**fresh(), "plan": {"run": "try"}, "ended": ended, "causes": [cause("stop_incomplete", "pid 8", "f")]}
    text = screen.stop(report.build(state, {}, False), state, {}, None)
    assert text.splitlines() == [
        "",
        "run try",
        "  laptop: agent 7 (SIGTERM)",
        "  workstation: nothing of it was running",
        "",
        "  error: pid 8  [stop_incomplete]",
        "    fix: f",
    ]


def test_prepare() -> None:
    seen = node("laptop")
    has = {"commit": "c" * 40, "python": "3.11.2", "torch": None, "shards": seen["data"]["shards"], "tokenizer": None}
    state = {**fresh(), "software": {"laptop": has}, "go": False}
    lines = screen.prepare(report.build(state, {}, False), state, {}, None).splitlines()
    assert lines[1] == "NOT READY" and lines[4].split() == ["laptop", "c" * 12, "3.11.2", "-", "2", "-"]


def test_links_of_a_preflight() -> None:
    def link(a: int, b: int) -> dict[str, Any]:
        return {"from": f"n{a}", "to": f"n{b}", "rtt_ms": 0.2, "mbps": 900.0 - 10 * b, "mtu": 1500}

    few = screen.links([link(0, 1), link(1, 0)])
    assert [line.split() for line in few[1:]] == [
        ["n0", "n1", "0.20", "890", "1,500"],
        ["n1", "n0", "0.20", "900", "1,500"],
    ]
    many = screen.links([link(a, b) for a in range(5) for b in range(5) if a != b])
    assert [line.split()[:2] for line in many[1:]] == [
        ["n0", "n4"],
        ["n1", "n4"],
        ["n2", "n4"],
        ["n3", "n4"],
        ["n4", "n3"],
    ]


# ---- exit status ----


@pytest.mark.parametrize("verdict", ["proven", "planned", "failed", "refused", "unverified"])
def test_a_launch_succeeds_for_proven_and_planned_only(verdict: str) -> None:
    assert screen.succeeded("launch", {"verdict": verdict}, {"go": True}) == (verdict in ("proven", "planned"))


@pytest.mark.parametrize("of", ["preflight", "status", "stop", "install", "dataset"])
def test_the_others_succeed_when_they_went_well(of: str) -> None:
    made = {"verdict": "refused", "causes": [cause("note", "x", weight="warning")]}
    assert screen.succeeded(of, made, {"go": True})
    assert not screen.succeeded(of, made, {"go": False})
    assert not screen.succeeded(of, made, {})
    dead = {**made, "causes": [cause("host_unreachable", "x")]}
    assert not screen.succeeded(of, dead, {"go": True}), "the others are ready, and one is not"
