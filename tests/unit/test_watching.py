# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person sees of a run that goes on, when that ends, and what a terminal makes of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from builders import ATTEMPT, beat

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import terminal, watching

NOW = 1_700_000_000.0


RESTARTS: dict[str, Any] = {
    "limit": 3,
    "failures": [{"time": NOW, "code": "link_lost", "what": "rank 1 on laptop", "step": 4, "exit_code": 1}],
    "next_unix": None,
    "gave_up": None,
}


def picture(*beats: dict[str, Any], **values: Any) -> watching.Picture:
    """What the master knows at NOW, unless its clock says otherwise."""
    cluster = {"ranks": list(beats), "causes": values.pop("causes", [])}
    given = {
        "attempt": ATTEMPT,
        "ended": "",
        "cluster": cluster,
        "restarts": {},
        "last_line": "",
        "clock": NOW,
        **values,
    }
    return watching.Picture(**given)


def pair(at: float = NOW, **values: Any) -> watching.Picture:
    """Both ranks have just beaten, and are in the same state."""
    return picture(beat(0, time=at, **values), beat(1, time=at, **values), clock=at)


def watched(*seen: tuple[float, watching.Picture]) -> watching.Watch:
    watch = watching.Watch("try")
    for at, one in seen:
        watch.see(one, NOW + at)
    return watch


# ---- the question and its answer ----


@pytest.mark.parametrize("base", ["~/a b", "~", "{home}/it's $HOME/x", "{home}/"])
def test_the_master_is_asked_with_one_command(tmp_path: Path, base: str) -> None:
    base = base.format(home=tmp_path)
    folder = Path(base.replace("~", str(tmp_path))) / "runs" / "try" / "attempts" / ATTEMPT / "node-0"
    folder.mkdir(parents=True)
    (folder.parents[2] / "current-0").symlink_to(folder)
    assert watching.read(asked(tmp_path, base)) == watching.Picture(ATTEMPT, "", {}, {}, "", 0)
    (folder / "cluster.json").write_text(json.dumps({"ranks": [beat(0)], "text": "a\nb\\n %s ü"}))
    (folder / "stopped").write_text("by a person\n")
    assert getattr(watching.read(asked(tmp_path, base)), "ended", None) == "stopped"
    (folder / "exit_code").write_text("1\n")
    (folder / "restarts.json").write_text(json.dumps(RESTARTS))
    (folder / "train.log").write_text("first\n\x1b[31mstep 1\rstep 2 of\t10\n=====\n")
    found = watching.read(asked(tmp_path, base))
    assert found and (found.ended, found.last_line) == ("exit code 1", "step 2 of10")
    assert (found.beats, found.cluster["text"]) == ([beat(0)], "a\nb\\n %s ü")
    assert found.restarts == RESTARTS and abs(found.clock - time.time()) < 5


def asked(home: Path, base: str) -> str:
    argv = ["/bin/sh", "-c", watching.command(base, "try")]
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    return subprocess.run(argv, check=False, env=env, capture_output=True, text=True).stdout


def test_no_run_and_half_an_answer(tmp_path: Path) -> None:
    assert watching.read(asked(tmp_path, "~/none")) is None
    for text in ("", "/runs/x", "/runs/x\nno time\n", "\n\n\n\n\n"):
        assert watching.read(text) is None
    for broken in ("{", "[]", "7", '{"ranks": [1, {"rank": "x"}]}'):
        found = watching.read(f"/r/attempts/{ATTEMPT}/node-0\n1\n\n{broken}\n{broken}\nline\n")
        assert found and found.beats == [] and found.attempt == ATTEMPT
        assert watched((0, found)).frame(os.terminal_size((80, 24)), NOW)[2:] == [
            "  no rank has been heard",
            "  line",
        ]


# ---- the end ----


def test_a_run_that_goes_on_is_watched() -> None:
    watch = watched((0, pair()), (29, pair(NOW + 29, step=4)))
    assert watch.over(NOW + 29) is None and watch.over(NOW + 58) is None


def test_it_ends_with_the_run() -> None:
    done = {"state": "finished", "exit_code": 0}
    assert watched((0, pair(**done))).over(NOW) is None, "torchrun ends in a moment"
    assert watched((0, pair(**done))).over(NOW + 30) == "all ranks have ended"
    ended = picture(beat(0, **done), beat(1, **done), ended="exit code 0")
    assert watched((0, ended)).over(NOW) == "the run has ended: exit code 0"


