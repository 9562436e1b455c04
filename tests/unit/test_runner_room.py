# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which checkpoints go, and when a disk is about to fill; tests/smoke/test_room.py has it under real agents."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_checkpoints import step, write
from test_runner_agree import plan
from test_runner_beat import beat_of

from torchlan_runner import room, watch
from torchlan_runner.beat import Beat
from torchlan_runner.cluster import collect_causes
from torchlan_runner.peers import Center

WARNING = {"code": "disk_will_fill", "weight": "warning", "host": "h0", "rank": 0, "what": "w", "fix": "f"}


# ---- what goes ----


@pytest.mark.parametrize(
    ("missing", "keep", "oldest"),
    [
        ((), 1, 8),
        ((), 2, 6),
        ((), 4, 2),
        ((), 5, 0),
        ((), 0, 0),
        (("optim_000008_rank1.pt",), 1, 6),
        (("optim_000008_rank1.pt",), 2, 4),
        (("meta_000008.json", "model_000006.pt"), 1, 4),
        (("optim_000002_rank0.pt",), 4, 0),
        (tuple(f"optim_00000{number}_rank1.pt" for number in (2, 4, 6, 8)), 1, 0),
    ],
)
def test_only_what_is_whole_over_all_hosts_counts(missing: tuple[str, ...], keep: int, oldest: int) -> None:
    have = {0: [n for s in (2, 4, 6, 8) for n in step(s, 0)], 1: [f"optim_00000{s}_rank1.pt" for s in (2, 4, 6, 8)]}
    left = {node: [name for name in names if name not in missing] for node, names in have.items()}
    assert room.oldest_kept(left, 2, keep) == oldest


def test_rank_0_decides_when_all_hosts_were_heard() -> None:
    one = plan(0, keep_checkpoints=1)
    center = Center(one, watch.Limits(one), None)
    center.whole([*step(2, 0), *step(4, 0)])
    assert center.oldest == 0
    center._take(1, {"whole": step(2, 1, model=False)})
    assert center.oldest == 2
    center._take(1, {"whole": [*step(2, 1, model=False), *step(4, 1, model=False)]})
    assert center.oldest == 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "base_checkpoints" / "r"
    made.mkdir(parents=True)
    (made / "torchlan.json").write_text(json.dumps({"run": "r"}))
    return made


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[6:12]) for path in folder.glob("model_*.pt"))


def test_a_file_is_read_once_when_it_no_longer_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    broken = room.checkpoints.broken
    monkeypatch.setattr(room.checkpoints, "broken", lambda path: read.append(Path(path).name) or broken(path))
    keeper = room.Keeper(str(folder), "r", print)
    write(folder, "model_000002.pt")
    keeper.look()
    assert (read, keeper.whole) == ([], [])
    keeper.look()
    keeper.look()
    assert (read, keeper.whole) == (["model_000002.pt"], ["model_000002.pt"])
    part = folder / "model_000002.pt"
    part.write_bytes(part.read_bytes()[:-20])
    keeper.look()
    assert keeper.whole == []
    keeper.look()
    assert (read, keeper.whole) == (["model_000002.pt"] * 2, [])
    write(folder, "optim_000002_rank0.pt")
    keeper.look(over=True)
    assert keeper.whole == ["optim_000002_rank0.pt"], "who wrote it has ended: it is read at once"


def test_older_ones_of_this_run_go_and_nothing_else(folder: Path) -> None:
    said: list[str] = []
    write(folder, *step(2, 0), *step(4, 0), *step(6, 0), "notes.txt", "model_000002.pt.bak")
    kept = folder.parents[1] / "base_checkpoints_kept" / "r"
    kept.parent.mkdir()
    write(kept, *step(2, 0))
    keeper = room.Keeper(str(folder), "r", said.append)
    keeper.look(over=True)
    keeper.drop_before(4)
    keeper.drop_before(2)
    assert keeper.busy
    keeper.delete()
    assert (steps(folder), steps(kept), keeper.busy) == ([4, 6], [2], False)
    assert {"torchlan.json", "notes.txt", "model_000002.pt.bak"} <= set(os.listdir(folder))
    assert said == ["deleted checkpoints of step 2 (nanochat_keep_checkpoints)"]


def test_a_folder_of_another_run_and_files_of_another_start_stay(folder: Path) -> None:
    write(folder, *step(2, 0), *step(4, 0))
    for owner in ("another", "r"):
        (folder / "torchlan.json").write_text(json.dumps({"run": owner}))
        keeper = room.Keeper(str(folder), "r", print)
        keeper.look(over=True)
        if owner == "r":
            for name in step(2, 0):
                os.utime(folder / name, (1, 1))  # written again since
        keeper.drop_before(4)
        keeper.delete()
        assert steps(folder) == [2, 4]


def test_the_last_look_is_after_all_ranks_of_the_host(tmp_path: Path) -> None:
    nodes = [{"node_rank": n, "host": f"h{n}", "address": "", "nproc": 2} for n in range(2)]
    one = plan(1, nodes=nodes)
    object.__setattr__(one, "run_dir", str(tmp_path))
    (tmp_path / "beats").mkdir()
    found = []
    for rank, state in ((2, "finished"), (3, "training"), (3, "failed")):
        (tmp_path / f"beats/rank-{rank}.json").write_text(json.dumps({"state": state}))
        found.append(room.ended(one))
    assert found == [False, False, True]


# ---- a disk that is about to fill ----


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(f_bavail=0, f_frsize=1)
    monkeypatch.setattr(room.os, "statvfs", lambda _path: found)
    return found


def forecast(folder: Path, rank: int = 0, last: int | None = None, **changes: Any) -> room.Forecast:
    return room.Forecast(Beat(plan(rank, **changes)), str(folder), last)


def test_own_files_of_the_last_save(folder: Path) -> None:
    write(folder, *step(2, 0, 1, 2), "optim_000004_rank0.pt")
    size = {name: os.path.getsize(folder / name) for name in os.listdir(folder)}
    assert room.own_bytes(str(folder), plan(0)) == {
        2: sum(size[name] for name in step(2, 0)),
        4: size["optim_000004_rank0.pt"],
    }
    assert room.own_bytes(str(folder), plan(1)) == {2: size["optim_000002_rank1.pt"]}, "model and meta came at a resume"
    nodes = [{"node_rank": n, "host": f"h{n}", "address": "", "nproc": n + 1} for n in range(2)]
    assert room.own_bytes(str(folder), plan(1, nodes=nodes)) == {2: sum(size[n] for n in step(2, 1, 2, model=False))}


def test_said_before_the_save_and_no_longer_when_there_is_room(folder: Path, disk: SimpleNamespace) -> None:
    one = forecast(folder, 1)
    one.look()
    assert one.beat.passing is None, "nothing was saved yet: nothing is known"
    (folder / "optim_000002_rank1.pt").write_bytes(b"\0" * 2_000_000)
    disk.f_bavail = 2_100_000
    one.look()
    assert one.beat.snapshot()["causes"] == []
    disk.f_bavail -= 1
    one.look()
    one.look()
    (cause,) = one.beat.snapshot()["causes"]
    assert (cause["code"], cause["weight"], cause["host"], cause["rank"]) == ("disk_will_fill", "warning", "h1", 1)
    assert cause["what"] == f"h1: {folder} has 2.1 MB free, and the next checkpoint needs 2.1 MB"
    one.beat.state = "finished"
    assert one.beat.snapshot()["causes"] == []
    one.beat.state = "training"
    disk.f_bavail *= 2
    one.look()
    assert one.beat.snapshot()["causes"] == []


def test_not_said_after_the_last_save_nor_while_older_ones_go(
    folder: Path, disk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, *step(2, 0))
    for last, said in ((2, False), (3, True)):
        one = forecast(folder, last=last)
        one.look()
        assert bool(one.beat.passing) is said
    now = [100.0]
    monkeypatch.setattr(room.time, "monotonic", lambda: now[0])
    one = forecast(folder, keep_checkpoints=1)
    for second, said in ((0, False), (4.9, False), (5.1, True)):
        now[0] = 100.0 + second
        one.look()
        assert bool(one.beat.passing) is said


# ---- a warning is no reason ----


def test_who_exits_without_a_word_died_of_that_whatever_else_is_said() -> None:
    one = plan(0)
    center = Center(one, watch.Limits(one), socket.socket())
    center.beats = {0: beat_of(0, causes=[WARNING]), 1: beat_of(1)}
    assert center.look(0.0) is None and center.picture()["causes"] == [WARNING]
    center.beats[1] = beat_of(1, state="failed", exit_code=3)
    reason = center.look(1.0)
    assert reason is not None and (reason["code"], reason["weight"], reason["rank"]) == ("rank_died", "error", 1)


def test_a_warning_never_ends_a_run() -> None:
    one = plan(0)
    center = Center(one, watch.Limits(one), socket.socket())
    center.beats = {0: beat_of(0, causes=[WARNING]), 1: beat_of(1, state="failed")}
    assert center.look(1.0) is None
    reason = center.look(9.0)
    assert reason is not None and (reason["code"], reason["rank"]) == ("rank_died", 1)


def test_an_asked_for_end_stays_a_note() -> None:
    stopped = {**WARNING, "code": "ended_from_outside", "weight": "note", "rank": 1}
    ranks = [beat_of(0, causes=[WARNING]), beat_of(1, state="stopped", exit_code=143, causes=[stopped])]
    assert [(one["code"], one["weight"]) for one in collect_causes(ranks, None)] == [
        ("disk_will_fill", "warning"),
        ("ended_from_outside", "note"),
    ]