def test_hosts_where_something_is_left_have_a_moment() -> None:
    frozen = picture(beat(0, time=NOW, state="failed"), beat(1, time=NOW - 30), ended="exit code 1")
    assert watched((0, frozen)).over(NOW + 9) is None
    assert watched((0, frozen)).over(NOW + 10) == "the run has ended: exit code 1"
    long_ago = picture(beat(0, time=NOW - 500, state="failed"), beat(1, time=NOW - 530), ended="exit code 1")
    assert watched((0, long_ago)).over(NOW) == "the run has ended: exit code 1"
    assert watched((0, picture(ended="exit code 2"))).over(NOW) == "the run has ended: exit code 2"


def test_nothing_new() -> None:
    one = pair()
    watch = watched((0, one), (30, one))
    assert watch.over(NOW + 29) is None
    assert watch.over(NOW + 30) == f"nothing new since {time.strftime('%H:%M:%S', time.localtime(NOW))}"
    old = watched((0, picture(beat(0, time=NOW - 86400))))
    assert old.over(NOW) is None, "its clock may be wrong"
    assert str(old.over(NOW + 30)).startswith("nothing new since 2023-11-1")


def test_before_the_first_beat_there_is_more_patience() -> None:
    watch = watched((0, picture(last_line="a")), (100, picture(last_line="b")))
    assert watch.over(NOW + 399) is None and "nothing new" in str(watch.over(NOW + 400))


def test_a_run_that_starts_again_is_waited_for() -> None:
    watch = watched((0, picture(restarts=RESTARTS)))
    assert watch.over(NOW + 600) is None and "nothing new" in str(watch.over(NOW + 700))
    assert "nothing new" in str(watched((0, picture(restarts={**RESTARTS, "gave_up": "x"}))).over(NOW + 300))
    twice = {**RESTARTS, "failures": RESTARTS["failures"] * 2}
    assert "started again by itself 1 of at most 3 times" in said(watch, 1, picture(restarts=RESTARTS))[1]
    assert said(watch, 2, picture(restarts=RESTARTS)) == []
    assert "by itself 2 of at most 3 times" in said(watch, 3, picture(restarts=twice))[0]


def test_a_new_attempt_is_followed() -> None:
    watch = watched((0, pair()), (5, picture(beat(0, time=NOW - 100), attempt="20261130-190000", clock=NOW)))
    assert watch.report(NOW + 5)["ranks"][0]["last_beat_age_s"] == 100
    assert "attempt 20261130-190000" in watch.frame(os.terminal_size((80, 24)), NOW)[0]


def test_clocks_that_differ_make_no_rank_old() -> None:
    ahead = [picture(beat(0, time=NOW + at), beat(1, time=NOW + at - 300), clock=NOW + at) for at in (0, 2)]
    ranks = watched((0, ahead[0]), (2, ahead[1])).report(NOW + 3)["ranks"]
    assert [rank["last_beat_age_s"] for rank in ranks] == [1, 1]


# ---- in place ----


def screen_of(text: str, columns: int, lines: int = 24) -> list[str]:
    """What a terminal shows, which wraps, scrolls and never goes up beyond its first line."""
    rows, row, column = [""] * lines, 0, 0
    for up, code, other in re.findall(r"\x1b\[(\d*)([FKJ])|(\r?\n|[^\x1b\n])", text):
        if code == "F":
            row, column = max(0, row - int(up)), 0
        elif code:
            rows[row] = rows[row][:column]
            rows[row + 1 :] = [""] * (lines - row - 1) if code == "J" else rows[row + 1 :]
        elif other.endswith("\n") or column == columns:
            row, column = row + 1, 0
            if row == lines:
                rows, row = [*rows[1:], ""], lines - 1
        if other and not other.endswith("\n"):
            rows[row] = rows[row].ljust(column)[:column] + other + rows[row][column + 1 :]
            column += 1
    return rows


RANK_FROZEN = cause("rank_frozen", f"laptop: rank 1 {'stands still ' * 12}", "kill -CONT 101", host="laptop", rank=1)


@pytest.mark.parametrize("columns", [60, 80, 100, 300])
@pytest.mark.parametrize("ranks", [2, 40])
def test_each_picture_takes_the_place_of_the_one_before(columns: int, ranks: int) -> None:
    size = os.terminal_size((columns, 24))
    watch, text, drawn = watching.Watch("try"), "TASK [Watch]\n", 0
    many = [{**beat(0), "rank": rank, "host": f"host{rank}"} for rank in range(ranks)]
    pictures = [
        picture(last_line="x" * 400),
        picture(*many),
        picture(*many, causes=[RANK_FROZEN]),
        picture(*({**one, "step": 4, "val_bpb": 1.5, "step_s": 2.0, "exit_code": 1} for one in many)),
    ]
    for at, one in enumerate(pictures):
        watch.see(one, NOW + at)
        lines = watch.frame(size, NOW + at)
        assert len(lines) < size.lines and max(map(len, lines)) < columns
        text, drawn = text + terminal.redraw(lines, drawn), len(lines)
        shown = [line for line in screen_of(text, columns) if line]
        assert shown in ([line for line in ("TASK [Watch]", *lines) if line], [line for line in lines if line])
    assert "host0" in text and ("and 2" in text) == (ranks == 40)


def test_a_frame() -> None:
    late = beat(1, time=NOW - 40, collectives_begun=6)
    first = beat(0, time=NOW, step_s=2.5, waiting_in={"op": "all_gather", "n": 7, "since": NOW - 40})
    lines = watched((0, picture(first, late, causes=[RANK_FROZEN]))).frame(os.terminal_size((80, 24)), NOW)
    assert lines[0].startswith(f"run try, attempt {ATTEMPT}, ")
    assert lines[3].split() == "0 workstation waiting for rank 1 3 - - 0 s".split()
    assert lines[4].split() == "1 laptop training 3 - - 40 s".split()
    assert lines[6] == "  [#########---------------------] step 3 of 10, done in 18 s"
    assert lines[7] == "  loss 5.2500, 1,234 tokens/s, 2.5 s a step"
    assert lines[9].startswith("  error: laptop: rank 1 stands still") and lines[-1] == "    fix: kill -CONT 101"


def test_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    primary, other = os.openpty()
    monkeypatch.delenv("AWX_ISOLATED_DATA_DIR", raising=False)
    for descriptor, term, size in ((write, "xterm", None), (None, "xterm", None), (other, "dumb", None)):
        monkeypatch.setattr(terminal, "_STDOUT", descriptor)
        monkeypatch.setenv("TERM", term)
        assert terminal.size() == size
    monkeypatch.setattr(terminal, "_STDOUT", other)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.size() == (80, 24), "one that does not know its size"
    monkeypatch.setenv("AWX_ISOLATED_DATA_DIR", "/runner")
    assert terminal.size() is None
    for descriptor in (read, write, primary, other):
        os.close(descriptor)


# ---- lines ----


def said(watch: watching.Watch, at: float, one: watching.Picture) -> list[str]:
    watch.see(one, NOW + at)
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in watch.news(NOW + at)]


def test_a_line_when_something_changed() -> None:
    watch = watching.Watch("try")
    loss = "loss 5.2500, 1,234 tokens/s"
    assert said(watch, 0, picture()) == ["no rank has been heard"]
    assert said(watch, 2, pair(state="compiling", step=0)) == [f"step 0 of 10, {loss}, all compiling"]
    assert said(watch, 4, pair(state="compiling", step=0)) == []
    assert said(watch, 6, pair(step=1)) == [f"step 1 of 10, {loss}, all training"]
    assert said(watch, 8, pair(step=2)) == [], "a new step, ten seconds later at the earliest"
    assert said(watch, 16, pair(step=5)) == [f"step 5 of 10, {loss}, all training"]
    mixed = picture(beat(0, step=5, state="failed"), beat(1, step=5, doing="saving"), causes=[RANK_FROZEN])
    lines = said(watch, 18, mixed)
    assert lines[0] == f"step 5 of 10, {loss}, rank 0 failed, rank 1 saving"
    assert lines[1].startswith("  error: laptop: rank 1 stands") and said(watch, 40, mixed) == []


def test_lines_without_the_runner_are_those_of_the_log() -> None:
    watch = watching.Watch("try")
    assert said(watch, 0, picture(last_line="step 1")) == ["step 1"]
    assert said(watch, 2, picture(last_line="step 2")) == []
    assert said(watch, 11, picture(last_line="step 7")) == ["step 7"]


def test_many_ranks_are_counted() -> None:
    many = [{**beat(0), "rank": rank} for rank in range(6)]
    (line,) = said(watching.Watch("try"), 0, picture({**many[0], "doing": "saving"}, *many[1:]))
    assert line.endswith("rank 0 saving, 5 ranks training")
